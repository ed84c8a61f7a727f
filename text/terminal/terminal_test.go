package terminal

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"text", "plain text", "plain text"},
		{"end of a line", "text\r\n", "text"},
		{"letters of others", "naïve 漢字 🎉", "naïve 漢字 🎉"},
		{"colour", "\x1b[1;31mred\x1b[0m line", "red line"},
		{"clear the screen", "a\x1b[2J\x1b[Hb", "ab"},
		{"title, by BEL", "a\x1b]0;owned\ab", "ab"},
		{"title, by ST", "a\x1b]0;owned\x1b\\b", "ab"},
		{"title without end", "a\x1b]0;owned", "a"},
		{"answer back", "a\x1bP$q\x1b\\b\x1b^x\x1b\\c", "abc"},
		{"character set", "a\x1b(0b", "ab"},
		{"reset", "a\x1bcb", "ab"},
		{"cut off", "a\x1b", "a"},
		{"cut off in a sequence", "a\x1b[3", "a"},
		{"eight-bit control", "a\u009b2Jb\u009d0;x\u009cc\u0085d", "abcd"},
		{"eight-bit control, raw", "a\x9b2J", "a\ufffd2J"},
		{"written over", "10%\r20%\r100%", "100%"},
		{"written over, end", "10%\r20%\r", "20%"},
		{"bell, backspace, null", "a\a\b\x00\x7fb", "ab"},
		{"tab", "a\tb\t漢\tc", "a       b       漢      c"},
		{"right to left", "a\u202eb\u2066c\u2069", "abc"},
		{"no UTF-8", "a\xffb", "a\ufffdb"},
	} {
		if got := Clean(c.in); got != c.want {
			t.Errorf("%s: Clean(%q) = %q; want %q", c.name, c.in, got, c.want)
		}
	}
}

func TestFit(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"hello", 5, "hello"}, {"hello", 4, "hel…"}, {"hello", 1, "…"}, {"hello", 0, ""}, {"hello", -3, ""},
		{"漢字漢字", 8, "漢字漢字"}, {"漢字漢字", 7, "漢字漢…"}, {"漢字漢字", 6, "漢字…"}, {"漢字", 3, "漢…"}, {"漢字", 2, "…"},
		{"e\u0301e\u0301", 2, "e\u0301e\u0301"}, {"e\u0301e\u0301e\u0301", 2, "e\u0301…"}, {"🎉🎉", 3, "🎉…"},
	} {
		if got := Fit(c.in, c.n); got != c.want {
			t.Errorf("Fit(%q, %d) = %q; want %q", c.in, c.n, got, c.want)
		}
	}
}

// FuzzClean checks that only printable characters remain, and that a line is never wider than
// requested.
func FuzzClean(f *testing.F) {
	for _, s := range []string{"plain", "\x1b[31mred", "a\x1b]0;t\ab", "\u009b1m", "\xff\x1b", "\r\r\n", "漢\t字", "\x1b\x1b[["} {
		f.Add(s, 10)
	}
	f.Fuzz(func(t *testing.T, s string, n int) {
		c := Clean(s)
		if !utf8.ValidString(c) || strings.ContainsFunc(c, unicode.IsControl) {
			t.Errorf("Clean(%q) = %q", s, c)
		}
		if got := Fit(c, n); Width(got) > max(n, 0) {
			t.Errorf("Fit(%q, %d) = %q, %d wide", c, n, got, Width(got))
		}
	})
}
