package pip

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/layer"
	"hpcc/conda/program"
	"hpcc/store"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// A testSdist is a source archive that a test creates.
type testSdist struct {
	name, version string
	kind          string // "": .tar.gz
	info          string // further lines of PKG-INFO, which begins with its version; "": version 2.1
	project       string // pyproject.toml
	makes         *condatest.Wheel
	files         []tar.Header // further files; Linkname holds their content
}

func (s testSdist) file() string {
	if s.kind == "" {
		s.kind = ".tar.gz"
	}
	return s.name + "-" + s.version + s.kind
}

func (s testSdist) bytes(t testing.TB) []byte {
	t.Helper()
	top := s.name + "-" + s.version + "/"
	if s.info == "" {
		s.info = "Metadata-Version: 2.1\n"
	}
	list := []tar.Header{{Name: top + "PKG-INFO", Linkname: s.info + "Name: " + s.name + "\nVersion: " + s.version + "\n"}, {Name: top + "setup.py"}}
	if s.project != "" {
		list = append(list, tar.Header{Name: top + "pyproject.toml", Linkname: s.project})
	}
	if s.makes != nil { // the wheel that testBuild finds
		list = append(list, tar.Header{Name: top + s.makes.File(), Linkname: string(s.makes.Bytes(t))})
	}
	for _, h := range s.files {
		h.Name = strings.Replace(h.Name, "TOP/", top, 1)
		list = append(list, h)
	}
	var b bytes.Buffer
	if s.kind == ".zip" {
		z := zip.NewWriter(&b)
		for _, h := range list {
			w, err := z.Create(h.Name)
			if err == nil {
				_, err = io.WriteString(w, h.Linkname)
			}
			testenv.Check(t, err)
		}
		testenv.Check(t, z.Close())
		return b.Bytes()
	}
	g := gzip.NewWriter(&b)
	w := tar.NewWriter(g)
	for _, h := range list {
		text := ""
		if h.Typeflag == 0 {
			h.Typeflag, text, h.Linkname = tar.TypeReg, h.Linkname, ""
		}
		if h.Mode = 0o644; h.Size == 0 {
			h.Size = int64(len(text))
		}
		testenv.Check(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, text)
		testenv.Check(t, err)
	}
	_ = w.Flush() // the content may be shorter than the header's size
	testenv.Check(t, g.Close())
	return b.Bytes()
}

// A testBuild replaces build steps: the wheel that it "builds" lies in the sources.
type testBuild struct {
	t     testing.TB
	store *store.Store
	steps []string // with the installed distributions
	more  []string // requirements that the backend reports
	err   error
}

func (b *testBuild) step(ctx context.Context, s program.Step) (v1.Layer, error) {
	if b.err != nil {
		return nil, b.err
	}
	var order buildOrder
	output, name, have := "", "", ""
	for p, e := range condatest.ReadLayers(b.t, s.With) {
		rest, ok := strings.CutPrefix(p, ".hpcc-build/")
		switch {
		case !ok:
			continue
		case rest == "order.json":
			if err := json.Unmarshal([]byte(e.Data), &order); err != nil {
				b.t.Error(err)
			}
		case strings.HasPrefix(rest, "source/") && strings.HasSuffix(rest, ".whl"):
			name, output = strings.TrimPrefix(rest, "source/"), e.Data
		case strings.HasSuffix(rest, ".dist-info/METADATA"):
			have += " " + strings.TrimSuffix(strings.TrimPrefix(rest, "env/lib/python3.11/site-packages/"), ".dist-info/METADATA")
		case rest == "env/pyvenv.cfg" && !strings.HasPrefix(e.Data, "home = /opt/conda/bin\n"):
			b.t.Errorf("pyvenv.cfg = %q", e.Data)
		}
	}
	b.steps = append(b.steps, s.Text+have)
	if len(b.more) > 0 && !order.Asked {
		data, err := json.Marshal(b.more)
		if err != nil {
			return nil, err
		}
		name, output = "requires.json", string(data)
	}
	if name == "" {
		return nil, nil
	}
	return layer.New(ctx, b.store, buildRoot, nil, func(w *layer.Writer) error { return w.File("out/"+name, 0o644, []byte(output), 0) })
}

// sourceDir creates a directory of wheels and sources.
func sourceDir(t testing.TB, sdists []testSdist, wheels ...condatest.Wheel) string {
	t.Helper()
	dir := condatest.WheelDir(t, wheels...)
	for _, s := range sdists {
		testenv.Write(t, filepath.Join(dir, s.file()), s.bytes(t))
	}
	return dir
}

// built resolves and installs rows, and builds packages without a wheel from sources.
func built(t testing.TB, text, dir string, open bool, b *testBuild) (*result, error) {
	t.Helper()
	o := b.options(t, dir)
	o.Closed = !open
	return installed(t, text, pyTarget(nil), o)
}

// options returns options that build with b the sources of a directory.
func (b *testBuild) options(t testing.TB, dir string) Options {
	b.t, b.store = t, condatest.NewStore(t)
	o := fromDir(dir)
	o.Dir = dir
	o.Build = &Workshop{Step: b.step, Home: "/opt/conda", Below: func() ([]v1.Layer, []string, string, error) { return nil, nil, "/opt/conda/bin", nil }}
	return o
}

func wheelOf(name, version string, requires ...string) *condatest.Wheel {
	w := condatest.SimpleWheel(name, version, requires...)
	return &w
}

var setuptools = condatest.SimpleWheel("setuptools", "66")

func TestBuildSources(t *testing.T) {
	static := "Metadata-Version: 2.2\nRequires-Dist: helper\n"
	for _, c := range []struct {
		name, rows string
		open       bool
		sdists     []testSdist
		wheels     []condatest.Wheel
		more       []string
		want       string // expected choice
		steps      string
	}{
		{"legacy", "a", true, []testSdist{{name: "a", version: "1", makes: wheelOf("a", "1", "helper")}}, []condatest.Wheel{condatest.SimpleWheel("helper", "3")}, nil,
			"a 1, helper 3", "build a wheel of a-1.tar.gz setuptools-66"},
		{"a wheel of the version goes first", "a", true, []testSdist{{name: "a", version: "1"}}, []condatest.Wheel{condatest.SimpleWheel("a", "1")}, nil, "a 1", ""},
		{"a newer version goes first", "a", true, []testSdist{{name: "a", version: "2", kind: ".zip", makes: wheelOf("a", "2")}}, []condatest.Wheel{condatest.SimpleWheel("a", "1")}, nil, "a 2", "build a wheel of a-2.zip setuptools-66"},
		{"what is not taken is not built", "a\nhelper<2", true, []testSdist{{name: "a", version: "2", info: static + "Requires-Dist: helper>=2\n"}}, []condatest.Wheel{condatest.SimpleWheel("a", "1", "helper"), condatest.SimpleWheel("helper", "1")}, nil,
			"a 1, helper 1", ""},
		{"metadata that a build decides", "a\nhelper<2", true, []testSdist{{name: "a", version: "2", info: static + "Dynamic: Requires-Dist\n", makes: wheelOf("a", "2", "helper>=2")}}, []condatest.Wheel{condatest.SimpleWheel("a", "1", "helper"), condatest.SimpleWheel("helper", "1")}, nil,
			"a 1, helper 1", "build a wheel of a-2.tar.gz setuptools-66"},
		{"a complete list", "a==1", false, []testSdist{{name: "a", version: "1", makes: wheelOf("a", "1", "none")}}, nil, nil, "a 1", "build a wheel of a-1.tar.gz setuptools-66"},
		{"requirements of its own", "a", true, []testSdist{{name: "a", version: "1", project: "[build-system]\nrequires = ['flit']\nbuild-backend='flit.api'", makes: wheelOf("a", "1")}},
			[]condatest.Wheel{condatest.SimpleWheel("flit", "1", "helper"), condatest.SimpleWheel("helper", "1")}, nil, "a 1", "build a wheel of a-1.tar.gz flit-1 helper-1"},
		{"a backend that asks for more", "a", true, []testSdist{{name: "a", version: "1", makes: wheelOf("a", "1")}}, []condatest.Wheel{condatest.SimpleWheel("wheel", "2")}, []string{"wheel"},
			"a 1", "build a wheel of a-1.tar.gz setuptools-66; build a wheel of a-1.tar.gz with wheel setuptools-66 wheel-2"},
		{"what is built with what is built", "a", true, []testSdist{{name: "a", version: "1", project: "[build-system]\nrequires = ['b']\nbuild-backend='b'", makes: wheelOf("a", "1")}, {name: "b", version: "1", makes: wheelOf("b", "1")}}, nil, nil,
			"a 1", "build a wheel of b-1.tar.gz setuptools-66; build a wheel of a-1.tar.gz b-1"},
		{"an address", "./b-1.zip", true, []testSdist{{name: "b", version: "1", kind: ".zip", makes: wheelOf("b", "1")}}, nil, nil, "b 1", "build a wheel of b-1.zip setuptools-66"},
		{"an address that names no version", "a @ ./b-1.zip\na>=2", true, []testSdist{{name: "b", version: "1", kind: ".zip", makes: wheelOf("a", "2")}}, nil, nil, "a 2", "build a wheel of b-1.zip setuptools-66"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &testBuild{more: c.more}
			r, err := built(t, c.rows, sourceDir(t, c.sdists, append(c.wheels, setuptools)...), c.open, b)
			testenv.Check(t, err)
			var got []string
			for _, w := range r.plan.Wheels {
				got = append(got, w.Name+" "+w.Version)
				if e := r.files["opt/conda/lib/python3.11/site-packages/"+w.Name+"-"+w.Version+".dist-info/RECORD"]; e.Header == nil {
					t.Errorf("%s is not installed", w.Name)
				}
			}
			if s := strings.Join(got, ", "); s != c.want {
				t.Errorf("chosen: %s; want %s", s, c.want)
			}
			for i, s := range b.steps {
				w := strings.Fields(s) // the order of layers does not matter
				if n := len(w) - 2; n > 4 && strings.Contains(w[n], "-") && w[n] > w[n+1] {
					w[n], w[n+1] = w[n+1], w[n]
				}
				b.steps[i] = strings.Join(w, " ")
			}
			if s := strings.Join(b.steps, "; "); s != c.steps {
				t.Errorf("steps: %s; want %s", s, c.steps)
			}
		})
	}
}

func TestBuildLocked(t *testing.T) {
	dir := sourceDir(t, []testSdist{{name: "a", version: "1", makes: wheelOf("a", "1")}}, setuptools, condatest.SimpleWheel("setuptools", "67"))
	sum := sha256.Sum256(setuptools.Bytes(t))
	for digest, want := range map[string]string{fmt.Sprintf("%x", sum): "", strings.Repeat("0", 64): "sha256 mismatch: "} {
		row := Requirement{Name: "a", URL: condatest.FileURL(filepath.Join(dir, "a-1.tar.gz")), Locked: true, BuildWith: []string{"setuptools @ " + condatest.FileURL(filepath.Join(dir, setuptools.File())) + "#sha256=" + digest}}
		b := &testBuild{more: []string{"wheel"}}
		o := b.options(t, dir)
		plan, err := Resolve(t.Context(), b.store, []Requirement{row}, pyTarget(nil), o)
		testenv.Check(t, err)
		_, _, err = plan.Layers(t.Context(), b.store, o)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("another digest: %v; want %q", err, want)
			}
			continue
		}
		if err != nil || strings.Join(b.steps, "; ") != "build a wheel of a-1.tar.gz setuptools-66" {
			t.Errorf("steps %q, %v; want one, with setuptools 66", b.steps, err)
		}
		if got := fmt.Sprint(plan.Wheels[0].BuiltWith[0].Address); got != strings.TrimPrefix(strings.TrimSuffix(row.BuildWith[0], "#sha256="+digest), "setuptools @ ") {
			t.Errorf("it was built with %s; want %s", got, row.BuildWith[0])
		}
	}
}

// TestBuildTakes refuses invalid output of a build step, which is as untrusted as the sources.
func TestBuildTakes(t *testing.T) {
	good := string(condatest.SimpleWheel("a", "1").Bytes(t))
	for name, c := range map[string]struct {
		files []tar.Header // Linkname holds the content
		want  string
	}{
		"two":         {[]tar.Header{{Name: "a-1-py3-none-any.whl", Linkname: good}, {Name: "a-2-py3-none-any.whl", Linkname: good}}, "the build backend wrote more than one file"},
		"a link":      {[]tar.Header{{Name: "a-1-py3-none-any.whl", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}}, "produced no wheel"},
		"no wheel":    {[]tar.Header{{Name: "a-1.tar.gz", Linkname: "x"}}, "the file name is not NAME-VERSION"},
		"no archive":  {[]tar.Header{{Name: "a-1-py3-none-any.whl", Linkname: "x"}}, "opening the wheel"},
		"no list":     {[]tar.Header{{Name: "requires.json", Linkname: "{}"}}, "cannot unmarshal"},
		"a long list": {[]tar.Header{{Name: "requires.json", Linkname: strings.Repeat(" ", maxPyproject+1)}}, "larger than"},
		"an option":   {[]tar.Header{{Name: "requires.json", Linkname: `["--index-url=https://evil"]`}}, "is an option, not a package"},
	} {
		b := &testBuild{}
		o := b.options(t, sourceDir(t, []testSdist{{name: "a", version: "1"}}, setuptools))
		o.Build.Step = func(ctx context.Context, s program.Step) (v1.Layer, error) {
			return layer.New(ctx, b.store, buildRoot, nil, func(w *layer.Writer) error {
				for _, h := range c.files {
					h.Name = "out/" + h.Name
					if h.Typeflag == tar.TypeSymlink {
						if err := w.Header(&h); err != nil {
							return err
						}
					} else if err := w.File(h.Name, 0o644, []byte(h.Linkname), 0); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if _, err := installed(t, "a", pyTarget(nil), o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// TestBuildDigest refuses to build sources whose digest differs from the list's.
func TestBuildDigest(t *testing.T) {
	dir := sourceDir(t, []testSdist{{name: "a", version: "1", makes: wheelOf("a", "1")}}, setuptools)
	wrong := " --hash=sha256:" + strings.Repeat("0", 64)
	for _, row := range []string{"a==1" + wrong, "a @ ./a-1.tar.gz" + wrong, "b @ ./a-1.tar.gz" + wrong, "./a-1.tar.gz#sha256=" + strings.Repeat("0", 64)} {
		b := &testBuild{}
		if _, err := built(t, row, dir, true, b); err == nil || !strings.Contains(err.Error(), "sha256 mismatch: ") || len(b.steps) > 0 {
			t.Errorf("%s: %v, after the steps %q", row, err, b.steps)
		}
	}
	// Two packages of one archive are two builds.
	both := sourceDir(t, []testSdist{{name: "r", version: "1", files: []tar.Header{
		{Name: "TOP/a/setup.py"}, {Name: "TOP/a/PKG-INFO", Linkname: "Metadata-Version: 2.2\nName: a\nVersion: 1\n"},
		{Name: "TOP/b/setup.py"}, {Name: "TOP/b/PKG-INFO", Linkname: "Metadata-Version: 2.2\nName: b\nVersion: 2\n"},
	}}}, setuptools)
	o := (&testBuild{}).options(t, both)
	plan, err := Resolve(t.Context(), condatest.NewStore(t), readRows(t, "a @ ./r-1.tar.gz#subdirectory=a\nb @ ./r-1.tar.gz#subdirectory=b"), pyTarget(nil), o)
	testenv.Check(t, err)
	for i, want := range []string{"a 1", "b 2"} {
		if w := plan.Wheels[i]; w.Name+" "+w.Version != want || !strings.HasSuffix(w.Address, "#subdirectory="+w.Name) {
			t.Errorf("%+v; want %s", w, want)
		}
	}
}

// TestBuiltTimes ignores the times in a wheel built from sources.
func TestBuiltTimes(t *testing.T) {
	r, err := built(t, "a", sourceDir(t, []testSdist{{name: "a", version: "1", makes: wheelOf("a", "1")}}, setuptools), true, &testBuild{})
	testenv.Check(t, err)
	for name, e := range r.files {
		if !e.ModTime.Equal(layer.Epoch) {
			t.Errorf("%s has the time %v", name, e.ModTime)
		}
	}
	if w := r.plan.Wheels[0]; len(w.BuiltWith) != 1 || w.BuiltWith[0].Name != "setuptools" || w.SHA256 == "" {
		t.Errorf("built with %+v", w)
	}
}

// TestBuildRefused reports the cause of a failed build, and a remedy.
func TestBuildRefused(t *testing.T) {
	failed := func(log string) error { return &program.Error{Err: errors.New("it ended with 1"), Log: []byte(log)} }
	for _, c := range []struct {
		name   string
		sdist  testSdist
		err    error
		want   string
		builds *condatest.Wheel
	}{
		{"a failure", testSdist{}, failed("oh dear\n"), "building a from its sources a-1.tar.gz: it ended with 1: see its output", nil},
		{"no compiler", testSdist{}, failed("error: command 'gcc' failed: No such file or directory\n"), "it needs the compiler gcc; add gcc, gxx or gfortran", nil},
		{"no compiler, under its long name", testSdist{}, failed("error: command 'x86_64-linux-gnu-gcc' failed: No such file"), "it needs the compiler x86_64-linux-gnu-gcc; add", nil},
		{"a compiler that fails", testSdist{}, failed("x.c:1: error: expected\nerror: command '/usr/bin/gcc' failed with exit code 1\n"), "see its output", nil},
		{"no compiler for CMake", testSdist{}, failed("  No CMAKE_CXX_COMPILER could be found.\n"), "it needs the compiler CMAKE_CXX_COMPILER", nil},
		{"no make", testSdist{}, failed("sh: 1: make: not found\n"), "it needs make; add it", nil},
		{"no compiler for meson", testSdist{}, failed("ERROR: Unknown compiler(s): [['cc'], ['gcc']]"), "it needs the compiler", nil},
		{"no headers", testSdist{}, failed("x.c:1:10: fatal error: Python.h: No such file or directory"), "it needs Python.h, a header that this python", nil},
		{"no rust", testSdist{}, failed("error: can't find Rust compiler"), "it needs Rust; add it", nil},
		{"an import", testSdist{}, failed("ModuleNotFoundError: No module named 'numpy'"), "it imports numpy, which its build requirements do not list", nil},
		{"a download", testSdist{}, failed("[Errno -3] Temporary failure in name resolution"), "builds have no network", nil},
		{"nothing", testSdist{}, nil, "the build backend produced no wheel", nil},
		{"another package", testSdist{}, nil, "the wheel contains b 1", wheelOf("b", "1")},
		{"another version", testSdist{}, nil, "the wheel contains a 2", wheelOf("a", "2")},
		{"another machine", testSdist{}, nil, "the wheel is for cp311-cp311-linux_ppc64le, but the environment is for", &condatest.Wheel{Name: "a", Version: "1", Tag: "cp311-cp311-linux_ppc64le"}},
		{"a lie in it", testSdist{}, nil, "RECORD lists", &condatest.Wheel{Name: "a", Version: "1", Record: func(rows string) string { return rows + "x.py,sha256=x,1\n" }}},
		{"a circle", testSdist{project: "[build-system]\nrequires=['a']"}, nil, "building a: circular build requirements through a;", nil},
		{"a missing requirement", testSdist{project: "[build-system]\nrequires=['nonsuch']"}, nil, "the requirements to build a: 1 pip package cannot be installed: nonsuch: there is no package nonsuch", nil},
		{"a requirement by address", testSdist{project: "[build-system]\nrequires=['x @ https://h/x-1-py3-none-any.whl']"}, nil, "build requirement x @ https://h/x-1-py3-none-any.whl: not a version from an index", nil},
	} {
		c.sdist.name, c.sdist.version, c.sdist.makes = "a", "1", c.builds
		_, err := built(t, "a", sourceDir(t, []testSdist{c.sdist}, setuptools), true, &testBuild{err: c.err})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}

// TestHostileSources refuses hostile archives before any build.
func TestHostileSources(t *testing.T) {
	for name, c := range map[string]struct {
		sdist testSdist
		want  string
	}{
		"climbing":                  {testSdist{files: []tar.Header{{Name: "TOP/../../x"}}}, `entry "a-1/../../x": path leaves`},
		"absolute":                  {testSdist{files: []tar.Header{{Name: "/etc/x"}}}, "path leaves"},
		"climbing in zip":           {testSdist{kind: ".zip", files: []tar.Header{{Name: "TOP/../../x"}}}, "path leaves"},
		"outside its top directory": {testSdist{files: []tar.Header{{Name: "b/x"}}}, `entry "b/x": it is outside of the top directory "a-1"`},
		"a device":                  {testSdist{files: []tar.Header{{Name: "TOP/x", Typeflag: tar.TypeChar}}}, "not a file, directory or link"},
		"a hard link out":           {testSdist{files: []tar.Header{{Name: "TOP/x", Typeflag: tar.TypeLink, Linkname: "../etc/passwd"}}}, "path leaves"},
		"a hard link on":            {testSdist{files: []tar.Header{{Name: "TOP/x", Typeflag: tar.TypeLink, Linkname: "a-1/y"}}}, "target is not an earlier file"},
		"twice":                     {testSdist{files: []tar.Header{{Name: "TOP/setup.py"}}}, "duplicate entry"},
		"a bomb":                    {testSdist{files: []tar.Header{{Name: "TOP/x", Size: maxSources + 1}}}, "unpacks to more than"},
		"cut off":                   {testSdist{files: []tar.Header{{Name: "TOP/x", Size: 5000}}}, "unexpected EOF"},
		"a large project":           {testSdist{project: strings.Repeat("#", maxPyproject+1)}, "larger than 262144 bytes"},
		"no TOML":                   {testSdist{project: "[build-system\n"}, "reading pyproject.toml: line 2: "},
		"an odd backend":            {testSdist{project: "[build-system]\nrequires=[]\nbuild-backend='os; x'"}, `build-backend "os; x": not the name of a Python object`},
		"an odd path":               {testSdist{project: "[build-system]\nrequires=[]\nbuild-backend='x'\nbackend-path=['../..']"}, `backend-path "../..": path leaves`},
	} {
		c.sdist.name, c.sdist.version = "a", "1"
		b := &testBuild{}
		_, err := built(t, "a", sourceDir(t, []testSdist{c.sdist}, setuptools), true, b)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if len(b.steps) > 0 {
			t.Errorf("%s: steps %q", name, b.steps)
		}
	}
	empty := filepath.Join(t.TempDir(), "a-1.tar.gz")
	testenv.Write(t, empty, "")
	if _, err := readSources(empty, ".tar.gz", ""); err == nil {
		t.Error("an empty file was accepted as an archive")
	}
}

// TestSourceLinks keeps links of sources as links. Package unpack follows them only inside
// a temporary tree.
func TestSourceLinks(t *testing.T) {
	s := testSdist{name: "a", version: "1", files: []tar.Header{{Name: "TOP/l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}, {Name: "TOP/h", Typeflag: tar.TypeLink, Linkname: "a-1/setup.py"}, {Name: "TOP/d/", Typeflag: tar.TypeDir}}}
	file := filepath.Join(t.TempDir(), s.file())
	testenv.Write(t, file, s.bytes(t))
	src, err := readSources(file, ".tar.gz", "")
	testenv.Check(t, err)
	l, err := layer.New(t.Context(), condatest.NewStore(t), buildRoot, nil, func(w *layer.Writer) error { return src.put(w, "source") })
	testenv.Check(t, err)
	files := condatest.ReadLayers(t, []v1.Layer{l})
	for name, want := range map[string]string{"l": "/etc", "h": ".hpcc-build/source/setup.py", "d": "", "PKG-INFO": ""} {
		if e := files[".hpcc-build/source/"+name]; e.Header == nil || e.Linkname != want {
			t.Errorf("%s = %+v; want the link %q", name, e.Header, want)
		}
	}
}

func TestSourceName(t *testing.T) {
	for file, want := range map[string]string{
		"a-1.0.tar.gz": "a 1.0", "python-dateutil-2.8.2.zip": "python-dateutil 2.8.2", "a_b-1!2.tgz": "a_b 1!2", "x-1.0rc1.tar.bz2": "x 1.0rc1",
		"a.tar.gz": "", "a-b.tar.gz": "", "a-1.0.whl": "", "-1.zip": "", "a-1.0.tar.xz": "a 1.0", "../a-1.zip": "",
	} {
		got := ""
		if n, v, ok := sourceName(file); ok {
			got = n + " " + v.String()
		}
		if got != want {
			t.Errorf("%s is %q; want %q", file, got, want)
		}
	}
}

func TestBuildSystem(t *testing.T) {
	legacy := fmt.Sprint(buildSystem{[]string{legacyRequires}, legacyBackend, nil})
	for text, want := range map[string]string{
		"": legacy, "[project]\nname = 'x'": legacy,
		"[build-system]\nrequires = ['setuptools']":                                "{[setuptools] " + legacyBackend + " []}",
		"[build-system]\nrequires = []\nbuild-backend = 'a.b:c.d'":                 "{[] a.b:c.d []}",
		"[x]\ny = '''\n[build-system]\n'''\n":                                      legacy,
		"build-system = {requires = ['q'], build-backend='q', backend-path=['.']}": "{[q] q [.]}",
	} {
		if got, err := parseBuildSystem([]byte(text)); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
}

func FuzzBuildSystem(f *testing.F) {
	f.Add("[build-system]\nrequires = ['a']\nbuild-backend = 'a:b'\nbackend-path = ['x']\n")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := parseBuildSystem([]byte(text))
		if err != nil {
			return
		}
		for _, p := range b.Path {
			if !filepath.IsLocal(p) {
				t.Errorf("backend-path %q", p)
			}
		}
		if b.Backend == "" || strings.ContainsAny(b.Backend, "\n ;/") {
			t.Errorf("backend %q", b.Backend)
		}
	})
}

// FuzzSources reads source archives: no path leads out of the directory.
func FuzzSources(f *testing.F) {
	seed := testSdist{name: "a", version: "1", project: "[build-system]\nrequires = []\n", files: []tar.Header{{Name: "TOP/l", Typeflag: tar.TypeSymlink, Linkname: "x"}}}
	f.Add(seed.bytes(f), false)
	seed.kind, seed.files = ".zip", nil
	f.Add(seed.bytes(f), true)
	f.Fuzz(func(t *testing.T, data []byte, zipped bool) {
		file, kind := filepath.Join(t.TempDir(), "x"), ".tar.gz"
		if zipped {
			kind = ".zip"
		}
		testenv.Write(t, file, data)
		s, err := readSources(file, kind, "")
		if err != nil {
			return
		}
		var out bytes.Buffer
		w := layer.NewWriter(&out, "/p")
		_ = s.put(w, "source")
		_ = w.Close()
		for tr := tar.NewReader(&out); ; {
			h, err := tr.Next()
			if err != nil {
				break // the last file may be truncated
			}
			if d := strings.TrimSuffix(h.Name, "/"); (d != "p" && !strings.HasPrefix(d, "p/source")) || (strings.Contains(d, "..") && !filepath.IsLocal(d)) {
				t.Errorf("entry %q", d)
			}
		}
	})
}
