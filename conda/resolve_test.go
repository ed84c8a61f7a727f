package conda

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/solve"
	"hpcc/testdata/helpers/testenv"
)

func read(t testing.TB, text string) *exports.Export {
	t.Helper()
	e, err := exports.Read(strings.NewReader(text), "env.txt", exports.ReadOptions{})
	testenv.Check(t, err)
	return e
}

// found returns the chosen file of one package, and the channel's directory.
func found(p *Plan, name string) string {
	for _, r := range p.pkgs {
		if r.Name == name {
			return filepath.Base(r.Origin) + "/" + r.Subdir + "/" + r.FileName
		}
	}
	return ""
}

func TestLookup(t *testing.T) {
	root := t.TempDir()
	first, second := filepath.Join(root, "first"), filepath.Join(root, "second")
	lib := func(build, subdir string, number int) *testPkg {
		return &testPkg{name: "lib", version: "2.0", build: build, subdir: subdir, number: number}
	}
	channelAt(t, first, &testPkg{name: "python", version: "3.11.4", build: "h1_0"}, &testPkg{name: "python", version: "3.11.4", build: "h9_0", subdir: "linux-aarch64"},
		&testPkg{name: "lib", version: "1.0"}, lib("h1_0", "linux-64", 0), lib("h1_1", "linux-64", 1),
		lib("py311h2_0", "linux-aarch64", 0), lib("py311h3_3", "linux-aarch64", 3), lib("py312h4_9", "linux-aarch64", 9),
		&testPkg{name: "pure", noarch: "python", subdir: "noarch"}, &testPkg{name: "both", version: "1"})
	channelAt(t, second, &testPkg{name: "both", version: "1"}, &testPkg{name: "both", version: "2"}, &testPkg{name: "only", version: "1!2.0+cu118"})
	for _, c := range []struct{ name, in, subdir, pkg, want string }{
		{"the build", "# platform: linux-64\nlib=2.0=h1_0", "linux-64", "lib", "first/linux-64/lib-2.0-h1_0.conda"},
		{"the highest build number of a version", "lib=2.0", "linux-64", "lib", "first/linux-64/lib-2.0-h1_1.conda"},
		{"noarch", "pure=1.0=0", "linux-64", "pure", "first/noarch/pure-1.0-0.conda"},
		{"the first channel wins", "both=1=0", "linux-64", "both", "first/linux-64/both-1-0.conda"},
		{"unless it lacks it", "both=2=0", "linux-64", "both", "second/linux-64/both-2-0.conda"},
		{"the channel that the line names", "second::both=1=0", "linux-64", "both", "second/linux-64/both-1-0.conda"},
		{"with its platform", "second/linux-64::both=1=0", "linux-64", "both", "second/linux-64/both-1-0.conda"},
		{"epoch and local version", "only=1!2.0+cu118=0", "linux-64", "only", "second/linux-64/only-1!2.0+cu118-0.conda"},
		{"another platform, another build, the same python", "# platform: linux-64\npython=3.11.4=h1_0\nlib=2.0=py311h1_0", "linux-aarch64", "lib", "first/linux-aarch64/lib-2.0-py311h3_3.conda"},
		{"another platform, noarch", "# platform: linux-64\npure=1.0=0", "linux-aarch64", "pure", "first/noarch/pure-1.0-0.conda"},
	} {
		p, err := Resolve(t.Context(), read(t, c.in), Options{Request: Request{Channels: []string{first, second}}, Subdir: c.subdir})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := found(p, c.pkg); got != c.want {
			t.Errorf("%s: Resolve took %q; want %q", c.name, got, c.want)
		}
		if c.name == "another platform, another build, the same python" {
			if got := fmt.Sprint(p.Moves); got != "[{python 3.11.4=h1_0 python=3.11.4=h9_0 same version  false} {lib 2.0=py311h1_0 lib=2.0=py311h3_3 same version  false}]" {
				t.Errorf("%s: Moves = %s", c.name, got)
			}
		} else if len(p.Moves) > 0 {
			t.Errorf("%s: Moves = %v; want none", c.name, p.Moves)
		}
	}
}

func TestLookupPrefersConda(t *testing.T) {
	old := &testPkg{name: "a", format: ".tar.bz2"}
	dir := newChannel(t, old, &testPkg{name: "a"})
	p, err := Resolve(t.Context(), read(t, "a=1.0=0"), Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"})
	if err != nil || filepath.Base(found(p, "a")) != "a-1.0-0.conda" {
		t.Errorf("Resolve = %v, %v; want the .conda archive", p, err)
	}
}

func TestLookupMissing(t *testing.T) {
	dir := newChannel(t, &testPkg{name: "a"}, &testPkg{name: "b", version: "1.1"}, &testPkg{name: "b", version: "1.2"}, &testPkg{name: "c", build: "h1_0"},
		&testPkg{name: "d", build: "py312_0"}, &testPkg{name: "python", version: "3.11.4"})
	in := "# platform: linux-64\na=1.0=0\nnone=1=0\nb=1.0=0\nc=1.0=h2_0\nother::a2=1\npython=3.11.4=0\nd=1.0\n"
	_, err := Resolve(t.Context(), read(t, in), Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"})
	var le *exports.LineError
	if !errors.As(err, &le) || le.Line != 3 {
		t.Fatalf("Resolve = %v; want a LineError for line 3", err)
	}
	for _, want := range []string{"env.txt:3: 5 of 7 packages are not in the channels for linux-64", "none=1=0 (no package of that name)",
		"b=1.0=0 (available versions: 1.1, 1.2)", "c=1.0=h2_0 (available builds: h1_0)", "a2=1 (no package", "d=1.0 (available builds: py312_0)"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Resolve = %v; want %q in it", err, want)
		}
	}
}

// TestMisspelt lists all names that no channel has at once, with similar ones.
func TestMisspelt(t *testing.T) {
	dir := newChannel(t, &testPkg{name: "python", version: "3.11.4"}, &testPkg{name: "numpy"}, &testPkg{name: "scipy"})
	for _, c := range []struct{ in, want string }{
		{"dependencies:\n- python=3.11\n- numpi>=1\n- scipy\n- sipy\n- nothing-like-it\n",
			"env.txt:3: 3 of 5 packages are not in the channels for linux-64: numpi>=1 (no package of that name; did you mean numpy?); " +
				"line 5: sipy (no package of that name; did you mean scipy?); line 6: nothing-like-it (no package of that name)"},
		{"# platform: linux-64\npython=3.11.4=0\nnumpyy=1.0=0\n", "env.txt:3: 1 of 2 packages is not in the channels for linux-64: numpyy=1.0=0 (no package of that name; did you mean numpy?)"},
	} {
		_, err := Resolve(t.Context(), read(t, c.in), Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"})
		if err == nil || err.Error() != c.want {
			t.Errorf("%q:\n%v; want\n%s", c.in, err, c.want)
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	dir := newChannel(t, &testPkg{name: "a"})
	for _, c := range []struct {
		name, in string
		o        Options
		want     string
	}{
		{"no channel", "a=1.0=0", Options{}, "name one with --channel"},
		{"empty channel", "a=1.0=0", Options{Request: Request{Channels: []string{""}}}, "empty"},
		{"defaults", "a=1.0=0", Options{Request: Request{Channels: []string{"defaults"}}}, "consent"},
		{"scheme", "a=1.0=0", Options{Request: Request{Channels: []string{"ftp://c"}}}, "not an http, https, oci or file URL"},
		{"blank", "a=1.0=0", Options{Request: Request{Channels: []string{"a b"}}}, "not a URL, a directory or a name"},
		{"no such directory", "a=1.0=0", Options{Request: Request{Channels: []string{dir + "/none"}}}, "check the URL"},
		{"file of another host", "a=1.0=0", Options{Request: Request{Channels: []string{"file://host" + dir}}}, "not of the form file:///directory"},
		{"relative prefix", "a=1.0=0", Options{Request: Request{Prefix: "opt"}}, "not a clean absolute path"},
		{"unclean prefix", "a=1.0=0", Options{Request: Request{Prefix: "/opt/../x"}}, "not a clean absolute path"},
		{"the root", "a=1.0=0", Options{Request: Request{Prefix: "/"}}, "not a clean absolute path"},
		{"blank in the prefix", "a=1.0=0", Options{Request: Request{Prefix: "/a b"}}, "not a clean absolute path"},
		{"long prefix", "a=1.0=0", Options{Request: Request{Prefix: "/" + strings.Repeat("x", 80)}}, "longer than 80 bytes"},
		{"explicit, other platform", "@EXPLICIT\nhttps://c/osx-64/a-1-0.conda", Options{}, "env.txt:2: a-1-0.conda is for osx-64"},
		{"explicit, other linux", "@EXPLICIT\nhttps://c/linux-ppc64le/a-1-0.conda", Options{}, "a-1-0.conda is for linux-ppc64le"},
	} {
		c.o.Subdir = "linux-64"
		if c.o.Prefix != "" {
			c.o.Channels = []string{dir}
		}
		_, err := Resolve(t.Context(), read(t, c.in), c.o)
		refused(t, nil, c.name, err, c.want)
	}
}

func TestOpenChannel(t *testing.T) {
	t.Chdir(t.TempDir())
	cwd, err := os.Getwd()
	testenv.Check(t, err)
	for _, c := range []struct{ in, want string }{
		{"conda-forge", "https://conda.anaconda.org/conda-forge"}, {"conda-forge/label/dev", "https://conda.anaconda.org/conda-forge/label/dev"},
		{"https://c.example/x/", "https://c.example/x"}, {"/srv/a b%20", "file:///srv/a%20b%2520"}, {"./c", "file://" + cwd + "/c"}, {"file:///c/", "file:///c"},
	} {
		if got, err := openChannel(c.in); err != nil || got.url != c.want {
			t.Errorf("openChannel(%q) = %q, %v; want %q", c.in, got.url, err, c.want)
		}
	}
}

func TestOrder(t *testing.T) {
	rec := func(name string, depends ...string) *solve.Record { return &solve.Record{Name: name, Depends: depends} }
	for _, c := range []struct {
		name string
		in   []*solve.Record
		want string
	}{
		{"by name", []*solve.Record{rec("b"), rec("a")}, "a b"},
		{"after what it needs", []*solve.Record{rec("a", "c >=1,<2"), rec("b"), rec("c", "d=1=0", "conda-forge::e[version=1]"), rec("d"), rec("e")}, "d e c a b"},
		{"a circle", []*solve.Record{rec("python", "pip"), rec("pip", "python >=3", "setuptools"), rec("setuptools", "python")}, "python setuptools pip"},
		{"virtual and unknown", []*solve.Record{rec("a", "__glibc >=2.17", "gone"), rec("__x")}, "__x a"},
	} {
		var got []string
		for _, r := range inOrder(c.in) {
			got = append(got, r.Name)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: inOrder = %q; want %q", c.name, s, c.want)
		}
	}
}

// TestClosure adds dependencies that an export lacks, and keeps the packages of the export.
func TestClosure(t *testing.T) {
	dir := newChannel(t, &testPkg{name: "a", depends: []string{"b >=1", "__glibc >=2.17"}}, &testPkg{name: "a", version: "2.0"}, &testPkg{name: "b", depends: []string{"c"}}, &testPkg{name: "c"}, &testPkg{name: "c", version: "2.0"}, &testPkg{name: "d", depends: []string{"gone >=2"}})
	for _, c := range []struct{ name, in, want, moves string }{
		{"complete", "a=1.0=0\nb=1.0=0\nc=1.0=0", "c-1.0-0 b-1.0-0 a-1.0-0", ""},
		{"list", "a=1.0=0\nc=1.0=0", "c-1.0-0 b-1.0-0 a-1.0-0", "exact          a 1.0=0 -> a=1.0=0\nexact          c 1.0=0 -> c=1.0=0\nadded          b  -> b=1.0=0  needed by a\n"},
		{"environment", "dependencies:\n- a=1.0=0\n", "c-2.0-0 b-1.0-0 a-1.0-0", "exact          a 1.0=0 -> a=1.0=0\nadded          c  -> c=2.0=0  needed by b\nadded          b  -> b=1.0=0  needed by a\n"},
		{"unavailable", "a=1.0=0\nd=1.0=0", "", "env.txt:2: d==1.0=0 cannot be installed for linux-64:\n  d 1.0 needs gone >=2; there is no package named gone for linux-64 in " + dir},
	} {
		p, err := Resolve(t.Context(), read(t, c.in), Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"})
		if err != nil {
			if c.want != "" || !strings.HasPrefix(err.Error(), c.moves) {
				t.Errorf("%s: %v; want %s", c.name, err, c.moves)
			}
			continue
		}
		if got := strings.Join(p.Names(), " "); got != c.want || moved(p.Moves) != c.moves || slices.ContainsFunc(p.Moves, func(m Move) bool { return m.Degraded }) {
			t.Errorf("%s: %s with moves\n%s\nwant %s and\n%s, not degraded", c.name, got, moved(p.Moves), c.want, c.moves)
		}
	}
}

func TestBetter(t *testing.T) {
	worse := solve.Record{Origin: "x", File: fetch.File{FileName: "a-1-b.tar.bz2"}, Build: "b", BuildNumber: 1, Timestamp: 10}
	for _, c := range []struct {
		name   string
		change func(r *solve.Record)
		want   bool
	}{
		{"the same", func(*solve.Record) {}, false},
		{"later channel", func(r *solve.Record) { r.Origin, r.BuildNumber = "y", 9 }, false},
		{"build number", func(r *solve.Record) { r.BuildNumber, r.Build, r.Timestamp = 2, "a", 1 }, true},
		{"time", func(r *solve.Record) { r.Build, r.Timestamp = "a", 11 }, true},
		{"build string", func(r *solve.Record) { r.Build = "c" }, true},
		{"archive", func(r *solve.Record) { r.FileName, r.Timestamp = "a-1-b.conda", 1 }, true},
	} {
		r := worse
		c.change(&r)
		if got := r.Better(&worse); got != c.want {
			t.Errorf("%s: better = %v; want %v", c.name, got, c.want)
		}
		if c.want && worse.Better(&r) {
			t.Errorf("%s: each is better than the other", c.name)
		}
	}
}

func TestFits(t *testing.T) {
	for _, c := range []struct {
		build, python string
		want          bool
	}{
		{"py311h1234_0", "3.11", true}, {"py310h1234_0", "3.11", false}, {"py3.8_cuda11.8_cudnn8.7.0_0", "3.8", true}, {"cuda118py39h1_0", "3.10", false},
		{"2_cp311", "3.11", true}, {"2_cp313", "3.11", false}, {"pyhd8ed1ab_0", "3.11", true}, {"h1_0", "3.11", true}, {"py27_0", "2.7", true}, {"py36_1", "", true}, {"py_0", "3.9", true},
	} {
		if got := (&solve.Record{Build: c.build}).Fits(c.python); got != c.want {
			t.Errorf("fits(%q, %q) = %v; want %v", c.build, c.python, got, c.want)
		}
	}
}

func TestNear(t *testing.T) {
	all := strings.Fields("1.10 1.2 1.9 1.10 2.0 1.11 0.9 1.9.1 1.9rc1")
	for _, c := range []struct {
		list       []string
		want, text string
	}{
		{all, "1.9.2", "…, 1.9, 1.9.1, 1.9rc1, 1.10, 1.11, …"}, {all, "0.1", "0.9, 1.2, 1.9, 1.9.1, 1.9rc1, …"}, {all, "3", "…, 1.9.1, 1.9rc1, 1.10, 1.11, 2.0"},
		{all, "1.9", "0.9, 1.2, 1.9, 1.9.1, 1.9rc1, …"}, {[]string{"b", "a", "b"}, "", "a, b"}, {nil, "1", ""},
	} {
		before := slices.Clone(c.list)
		if got := input.Near(c.list, c.want); got != c.text || !slices.Equal(before, c.list) {
			t.Errorf("near(%q) = %q; want %q", c.want, got, c.text)
		}
	}
}

func TestNatural(t *testing.T) {
	for i, list := 0, strings.Fields("0 1 1.0 1.00 1.2 1.10 1.a 2 a a1 a02 a2 a10"); i < len(list); i++ {
		for j := range list {
			if got, want := input.Compare(list[i], list[j]), cmp.Compare(i, j); got != want {
				t.Errorf("natural(%q, %q) = %d; want %d", list[i], list[j], got, want)
			}
		}
	}
}

func TestNoarchKind(t *testing.T) {
	for _, c := range []struct{ in, want string }{{`"python"`, "python"}, {`"generic"`, "generic"}, {"true", "generic"}, {"false", ""}, {"null", ""}, {"", ""}, {`"odd"`, ""}} {
		if got := (&solve.Record{Noarch: json.RawMessage(c.in)}).NoarchKind(); got != c.want {
			t.Errorf("noarchKind(%s) = %q; want %q", c.in, got, c.want)
		}
	}
}

func TestExpandURL(t *testing.T) {
	t.Setenv("HPCC_TOKEN", "s3cret")
	for _, c := range []struct{ in, want, err string }{
		{"https://u:$HPCC_TOKEN@h/a-1-0.conda", "https://u:s3cret@h/a-1-0.conda", ""},
		{"https://h/t/${HPCC_TOKEN}/a-1-0.conda", "https://h/t/s3cret/a-1-0.conda", ""},
		{"https://h/a$-1-0.conda", "https://h/a$-1-0.conda", ""},
		{"https://h/$HPCC_NONE/a-1-0.conda", "", "variable HPCC_NONE is not set"},
	} {
		u, err := expandURL(c.in)
		if c.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("expandURL(%q) = %v, %v; want %q", c.in, u, err, c.err)
			}
			continue
		}
		if err != nil || u.String() != c.want {
			t.Errorf("expandURL(%q) = %v, %v; want %s", c.in, u, err, c.want)
		}
	}
}

// TestExportRefused reports entries without a channel, with their lines.
func TestExportRefused(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"--pre\ntorch[a]==2.1.2\n", "f:2: pip packages need python from a conda channel; name a channel with --channel"},
		{"a=1=0\npython=3.11.*\nnumpy\n", "f:2: the file names no channel;"},
	} {
		e, err := exports.Read(strings.NewReader(c.in), "f", exports.ReadOptions{})
		testenv.Check(t, err)
		if _, err := Resolve(t.Context(), e, Options{Subdir: "linux-64"}); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("Resolve(%q) = %v; want %q", c.in, err, c.want)
		}
	}
}

// TestWithPackages checks that packages are added once, and not to a list of exact packages.
func TestWithPackages(t *testing.T) {
	exact := exports.Entry{Name: "six", Version: "1.16.0", Build: "py_0"}
	for _, c := range []struct {
		e    exports.Export
		want string
	}{
		{exports.Export{}, "python=3.11 pip"},
		{exports.Export{Specs: []exports.Spec{{Text: "conda-forge::python >=3.9"}}}, "conda-forge::python >=3.9 pip"},
		{exports.Export{Entries: []exports.Entry{exact}}, ""},
		{exports.Export{Entries: []exports.Entry{exact, {Name: "pip"}}, Specs: []exports.Spec{{Text: "numpy"}}}, "numpy python=3.11"},
	} {
		var got []string
		for _, s := range withPackages(&c.e, []string{"python=3.11", "pip"}).Specs {
			got = append(got, s.Text)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("withPackages(%v) = %q; want %q", c.e, got, c.want)
		}
	}
}
