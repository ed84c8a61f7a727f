package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestMan renders every manual page without a warning.
func TestMan(t *testing.T) {
	testenv.NeedProgram(t, "man")
	dir := t.TempDir()
	testenv.Check(t, (&manArgs{version: version, dir: dir}).run(t.Context()))
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	testenv.Check(t, err)
	for _, want := range []string{"hpcc.1", "hpcc-build.1", "hpcc-submit.1"} {
		if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
			t.Error(err)
		}
	}
	for _, page := range pages {
		cmd := exec.Command("man", "--warnings", "-l", page)
		cmd.Env = append(os.Environ(), "MANWIDTH=80", "LC_ALL=C.UTF-8", "MANPAGER=cat")
		var text, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &text, &complaints
		if err := cmd.Run(); err != nil || complaints.Len() > 0 {
			t.Errorf("%s: %v: %s", page, err, &complaints)
		}
		if filepath.Base(page) == "hpcc-build.1" {
			for _, want := range []string{"--build-arg NAME=VALUE", "hpcc build -f Dockerfile -t base --build-arg VERSION=3 .", "CONDA AND PIP"} {
				if !strings.Contains(text.String(), want) {
					t.Errorf("%s lacks %q:\n%s", page, want, &text)
				}
			}
		}
	}
}
