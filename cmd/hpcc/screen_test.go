package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"hpcc/text/terminal"
)

// A screen is a small terminal. It supports only the sequences that the view writes. Lines that
// scroll off the screen are kept.
type screen struct {
	mu            sync.Mutex
	wrong         func(format string, a ...any) // called for unsupported sequences
	columns, rows int
	lines         []string // without padding; a wide character is one rune
	y             int      // index of the cursor line
	x             int      // cursor column, in cells
	noWrap        bool
	dims          int // number of dimmed texts
	rest          string
}

var sequences = regexp.MustCompile(`^\x1b\[(\??)([0-9]*)([AJKmlh])`)

func (s *screen) Write(p []byte) (int, error) {
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

func (s *screen) control(kind, number string) {
	n := 1
	_, _ = fmt.Sscan(number, &n)
	switch kind {
	case "A":
		if s.y -= n; s.y < max(0, len(s.lines)-s.rows) {
			s.wrong("the cursor goes %d rows up, above the screen of %d", n, s.rows)
			s.y = 0
		}
	case "J":
		s.line()
		s.lines = s.lines[:s.y+1]
		s.lines[s.y] = prefix(s.lines[s.y], s.x)
	case "K":
		s.line()
		s.lines[s.y] = prefix(s.lines[s.y], s.x)
	case "m":
		if number == "2" {
			s.dims++
		}
	case "?l", "?h":
		if number != "7" {
			s.wrong("private mode %s is not known", number)
		}
		s.noWrap = kind == "?l"
	}
}

// line adds lines up to that of the cursor.
func (s *screen) line() {
	for len(s.lines) <= s.y {
		s.lines = append(s.lines, "")
	}
}

func (s *screen) put(r rune) {
	s.line()
	switch {
	case r == '\n':
		s.y, s.x = s.y+1, 0
		s.line()
	case r == '\r':
		s.x = 0
	case r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0):
		s.wrong("control character %q reaches the terminal", r)
	default:
		if s.x+terminal.Width(string(r)) > s.columns {
			if s.noWrap {
				return
			}
			s.y, s.x = s.y+1, 0
			s.line()
		}
		s.lines[s.y] = prefix(s.lines[s.y], s.x) + string(r) // the view never overwrites the middle of a line
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

// resize changes the width of the screen. Lines that are now too wide wrap, as on terminals.
func (s *screen) resize(columns int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for i, l := range s.lines {
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
	s.lines, s.columns = lines, columns
}

// text returns all lines, with times replaced.
func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := slices.Clone(s.lines)
	for i, l := range lines {
		lines[i] = strings.TrimRight(times.ReplaceAllString(l, "TIME"), " ")
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

var times = regexp.MustCompile(`\b[0-9]+\.[0-9]s\b`)
