package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda"
)

// condaDockerfile prints the Dockerfile of an export for machines.
func condaDockerfile(t *testing.T, o CondaOptions, archs ...string) (text string, notes []string, err error) {
	t.Helper()
	s := open(t)
	var planned []*Environment
	for _, arch := range archs {
		o.Platform = &v1.Platform{OS: "linux", Architecture: arch}
		env, err := PlanConda(t.Context(), s, o)
		if err != nil {
			t.Fatal(err)
		}
		planned = append(planned, env)
	}
	b, notes, err := CondaDockerfile(planned)
	return string(b), notes, err
}

// TestCondaDockerfile holds what is printed to what is recorded, and to the checks of
// BuildKit and of hpcc: docker must be able to build it.
func TestCondaDockerfile(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     CondaOptions
		archs []string
	}{
		{"one", CondaOptions{File: "testdata/condafile/explicit.txt"}, []string{"amd64"}},
		{"two", CondaOptions{File: "testdata/condafile/conda-lock.yml", From: "ubuntu:24.04", Prefix: "/opt/env"}, []string{"amd64", "ppc64le"}},
		{"scratch", CondaOptions{File: "testdata/condafile/explicit.txt", From: "scratch"}, []string{"amd64"}},
	} {
		got, notes, err := condaDockerfile(t, c.o, c.archs...)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if hidden := strings.Contains(strings.Join(notes, " "), "addresses that had credentials are without in the Dockerfile: zlib;"); hidden != (c.name != "two") {
			t.Errorf("%s: notes %q", c.name, notes)
		}
		holdDockerfile(t, c.name, got, c.archs...)
	}
}

// holdDockerfile compares with what is recorded, and checks it.
func holdDockerfile(t *testing.T, name, got string, archs ...string) {
	t.Helper()
	golden := filepath.Join("testdata", "condafile", name+".Dockerfile")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: printed\n%s\nwant, unless \"go test ./build -run CondaDockerfile -update\" is right,\n%s", name, got, want)
	}
	for _, arch := range archs {
		var told []string
		n, _, err := Check(t.Context(), open(t), Options{Dockerfile: golden, Context: t.TempDir(), Platform: &v1.Platform{OS: "linux", Architecture: arch},
			Progress: func(e Event) { told = append(told, e.Warning) }})
		if n > 0 || err != nil {
			t.Errorf("%s: checks for %s: %v %q", name, arch, err, told)
		}
	}
}

// TestCondaDockerfilePip prints packages of pip: with the environment's own pip and
// hashes, and without either.
func TestCondaDockerfilePip(t *testing.T) {
	one := &conda.Pinned{Subdir: "linux-64", Prefix: "/opt/conda", Explicit: []string{"https://conda.anaconda.org/conda-forge/noarch/pip-25-0.conda"}, Pip: true, Hashed: true,
		Requirements: []string{"--extra-index-url https://extra.example/simple", "six==1.16.0 --hash=sha256:8abb2f1d86890a2dfb989f9a77cfcfd3e47c2a354b01111771326f8aa26e0254"}}
	other := &conda.Pinned{Subdir: "linux-aarch64", Prefix: "/opt/conda", Requirements: []string{"six==1.16.0"}}
	for _, c := range []struct {
		name string
		f    condaFile
	}{
		{"pip", condaFile{options: CondaOptions{File: "env.yml", From: DefaultBase}, archs: []string{"amd64"}, pins: []*conda.Pinned{one}}},
		{"pipless", condaFile{options: CondaOptions{Live: "/srv/envs/lab", From: DefaultBase}, archs: []string{"amd64", "arm64"}, pins: []*conda.Pinned{one, other}}},
	} {
		if err := c.f.write(); err != nil {
			t.Fatal(err)
		}
		holdDockerfile(t, c.name, c.f.String(), c.f.archs...)
	}
}

func TestCondaDockerfileRefused(t *testing.T) {
	dir := t.TempDir()
	here, lines := filepath.Join(dir, "here.txt"), filepath.Join(dir, "lines.yml")
	if err := os.WriteFile(here, []byte("@EXPLICIT\nfile:///srv/linux-64/zlib-1-0.conda\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	lock, err := os.ReadFile("testdata/condafile/conda-lock.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lines, []byte(strings.Replace(string(lock), `"GREETING":"`, `"GREETING":"one\ntwo `, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		o          CondaOptions
		arch       string
	}{
		{"a machine without an installer", "is not there for linux/s390x", CondaOptions{File: "testdata/condafile/noarch.txt"}, "s390x"},
		{"packages of this machine", "1 packages lie in directories of this machine, where nobody else can fetch them: zlib", CondaOptions{File: here}, "amd64"},
		{"a variable of two lines", "the variable GREETING has several lines", CondaOptions{File: lines}, "amd64"},
		{"a prefix for shells", "neither may have characters that a shell reads", CondaOptions{File: "testdata/condafile/explicit.txt", Prefix: "/opt/$x"}, "amd64"},
	} {
		text, _, err := condaDockerfile(t, c.o, c.arch)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v %q; want an error with %q", c.name, err, text, c.want)
		}
	}
}

func TestLiteral(t *testing.T) {
	for in, want := range map[string]string{"": `""`, `a "b" \c $HOME ${x}`: `"a \"b\" \\c \$HOME \${x}"`} {
		if got := literal(in); got != want {
			t.Errorf("literal(%q) = %s; want %s", in, got, want)
		}
	}
}
