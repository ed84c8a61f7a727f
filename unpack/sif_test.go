package unpack

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/testdata/helpers/testenv"
	"hpcc/unpack/sif"
)

// saveSIF writes a tree as a SIF file.
func saveSIF(t *testing.T, tree string, config v1.Config) (string, error) {
	t.Helper()
	c := &v1.ConfigFile{Architecture: "arm64", Config: config}
	files, err := sif.FilesIn(tree)
	if err != nil {
		return "", err
	}
	add, err := sif.RootFiles(c, files)
	testenv.Check(t, err)
	f, err := os.Create(filepath.Join(t.TempDir(), "x.sif"))
	testenv.Check(t, err)
	defer f.Close()
	return f.Name(), sif.Write(f, sif.Content{Config: c, Root: func(w io.WriteSeeker) error { return WriteSquashFS(context.Background(), tree, w, add) }})
}

// TestSIFKeepsScripts checks which files of /.singularity.d in a tree a saved SIF file keeps.
func TestSIFKeepsScripts(t *testing.T) {
	meta := func(files ...string) string {
		tree := t.TempDir()
		for _, f := range files {
			testenv.Check(t, os.MkdirAll(filepath.Dir(filepath.Join(tree, f)), 0o755))
			testenv.Check(t, os.WriteFile(filepath.Join(tree, f), []byte("#!/bin/sh\nexport IN_TREE=1\n"), 0o755))
		}
		testenv.Check(t, putConfig(tree, []byte(`{"architecture":"amd64","config":{"Env":["STALE=1"]}}`)))
		return tree
	}
	const run, env, old = ".singularity.d/runscript", ".singularity.d/env/90-environment.sh", ".singularity.d/env/10-docker2singularity.sh"
	more := meta(run, env)
	testenv.Check(t, os.WriteFile(filepath.Join(more, env), []byte("if x; then y; fi\nexport A=$A:2\n"), 0o755))
	for _, c := range []struct {
		name  string
		tree  string
		entry []string
		want  []string // the entry point
		env   string
		kept  bool // a script whose variable the configuration lacks
	}{
		{"new", meta("bin/x"), []string{"/x"}, []string{"/x"}, "A=1", false},
		{"of Apptainer", meta(run, env, old), []string{"/" + run}, []string{"/" + run}, "A=1", true},
		{"more variables", more, []string{"/" + run}, []string{"/" + run}, "A=1:2", false},
		{"new entry point", meta(run), []string{"/x"}, []string{"/x"}, "A=1", false},
	} {
		file, err := saveSIF(t, c.tree, v1.Config{Env: []string{"A=1"}, Entrypoint: c.entry})
		testenv.Check(t, err)
		dir := t.TempDir()
		_, notes, err := FillSquashFS(context.Background(), file, dir)
		if err != nil || (len(notes) > 0) != (c.name == "more variables") {
			t.Fatalf("%s: %v, notes %q", c.name, err, notes)
		}
		b, err := os.ReadFile(filepath.Join(dir, ConfigFile))
		testenv.Check(t, err)
		var got v1.ConfigFile
		testenv.Check(t, json.Unmarshal(b, &got))
		vars := strings.Join(got.Config.Env, " ")
		if strings.Join(got.Config.Entrypoint, " ") != strings.Join(c.want, " ") || !strings.HasPrefix(vars, c.env) || strings.Contains(vars, "STALE") || strings.Contains(vars, "IN_TREE") != c.kept || got.Architecture != "arm64" {
			t.Errorf("%s: the configuration is %s", c.name, b)
		}
	}
	odd := meta("bin/x", "dev")
	testenv.Check(t, os.Symlink("/tmp", filepath.Join(odd, "var")))
	file, err := saveSIF(t, odd, v1.Config{})
	testenv.Check(t, err)
	dir := t.TempDir()
	_, _, err = FillSquashFS(context.Background(), file, dir)
	testenv.Check(t, err)
	for name, want := range map[string]fs.FileMode{"dev": 0, "var": fs.ModeSymlink, "tmp": fs.ModeDir, "proc": fs.ModeDir, "tmp/tmp": fs.ModeIrregular} {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if missing := want == fs.ModeIrregular; (err != nil) != missing || (!missing && fi.Mode().Type() != want) {
			t.Errorf("%s: %v, %v; want type %v", name, fi, err, want)
		}
	}
	link := meta("bin/x")
	testenv.Check(t, os.Symlink("/etc", filepath.Join(link, ".singularity.d")))
	inside := meta("bin/x")
	testenv.Check(t, os.Symlink("bin", filepath.Join(inside, ".singularity.d")))
	for tree, want := range map[string]string{link: "path escapes", inside: "is in the way of Apptainer's file", meta(run + "/x"): "is in the way of Apptainer's file"} {
		if _, err := saveSIF(t, tree, v1.Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v; want %q", tree, err, want)
		}
	}
}

// TestSIFRefused checks that root file systems that hpcc cannot read leave no layer.
func TestSIFRefused(t *testing.T) {
	file, err := saveSIF(t, t.TempDir(), v1.Config{})
	testenv.Check(t, err)
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	img, err := sif.Open(file)
	testenv.Check(t, err)
	at, _, err := img.Root()
	testenv.Check(t, err)
	testenv.Check(t, os.WriteFile(file, bytes.Replace(b, b[at:at+4], []byte("EXT3"), 1), 0o600))
	if _, _, err := SquashFSLayer(context.Background(), file, io.Discard); err == nil || !strings.Contains(err.Error(), "not a SquashFS file") {
		t.Errorf("error is %v", err)
	}
}

// TestApptainer reads files that Apptainer 1.5.0 built from an OCI archive, and from a
// definition file based on it (testdata/sif).
func TestApptainer(t *testing.T) {
	for name, c := range map[string]struct{ env, entry, notes string }{
		"oci.sif":        {"PATH=/usr/bin:/bin|A=one two", "cat /etc/greeting", ""},
		"definition.sif": {"PATH=/usr/bin:/bin|A=one two|B=one two three", "/.singularity.d/runscript", "line 14 has no effect: it has a command substitution"},
	} {
		dir := t.TempDir()
		_, notes, err := FillSquashFS(context.Background(), filepath.Join("testdata", "sif", name), dir)
		if text := strings.Join(notes, "|"); err != nil || (text == "") != (c.notes == "") || !strings.Contains(text, c.notes) {
			t.Fatalf("%s: %v, notes %q; want %q", name, err, text, c.notes)
		}
		b, err := os.ReadFile(filepath.Join(dir, ConfigFile))
		testenv.Check(t, err)
		var got v1.ConfigFile
		testenv.Check(t, json.Unmarshal(b, &got))
		if strings.Join(got.Config.Env, "|") != c.env || strings.Join(got.Config.Entrypoint, " ") != c.entry || got.Config.WorkingDir != "/work" || got.Config.Labels["maker"] != "test" {
			t.Errorf("%s: the configuration is %s", name, b)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "etc/greeting")); err != nil || string(b) != "hello\n" {
			t.Errorf("%s: /etc/greeting is %q, %v", name, b, err)
		}
	}
}
