package main

import (
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/condapackage"
	"hpcc/testdata/testenv"
)

// TestDegraded builds exports with pins. A build whose packages are worse than the export's exits
// with 3, unless --relax accepts them.
func TestDegraded(t *testing.T) {
	needs(t, "userns")
	pkg := func(name, version string, depends ...string) condapackage.Package {
		return condapackage.Package{Name: name, Version: version, Build: "0", Depends: depends}
	}
	dir := t.TempDir()
	channel := filepath.Join(dir, "channel")
	testenv.Check(t, condapackage.WriteSubdir(channel, "noarch", pkg("lib", "1.0"), pkg("lib", "2.0"), pkg("app", "1.0", "lib >=2"), pkg("app", "0.9", "lib")))
	for _, c := range []struct {
		name, export string
		relax        bool
		status       int
		want         string
	}{
		{"pin.yml", "dependencies:\n- lib=1.0=0\n- app\n", false, 0, ""},
		{"closed.yml", "dependencies:\n- app=1.0=0\n", false, 0, "needed by app"},
		{"list.txt", "app=1.0=0\n", false, 0, "needed by app"},
		{"conflict.yml", "dependencies:\n- lib=1.0=0\n- app>=1\n", false, exitFailure, "or let the solver replace them with --relax"},
		{"conflict.yml", "dependencies:\n- lib=1.0=0\n- app>=1\n", true, 0, "other version"},
		{"absent.yml", "dependencies:\n- lib=1.0=9\n- app\n", false, exitDegraded, "the image is built, but differs from the export: lib=1.0=9 (lib=2.0=0)"},
		{"absent.yml", "dependencies:\n- lib=1.0=9\n- app\n", true, 0, "other version"},
		{"absent.txt", "# platform: linux-64\nlib=1.0=9\n", false, exitDegraded, "lib=1.0=9 (lib=1.0=0)"},
	} {
		testenv.Write(t, filepath.Join(dir, c.name), c.export)
		args := []string{"build", "--store", filepath.Join(dir, "store"), "--conda", filepath.Join(dir, c.name), "--channel", channel, "--from", "scratch", "--platform", "linux/amd64", "-t", "x"}
		if c.relax {
			args = append(args, "--relax")
		}
		cmd := hpcc(args...)
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != c.status || !strings.Contains(string(out), c.want) {
			t.Errorf("%q with relax %v: exit status %d; want %d and %q. Output:\n%s", c.export, c.relax, status, c.status, c.want, out)
		}
	}
}
