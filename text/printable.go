package text

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable returns text from file names, servers or other users in a form that is safe in
// hpcc's messages. Control characters, invalid UTF-8 and characters that change the
// direction of text become escapes as in Go source (\x1b, \u202e). Lines after the first
// are indented, so that they cannot look like a message of hpcc.
func Printable(text string) string {
	text = strings.TrimRight(text, "\r\n")
	if isPlain(text) {
		return text
	}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		if i > 0 {
			b.WriteByte('\n')
			if line != "" && line[0] != ' ' && line[0] != '\t' {
				b.WriteString("  ")
			}
		}
		for len(line) > 0 {
			r, n := utf8.DecodeRuneInString(line)
			switch {
			case r == utf8.RuneError && n == 1, r < ' ' && r != '\t', r == 0x7f:
				fmt.Fprintf(&b, `\x%02x`, line[0])
			case unicode.IsControl(r) && r != '\t', changesDirection(r):
				fmt.Fprintf(&b, `\u%04x`, r)
			default:
				b.WriteString(line[:n])
			}
			line = line[n:]
		}
	}
	return b.String()
}

// changesDirection reports whether r changes the direction of text or ends a line for
// some programs (Unicode Standard Annex 9, Bidi_Control).
func changesDirection(r rune) bool {
	return (r >= 0x202a && r <= 0x202e) || (r >= 0x2066 && r <= 0x2069) ||
		r == 0x200e || r == 0x200f || r == 0x061c || r == 0x2028 || r == 0x2029
}

// isPlain reports whether text has only printable ASCII characters.
func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}
