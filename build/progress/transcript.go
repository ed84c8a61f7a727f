package progress

import (
	"bytes"
	"slices"
	"strings"

	"hpcc/text/terminal"
)

// Limits of a program's output that a transcript keeps.
const (
	keptLines = 20
	longLine  = 64 << 10 // bytes
)

// A transcript splits the output of a program into clean lines.
type transcript struct {
	rest []byte   // the beginning of a line that has not ended
	last []string // the newest lines
}

// add appends output and returns the lines that it completes.
func (t *transcript) add(p []byte) (lines []string) {
	t.rest = append(t.rest, p...)
	for {
		i := bytes.IndexByte(t.rest, '\n')
		if i < 0 && len(t.rest) > longLine {
			i = len(t.rest) - 1
		}
		if i < 0 {
			break
		}
		lines = append(lines, terminal.Clean(string(t.rest[:i+1])))
		t.rest = t.rest[i+1:]
	}
	t.rest = bytes.Clone(t.rest)
	t.last = append(t.last, lines...)
	t.last = slices.Clone(t.last[max(0, len(t.last)-keptLines):])
	return lines
}

// flush ends the last line.
func (t *transcript) flush() []string {
	if len(t.rest) == 0 {
		return nil
	}
	return t.add([]byte("\n"))
}

// newest returns the n newest lines, including one that has not ended.
func (t *transcript) newest(n int) []string {
	lines := t.last
	if now := terminal.Clean(string(t.rest)); strings.TrimSpace(now) != "" {
		lines = append(slices.Clone(lines), now)
	}
	return lines[max(0, len(lines)-n):]
}
