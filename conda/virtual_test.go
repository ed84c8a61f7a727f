package conda

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/testdata/helpers/testenv"
)

func TestVirtualPackages(t *testing.T) {
	glibc := func(v string) func() (Libc, error) { return func() (Libc, error) { return Libc{Glibc: v}, nil } }
	declared := []exports.Entry{{Line: 5, Name: "__cuda", Version: "12"}, {Line: 6, Name: "__glibc", Version: "2.31"}, {Line: 7, Name: "__linux", Version: "4.18"}}
	type env map[string]string
	for _, c := range []struct {
		name     string
		o        Options
		flags    []string
		env      env
		declared []exports.Entry
		want     string
	}{
		{"defaults", Options{Subdir: "linux-64"}, nil, nil, nil, "__archspec=1=x86_64 __glibc=2.28=0 __linux=5.10=0 __unix=0=0"},
		{"image and flag", Options{Subdir: "linux-ppc64le", Libc: glibc("2.36")}, []string{"__cuda=12.4"}, nil, nil, "__archspec=1=ppc64le __cuda=12.4=0 __glibc=2.36=0 __linux=5.10=0 __unix=0=0"},
		{"variables", Options{Subdir: "linux-64", Libc: glibc("2.36")}, nil, env{"CONDA_OVERRIDE_GLIBC": "2.17", "CONDA_OVERRIDE_CUDA": "11.8", "CONDA_OVERRIDE_ARCHSPEC": "zen3", "CONDA_OVERRIDE_LINUX": ""}, nil,
			"__archspec=1=zen3 __cuda=11.8=0 __glibc=2.17=0 __unix=0=0"},
		{"variables remove", Options{Subdir: "linux-64"}, nil, env{"CONDA_OVERRIDE_CUDA": "", "CONDA_OVERRIDE_ARCHSPEC": ""}, declared[:1], "__glibc=2.28=0 __linux=5.10=0 __unix=0=0"},
		{"flags before variables", Options{Subdir: "linux-64"}, []string{"__cuda=12", "__glibc=2.34", "__archspec=1=x86_64_v3", "__linux="}, env{"CONDA_OVERRIDE_CUDA": "11", "CONDA_OVERRIDE_GLIBC": "2.17"}, declared,
			"__archspec=1=x86_64_v3 __cuda=12=0 __glibc=2.34=0 __unix=0=0"},
		{"the export's before the defaults", Options{Subdir: "linux-64"}, nil, nil, declared, "__archspec=1=x86_64 __cuda=12=0 __glibc=2.31=0 __linux=4.18=0 __unix=0=0"},
		{"variables before the export's", Options{Subdir: "linux-64"}, nil, env{"CONDA_OVERRIDE_CUDA": "11"}, declared[:1], "__archspec=1=x86_64 __cuda=11=0 __glibc=2.28=0 __linux=5.10=0 __unix=0=0"},
		{"a newer image", Options{Subdir: "linux-64", Libc: glibc("2.36")}, nil, nil, declared[1:2], "__archspec=1=x86_64 __glibc=2.36=0 __linux=5.10=0 __unix=0=0"},
		{"an older image", Options{Subdir: "linux-64", Libc: glibc("2.17")}, nil, nil, declared[1:2], "__archspec=1=x86_64 __glibc=2.17=0 __linux=5.10=0 __unix=0=0; line 6 declares glibc 2.31, but the image has 2.17, for which the packages are chosen; use an image with a newer one with --from"},
		{"no C library", Options{Subdir: "linux-64", Libc: glibc("")}, nil, nil, declared[1:2], "__archspec=1=x86_64 __glibc=2.31=0 __linux=5.10=0 __unix=0=0"},
		{"any C library", Options{Subdir: "linux-64", Libc: glibc("")}, nil, nil, nil, "__archspec=1=x86_64 __glibc=2.999=0 __linux=5.10=0 __unix=0=0"},
		{"a bad version", Options{Libc: glibc("2/3")}, nil, nil, nil, `virtual package __glibc: "2/3" is not a version; set the version with CONDA_OVERRIDE_GLIBC`},
		{"a bad variable", Options{Libc: glibc("2")}, nil, env{"CONDA_OVERRIDE_CUDA": "1/2"}, nil, `virtual package __cuda: "1/2" is not a version; set the version with CONDA_OVERRIDE_CUDA`},
	} {
		testenv.Check(t, c.o.SetVirtual(c.flags))
		list, notes, err := virtualPackages(c.o, c.declared, func(name string) (string, bool) { v, ok := c.env[name]; return v, ok })
		var got []string
		for _, r := range list {
			got = append(got, r.Name+"="+r.Version+"="+r.Build)
		}
		s := strings.Join(append([]string{strings.Join(got, " ")}, notes...), "; ")
		if err != nil {
			s = err.Error()
		}
		if s != c.want {
			t.Errorf("%s: virtualPackages = %q; want %q", c.name, s, c.want)
		}
	}
}

func TestSetVirtual(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		name = filepath.Join(dir, name)
		testenv.Check(t, os.WriteFile(name, []byte(text), 0o644))
		return name
	}
	// The format and the values are those of conda-lock's documentation of --virtual-package-spec.
	good := file("virtual-packages.yml", "subdirs:\n  linux-64:\n    packages:\n      __glibc: \"2.17\"\n      __cuda: \"11.4\"\n      __archspec: \"1 haswell\"\n  win-64:\n    packages:\n      __cuda: \"11.4\"\n")
	for _, c := range []struct {
		values []string
		subdir string
		want   string
	}{
		{[]string{good}, "linux-64", "__archspec=1=haswell __cuda=11.4=0 __glibc=2.17=0"},
		{[]string{good, "__cuda=12.4", "__gpu=1=x"}, "linux-64", "__archspec=1=haswell __cuda=12.4=0 __glibc=2.17=0 __gpu=1=x"},
		{[]string{"__cuda=12.4", good, "__glibc="}, "linux-64", "__archspec=1=haswell __cuda=11.4=0 __glibc==0"},
		{[]string{good}, "linux-ppc64le", ""},
		{[]string{"__cuda"}, "linux-64", `virtual package "__cuda" has no version; write it as __cuda=VERSION`},
		{[]string{"__archspec=x86_64_v3"}, "linux-64", "virtual package __archspec has no build, the name of a processor; write it as __archspec=1=x86_64_v3"},
		{[]string{"__cuda=1/2"}, "linux-64", `virtual package __cuda: "1/2" is not a version`},
		{[]string{"__cu da=1"}, "linux-64", `"__cu da" is not the name of a virtual package, such as __cuda`},
		{[]string{"__cuda=1=/"}, "linux-64", `virtual package __cuda: "/" is not a build string`},
		{[]string{"cuda=12"}, "linux-64", "reading virtual packages: open cuda=12: no such file or directory; a value is NAME=VERSION, such as __cuda=12.4, or a file"},
		{[]string{file("a.yml", "subdirs:\n  linux-64:\n    packages:\n      cuda: '12'\n")}, "linux-64", dir + `/a.yml:4: "cuda" is not the name of a virtual package, such as __cuda`},
		{[]string{file("b.yml", "packages: {}\n")}, "linux-64", "reading virtual packages: " + dir + `/b.yml has no "subdirs:" with packages`},
		{[]string{file("c.yml", "subdirs: [\n")}, "linux-64", "reading virtual packages: " + dir + "/c.yml: yaml: line 1: did not find expected node content"},
	} {
		o := Options{Subdir: c.subdir}
		err := o.SetVirtual(c.values)
		var got []string
		for _, r := range o.Virtual {
			got = append(got, r.Name+"="+r.Version+"="+r.Build)
		}
		s := strings.Join(got, " ")
		if err != nil {
			s = err.Error()
		}
		if s != c.want {
			t.Errorf("SetVirtual(%q) for %s = %q; want %q", c.values, c.subdir, s, c.want)
		}
	}
}

// TestPixiManifest solves pixi.toml with its limits and virtual packages, which flags replace.
func TestPixiManifest(t *testing.T) {
	channel := newChannel(t,
		&testPkg{name: "torch", version: "2", build: "cpu", depends: []string{"ssl"}}, &testPkg{name: "torch", version: "2", build: "cuda", number: 1, depends: []string{"ssl", "__cuda >=12"}},
		&testPkg{name: "ssl", version: "1"}, &testPkg{name: "ssl", version: "3"}, &testPkg{name: "old", depends: []string{"__glibc <2.30"}})
	const head = "[workspace]\nchannels = []\nplatforms = [\"linux-64\"]\n[dependencies]\ntorch = \"*\"\n"
	for _, c := range []struct {
		name, text string
		flags      []string
		libc, want string
	}{
		{"cpu", head, nil, "", "ssl-3-0 torch-2-cpu"},
		{"limits", head + "[constraints]\nssl = \"<3\"\nother = \">1\"\n", nil, "", "ssl-1-0 torch-2-cpu"},
		{"its cuda", head + "[system-requirements]\ncuda = \"12.1\"\n", nil, "", "ssl-3-0 torch-2-cuda"},
		{"older cuda by flag", head + "[system-requirements]\ncuda = \"12.1\"\n", []string{"__cuda=11.8"}, "", "ssl-3-0 torch-2-cpu"},
		{"no cuda by flag", head + "[system-requirements]\ncuda = \"12.1\"\n", []string{"__cuda="}, "", "ssl-3-0 torch-2-cpu"},
		{"cuda by flag", head, []string{"__cuda=12"}, "", "ssl-3-0 torch-2-cuda"},
		{"its glibc", head + "old = \"*\"\n[system-requirements]\nlibc = \"2.29\"\n", nil, "", "old-1.0-0 ssl-3-0 torch-2-cpu"},
		{"an older image", head + "old = \"*\"\n[system-requirements]\nlibc = \"2.29\"\n", nil, "2.17", "old-1.0-0 ssl-3-0 torch-2-cpu; pixi.toml: line 8 declares glibc 2.29, but the image has 2.17, for which the packages are chosen; use an image with a newer one with --from"},
		{"a newer image", head + "old = \"*\"\n[system-requirements]\nlibc = \"2.29\"\n", nil, "2.36", "pixi.toml:6: "},
		{"a limit that cannot hold", head + "[constraints]\nssl = \">3\"\n", nil, "", "pixi.toml:5: torch and ssl >3 cannot be installed together for linux-64"},
	} {
		o := Options{Request: Request{Channels: []string{channel}}, Subdir: "linux-64"}
		testenv.Check(t, o.SetVirtual(c.flags))
		if c.libc != "" {
			o.Libc = func() (Libc, error) { return Libc{Glibc: c.libc}, nil }
		}
		e, err := exports.Read(strings.NewReader(c.text), "pixi.toml", exports.ReadOptions{Subdir: "linux-64", Virtual: o.VirtualPackages})
		testenv.Check(t, err)
		p, err := Resolve(t.Context(), e, o)
		if err != nil {
			if !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("%s: Resolve = %v; want %s", c.name, err, c.want)
			}
			continue
		}
		if got := strings.Join(append([]string{strings.Join(p.Names(), " ")}, p.Notes...), "; "); got != c.want {
			t.Errorf("%s: Resolve = %s; want %s", c.name, got, c.want)
		}
	}
}
