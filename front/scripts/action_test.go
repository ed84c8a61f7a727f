package scripts

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime"
	"hpcc/testdata/helpers/testenv"
)

// imageWith returns a directory with empty files.
func imageWith(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		testenv.Check(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755))
		testenv.Check(t, os.WriteFile(filepath.Join(dir, f), nil, 0o755))
	}
	return dir
}

func TestPrepare(t *testing.T) {
	t.Setenv("HOME", "/home/me")
	oci := runtime.ImageConfig{Entrypoint: []string{"/entry"}, Cmd: []string{"cmd"}}
	for _, test := range []struct {
		action string
		files  []string
		config runtime.ImageConfig
		arch   string
		args   []string
		want   string // the arguments; "done" if nothing is left to run
		kept   bool   // the image's ENTRYPOINT
	}{
		{action: "exec", config: oci, arch: "amd64", args: []string{"ls"}, want: "ls"},
		{action: "run", config: oci, arch: "amd64", args: []string{"x"}, want: "x", kept: true},
		{action: "run", files: []string{".singularity.d/runscript", "bin/sh"}, config: oci, arch: "amd64", args: []string{"x"}, want: "/.singularity.d/runscript x"},
		{action: "run", files: []string{".singularity.d/runscript"}, config: oci, arch: "amd64", args: []string{"x"}, want: "x", kept: true}, // without a shell
		{action: "run", files: []string{"bin/sh"}, args: []string{"-c", "ls"}, want: "/bin/sh -c ls"},                                        // a directory
		{action: "run", arch: "amd64", want: "/bin/sh"},
		{action: "shell", config: oci, arch: "amd64", want: "/bin/sh"},
		{action: "shell", files: []string{"bin/bash"}, arch: "amd64", args: []string{"-c", "ls"}, want: "/bin/bash --norc -c ls"},
		{action: "test", files: []string{".singularity.d/test", "bin/sh"}, arch: "amd64", want: "/.singularity.d/test"},
		{action: "test", arch: "amd64", want: "done"},
	} {
		img := &runtime.Image{}
		img.Config, img.Architecture = test.config, test.arch
		o := &runtime.Options{Args: test.args}
		a := &Action{Name: test.action}
		done, err := a.Prepare(imageWith(t, test.files...), img, o)
		got := strings.Join(o.Args, " ")
		if done {
			got = "done"
		}
		if err != nil || got != test.want || (len(img.Config.Entrypoint) > 0) != test.kept {
			t.Errorf("%s with %q: %q, ENTRYPOINT %q, %v; want %q", test.action, test.files, got, img.Config.Entrypoint, err, test.want)
		}
	}
}

// TestWrap checks the variables that a program gets, directly and through a shell.
func TestWrap(t *testing.T) {
	for _, test := range []struct {
		inject []string
		noEval bool
		want   string
		shell  bool
	}{
		{inject: []string{"A=1", "B=two words"}, want: "A=1 B=two words PATH=/image"},
		{inject: []string{"PREPEND_PATH=/a", "APPEND_PATH=/z"}, want: "PATH=/a:/image:/z"},
		{inject: []string{"PREPEND_PATH=/a", "PATH=/own"}, want: "PATH=/own"},
		{inject: []string{"A=$C", "B=\\$C `echo x`"}, want: "A=see B=$C x PATH=/image", shell: true},
		{inject: []string{"A=$C"}, noEval: true, want: "A=$C PATH=/image"},
		{inject: []string{"A=\"quoted\" $C"}, want: `A="quoted" see PATH=/image`, shell: true},
		{inject: []string{"PREPEND_PATH=/$C", "A=$C"}, want: "A=see PATH=/see:/image", shell: true},
	} {
		s := &specs.Spec{Process: &specs.Process{Args: []string{"/usr/bin/env"}, Env: []string{"PATH=/image", "C=see"}}}
		a := &Action{Name: "exec", Inject: test.inject, NoEval: test.noEval}
		a.Wrap(imageWith(t, "bin/sh"), runtime.Image{}, s)
		if shell := s.Process.Args[0] == "/bin/sh"; shell != test.shell {
			t.Errorf("%q: a shell: %v; want %v", test.inject, shell, test.shell)
		}
		cmd := exec.Command(s.Process.Args[0], s.Process.Args[1:]...)
		cmd.Env = s.Process.Env
		out, err := cmd.Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		slices.Sort(lines)
		lines = slices.DeleteFunc(lines, func(l string) bool {
			return strings.HasPrefix(l, "C=") || strings.HasPrefix(l, "PWD=") || strings.HasPrefix(l, "_=")
		})
		if got := strings.Join(lines, " "); err != nil || got != test.want {
			t.Errorf("%q: %q, %v; want %q", test.inject, got, err, test.want)
		}
	}
}

func TestDescribe(t *testing.T) {
	dir := imageWith(t, ".singularity.d/runscript", ".singularity.d/labels.json", ".singularity.d/env/90-environment.sh", ".singularity.d/env/skip.txt")
	write := func(name, text string) {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write(".singularity.d/runscript", "#!/bin/sh\necho run\n")
	write(".singularity.d/labels.json", `{"version": "1"}`)
	root, err := os.OpenRoot(dir)
	testenv.Check(t, err)
	defer root.Close()
	about, err := describe(root, []string{"runscript", "labels"})
	if err != nil || about.Runscript != "#!/bin/sh\necho run" || about.Labels["version"] != "1" || about.Test != "" {
		t.Errorf("describe: %+v, %v", about, err)
	}
	testenv.Check(t, os.Remove(filepath.Join(dir, ".singularity.d/runscript")))
	testenv.Check(t, os.Symlink("/etc/passwd", filepath.Join(dir, ".singularity.d/runscript")))
	if about, err := describe(root, []string{"runscript"}); strings.Contains(about.Runscript, "root:") {
		t.Errorf("describe follows a link out of the image: %+v, %v", about, err)
	}
}
