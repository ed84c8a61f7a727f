package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/build"
	"hpcc/testdata/helpers/condapackage"
	"hpcc/testdata/helpers/testenv"
)

// TestDegraded builds exports with pins. A build whose packages are worse than the export's exits
// with 3, unless --relax accepts them.
func TestDegraded(t *testing.T) {
	t.Parallel()
	needs(t, "userns")
	pkg := func(name, version string, depends ...string) condapackage.Package {
		return condapackage.Package{Name: name, Version: version, Build: "0", Depends: depends}
	}
	dir := t.TempDir()
	channel := filepath.Join(dir, "channel")
	testenv.Check(t, condapackage.WriteSubdir(channel, "noarch", pkg("lib", "1.0"), pkg("lib", "2.0"), pkg("app", "1.0", "lib >=2"), pkg("app", "0.9", "lib")))
	for _, c := range []struct {
		files  string // exports, separated by blank lines
		args   string
		status int
		want   string
	}{
		{"dependencies:\n- lib=1.0=0\n- app\n", "", 0, ""},
		{"dependencies:\n- app=1.0=0\n", "", 0, "needed by app"},
		{"app=1.0=0\n", "", 0, "needed by app"},
		{"dependencies:\n- lib=1.0=0\n- app>=1\n", "", exitFailure, "or let the solver replace them with --relax"},
		{"dependencies:\n- lib=1.0=0\n- app>=1\n", "--relax", 0, "other version"},
		{"dependencies:\n- lib=1.0=9\n- app\n", "", build.StatusDegraded, "the image is built, but differs from the export: lib=1.0=9 (lib=2.0=0)"},
		{"dependencies:\n- lib=1.0=9\n- app\n", "--dry-run", build.StatusDegraded, "the image would differ from the export: lib=1.0=9 (lib=2.0=0)"},
		{"dependencies:\n- lib=1.0=9\n- app\n", "--relax", 0, "other version"},
		{"# platform: linux-64\nlib=1.0=9\n", "", build.StatusDegraded, "lib=1.0=9 (lib=1.0=0)"},
		{"dependencies:\n- lib<2\n\ndependencies:\n- app\n", "--dry-run", 0, "app      0.9"},
		{"dependencies:\n- lib<2\n\ndependencies:\n- app>=1\n", "", exitFailure, "file0:2: lib<2 and app>=1"},
		{"dependencies:\n- lib\n\ndependencies:\n- lib\n- nothing\n", "", exitFailure, "file1:3:"},
	} {
		args := []string{"build", "--channel", channel, "--from", "scratch", "--platform", "linux/amd64", "-t", "x"}
		for i, text := range strings.Split(c.files, "\n\n") {
			file := filepath.Join(dir, fmt.Sprint("file", i))
			testenv.Write(t, file, text)
			args = append(args, "--conda", file)
		}
		cmd := hpcc(filepath.Join(dir, "store"), append(args, strings.Fields(c.args)...)...)
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != c.status || !strings.Contains(string(out), c.want) {
			t.Errorf("%q with %q: exit status %d; want %d and %q. Output:\n%s", c.files, c.args, status, c.status, c.want, out)
		}
	}
}
