package conda

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/conda/pip"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// pythonPkg returns a python package for which wheels can be chosen.
func pythonPkg() *testPkg {
	return &testPkg{name: "python", version: "3.11.4", files: []testFile{{path: "bin/python3.11", text: "ELF"}, {path: "lib/python3.11/lib-dynload/x.cpython-311-x86_64-linux-gnu.so", text: "ELF"}}}
}

// installPip installs an export with packages of pip into layers.
func installPip(t *testing.T, text, name string, o Options) (map[string]condatest.Entry, *Environment, error) {
	t.Helper()
	e, err := exports.Read(strings.NewReader(text), name, exports.ReadOptions{Subdir: o.Subdir})
	testenv.Check(t, err)
	p, err := Resolve(t.Context(), e, o)
	if err != nil {
		return nil, nil, err
	}
	layers, env, err := p.Layers(t.Context(), condatest.NewStore(t), o)
	if err != nil {
		return nil, nil, err
	}
	env.Notes = append(p.Notes, env.Notes...)
	return condatest.ReadLayers(t, layers), env, nil
}

// TestExportWithPip installs pip packages above those of conda, from every format that lists
// them.
func TestExportWithPip(t *testing.T) {
	python, six := pythonPkg(), testPkg{name: "six", version: "1.16", noarch: "python", files: []testFile{{path: "site-packages/six-1.16.dist-info/METADATA", text: "x"}}}
	channel := newChannel(t, python, &six)
	hashed := condatest.SimpleWheel("hashed", "3")
	wheels := condatest.WheelDir(t, condatest.SimpleWheel("demo", "1"), condatest.SimpleWheel("demo", "2", "helper", "six"), condatest.SimpleWheel("helper", "1"), hashed)
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(hashed.Bytes(t)))
	o := Options{Request: Request{Channels: []string{channel}, Indexes: pip.Indexes{NoIndex: true, FindLinks: []string{wheels}}}, Subdir: "linux-64"}
	for _, c := range []struct{ name, text, want, note string }{
		{"list.txt", export(python, &six) + "\ndemo=1=pypi_0\n", "demo 1", ""},
		{"list.txt", export(python) + "\ndemo=2=pypi_0\nhelper=1=pypi_0\n", "demo 2, helper 1", "demo 2 needs six, which no package provides"},
		{"environment.yml", "dependencies:\n- python=3.11\n- six\n- pip:\n  - demo\n", "demo 2, helper 1", ""},
		{"environment.yml", "dependencies:\n- python=3.11\n- pip:\n  - hashed==3 --hash=" + sum + "\n", "hashed 3", ""},
		{"requirements.txt", "demo<2\n", "demo 1", "requirements.txt: no python version given; using 3.11 (choose another with --python)"},
	} {
		files, env, err := installPip(t, c.text, c.name, o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, w := range env.Wheels {
			got = append(got, w.Name+" "+w.Version)
			if f := files["opt/conda/lib/python3.11/site-packages/"+w.Name+"-"+w.Version+".dist-info/RECORD"]; f.Header == nil {
				t.Errorf("%s: %s is not installed", c.name, w.Name)
			}
		}
		if strings.Join(got, ", ") != c.want || (c.note != "" && !strings.Contains(strings.Join(env.Notes, "\n"), c.note)) {
			t.Errorf("%s: %v with the notes %q; want %s and %q", c.name, got, env.Notes, c.want, c.note)
		}
	}
}

// TestExportWithIncludes installs the packages of included files, within their constraints.
func TestExportWithIncludes(t *testing.T) {
	python := pythonPkg()
	wheels := condatest.WheelDir(t, condatest.SimpleWheel("demo", "1", "helper"), condatest.SimpleWheel("helper", "1"), condatest.SimpleWheel("helper", "2"), condatest.SimpleWheel("near", "1"))
	dir := testenv.Files(t, "environment.yml", "dependencies:\n- python=3.11\n- pip:\n  - -r pip/more.txt\n  - -c limits.txt\n", "pip/more.txt", "demo\n./near-1-py3-none-any.whl\n", "limits.txt", "helper<2\n")
	testenv.Check(t, os.Rename(filepath.Join(wheels, "near-1-py3-none-any.whl"), filepath.Join(dir, "pip/near-1-py3-none-any.whl")))
	e, err := exports.ReadFile(filepath.Join(dir, "environment.yml"), exports.ReadOptions{Subdir: "linux-64"})
	testenv.Check(t, err)
	o := Options{Request: Request{Channels: []string{newChannel(t, python)}, Indexes: pip.Indexes{NoIndex: true, FindLinks: []string{wheels}}}, Subdir: "linux-64"}
	p, err := Resolve(t.Context(), e, o)
	testenv.Check(t, err)
	list, _, err := p.Downloads(t.Context(), condatest.NewStore(t), o)
	var got []string
	for _, d := range list {
		got = append(got, d.Name+" "+d.Version)
	}
	if want := "python 3.11.4, demo 1, helper 1, near 1"; err != nil || strings.Join(got, ", ") != want {
		t.Errorf("Downloads = %v, %v; want %s", got, err, want)
	}
}

// TestExportWithPipRefused reports the line and the reason of packages that cannot be
// installed.
func TestExportWithPipRefused(t *testing.T) {
	python, six := pythonPkg(), testPkg{name: "six", version: "1.16"}
	channel := newChannel(t, python, &six)
	o := Options{Request: Request{Channels: []string{channel}, Indexes: pip.Indexes{NoIndex: true, FindLinks: []string{condatest.WheelDir(t, condatest.SimpleWheel("demo", "1"))}}}, Subdir: "linux-64"}
	for _, c := range []struct{ name, text, python, want string }{
		{"list.txt", export(&six) + "\ndemo=1=pypi_0\n", "", "list.txt:4: pip packages need a python in the environment"},
		{"list.txt", export(python) + "\nnone=1=pypi_0\n", "", "list.txt: 1 pip package cannot be installed: line 4: none==1: there is no package none in "},
		{"list.txt", export(python), "3.11", "list.txt: the export lists conda packages: add python 3.11 to it, as python=3.11"},
		{"requirements.txt", "demo==1\n", ">=3.9", "python \">=3.9\": not a version (for example 3.11)"},
		{"requirements.txt", "demo==1\n", "3.12", "requirements.txt:1: python=3.12 has no build for linux-64"},
		{"requirements.txt", "--index-url https://$HPCC_NO_SUCH@h/simple\ndemo==1\n", "", "variable HPCC_NO_SUCH is not set"},
	} {
		o := o
		o.Python = c.python
		if strings.Contains(c.text, "--index-url") {
			o.Indexes = pip.Indexes{}
		}
		if _, _, err := installPip(t, c.text, c.name, o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
}

// TestPipLink uses the C library of python itself.
func TestPipLink(t *testing.T) {
	alpine := func() (Libc, error) { return Libc{Musl: "1.1"}, nil }
	debian := func() (Libc, error) { return Libc{Glibc: "2.36"}, nil }
	musl := map[string]pip.Owner{"lib/python3.11/lib-dynload/math.cpython-311-x86_64-linux-musl.so": {}}
	for _, c := range []struct {
		o        Options
		paths    map[string]pip.Owner
		override string
		want     string
	}{
		{Options{}, nil, "", "glibc 2.28"},
		{Options{Libc: debian}, nil, "", "glibc 2.36"},
		{Options{Libc: debian}, nil, "2.17", "glibc 2.17"},
		{Options{Libc: alpine}, nil, "", "glibc 2.28"},
		{Options{Libc: alpine}, musl, "", "musl 1.1"},
		{Options{Libc: debian}, musl, "", "musl 1.2"},
	} {
		t.Setenv("CONDA_OVERRIDE_GLIBC", c.override)
		target := pip.Target{Subdir: "linux-64", Python: "3.11.4", Prefix: "/opt/conda", Paths: c.paths}
		if err := linkPip(&target, c.o); err != nil || linkedWith(target) != c.want {
			t.Errorf("wheels are chosen %s, %v; want %s", linkedWith(target), err, c.want)
		}
	}
}

// linkedWith returns the C library for which wheels are chosen.
func linkedWith(t pip.Target) string {
	if t.Musl != "" {
		return "musl " + t.Musl
	}
	return "glibc " + t.Glibc
}
