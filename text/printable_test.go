package text

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestPrintable(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"plain text", "plain text"},
		{"naïve 漢字 🎉 👩‍🔬", "naïve 漢字 🎉 👩‍🔬"},
		{"\x1b[2Jred", `\x1b[2Jred`},
		{"\x1b]0;title\a", `\x1b]0;title\x07`},
		{"a\u009b31mb", `a\u009b31mb`},
		{"a\x9bb", `a\x9bb`},
		{"user\u202etxt.exe", `user\u202etxt.exe`},
		{"a\u2066b\u2069\u200f\u061c", `a\u2066b\u2069\u200f\u061c`},
		{"one\nhpcc: error: two", "one\n  hpcc: error: two"},
		{"one\r\nhpcc: two\r\n", "one\n  hpcc: two"},
		{"one\rhpcc: two", `one\x0dhpcc: two`},
		{"one\n\thpcc: two\n  three", "one\n\thpcc: two\n  three"},
		{"one\u2028hpcc: two\u0085", `one\u2028hpcc: two\u0085`},
		{"a\tb\x00\x7f", "a\tb\\x00\\x7f"},
	} {
		if got := Printable(c.in); got != c.want {
			t.Errorf("Printable(%q) = %q; want %q", c.in, got, c.want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("plain")
	f.Add("\x1b[31m\nhpcc: error: x\r\n\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		p := Printable(s)
		if !utf8.ValidString(p) {
			t.Fatalf("Printable(%q) = %q is not UTF-8", s, p)
		}
		for i, line := range strings.Split(p, "\n") {
			if i > 0 && line != "" && line[0] != ' ' && line[0] != '\t' {
				t.Fatalf("Printable(%q) = %q: line %d is not indented", s, p, i)
			}
			if strings.ContainsFunc(line, func(r rune) bool { return (unicode.IsControl(r) && r != '\t') || changesDirection(r) }) {
				t.Fatalf("Printable(%q) = %q", s, p)
			}
		}
	})
}
