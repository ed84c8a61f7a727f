package conda

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// TestPythonLockFiles installs the wheels of lock files, from an index on this host, into an
// environment with a python that the file allows.
func TestPythonLockFiles(t *testing.T) {
	old := &testPkg{name: "python", version: "3.10.2", files: []testFile{{path: "bin/python3.10", text: "ELF"}}}
	next := &testPkg{name: "python", version: "3.13.1", files: []testFile{{path: "bin/python3.13", text: "ELF"}}}
	pip, setuptools := &testPkg{name: "pip", version: "24", depends: []string{"python", "setuptools"}}, &testPkg{name: "setuptools", version: "70", noarch: "python", files: []testFile{{path: "site-packages/setuptools-70.dist-info/METADATA", text: "x"}}}
	channel := newChannel(t, old, pythonPkg(), next, pip, setuptools)
	wheels := []condatest.Wheel{
		condatest.SimpleWheel("demo", "1", "helper", "legacy; python_version < '3.11'"), condatest.SimpleWheel("helper", "1"), condatest.SimpleWheel("setuptools", "66"),
		condatest.Tagged(condatest.SimpleWheel("native", "1"), "cp310-cp310-linux_x86_64"), condatest.Tagged(condatest.SimpleWheel("native", "1"), "cp311-cp311-linux_x86_64"),
	}
	web := condatest.ServeIndex(t, true, wheels...)
	file := func(w condatest.Wheel, format string) string {
		b := w.Bytes(t)
		return fmt.Sprintf(format, web.URL+"/files/"+w.File(), condatest.SHA256(b), len(b))
	}
	uv := func(name, more string, list ...condatest.Wheel) string {
		s := fmt.Sprintf("[[package]]\nname = %q\nversion = %q\nsource = { registry = %q }\n%swheels = [\n", name, list[0].Version, web.URL+"/simple", more)
		for _, w := range list {
			s += file(w, "  { url = \"%s\", hash = \"sha256:%s\", size = %d },\n")
		}
		return s + "]\n"
	}
	pylock := func(marker string, w condatest.Wheel) string {
		return fmt.Sprintf("[[packages]]\nname = %q\nversion = %q\nmarker = %q\nwheels = [%s]\n", w.Name, w.Version, marker, file(w, "{url = \"%s\", hashes = {sha256 = \"%s\"}, size = %d}"))
	}
	uvText := "version = 1\nrequires-python = \">=3.10, <3.13\"\n[[package]]\nname = \"app\"\nsource = { editable = \".\" }\ndependencies = [{ name = \"demo\" }, { name = \"native\" }]\n" +
		uv("demo", "dependencies = [{ name = \"helper\" }, { name = \"setuptools\", marker = \"python_full_version < '3.11'\" }]\n", wheels[0]) + uv("helper", "", wheels[1]) + uv("native", "", wheels[3], wheels[4])
	poetry := "[[package]]\nname = \"demo\"\nversion = \"1\"\noptional = false\npython-versions = \"*\"\ngroups = [\"main\"]\nmarkers = \"python_version >= '3.11'\"\n" +
		"files = [{file = \"demo-1-py3-none-any.whl\", hash = \"sha256:" + condatest.SHA256(wheels[0].Bytes(t)) + "\"}]\n[package.source]\ntype = \"legacy\"\nurl = \"" + web.URL + "/simple\"\n" +
		"[metadata]\nlock-version = \"2.1\"\npython-versions = \"~3.11\"\n"
	for _, c := range []struct{ file, text, python, want, note string }{
		{"uv.lock", uvText + uv("setuptools", "", wheels[2]), "", "python 3.11.4, demo 1, helper 1, native 1", "uv.lock: the file allows python>=3.10,<3.13; using 3.11 (choose another with --python)"},
		{"uv.lock", uvText + uv("setuptools", "", wheels[2]), "3.10", "python 3.10.2, demo 1, helper 1, native 1, setuptools 66", "uv.lock: conda's pip is not installed, because the file lists setuptools==66"},
		{"uv.lock", strings.Replace(uvText+uv("setuptools", "", wheels[2]), "<3.13", "<4", 1), "", "python 3.11.4, demo 1, helper 1, native 1", "uv.lock: python is one of 3.10.*, 3.11.*, for which all packages have wheels; others lack those of native"},
		{"poetry.lock", poetry, "", "python 3.11.4, setuptools 70, pip 24, demo 1", "demo 1 needs helper, which no package provides"},
		{"pylock.toml", "lock-version = \"1.0\"\nrequires-python = \"==3.11.*\"\n" + pylock("python_version == '3.11'", wheels[1]) + pylock("sys_platform == 'win32'", wheels[3]), "", "python 3.11.4, setuptools 70, pip 24, helper 1", "native==1 is not for linux-64 (sys_platform == 'win32') and is left out"},
	} {
		o := Options{Request: Request{Channels: []string{channel}, Python: c.python}, Subdir: "linux-64"}
		dir := testenv.Files(t, c.file, c.text)
		e, err := exports.ReadFile(filepath.Join(dir, c.file), exports.ReadOptions{Subdir: "linux-64"})
		testenv.Check(t, err)
		p, err := Resolve(t.Context(), e, o)
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		var got []string
		for _, x := range p.Packages() {
			got = append(got, x.Name+" "+x.Version)
		}
		list, _, err := p.Downloads(t.Context(), condatest.NewStore(t), o)
		if last := len(list) - 1; err != nil || len(list) <= len(got) || list[last].Size == 0 {
			t.Errorf("%s: Downloads = %+v, %v; want wheels with sizes", c.file, list, err)
		}
		layers, env, err := p.Layers(t.Context(), condatest.NewStore(t), o)
		testenv.Check(t, err)
		files := condatest.ReadLayers(t, layers)
		for _, w := range env.Wheels {
			got = append(got, w.Name+" "+w.Version)
			if f := files["opt/conda/lib/python"+p.python+"/site-packages/"+w.Name+"-"+w.Version+".dist-info/RECORD"]; f.Header == nil || w.SHA256 == "" {
				t.Errorf("%s: %s is not installed", c.file, w.Name)
			}
		}
		if notes := strings.Join(append(p.Notes, append(e.Notes, env.Notes...)...), "\n"); strings.Join(got, ", ") != c.want || !strings.Contains(strings.ReplaceAll(notes, dir+"/", ""), c.note) {
			t.Errorf("%s with python %q: %s with the notes\n%s\nwant %s and %q", c.file, c.python, strings.Join(got, ", "), notes, c.want, c.note)
		}
	}
	for _, c := range []struct{ text, python, want string }{
		{uvText + uv("setuptools", "", wheels[2]), "3.13", "uv.lock:2: the file needs python>=3.10,<3.13, which excludes python 3.13; choose a version that it allows with --python"},
		{strings.Replace(uvText+uv("setuptools", "", wheels[2]), "<3.13", "<3.14", 1), "3.13", "available: cp310-cp310-linux_x86_64, cp311-cp311-linux_x86_64"},
		{strings.Replace(uvText+uv("setuptools", "", wheels[2]), ">=3.10", ">=3.12", 1), "", "uv.lock:2: python>=3.12,<3.13 has no build for linux-64"},
	} {
		o := Options{Request: Request{Channels: []string{channel}, Python: c.python}, Subdir: "linux-64"}
		if _, _, err := installPip(t, c.text, "uv.lock", o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("python %q: %v; want %q", c.python, err, c.want)
		}
	}
}
