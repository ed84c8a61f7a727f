package pip

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// TestChoice checks which file of a version is chosen for which target.
func TestChoice(t *testing.T) {
	any := condatest.SimpleWheel("x", "1")
	many := []condatest.Wheel{any,
		condatest.Tagged(any, "cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64"), condatest.Tagged(any, "cp311-cp311-manylinux_2_28_x86_64"), condatest.Tagged(any, "cp311-cp311-manylinux_2_38_x86_64"),
		condatest.Tagged(any, "cp39-abi3-manylinux_2_17_ppc64le.manylinux2014_ppc64le"), condatest.Tagged(any, "cp311-cp311-musllinux_1_1_aarch64"), condatest.Tagged(any, "cp311-cp311-manylinux1_i686"),
		condatest.Tagged(any, "cp312-cp312-manylinux_2_17_x86_64"), condatest.Tagged(any, "cp311-cp311-macosx_11_0_arm64"), condatest.Tagged(any, "cp311-cp311-win_amd64"), condatest.Tagged(any, "cp313-cp313t-manylinux_2_17_x86_64"),
		condatest.Tagged(any, "py3-none-manylinux2014_s390x"), condatest.Tagged(any, "cp36-cp36m-manylinux1_x86_64"), condatest.Tagged(any, "cp312-abi3-manylinux_2_17_riscv64"),
	}
	built := condatest.Wheel{Name: "x", Version: "1", Tag: "cp311-cp311-manylinux_2_28_x86_64", Build: "3"}
	on := func(subdir, glibc string) Target {
		return pyTarget(func(t *Target) { t.Subdir, t.Glibc = subdir, glibc })
	}
	python := func(version string, free bool) Target {
		return pyTarget(func(t *Target) { t.Python, t.FreeThreaded = version, free })
	}
	for _, c := range []struct {
		name   string
		target Target
		more   []condatest.Wheel
		want   string
	}{
		{"newest C library that fits", on("linux-64", "2.36"), nil, "x-1-cp311-cp311-manylinux_2_28_x86_64"},
		{"newer C library", on("linux-64", "2.41"), nil, "x-1-cp311-cp311-manylinux_2_38_x86_64"},
		{"older C library", on("linux-64", "2.17"), nil, "x-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64"},
		{"too old a C library", on("linux-64", "2.12"), nil, "x 1"},
		{"build tag", on("linux-64", "2.36"), []condatest.Wheel{built}, "x-1-3-cp311-cp311-manylinux_2_28_x86_64"},
		{"stable ABI on POWER", on("linux-ppc64le", "2.28"), nil, "x-1-cp39-abi3-manylinux_2_17_ppc64le.manylinux2014_ppc64le"},
		{"stable ABI on POWER of glibc 2.16", on("linux-ppc64le", "2.16"), nil, "x 1"},
		{"glibc does not take musl's", on("linux-aarch64", "2.36"), nil, "x 1"},
		{"musl", pyTarget(func(t *Target) { t.Subdir, t.Glibc, t.Musl = "linux-aarch64", "", "1.2" }), nil, "x-1-cp311-cp311-musllinux_1_1_aarch64"},
		{"old name of 32 bits", on("linux-32", "2.36"), nil, "x-1-cp311-cp311-manylinux1_i686"},
		{"python in general", on("linux-s390x", "2.36"), nil, "x-1-py3-none-manylinux2014_s390x"},
		{"stable ABI of a newer python", on("linux-riscv64", "2.36"), nil, "x 1"},
		{"other python", python("3.12.1", false), nil, "x-1-cp312-cp312-manylinux_2_17_x86_64"},
		{"python without the lock", python("3.13.0", true), nil, "x-1-cp313-cp313t-manylinux_2_17_x86_64"},
		{"python with the lock", python("3.13.0rc2", false), nil, "x 1"},
		{"python 3.6", python("3.6.15", false), nil, "x-1-cp36-cp36m-manylinux1_x86_64"},
	} {
		r, err := Resolve(t.Context(), condatest.NewStore(t), readRows(t, "x"), c.target, fromDir(condatest.WheelDir(t, append(c.more, many...)...)))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got := chosen(r); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
	for want, target := range map[string]Target{
		`unsupported python "2.7.18"`: python("2.7.18", false), `unsupported python ""`: python("", false),
		"unsupported platform osx-arm64": on("osx-arm64", "2.36"), `glibc "musl"`: on("linux-64", "musl"), "not a clean absolute path": pyTarget(func(t *Target) { t.Prefix = "rel" }),
	} {
		if _, err := Resolve(t.Context(), condatest.NewStore(t), nil, target, fromDir(t.TempDir())); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", target, err, want)
		}
	}
}

func TestResolve(t *testing.T) {
	world := []condatest.Wheel{
		condatest.SimpleWheel("flask", "1.0", "werkzeug<2"), condatest.SimpleWheel("flask", "2.0", "werkzeug>=2", "jinja2", "asgi; extra == 'async'", "colorama; sys_platform == 'win32'", "old; python_version < '3.8'"),
		condatest.SimpleWheel("werkzeug", "1.5"), condatest.SimpleWheel("werkzeug", "2.3", "markup>=2"), condatest.SimpleWheel("werkzeug", "3.0", "markup>=3"),
		condatest.SimpleWheel("jinja2", "3.1", "markup"), condatest.SimpleWheel("markup", "2.5"), condatest.SimpleWheel("markup", "3.0rc1"), condatest.SimpleWheel("asgi", "1", "flask[async]"),
		condatest.SimpleWheel("need-old", "1", "werkzeug<2"), condatest.SimpleWheel("ring-a", "1", "ring-b"), condatest.SimpleWheel("ring-b", "1", "ring-a"),
		condatest.SimpleWheel("want-x", "1", "flask[async]"), condatest.SimpleWheel("gone", "1", "nowhere"), condatest.SimpleWheel("a", "2", "b>=2"), condatest.SimpleWheel("a", "1", "b"), condatest.SimpleWheel("b", "1"), condatest.SimpleWheel("c", "1", "b<2"),
		{Name: "aged", Version: "1"}, {Name: "aged", Version: "2", Meta: "Requires-Python: >=3.12\n"},
		condatest.SimpleWheel("odd", "1"), {Name: "odd", Version: "2", Meta: "Requires-Dist: b (=>1)\n"}, {Name: "odder", Version: "1", Meta: "Requires-Dist: b (=>1)\n"},
		condatest.SimpleWheel("direct", "1", "b @ https://e.org/b-1-py3-none-any.whl"), condatest.SimpleWheel("bad", "1", "flask>3"), condatest.SimpleWheel("marker", "1", "b; platform_machine == 'ppc64le'"),
	}
	s := condatest.ServeIndex(t, true, world...)
	for _, c := range []struct {
		name, rows, want string
		provided         []Provided
	}{
		{"what is needed", "flask==2.0", "flask 2.0, jinja2 3.1, markup 2.5, werkzeug 2.3", nil},
		{"a pre-release that is wanted", "flask\nmarkup>=3.0rc1", "flask 2.0, jinja2 3.1, markup 3.0rc1, werkzeug 2.3", nil},
		{"an extra", "flask[async]", "asgi 1, flask 2.0, jinja2 3.1, markup 2.5, werkzeug 2.3", nil},
		{"an extra that somebody needs", "want-x", "asgi 1, flask 2.0, jinja2 3.1, markup 2.5, want-x 1, werkzeug 2.3", nil},
		{"an extra that comes later", "flask\nwant-x", "asgi 1, flask 2.0, jinja2 3.1, markup 2.5, want-x 1, werkzeug 2.3", nil},
		{"an older version of the wanted", "flask\nneed-old", "flask 1.0, need-old 1, werkzeug 1.5", nil},
		{"the same in the other order", "need-old\nflask", "flask 1.0, need-old 1, werkzeug 1.5", nil},
		{"going back", "a\nc", "a 1, b 1, c 1", nil},
		{"a ring", "ring-a", "ring-a 1, ring-b 1", nil},
		{"two rows of one name", "werkzeug>=2\nwerkzeug<3", "markup 2.5, werkzeug 2.3", nil},
		{"what conda provides", "flask", "flask 2.0, jinja2 3.1", []Provided{{"Werkzeug", "2.9", "werkzeug"}, {"markup", "1", "markup"}}},
		{"what conda provides decides", "flask", "flask 1.0", []Provided{{"werkzeug", "1.0", "werkzeug"}}},
		{"a row that conda provides", "werkzeug\nflask", "flask 1.0", []Provided{{"werkzeug", "1.0", "werkzeug"}}},
		{"another python, in the wheel alone", "aged", "aged 1", nil},
		{"a condition", "marker", "marker 1", nil},
		{"a version whose METADATA cannot be read", "odd", "odd 1", nil},
	} {
		target := pyTarget(func(t *Target) { t.Provided = c.provided })
		r, err := Resolve(t.Context(), condatest.NewStore(t), readRows(t, c.rows), target, from(s))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if got := chosen(r); got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		rows, want string
		provided   []Provided
	}{
		{"flask==2.0\nneed-old", "no versions satisfy all requirements: flask 2.0 wants werkzeug>=2, need-old 1 wants werkzeug<2: available versions: 1.5, 2.3, 3.0", nil},
		{"gone", "gone 1 wants nowhere: there is no package nowhere in ", nil},
		{"flask\nneed-old\ngone", "gone 1 wants nowhere", nil}, // and not the conflict that was resolved
		{"bad", "bad 1 wants flask>3: available versions: 1.0, 2.0", nil},
		{"aged>1", "aged 2 needs python >=3.12", nil},
		{"odder", "odder-1-py3-none-any.whl cannot be used: reading METADATA: Requires-Dist", nil},
		{"direct", "direct 1 needs b @ https://e.org/b-1-py3-none-any.whl, which is not a version from an index; add it to the list as a row", nil},
		{"flask==2.0", "the conda package werkzeug provides werkzeug 1.0", []Provided{{"werkzeug", "1.0", "werkzeug"}}},
		{"werkzeug==3.0", "line 1: werkzeug==3.0: the conda package werkzeug provides werkzeug 1.0; remove one of the two rows", []Provided{{"werkzeug", "1.0", "werkzeug"}}},
	} {
		target := pyTarget(func(t *Target) { t.Provided = c.provided })
		_, err := Resolve(t.Context(), condatest.NewStore(t), readRows(t, c.rows), target, from(s))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.rows, err, c.want)
		}
	}
	// Dependencies of extras of a conda package are not resolved, and a note reports that.
	for _, rows := range []string{"flask[async]", "want-x"} {
		target := pyTarget(func(t *Target) { t.Provided = []Provided{{"flask", "2.0", "flask"}} })
		r, err := Resolve(t.Context(), condatest.NewStore(t), readRows(t, rows), target, from(s))
		if err != nil || !slices.Contains(r.Notes, "flask[async]: dependencies of extras are not resolved for packages from conda; add rows for them") {
			t.Errorf("%s, and conda has flask: %v, %v", rows, r, err)
		}
	}
	// A closed list is used unchanged, and missing dependencies are reported.
	o := from(s)
	o.Closed = true
	r, err := installed(t, "flask[async]==2.0\nwerkzeug==1.5\nmarkup; sys_platform=='win32'", pyTarget(nil), o)
	testenv.Check(t, err)
	want := []string{"skipped pip rows whose conditions exclude linux-64 with python 3.11.4: markup",
		"flask 2.0 needs asgi, which no package provides", "flask 2.0 needs jinja2, which no package provides", "flask 2.0 needs werkzeug>=2, but 1.5 is installed"}
	if got := chosen(r.plan); got != "flask 2.0, werkzeug 1.5" || strings.Join(r.notes, "\n") != strings.Join(want, "\n") {
		t.Errorf("a closed list: %s, %q; want %q", got, r.notes, want)
	}
}

// TestHopeless ends an unsatisfiable search among many versions soon: only packages in the
// conflict are tried again.
func TestHopeless(t *testing.T) {
	var world []condatest.Wheel
	for i := range 30 {
		for j := range 6 {
			world = append(world, condatest.SimpleWheel(fmt.Sprintf("lib%02d", i), fmt.Sprint(j)))
		}
	}
	rows := ""
	for i := range 30 {
		rows += fmt.Sprintf("lib%02d\n", i)
	}
	world = append(world, condatest.SimpleWheel("left", "1", "core<2"), condatest.SimpleWheel("left", "2", "core<2"), condatest.SimpleWheel("right", "1", "core>=2"), condatest.SimpleWheel("core", "1"), condatest.SimpleWheel("core", "2"))
	s := condatest.ServeIndex(t, true, world...)
	for name := range s.Wheels { // the page links the metadata, so no wheel is fetched
		for _, w := range s.Wheels[name] {
			s.Attrs[w.File()] = `, "core-metadata": true`
		}
	}
	target := pyTarget(nil)
	r, err := newResolver(t.Context(), condatest.NewStore(t), target, from(s))
	testenv.Check(t, err)
	if _, err = r.resolve(r.rows(readRows(t, "left\n"+rows+"right"))); err == nil || !strings.Contains(err.Error(), "left 2 wants core<2, right 1 wants core>=2") {
		t.Errorf("%v; want both requirements", err)
	}
	if r.tries > 200 {
		t.Errorf("%d versions were tried; want no more than 200", r.tries)
	}
}

// TestRefused reports all rows that cannot be installed together, with lines and remedies.
func TestRefused(t *testing.T) {
	dir := condatest.WheelDir(t, condatest.SimpleWheel("good", "1"), condatest.Tagged(condatest.SimpleWheel("other", "1"), "cp39-cp39-win_amd64"), condatest.SimpleWheel("torch", "2.1.2"))
	for _, f := range []string{"sources-1.0.tar.gz", "mixed-2.0.zip"} {
		testenv.Write(t, filepath.Join(dir, f), []byte("x"))
	}
	testenv.Write(t, filepath.Join(dir, "mixed-2.0-cp39-cp39-win32.whl"), []byte("x"))
	testenv.Check(t, os.Mkdir(filepath.Join(dir, "tree"), 0o755))
	rows := `good
-e .
git+https://user:secret@e.org/x@main#egg=x
y @ git+ssh://git@e.org/y
sources==1.0
mixed
other
torch==2.1.2+cu118
z @ file:///home/conda/feedstock_root/z
./tree
https://e.org/w-1.tar.gz
-e git+https://e.org/v#egg=v
./other-1-cp39-cp39-win_amd64.whl
torch @ ./good-1-py3-none-any.whl
numpy @ file:///home/conda/feedstock_root/numpy
ftp://e.org/q-1-py3-none-any.whl
`
	target := pyTarget(func(t *Target) { t.Provided = []Provided{{"numpy", "1.26", "numpy"}} })
	o := fromDir(dir)
	o.Dir, o.File = dir, "pip.txt"
	_, err := Resolve(t.Context(), condatest.NewStore(t), readRows(t, rows), target, o)
	var pe *refusedError
	if !errors.As(err, &pe) {
		t.Fatalf("%v; want a pipError", err)
	}
	run := "RUN /opt/conda/bin/python3.11 -m pip install --no-deps "
	want := []struct {
		line     int
		why, run string
	}{
		{2, "in a Dockerfile COPY it and RUN /opt/conda/bin/python3.11 -m pip install", ""},
		{3, "repositories cannot be fetched", run + `"x @ git+https://e.org/x@main#egg=x"`},
		{4, "repositories cannot be fetched", run + `"y @ git+ssh://git@e.org/y"`},
		{5, "only sources are available", run + `"sources==1.0"`},
		{6, "no wheel fits: the environment is for python 3.11 and linux-64, glibc 2.36; available: cp39-cp39-win32", run + `"mixed==2.0"`},
		{7, "available: cp39-cp39-win_amd64", ""},
		{8, "available versions: 2.1.2; +cu118 marks a build from another index; name that index with --extra-index-url", ""},
		{9, "no such file", ""},
		{10, "in a Dockerfile COPY it", ""},
		{11, "it is a source archive", run + `"https://e.org/w-1.tar.gz"`},
		{12, "repositories cannot be fetched", run + `"v @ git+https://e.org/v#egg=v"`},
		{13, "the wheel is for cp39-cp39-win_amd64", ""},
		{14, "the wheel contains good, not ", ""},
		{16, `"ftp": not an https, http or file URL`, ""},
	}
	if len(pe.Refused) != len(want) {
		t.Fatalf("%d rows are refused; want %d: %v", len(pe.Refused), len(want), err)
	}
	for i, w := range want {
		if got := pe.Refused[i]; got.Line != w.line || !strings.Contains(got.Why, w.why) || got.Run != w.run {
			t.Errorf("refused %+v; want %+v", got, w)
		}
	}
	if s := err.Error(); strings.Contains(s, "secret") || !strings.Contains(s, "pip.txt: 14 pip packages cannot be installed: line 2: -e .: it is a directory") {
		t.Errorf("the message is %s", s)
	}
}

// TestConstraints limits versions of rows, dependencies and conda's packages, and installs nothing
// else.
func TestConstraints(t *testing.T) {
	dir := condatest.WheelDir(t, condatest.SimpleWheel("app", "1", "lib"), condatest.SimpleWheel("app", "2", "lib>=2"), condatest.SimpleWheel("lib", "1"), condatest.SimpleWheel("lib", "2"), condatest.SimpleWheel("lib", "3"), condatest.SimpleWheel("other", "1"))
	target := pyTarget(nil)
	target.Provided = []Provided{{"held", "1", "py-held"}}
	sum := condatest.SHA256(condatest.SimpleWheel("other", "1").Bytes(t))
	for _, c := range []struct{ rows, limits, want string }{
		{"app", "", "app 2, lib 3"},
		{"app", "lib<3\nother==1", "app 2, lib 2"},
		{"app", "LIB <2", "app 1, lib 1"},
		{"app\nlib>1", "lib!=3", "app 2, lib 2"},
		{"app", "lib<2; python_version < '3'", "app 2, lib 3"},
		{"other", "other==1 --hash=sha256:" + sum, "other 1"},
		{"other", "other==1 --hash=sha256:" + strings.Repeat("0", 64), "sha256 mismatch"},
		{"lib==3", "lib<3", "available versions: 1, 2, 3; limits.txt:1 constrains it to lib<3"},
		{"app==2", "lib<2", "app 2 wants lib>=2: available versions: 1, 2, 3; limits.txt:1 constrains it to lib<2"},
		{"held", "held<1", "the conda package py-held provides held 1; remove one of the two rows; limits.txt:1 constrains it to held<1"},
	} {
		o := fromDir(dir)
		o.Closed = false
		if c.limits != "" {
			o.Constraints = readRows(t, c.limits)
		}
		for i := range o.Constraints {
			o.Constraints[i].Within = fmt.Sprintf("limits.txt:%d", i+1)
		}
		p, err := Resolve(t.Context(), condatest.NewStore(t), readRows(t, c.rows), target, o)
		got := fmt.Sprint(err)
		if err == nil {
			var names []string
			for _, w := range p.Wheels {
				names = append(names, w.Name+" "+w.Version)
			}
			got = strings.Join(names, ", ")
		}
		if (err == nil && got != c.want) || !strings.Contains(got, c.want) {
			t.Errorf("%q with the constraints %q: %s; want %s", c.rows, c.limits, got, c.want)
		}
	}
}
