package testenv

import "sync"

// Messages collects messages to the user. Several goroutines may use it.
type Messages struct {
	mu   sync.Mutex
	text string
}

// Add appends a message as a line.
func (m *Messages) Add(line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.text += line + "\n"
}

// String returns all lines.
func (m *Messages) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text
}
