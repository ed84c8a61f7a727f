// Package screen is a small terminal for tests.
package screen

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"hpcc/text/terminal"
)

// A Screen is a small terminal. It supports only the sequences that the view writes. Lines that
// scroll off the screen are kept.
type Screen struct {
	mu            sync.Mutex
	Wrong         func(format string, a ...any) // called for unsupported sequences
	Columns, Rows int
	Lines         []string // without padding; a wide character is one rune
	y             int      // index of the cursor line
	x             int      // cursor column, in cells
	noWrap        bool
	Dims          int // number of dimmed texts
	rest          string
}

var sequences = regexp.MustCompile(`^\x1b\[(\??)([0-9]*)([AJKmlh])`)

// Write shows text.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.rest + string(p)
	s.rest = ""
	for in != "" {
		if m := sequences.FindStringSubmatch(in); m != nil {
			s.control(m[1]+m[3], m[2])
			in = in[len(m[0]):]
			continue
		}
		if !utf8.FullRuneInString(in) || (strings.HasPrefix(in, "\x1b") && len(in) < 8) { // the next write contains the rest
			s.rest = in
			break
		}
		r, n := utf8.DecodeRuneInString(in)
		in = in[n:]
		s.put(r)
	}
	return len(p), nil
}

func (s *Screen) control(kind, number string) {
	n := 1
	_, _ = fmt.Sscan(number, &n)
	switch kind {
	case "A":
		if s.y -= n; s.y < max(0, len(s.Lines)-s.Rows) {
			s.Wrong("the cursor goes %d rows up, above the screen of %d", n, s.Rows)
			s.y = 0
		}
	case "J":
		s.line()
		s.Lines = s.Lines[:s.y+1]
		s.Lines[s.y] = prefix(s.Lines[s.y], s.x)
	case "K":
		s.line()
		s.Lines[s.y] = prefix(s.Lines[s.y], s.x)
	case "m":
		if number == "2" {
			s.Dims++
		}
	case "?l", "?h":
		if number != "7" {
			s.Wrong("private mode %s is not known", number)
		}
		s.noWrap = kind == "?l"
	}
}

// line adds lines up to that of the cursor.
func (s *Screen) line() {
	for len(s.Lines) <= s.y {
		s.Lines = append(s.Lines, "")
	}
}

func (s *Screen) put(r rune) {
	s.line()
	switch {
	case r == '\n':
		s.y, s.x = s.y+1, 0
		s.line()
	case r == '\r':
		s.x = 0
	case r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0):
		s.Wrong("control character %q reaches the terminal", r)
	default:
		if s.x+terminal.Width(string(r)) > s.Columns {
			if s.noWrap {
				return
			}
			s.y, s.x = s.y+1, 0
			s.line()
		}
		s.Lines[s.y] = prefix(s.Lines[s.y], s.x) + string(r) // the view never overwrites the middle of a line
		s.x += terminal.Width(string(r))
	}
}

// prefix returns the first n cells of a line.
func prefix(line string, n int) string {
	for i, r := range line {
		if n -= terminal.Width(string(r)); n < 0 {
			return line[:i]
		}
	}
	return line
}

// Resize changes the width of the screen. Lines that are now too wide wrap, as on terminals.
func (s *Screen) Resize(columns int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for i, l := range s.Lines {
		if i == s.y {
			s.y = len(lines)
		}
		for terminal.Width(l) > columns {
			first := prefix(l, columns)
			lines = append(lines, first)
			l = l[len(first):]
		}
		lines = append(lines, l)
	}
	s.Lines, s.Columns = lines, columns
}

// Text returns all lines, with times replaced.
func (s *Screen) Text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := slices.Clone(s.Lines)
	for i, l := range lines {
		lines[i] = strings.TrimRight(times.ReplaceAllString(l, "TIME"), " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

var times = regexp.MustCompile(`\b[0-9]+\.[0-9]s\b`)
