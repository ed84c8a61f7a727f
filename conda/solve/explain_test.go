package solve

import (
	"errors"
	"strings"
	"testing"
)

const main = "https://repo.anaconda.com/pkgs/main"

// TestExplainReal checks the explanations of real problems without a solution.
func TestExplainReal(t *testing.T) {
	for _, c := range []struct {
		subdir, wants string
		want          []string
	}{
		{"linux-ppc64le", "mkl", []string{"there is no package named mkl for linux-ppc64le in " + main}},
		{"linux-ppc64le", "numpy=1.26 & scipy", []string{"numpy=1.26 has no build for linux-ppc64le in " + main + "; the newest is 1.20.3"}},
		{"linux-ppc64le", "numpy=1.20.3=py39_77 & scipy", []string{"numpy=1.20.3=py39_77 has no such build for linux-ppc64le in " + main + "; available builds: py37hc544b32_0, py38hc544b32_0, py39hc544b32_0"}},
		{"linux-ppc64le", "python=3.8 & dask & numba", []string{"numba cannot be installed for linux-ppc64le:", "numba 0.53.1 needs tbb >=2020.3", "numba 0.53.1 is only compatible with tbb >=2019.5,<=2020.3", "available versions of tbb: 2021.3.0"}},
		{"linux-64", "tensorflow & mkl & python=3.6", []string{"tensorflow and python=3.6 cannot be installed together for linux-64:", "tensorflow 2.4.1 to 2.6.0 needs python 3.9.* | 3.8.* | 3.7.*"}},
		{"linux-64", "tensorflow", []string{"tensorflow cannot be installed for linux-64:", "tensorflow 2.4.1 to 2.6.0 needs tensorflow-base 2.6.0 mkl_py39h3d85931_0 | 2.6.0 mkl_py38h3d85931_0 | 2.6.0 mkl_py37h3d85931_0 | 18 more",
			"tensorflow-base 2.6.0 needs gast 0.4.0; gast 0.4.0 has no build for linux-64 in " + main + "; the newest is 0.5.2"}},
	} {
		p := &Problem{Subdir: c.subdir, Channels: []string{main}, Pip: true, Wants: specs(t, strings.Split(c.wants, " & ")...), Virtual: machine()}
		_, err := gatherAndSolve(t.Context(), p, main2021(t, c.subdir))
		if want := strings.Join(c.want, "\n  "); err == nil || err.Error() != want {
			t.Errorf("%s on %s: %v\nwant %s", c.wants, c.subdir, err, want)
		}
	}
}

// TestExplainShort checks that each recorded problem without a solution is explained in two
// to six lines, or in one line if a single request causes it.
func TestExplainShort(t *testing.T) {
	n := 0
	var cases []answer
	readTestdata(t, "answers", &cases)
	for _, c := range cases {
		if c.Conda != nil {
			continue
		}
		p := &Problem{Subdir: c.Subdir, Channels: []string{main}, Wants: specs(t, c.Specs...), Virtual: machine()}
		_, err := gatherAndSolve(t.Context(), p, main2021(t, c.Subdir))
		var u *Unsolvable
		if !errors.As(err, &u) || len(u.lines) > maxLines || len(u.lines) < 1 {
			t.Errorf("%s: %v", c.Specs, err)
		}
		n++
	}
	if n != 7 {
		t.Errorf("%d cases without a solution; want 7", n)
	}
}

func TestExplain(t *testing.T) {
	two := func(text string) *Record {
		r := parseRecord(t, text)
		r.Origin = "https://two"
		return r
	}
	for _, c := range []struct {
		name, wants string
		records     []*Record
		want        string
	}{
		{"strict priority", "a >=2", []*Record{parseRecord(t, "a 1"), two("a 2")},
			"a >=2 is excluded by strict channel priority: https://two has it, but https://one, which comes first, has other packages of that name (the newest is 1)"},
		{"C library", "a", []*Record{parseRecord(t, "a 1; __glibc >=2.34")},
			"a cannot be installed for linux-64:\n  a 1 needs __glibc >=2.34; the image has __glibc 2.28 (override it with --virtual-package __glibc=VERSION)"},
		{"no GPU", "a", []*Record{parseRecord(t, "a 1; __cuda")},
			"a cannot be installed for linux-64:\n  a 1 needs __cuda of any version; it is not declared for the image (declare it with --with-cuda VERSION)"},
		{"unsupported version or requirement", "a", []*Record{parseRecord(t, "a 1; b[when=c]"), parseRecord(t, "a 1..2")},
			"no package of a for linux-64 in https://one and https://two can be used: unsupported versions or requirements"},
		{"two requests", "a & b", []*Record{parseRecord(t, "a 1; c 1"), parseRecord(t, "b 1; c 2"), parseRecord(t, "c 1"), parseRecord(t, "c 2"), parseRecord(t, "d 1")},
			"a and b cannot be installed together for linux-64:\n  a 1 needs c 1\n  b 1 needs c 2\n  available versions of c: 1, 2"},
		{"contradictory requests", "a <1 & a >2", []*Record{parseRecord(t, "a 0.5"), parseRecord(t, "a 3")}, "a <1 and a >2 cannot be installed together for linux-64:"},
	} {
		p := &Problem{Subdir: "linux-64", Channels: []string{"https://one", "https://two"}, Wants: specs(t, strings.Split(c.wants, " & ")...), Virtual: machine()}
		_, err := p.Solve(t.Context(), c.records)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}
