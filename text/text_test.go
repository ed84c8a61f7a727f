package text

import (
	"strings"
	"testing"
)

// TestShort checks that truncation does not split a character. Invalid UTF-8 is truncated too.
func TestShort(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"short", "short"},
		{strings.Repeat("x", 80), strings.Repeat("x", 80)},
		{strings.Repeat("x", 81), strings.Repeat("x", 80) + "…"},
		{strings.Repeat("x", 78) + "日本", strings.Repeat("x", 78) + "…"},
		{strings.Repeat("x", 77) + "日本", strings.Repeat("x", 77) + "日…"},
		{strings.Repeat("\x80", 100), strings.Repeat("\x80", 76) + "…"},
	} {
		if got := Short(c.in); got != c.want {
			t.Errorf("Short(%q) = %q; want %q", c.in, got, c.want)
		}
	}
}
