package expand

import (
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

func TestWordBounds(t *testing.T) {
	big := strings.Repeat("a", 700<<10)
	vars := []string{"BIG=" + big, "V=1.2.3", "E=", "LONG=" + strings.Repeat("a", 9000)}
	nested := func(n int) string { return strings.Repeat("${E:-", n) + "x" + strings.Repeat("}", n) }
	for _, c := range []struct{ name, word, want, err string }{
		{"large value", "$BIG", big, ""},
		{"replacement", "v${V//./_}-${V/1/${V#1.}}", "v1_2_3-2.3.2.3", ""},
		{"replacement after a long text", strings.Repeat("x", 1<<20) + "${V//./_}", strings.Repeat("x", 1<<20) + "1_2_3", ""},
		{"default that is a path", "${E:-/usr/lib}", "/usr/lib", ""},
		{"deepest nesting", nested(maxNesting), "x", ""},
		{"twice", "$BIG$BIG", "", "larger than 1048576 bytes"},
		{"twice in a default", "${E:-$BIG}$BIG", "", "larger than 1048576 bytes"},
		{"too deep", nested(100_000), "", "nested deeper than 32"},
		{"too deep, unclosed", strings.Repeat("${E:-", 100_000), "", "nested deeper than 32"},
		{"product", "${BIG//a/$BIG}", "", "larger than"},
		{"product of a long text", "${LONG//a/" + strings.Repeat("b", 9000) + "}", "", "larger than"},
		{"product of products", "${LONG//a/${V//./${V//./$LONG}}}", "", "larger than"},
		{"many products", strings.Repeat("${V//1/", 5) + strings.Repeat("}", 5), "", "nested deeper than 3"},
	} {
		out, err := Word(shell.NewLex('\\'), c.word, shell.EnvsFromSlice(vars))
		if (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) || out.Result != c.want {
			t.Errorf("%s: %d bytes, %v; want %d bytes, error %q", c.name, len(out.Result), err, len(c.want), c.err)
		}
	}
}

func FuzzWord(f *testing.F) {
	for _, w := range []string{"$A", "${A:-b}", "${A//a/$B}", `"$A"'$B'\$`, "${A#a}${B%b}", "${A:?no}", "${A/b/${B/c/$A}}"} {
		f.Add(w)
	}
	vars := []string{"A=" + strings.Repeat("ab", 300), "B=c/d", "C="}
	f.Fuzz(func(t *testing.T, word string) {
		if len(word) > 4096 {
			return
		}
		out, err := Word(shell.NewLex('\\'), word, shell.EnvsFromSlice(vars))
		if err == nil && len(out.Result) > 128<<20 {
			t.Errorf("%q expands to %d bytes; want at most 128 MiB", word, len(out.Result))
		}
	})
}
