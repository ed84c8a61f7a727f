package envfile

import (
	"fmt"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestExpansion(t *testing.T) {
	env := []string{"SET=foo", "EMPTY="}
	for _, c := range []struct{ line, want string }{
		{"A=b=c", "b=c"}, {`A="b"`, `"b"`}, {"A=b # c", "b # c"}, {"A= b", " b"}, {"A='b c'", "b c"},
		{"A=''", ""}, {"A=''''", "''"}, {"A='a'b'c'", "a'b'c"}, {"A='abc", "'abc"},
		{"A=$SET", "foo"}, {"A=$SET:b", "foo:b"}, {"A=b$SET", "b$SET"}, {"A=bar:$", "bar:$"}, {"A=::$SET", "::foo"},
		{"A=$UNSET", ""}, {"A=$EMPTY", ""}, {"A=x:$UNSET", "x"}, {"A=x:$UNSET:", "x:"}, {"A=:$UNSET:x", ":x"},
		{"A=x:$UNSET:y", "x:y"}, {"A=:$UNSET", ""}, {"A=::$UNSET", ":"}, {"A=$UNSET::", ":"}, {"A=$UNSET:x", "x"},
		{"A=$BAR baz:qux", "qux"}, {"A='$SET'", "foo"}, {`A=\$SET`, `\$SET`}, {"A=$$SET", ""},
		{"A=${SET}", "foo"}, {"A=${SET}/lib:x", "foo/lib:x"}, {"A=$SET/lib", "foo/lib"}, {"A=${UNSET}/lib:x", "x"},
		{"A=$UNSET/lib:x", "x"}, {"A=::", "::"},
	} {
		cs, err := Read(strings.NewReader(c.line), "f", Options{})
		if err != nil {
			t.Errorf("Read(%q): %v", c.line, err)
			continue
		}
		got := apply(t, env, cs, true)
		if g := Lookup(got, "A"); g != c.want {
			t.Errorf("%q sets A to %q; want %q", c.line, g, c.want)
		}
	}
}

func TestNamesAreVerbatim(t *testing.T) {
	cs, err := Read(strings.NewReader(" A=1\nexport B=2\nC\t=3\n"), "f", Options{})
	testenv.Check(t, err)
	got := apply(t, nil, cs, true)
	want := []string{" A=1", "export B=2", "C\t=3"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q; want %q", got, want)
	}
}

func TestOrderAndComments(t *testing.T) {
	cs, err := Read(strings.NewReader("# comment\r\na=1\r\nb=$a:2\r\n\r\na=3\n"), "f", Options{})
	testenv.Check(t, err)
	if got := strings.Join(apply(t, []string{"x=0"}, cs, true), "|"); got != "x=0|a=3|b=1:2" {
		t.Errorf("environment %q; want x=0, a=3, b=1:2", got)
	}
	if got := Lookup(apply(t, nil, cs, false), "b"); got != "$a:2" {
		t.Errorf("without expansion b = %q; want %q", got, "$a:2")
	}
}

func TestNULRecords(t *testing.T) {
	cs, err := Read(strings.NewReader("A=1\n2\x00B='x'\n\x00"), "f", Options{NUL: true})
	testenv.Check(t, err)
	if got := strings.Join(apply(t, nil, cs, true), "|"); got != "A=1\n2|B=x" {
		t.Errorf("environment %q; want A=1\\n2 and B=x", got)
	}
}

// TestExact checks that the values of --env are used unchanged, also between other changes.
func TestExact(t *testing.T) {
	exact, err := Read(strings.NewReader("A='$B'\n\x00B= x \n\n\x00"), "f", Options{NUL: true, Exact: true})
	testenv.Check(t, err)
	later, err := Literal("C=$A:$B")
	testenv.Check(t, err)
	last, err := Exact("A=\"$C\"")
	testenv.Check(t, err)
	unset, err := Unset("B")
	testenv.Check(t, err)
	list := append(exact, later, unset, last)
	if got := strings.Join(apply(t, []string{"A=0", "B=0"}, list, true), "|"); got != "A=\"$C\"|C='$B': x \n" {
		t.Errorf("environment %q", got)
	}
}

func TestReadErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"A=1\nFOO bar\n", `f:2: "FOO bar" has no "="`},
		{"=bar", `f:1: "=bar" has no name`},
		{"A=1\n  \n", `f:2: "  " has no "="`},
		{"A=b\x00c\n", `f:1: variable "A" contains a NUL byte`},
	} {
		_, err := Read(strings.NewReader(c.text), "f", Options{})
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("Read(%q) = %v; want %q", c.text, err, c.want)
		}
	}
}

func TestUnset(t *testing.T) {
	env := []string{"A_1=x", "A_2=x", "A_30=x", "B=x"}
	for _, c := range []struct{ glob, want string }{
		{"*", ""}, {"A_*", "B"}, {"A_@(1|2)", "A_30,B"}, {"!(A_*)", "A_1,A_2,A_30"}, {"A_?", "A_30,B"},
		{"A_[1-2]", "A_30,B"}, {"A_[!1]", "A_1,A_30,B"}, {"A_+([0-9])", "B"}, {"nothing", "A_1,A_2,A_30,B"},
		{"A_?(30)", "A_1,A_2,B"}, {"*(A_|[0-9])", "B"}, {"[", "A_1,A_2,A_30,B"}, {"(", "A_1,A_2,A_30,B"},
	} {
		u, err := Unset(c.glob)
		testenv.Check(t, err)
		var names []string
		for _, kv := range apply(t, env, []Change{u}, true) {
			n, _, _ := strings.Cut(kv, "=")
			names = append(names, n)
		}
		if got := strings.Join(names, ","); got != c.want {
			t.Errorf("--unset-env=%q leaves %q; want %q", c.glob, got, c.want)
		}
	}
	if _, err := Unset(""); err == nil {
		t.Error("an empty pattern is accepted")
	}
}

// TestUnsetIsPolynomial matches patterns that would take exponential time with plain
// backtracking.
func TestUnsetIsPolynomial(t *testing.T) {
	match("*(*(*(*(a))))b", strings.Repeat("a", 60))
	match(strings.Repeat("*a", 20)+"b", strings.Repeat("a", 200))
}

func FuzzRead(f *testing.F) {
	f.Add("A=1\n#c\nB=$A:x\r\n", false)
	f.Add("A='x'\x00B=2", true)
	f.Fuzz(func(t *testing.T, text string, nul bool) {
		cs, err := Read(strings.NewReader(text), "f", Options{NUL: nul})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f:") {
				t.Errorf("error %q does not name the line", err)
			}
			return
		}
		for _, kv := range apply(t, []string{"A=1"}, cs, true) {
			if strings.IndexByte(kv, '=') < 1 || strings.ContainsRune(kv, 0) {
				t.Errorf("%q is not a variable", kv)
			}
		}
	})
}

func FuzzMatch(f *testing.F) {
	f.Add("!(A_*)", "B")
	f.Add("*(a|b)c", "abac")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 40 || len(name) > 40 {
			t.Skip()
		}
		match(pattern, name)
	})
}

func apply(t *testing.T, env []string, cs []Change, expand bool) []string {
	t.Helper()
	out, err := Apply(env, cs, expand)
	testenv.Check(t, err)
	return out
}

// TestDoubling checks that Apply rejects values that double with each line, and names the
// line.
func TestDoubling(t *testing.T) {
	var b strings.Builder
	b.WriteString("A0=aaaaaaaaaa\n")
	for i := range 40 {
		fmt.Fprintf(&b, "A%d=$A%d:$A%d\n", i+1, i, i)
	}
	many := "A=" + strings.Repeat("a", 1<<20) + "\n" + strings.Repeat("B=$A\n", 100)
	for text, want := range map[string]string{
		b.String(): `doubling.env:19: setting variable "A18": the value would be larger than 2097152 bytes`,
		many:       `doubling.env:16: setting variable "B": the environment would be larger than 16777216 bytes`,
	} {
		cs, err := Read(strings.NewReader(text), "doubling.env", Options{})
		testenv.Check(t, err)
		if _, err := Apply(nil, cs, true); err == nil || err.Error() != want {
			t.Errorf("Apply: %v; want %s", err, want)
		}
		if _, err := Apply(nil, cs, false); err != nil {
			t.Errorf("Apply without expansion: %v", err)
		}
	}
	// Expanding a long list takes linear time.
	cs, err := Read(strings.NewReader("L="+strings.Repeat("$NONE:", 1<<20)+"end"), "long.env", Options{})
	testenv.Check(t, err)
	if got := apply(t, nil, cs, true); got[0] != "L=end" {
		t.Errorf("a list of unset variables: %.60q; want L=end", got[0])
	}
}
