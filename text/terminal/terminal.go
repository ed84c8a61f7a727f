// Package terminal prepares text for the terminal: it removes control characters and escape sequences,
// cuts lines to the width, formats the rows of tables, and shows the progress of long operations.
//
//	output of another program  ── Clean, Fit ──►  a line of the terminal
//	text of a record or a server  ── Rowf ──►  a row of a table
package terminal

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"hpcc/text"
)

// Output of other programs reaches the terminal as plain text, cut to its width. A program in
// a build may be hostile, and a line that wraps breaks a view that is redrawn in place.

// Clean returns a line without control characters and escape sequences. Tabs become spaces. It
// drops the text before the last carriage return, which a terminal would overwrite.
func Clean(line string) string {
	line = strings.TrimRight(line, "\r\n")
	line = line[strings.LastIndexByte(line, '\r')+1:]
	plain := true
	for i := range len(line) {
		plain = plain && line[i] >= ' ' && line[i] < 0x7f
	}
	if plain {
		return line
	}
	var b strings.Builder
	column := 0
	for len(line) > 0 {
		r, n := utf8.DecodeRuneInString(line)
		switch {
		case r == 0x1b || (r >= 0x80 && r < 0xa0):
			n = sequence(line)
		case r == '\t':
			spaces := 8 - column%8
			b.WriteString(strings.Repeat(" ", spaces))
			column += spaces
		case unicode.IsControl(r), r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x2028, r == 0x2029:
			// drop controls, direction marks, and line and paragraph separators
		default:
			b.WriteRune(r) // U+FFFD for bytes that are not UTF-8
			column += cells(r)
		}
		line = line[n:]
	}
	return b.String()
}

// Rowf formats a row of a table, or another line of a result. String arguments come from
// records, servers and schedulers, so it escapes control characters, line ends and tabs.
func Rowf(w io.Writer, format string, args ...any) (int, error) {
	for i, a := range args {
		switch v := a.(type) {
		case Columns:
		case error, fmt.Stringer:
			args[i] = Cell(fmt.Sprint(v))
		default:
			if text := reflect.ValueOf(a); text.Kind() == reflect.String {
				args[i] = Cell(text.String())
			}
		}
	}
	return fmt.Fprintf(w, format, args...)
}

// Columns are cells of a row that end with tabs and are already escaped.
type Columns string

// Cell returns text that fits one line and one column of a table.
func Cell(s string) string {
	return strings.NewReplacer("\n", " ", "\t", " ").Replace(text.Printable(s))
}

// ShortCell returns foreign text as a [Cell] of at most 100 bytes.
func ShortCell(s string) string { return text.Cut(Cell(s), 100) }

// sequence returns the length of the escape sequence at the head of s (ECMA-48). It can be a
// control sequence, a control string, or ESC with the characters that belong to it.
func sequence(s string) int {
	r, n := utf8.DecodeRuneInString(s)
	if r == 0x1b {
		if len(s) == 1 {
			return 1
		}
		r, n = rune(s[1])+0x40, 2 // ESC [ is the same as U+009B, and so on
		if s[1] < 0x40 || s[1] > 0x5f {
			r = 0x1b
		}
	}
	switch r {
	case 0x9b: // parameters, then a letter
		for n < len(s) && s[n] >= 0x20 && s[n] < 0x40 {
			n++
		}
		if n < len(s) && s[n] >= 0x40 && s[n] < 0x7f {
			n++
		}
	case 0x90, 0x98, 0x9d, 0x9e, 0x9f: // a string, ended by BEL, ESC \ or U+009C
		for ; n < len(s); n++ {
			for _, stop := range []string{"\a", "\x1b\\", "\u009c"} {
				if strings.HasPrefix(s[n:], stop) {
					return n + len(stop)
				}
			}
		}
	case 0x1b: // ESC, intermediate characters, a final one
		n = 1
		for n < len(s) && s[n] >= 0x20 && s[n] < 0x30 {
			n++
		}
		if n < len(s) && s[n] >= 0x30 && s[n] < 0x7f {
			n++
		}
	}
	return n
}

// wide holds the ranges of characters that take two cells of a terminal: East Asian width W
// or F (Unicode Standard Annex 11), with neighbouring ranges merged.
var wide = [][2]rune{{0x1100, 0x115f}, {0x231a, 0x231b}, {0x2329, 0x232a}, {0x23e9, 0x23f3}, {0x25fd, 0x25fe}, {0x2614, 0x2615},
	{0x2630, 0x2637}, {0x2648, 0x2653}, {0x267f, 0x267f}, {0x268a, 0x268f}, {0x2693, 0x2693}, {0x26a1, 0x26a1}, {0x26aa, 0x26ab},
	{0x26bd, 0x26be}, {0x26c4, 0x26c5}, {0x26ce, 0x26ce}, {0x26d4, 0x26d4}, {0x26ea, 0x26ea}, {0x26f2, 0x26f5}, {0x26fa, 0x26fd},
	{0x2705, 0x2705}, {0x270a, 0x270b}, {0x2728, 0x2728}, {0x274c, 0x274e}, {0x2753, 0x2757}, {0x2795, 0x2797}, {0x27b0, 0x27bf},
	{0x2b1b, 0x2b1c}, {0x2b50, 0x2b55}, {0x2e80, 0x303e}, {0x3041, 0xa4cf}, {0xa960, 0xa97c}, {0xac00, 0xd7a3}, {0xf900, 0xfaff},
	{0xfe10, 0xfe19}, {0xfe30, 0xfe6f}, {0xff01, 0xff60}, {0xffe0, 0xffe6}, {0x16fe0, 0x18dff}, {0x1aff0, 0x1b2ff}, {0x1f004, 0x1f004},
	{0x1f0cf, 0x1f0cf}, {0x1f18e, 0x1f19a}, {0x1f1e6, 0x1f265}, {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff}, {0x1f7e0, 0x1f7f0},
	{0x1f90c, 0x1f9ff}, {0x1fa70, 0x1faff}, {0x20000, 0x3fffd}}

// cells returns how many cells of a terminal a character takes.
func cells(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case r == 0x200b || r == 0x200d || r == 0xfeff, unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	}
	for _, w := range wide {
		if r <= w[1] {
			if r >= w[0] {
				return 2
			}
			break
		}
	}
	return 1
}

// Width returns how many cells a clean text takes.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += cells(r)
	}
	return n
}

// Fit cuts a clean text to n cells. A text that is cut ends in an ellipsis.
func Fit(s string, n int) string {
	if len(s) <= n || Width(s) <= n { // a character has at most as many cells as bytes
		return s
	}
	if n < 1 {
		return ""
	}
	used := 0
	for i, r := range s {
		if used += cells(r); used > n-1 {
			return s[:i] + "…"
		}
	}
	return s
}

// Repaint replaces the drawn lines of a terminal with new ones, and returns their number. It
// leaves out lines that do not fit.
func Repaint(drawn int, text string) (int, error) {
	columns, rows := Size()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > rows-1 {
		lines = append(lines[:rows-2], fmt.Sprintf("… %d more", len(lines)-rows+2))
	}
	var b strings.Builder
	if drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", min(drawn, rows-1))
	}
	for _, l := range lines {
		b.WriteString(Fit(Clean(l), columns-1) + "\n")
	}
	_, err := os.Stdout.WriteString(b.String())
	return len(lines), err
}

// Size returns the size of the terminal on standard output, or 80 columns and 24 rows.
func Size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || columns < 2 || rows < 3 {
		return 80, 24
	}
	return columns, rows
}

// Reflow fills paragraphs to the given columns. It keeps indented lines, which are examples.
func Reflow(text string, columns int) string {
	var b strings.Builder
	var paragraph []string
	flush := func() {
		if len(paragraph) > 0 {
			b.WriteString(Wrap("", strings.Join(paragraph, " "), columns, 0))
			paragraph = nil
		}
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "":
			flush()
			b.WriteString("\n")
		case line[0] == ' ':
			flush()
			b.WriteString(line + "\n")
		default:
			paragraph = append(paragraph, line)
		}
	}
	flush()
	return b.String()
}

// Wrap writes text after head in lines of at most the given columns; further lines begin
// with indent spaces. A word that is longer than a line has a line of its own.
func Wrap(head, text string, columns, indent int) string {
	var b strings.Builder
	b.WriteString(head)
	at := Width(head)
	begun := strings.TrimSpace(head) == "" || strings.HasSuffix(head, " ")
	for i, word := range strings.Fields(text) {
		n := Width(word)
		switch {
		case i == 0 && begun:
			if at > indent && at+n > columns {
				b.WriteString("\n" + strings.Repeat(" ", indent))
				at = indent
			}
		case at+1+n > columns && at > indent:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteString(" ")
			at++
		}
		b.WriteString(word)
		at += n
	}
	b.WriteString("\n")
	return b.String()
}
