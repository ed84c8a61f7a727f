package pip

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// projectDir creates a project named demo-lib whose build makes a wheel.
func projectDir(t testing.TB, dir string) string {
	t.Helper()
	w := condatest.SimpleWheel("demo-lib", "1.5", "helper; extra == 'plot'")
	w.Meta = "Provides-Extra: plot\n" + w.Meta
	testenv.Write(t, filepath.Join(dir, w.File()), w.Bytes(t))
	testenv.Write(t, filepath.Join(dir, "pyproject.toml"), []byte("[project]\nname = \"Demo_Lib\"\nversion = \"1.5\"\n"))
	return dir
}

// builtFrom resolves and installs a row of a file in dir. The index is another directory.
func builtFrom(t testing.TB, row, dir string) (*result, error) {
	t.Helper()
	b := &testBuild{}
	o := b.options(t, sourceDir(t, nil, setuptools, condatest.SimpleWheel("helper", "3")))
	o.Dir, o.Closed = dir, false
	return installed(t, row, pyTarget(nil), o)
}

// TestDirectory builds and installs directories of sources, relative to the file that names them.
func TestDirectory(t *testing.T) {
	for _, c := range []struct{ row, want, note string }{
		{"-e .", "demo-lib 1.5", "-e . is installed as a copy, not as an editable package: build again after a change"},
		{".", "demo-lib 1.5", ""},
		{"--editable ./", "demo-lib 1.5", "-e ./ is installed as a copy"},
		{"demo-lib @ .", "demo-lib 1.5", ""},
		{"-e .[plot]", "demo-lib 1.5, helper 3", "is installed as a copy"},
		{"-e .#egg=demo_lib", "demo-lib 1.5", "is installed as a copy"},
	} {
		dir := projectDir(t, t.TempDir())
		before := listing(t, dir)
		r, err := builtFrom(t, c.row, dir)
		if err != nil {
			t.Errorf("%q: %v", c.row, err)
			continue
		}
		if got := wheelNames(r.plan); got != c.want {
			t.Errorf("%q: installed %s; want %s", c.row, got, c.want)
		}
		if notes := strings.Join(r.notes, "\n"); !strings.Contains(notes, c.note) || (c.note == "" && strings.Contains(notes, "copy")) {
			t.Errorf("%q: notes %q; want %q", c.row, notes, c.note)
		}
		if _, found := r.files["opt/conda/lib/python3.11/site-packages/demo_lib-1.5.dist-info/direct_url.json"]; found {
			t.Errorf("%q: the image has the path of the directory", c.row)
		}
		if after := listing(t, dir); after != before {
			t.Errorf("%q: the directory was changed:\n%s\nbefore:\n%s", c.row, after, before)
		}
	}
}

func wheelNames(p *Plan) string {
	var out []string
	for _, w := range p.Wheels {
		out = append(out, w.Name+" "+w.Version)
	}
	return strings.Join(out, ", ")
}

// listing lists the files below a directory with their sizes and times.
func listing(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	testenv.Check(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			b.WriteString(path + " " + info.Mode().String() + " " + info.ModTime().String() + "\n")
		}
		return err
	}))
	return b.String()
}

// packed returns the names in the archive of a directory, its digest, and the names left out.
func packed(t testing.TB, dir string) (names []string, sum string, left []string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	testenv.Check(t, err)
	defer root.Close()
	d := &sourceDirectory{root: root}
	testenv.Check(t, d.list(t.Context()))
	f, err := newFetcher(condatest.NewStore(t), nil)
	testenv.Check(t, err)
	sum, _, err = f.keepDirectory(t.Context(), "a.tar.gz", d)
	testenv.Check(t, err)
	for _, e := range d.entries {
		names = append(names, e.name)
	}
	return names, sum, d.left
}

// TestDirectoryCopy copies files and links within the directory. It leaves out links that lead out
// of it, special files, repositories, caches and environments.
func TestDirectoryCopy(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.py", "pkg/b.py", ".git/config", "pkg/__pycache__/b.pyc", "venv/pyvenv.cfg", "venv/lib/x.py", "envs/sci/conda-meta/history", ".env"} {
		testenv.Write(t, filepath.Join(dir, name), []byte(name))
	}
	for name, to := range map[string]string{"pkg/in": "../a.py", "out": "../secret", "pkg/out": "../../secret", "root": "/etc/passwd"} {
		testenv.Check(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	names, sum, left := packed(t, dir)
	if want := []string{".env", "a.py", "envs", "pkg", "pkg/b.py", "pkg/in"}; !slices.Equal(names, want) {
		t.Errorf("copied %q; want %q", names, want)
	}
	if want := []string{"out", "pkg/out", "root"}; !slices.Equal(left, want) {
		t.Errorf("left out %q; want %q", left, want)
	}
	other := t.TempDir()
	for _, name := range []string{"pkg/b.py", "a.py", ".env"} {
		testenv.Write(t, filepath.Join(other, name), []byte(name))
	}
	testenv.Check(t, os.Mkdir(filepath.Join(other, "envs"), 0o700))
	testenv.Check(t, os.Symlink("../a.py", filepath.Join(other, "pkg/in")))
	if _, again, _ := packed(t, other); again != sum {
		t.Errorf("equal files have the digests %s and %s", sum, again)
	}
	testenv.Write(t, filepath.Join(other, "a.py"), []byte("b.py"))
	if _, again, _ := packed(t, other); again == sum {
		t.Error("a changed file has the same digest")
	}
}

// TestDirectoryRefused names the row and the reason.
func TestDirectoryRefused(t *testing.T) {
	for _, c := range []struct {
		row, want string
		prepare   func(dir string)
	}{
		{"-e ./missing", "line 1: -e ./missing: no such file or directory: ", nil},
		{"-e .", "line 1: -e .: the directory has no pyproject.toml, setup.cfg or setup.py: it is not a Python project", nil},
		{"-e .", "line 1: -e .: the name of the package is unknown; write NAME @ DIRECTORY", func(dir string) {
			testenv.Write(t, filepath.Join(dir, "setup.py"), []byte("setup(name=NAME)\n"))
		}},
		{"-e .", "more than 1024 MB or 100000 files; move data out of it", func(dir string) {
			testenv.Write(t, filepath.Join(dir, "data"), []byte{})
			testenv.Check(t, os.Truncate(filepath.Join(dir, "data"), maxSourceBytes+1))
		}},
		{"-e ./good-1-py3-none-any.whl", "an editable package is a directory of sources; remove -e", nil},
		{"other @ .", "the wheel contains demo-lib 1.5", func(dir string) {
			testenv.Check(t, os.Remove(filepath.Join(dir, "good-1-py3-none-any.whl")))
			projectDir(t, dir)
		}},
	} {
		dir := condatest.WheelDir(t, condatest.SimpleWheel("good", "1"))
		if c.prepare != nil {
			c.prepare(dir)
		}
		if _, err := builtFrom(t, c.row, dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.row, err, c.want)
		}
	}
}

// TestDirectoryDigest refuses a directory that differs from the one of the lock file.
func TestDirectoryDigest(t *testing.T) {
	dir := projectDir(t, t.TempDir())
	row := "demo-lib @ . --hash=sha256:" + strings.Repeat("0", 64)
	if _, err := builtFrom(t, row, dir); err == nil || !strings.Contains(err.Error(), "the directory has changed: its copy has sha256:") {
		t.Errorf("%v; want the digest refused", err)
	}
}

// TestProjectName reads the names of projects from each project file.
func TestProjectName(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"pyproject.toml", "[project]\nname = 'a.b'\n", "a.b"},
		{"pyproject.toml", "[tool.poetry]\nname = 'poem'\n", "poem"},
		{"pyproject.toml", "[tool.flit.metadata]\nmodule = 'lit'\n", "lit"},
		{"setup.cfg", "[options]\nname = no\n[metadata]\nversion = 1\nname = cfg\n", "cfg"},
		{"setup.cfg", "[metadata]\nname=first\nlong_description = x\n", "first"},
		{"setup.py", "from setuptools import setup\nsetup(\n    name='old-one',\n    version='1')\n", "old-one"},
	} {
		if got, err := projectName(func(name string) string { return map[string]string{c.file: c.text}[name] }); got != c.want {
			t.Errorf("%s %q: %q, %v; want %q", c.file, c.text, got, err, c.want)
		}
	}
}

// FuzzProjectName reads project files: each gives a valid name or an error.
func FuzzProjectName(f *testing.F) {
	f.Add("[project]\nname = 'a.b'\n", "[metadata]\nname=first\n", "setup(name='old-one')")
	f.Add("[tool]\npoetry = 1\n", "[metadata]\n\n\n[x]\nname=no\n", "name=\"\"")
	f.Fuzz(func(t *testing.T, project, cfg, setup string) {
		files := map[string]string{"pyproject.toml": project, "setup.cfg": cfg, "setup.py": setup}
		name, err := projectName(func(name string) string { return files[name] })
		if (err == nil) != (Requirement{Name: name}).ValidName() {
			t.Fatalf("projectName = %q, %v", name, err)
		}
	})
}
