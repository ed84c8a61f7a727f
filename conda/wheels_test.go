package conda

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/conda/pip"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// TestPipOnConda checks the target that pip's wheels get from the conda environment.
func TestPipOnConda(t *testing.T) {
	site := "lib/python3.11/site-packages/"
	python := testPkg{name: "python", version: "3.11.4", files: []testFile{{path: "bin/python3.11", text: "ELF"}}}
	torch := testPkg{name: "pytorch", version: "2.1", files: []testFile{{path: site + "torch-2.1.0.dist-info/METADATA", text: "Name: torch"}, {path: site + "torch/x.py", text: "x"}, {path: site + "old_one-1.0-py3.11.egg-info", text: "x"}, {path: site + "egg-2.0.egg-info/PKG-INFO", text: "x"}, {path: site + "not/a-1.dist-info/METADATA", text: "x"}}}
	noarch := testPkg{name: "tool", noarch: "python", entryPoints: []string{"tool = tool:main"}, files: []testFile{{path: "site-packages/tool-3.0.dist-info/METADATA", text: "x"}}}
	dir := newChannel(t, &python, &torch, &noarch)
	e, err := exports.Read(strings.NewReader(export(&python, &torch, &noarch)), "env.txt", exports.ReadOptions{})
	testenv.Check(t, err)
	plan, err := Resolve(t.Context(), e, Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"})
	testenv.Check(t, err)
	in := &installer{plan: plan, store: condatest.NewStore(t), env: &Environment{}}
	testenv.Check(t, errors.Join(in.fetch(t.Context(), Options{}), in.read(t.Context()), in.settle()))
	target := pip.Target{Glibc: "2.36"}
	testenv.Check(t, setPipTarget(&target, in))
	want := []pip.Provided{{Name: "egg", Version: "2.0", Package: "pytorch"}, {Name: "old-one", Version: "1.0", Package: "pytorch"}, {Name: "tool", Version: "3.0", Package: "tool"}, {Name: "torch", Version: "2.1.0", Package: "pytorch"}}
	if fmt.Sprint(target.Provided) != fmt.Sprint(want) || target.Python != "3.11.4" || target.Prefix != "/opt/conda" || target.SitePackages != strings.TrimSuffix(site, "/") {
		t.Errorf("target = %+v; want %v", target, want)
	}
	wheels := condatest.WheelDir(t, condatest.SimpleWheel("user", "1", "torch>=2", "tool", "egg"), condatest.Wheel{Name: "clash", Version: "1", Points: "[console_scripts]\ntool = clash:main\n"})
	rows := []pip.Requirement{{Line: 1, Name: "user"}, {Line: 2, Name: "clash"}, {Line: 3, Name: "torch", Specifier: "==2.1"}}
	o := pip.Options{Indexes: pip.Indexes{FindLinks: []string{wheels}, NoIndex: true}, Closed: true}
	chosen, err := pip.Resolve(t.Context(), in.store, rows, target, o)
	testenv.Check(t, err)
	_, given, err := chosen.Layers(t.Context(), in.store, o)
	testenv.Check(t, err)
	notes := []string{"1 pip package is part of conda packages: torch", "1 path is in both the conda package tool and clash; the latter's are used: bin/tool"}
	if got := append(chosen.Notes, given...); strings.Join(got, "\n") != strings.Join(notes, "\n") {
		t.Errorf("notes = %q; want %q", got, notes)
	}
	in.packages = in.packages[:0]
	if err := setPipTarget(&target, in); err != nil || target.Paths == nil { // target still has the python of the first call
		t.Errorf("an environment without packages: %v", err)
	}
	if err := setPipTarget(&pip.Target{}, in); err == nil || !strings.Contains(err.Error(), "need a python") {
		t.Errorf("an environment without python: %v", err)
	}
}

// TestLockBuilt locks a package that was built from sources together with the wheels of its
// build environment.
func TestLockBuilt(t *testing.T) {
	backend := pip.Wheel{Name: "setuptools", Version: "66", SHA256: shaA, Address: "https://i.example/setuptools-66-py3-none-any.whl"}
	lock := (&Plan{Subdir: "linux-64", export: &exports.Export{}}).Lock([]pip.Wheel{{Name: "a", Version: "1", SHA256: shaA, Address: "https://i.example/a-1.tar.gz", BuiltWith: []pip.Wheel{backend}}})
	var text bytes.Buffer
	testenv.Check(t, exports.WriteLock(&text, []string{"x"}, []exports.Locked{lock}))
	e, err := exports.Read(&text, "conda-lock.yml", exports.ReadOptions{Subdir: "linux-64"})
	if err != nil || len(e.Pip) != 1 || fmt.Sprint(e.Pip[0].BuildWith) != "[setuptools @ "+backend.Address+"#sha256="+shaA+"]" || e.Pip[0].URL != "https://i.example/a-1.tar.gz" {
		t.Errorf("Read of the written lock file = %+v, %v", e, err)
	}
}
