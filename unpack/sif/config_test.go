package sif

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/testdata/helpers/testenv"
)

const path0 = "PATH=" + standardPath

// TestConfig checks what a run of an image of Apptainer does.
func TestConfig(t *testing.T) {
	// The scripts are those of images that Apptainer builds, without comments.
	const ociScript = "#!/bin/sh\nOCI_ENTRYPOINT='\"/entry\"'\nOCI_CMD=''\neval \"set ${SINGULARITY_OCI_RUN}\"\nexec \"$@\"\n"
	const definition = "#!/bin/sh\n\nexec python \"$@\"\n"
	const none = "#!/bin/sh\necho \"There is no runscript defined for this container\\n\";\n"
	entry := &v1.Config{Env: []string{"PATH=/usr/bin", "A=oci"}, Entrypoint: []string{"/entry"}, WorkingDir: "/work"}
	for name, c := range map[string]struct {
		oci   *v1.Config
		own   *v1.ConfigFile
		files Files
		want  v1.Config
		notes string // in the notes; "": none
	}{
		"nothing": {want: v1.Config{Env: []string{path0}}},
		"built from docker://": {
			oci:   entry,
			files: Files{runscript: ociScript, dockerEnv: "export A=\"${A:-\"other\"}\"\n", envDir + "/90-environment.sh": "#!/bin/sh\n# Custom environment shell code should follow\n\n"},
			want:  *entry,
		},
		"the same by an old version": {
			files: Files{runscript: ociScript, dockerEnv: "#!/bin/sh\nexport PATH=\"/usr/bin\"\nexport A=\"${A:-\"x y\"}\"\n"},
			want:  v1.Config{Env: []string{"A=x y", "PATH=/usr/bin"}, Entrypoint: []string{"/" + runscript}},
		},
		"a definition file from docker://": {
			oci:   entry,
			files: Files{runscript: definition, envDir + "/90-environment.sh": "export A=def B=$A-2\nexport PATH=/opt/bin:$PATH\nLOCAL=1\n"},
			want:  v1.Config{Env: []string{"PATH=/opt/bin:/usr/bin", "A=def", "B=def-2"}, Entrypoint: []string{"/" + runscript}, WorkingDir: "/work"},
		},
		"no runscript": {
			files: Files{runscript: none, envDir + "/91-environment.sh": "export LC_ALL=C\nunset PATH\nexport PATH\nPATH=/bin\nexport PATH X\n"},
			want:  v1.Config{Env: []string{"LC_ALL=C", "PATH=/bin"}},
		},
		"scripts of Apptainer": {
			files: Files{envDir + "/01-base.sh": "if x; then y; fi", envDir + "/95-apps.sh": "if x; then y; fi", envDir + "/99-base.sh": "export PS1=x", envDir + "/99-runtimevars.sh": "export Y=1"},
			want:  v1.Config{Env: []string{path0}},
		},
		"saved by hpcc": {
			oci:   &v1.Config{Env: []string{"PATH=/bin"}, Entrypoint: []string{"a", "b"}, Cmd: []string{"c"}},
			files: Files{runscript: commandScript(v1.Config{Entrypoint: []string{"a", "b"}, Cmd: []string{"c"}})},
			want:  v1.Config{Env: []string{"PATH=/bin"}, Entrypoint: []string{"a", "b"}, Cmd: []string{"c"}},
		},
		"a tree of hpcc": {
			own:  &v1.ConfigFile{Config: v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"c"}}},
			want: v1.Config{Env: []string{"PATH=/bin"}, Cmd: []string{"c"}},
		},
		"a pattern":         {files: Files{envDir + "/90.sh": "export A=${PATH%x*} B=${PATH/a/b}\nexport C=${X-d}${PATH:+e} D=${#PATH}"}, want: v1.Config{Env: []string{"C=de", path0}}, notes: "line 1 has no effect: it has an unsupported expansion"},
		"quotes":            {files: Files{envDir + "/90.sh": `export A=a\ b'c'\''d'"e\"f\x" PATH=/x` + "\nexport B=${X:-y\\ z}"}, want: v1.Config{Env: []string{`A=a bc'de"f\x`, "PATH=/x"}}, notes: "backslash"},
		"labels":            {files: Files{labelsFile: `{"a":"b"}`}, want: v1.Config{Env: []string{path0}, Labels: map[string]string{"a": "b"}}},
		"labels that lie":   {files: Files{labelsFile: `{"a":1}`}, want: v1.Config{Env: []string{path0}}},
		"a program":         {files: Files{envDir + "/90.sh": "touch /tmp/x\nexport A=1\n"}, want: v1.Config{Env: []string{"A=1", path0}}, notes: `/.singularity.d/env/90.sh: line 1 has no effect: it runs "touch"`},
		"a substitution":    {files: Files{envDir + "/90.sh": "export A=$(touch /tmp/x)"}, want: v1.Config{Env: []string{path0}}, notes: "command substitution"},
		"a process":         {files: Files{envDir + "/90.sh": "export A=<(touch /tmp/x)"}, want: v1.Config{Env: []string{path0}}, notes: "command substitution"},
		"home":              {files: Files{envDir + "/90.sh": "export A=$HOME/x B=~/x"}, want: v1.Config{Env: []string{path0}}, notes: "$HOME is known only at run time"},
		"a redirection":     {files: Files{envDir + "/90.sh": "export A=1 >/tmp/x"}, want: v1.Config{Env: []string{path0}}, notes: "not an assignment"},
		"not a script":      {files: Files{envDir + "/90.sh": "export A='"}, want: v1.Config{Env: []string{path0}}, notes: "/.singularity.d/env/90.sh has no effect"},
		"a large script":    {files: Files{envDir + "/90.sh": strings.Repeat(" ", maxScript+1)}, want: v1.Config{Env: []string{path0}}, notes: "more than 65536 bytes"},
		"a condition":       {files: Files{envDir + "/90.sh": strings.Repeat("if true; then export A=1; fi\n", 9)}, want: v1.Config{Env: []string{path0}}, notes: "4 more statements"},
		"growing variables": {files: Files{envDir + "/90.sh": "A=xxxxxxxxxxxxxxxx\n" + strings.Repeat("A=$A$A$A$A\n", 20)}, want: v1.Config{Env: []string{path0}}, notes: "bytes"},
	} {
		img := &Image{Arch: "amd64", config: c.oci}
		got, notes := img.Config(c.files, c.own)
		if !reflect.DeepEqual(got.Config, c.want) || got.Architecture != "amd64" {
			t.Errorf("%s: configuration is %+v; want %+v", name, got.Config, c.want)
		}
		if text := strings.Join(notes, "\n"); (c.notes == "") != (text == "") || !strings.Contains(text, c.notes) {
			t.Errorf("%s: notes are %q; want %q", name, text, c.notes)
		}
	}
}

// TestFilesIn checks that links lead to no file outside of the root, and that pipes do not block.
func TestFilesIn(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	testenv.Check(t, os.WriteFile(secret, []byte("secret"), 0o600))
	testenv.Check(t, os.MkdirAll(filepath.Join(dir, envDir), 0o700))
	testenv.Check(t, os.WriteFile(filepath.Join(dir, envDir, "1.sh"), []byte("one"), 0o600))
	testenv.Check(t, os.WriteFile(filepath.Join(dir, envDir, "1.txt"), []byte("one"), 0o600))
	testenv.Check(t, os.Truncate(filepath.Join(dir, envDir, "1.txt"), maxFile+1))
	testenv.Check(t, syscall.Mkfifo(filepath.Join(dir, envDir, "2.sh"), 0o600))
	testenv.Check(t, os.Symlink("1.sh", filepath.Join(dir, envDir, "3.sh")))
	got, err := FilesIn(dir)
	if want := (Files{envDir + "/1.sh": "one", envDir + "/3.sh": "one"}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("FilesIn = %v, %v; want %v", got, err, want)
	}
	testenv.Check(t, os.Symlink(secret, filepath.Join(dir, runscript)))
	if got, err := FilesIn(dir); err == nil || !strings.Contains(err.Error(), "runscript") {
		t.Errorf("FilesIn = %v, %v; want an error about the runscript", got, err)
	}
}

// TestRootFiles runs the scripts of saved images with the shell.
func TestRootFiles(t *testing.T) {
	for name, c := range map[string]struct {
		config v1.Config
		args   []string
		want   string
	}{
		"entry point":   {v1.Config{Entrypoint: []string{"echo", "it's"}, Cmd: []string{"$x", "a b"}}, nil, "it's $x a b"},
		"arguments":     {v1.Config{Entrypoint: []string{"echo", "it's"}, Cmd: []string{"$x"}}, []string{"c"}, "it's c"},
		"command":       {v1.Config{Cmd: []string{"echo", "x"}}, nil, "x"},
		"other command": {v1.Config{Cmd: []string{"false"}}, []string{"echo", "y"}, "y"},
		"variables":     {v1.Config{Env: []string{"V=a'b\"c\n$(d)`e", "1=x", "E="}, Cmd: []string{"sh", "-c", `echo "$V${E-unset}"`}}, nil, "a'b\"c\n$(d)`e"},
	} {
		files, err := RootFiles(&v1.ConfigFile{Config: c.config}, nil)
		testenv.Check(t, err)
		of := func(name string) string {
			return files[slices.IndexFunc(files, func(f RootFile) bool { return f.Name == name })].Data
		}
		dir := t.TempDir()
		testenv.Check(t, os.WriteFile(filepath.Join(dir, "env"), []byte(of(dockerEnv)), 0o600))
		testenv.Check(t, os.WriteFile(filepath.Join(dir, "run"), []byte(of(runscript)), 0o600))
		out, err := exec.Command("sh", append([]string{"-c", `. "$0/env"; . "$0/run"`, dir}, c.args...)...).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != c.want {
			t.Errorf("%s: %q, %v; want %q", name, out, err, c.want)
		}
		// hpcc reads back what it wrote, also when the object oci-config.json is lost.
		img := &Image{Arch: "amd64"}
		back, notes := img.Config(Files{dockerEnv: of(dockerEnv)}, nil)
		if name == "variables" && (!slices.Contains(back.Config.Env, c.config.Env[0]) || len(notes) > 0) {
			t.Errorf("%s: variables are %q, notes %q", name, back.Config.Env, notes)
		}
	}
	own, err := RootFiles(&v1.ConfigFile{Config: v1.Config{Entrypoint: []string{"/" + runscript}}}, nil)
	testenv.Check(t, err)
	for _, f := range own {
		if f.Name == runscript && f.Replace {
			t.Error("a runscript that executes itself replaces the one of the image")
		}
	}
}

func FuzzSource(f *testing.F) {
	f.Add("export A=1 B=\"${A:-x}\"\nunset A\nA=$A$B\nif x; then y; fi\n")
	f.Fuzz(func(t *testing.T, text string) {
		v := newVariables([]string{"A=1"})
		v.source("f", text)
		if len(v.values) > maxVariables {
			t.Errorf("%d variables", len(v.values))
		}
		for name, value := range v.values {
			if len(value) > maxValue {
				t.Errorf("%s has %d bytes", name, len(value))
			}
		}
	})
}
