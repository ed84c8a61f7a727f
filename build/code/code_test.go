package code

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// directory creates a directory with files. The content "-> TARGET" makes a link.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		testenv.Check(t, os.MkdirAll(filepath.Dir(p), 0o755))
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			testenv.Check(t, os.Symlink(target, p))
		} else {
			testenv.Check(t, os.WriteFile(p, []byte(text), 0o644))
		}
	}
	return dir
}

// TestWrite checks that equal files give equal archives, without those that .dockerignore names.
func TestWrite(t *testing.T) {
	dir := directory(t, map[string]string{"main.py": "print(1)", "pkg/run.sh": "#!/bin/sh", "data/big": "x", ".dockerignore": "data\n"})
	testenv.Check(t, os.Chmod(filepath.Join(dir, "pkg/run.sh"), 0o700))
	archive := func() string {
		d, err := Read(dir)
		testenv.Check(t, err)
		defer d.Close()
		if !d.FitsMap() {
			t.Error("a few small files do not fit into a config map")
		}
		if m := d.Modes(); m["pkg/run.sh"] != 0o755 || m["main.py"] != 0o644 || m["data/big"] != 0 {
			t.Errorf("modes are %v", m)
		}
		var b bytes.Buffer
		testenv.Check(t, d.Write(&b, "srv", true))
		return b.String()
	}
	first := archive()
	if strings.Contains(first, "data/big") || !strings.Contains(first, "srv/pkg/run.sh") {
		t.Error("the archive does not have the files that .dockerignore leaves")
	}
	testenv.Check(t, os.Chmod(filepath.Join(dir, "main.py"), 0o664))
	if archive() != first {
		t.Error("permissions of this machine changed the archive")
	}
	touched := func() string {
		now := time.Now().Add(-time.Hour)
		testenv.Check(t, os.Chtimes(filepath.Join(dir, "main.py"), now, now))
		return archive()
	}
	if touched() == first {
		t.Error("the archive does not have the times of the files")
	}
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	if archive() != touched() {
		t.Error("SOURCE_DATE_EPOCH is set, but times of this machine changed the archive")
	}
}

// TestReadMissing checks the errors for paths that are not directories.
func TestReadMissing(t *testing.T) {
	dir := directory(t, map[string]string{"main.py": ""})
	if _, err := Read(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	if _, err := Read(filepath.Join(dir, "main.py")); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file: %v", err)
	}
}

// TestRead checks the directories that are refused, or too large for a config map.
func TestRead(t *testing.T) {
	many := map[string]string{}
	for i := range MaxMapFiles + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for _, c := range []struct {
		name, bad string // bad: part of the error
		files     map[string]string
	}{
		{"nothing", "no files", nil},
		{"link out", "leads out of the directory", map[string]string{"a": "-> ../../etc/passwd"}},
		{"absolute link", "leads out of the directory", map[string]string{"a": "-> /etc/passwd"}},
		{"link inside", "", map[string]string{"a": "-> b", "b": ""}},
		{"colon", "", map[string]string{"a:b": ""}},
		{"many files", "", many},
		{"large file", "", map[string]string{"a": strings.Repeat("x", MaxMapBytes+1)}},
	} {
		d, err := Read(directory(t, c.files))
		switch {
		case c.bad != "":
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%s: error %v, want %q", c.name, err, c.bad)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case d.FitsMap():
			t.Errorf("%s: fits into a config map", c.name)
		}
	}
}
