package main

import (
	"os"
	"os/exec"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
)

// rayroot DIR: put the stand-in for Ray into a root directory.
func rayroot(ts *testscript.TestScript, _ bool, args []string) {
	dir := filepath.Join(ts.MkAbs(args[0]), "bin")
	cmd := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(dir, "ray"), "../../testdata/ray")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		ts.Fatalf("building the stand-in for Ray: %v\n%s", err, out)
	}
	ts.Check(os.Symlink("ray", filepath.Join(dir, "python3")))
}
