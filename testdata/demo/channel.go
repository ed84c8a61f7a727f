package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"hpcc/testdata/helpers/condapackage"
)

// subdirs are conda's names for architectures.
var subdirs = map[string]string{"amd64": "linux-64", "arm64": "linux-aarch64", "ppc64le": "linux-ppc64le"}

// makeChannel compiles the program and writes a channel of two packages.
func makeChannel(dir string) error {
	subdir, ok := subdirs[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("conda has no name for %s", runtime.GOARCH)
	}
	program := filepath.Join(dir, "simulate.bin")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./testdata/demo/simulate")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling simulate: %w\n%s", err, out)
	}
	code, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	units, err := os.ReadFile(filepath.Join(dir, "share/units.json"))
	if err != nil {
		return err
	}
	channel := filepath.Join(dir, "channel")
	simulate := condapackage.Package{Name: "simulate", Version: "1.0", Build: "demo_0", Depends: []string{"simulate-data >=2"}, Files: []condapackage.File{
		{Path: "bin/simulate", Mode: 0o755, Data: code},
		{Path: "etc/simulate.conf", Mode: 0o644, Data: []byte("prefix " + condapackage.Placeholder + ", ")},
	}}
	if err := condapackage.WriteSubdir(channel, subdir, simulate); err != nil {
		return err
	}
	data := condapackage.Package{Name: "simulate-data", Version: "2.1", Build: "0", Files: []condapackage.File{{Path: "share/simulate/units.json", Mode: 0o644, Data: units}}}
	return condapackage.WriteSubdir(channel, "noarch", data)
}
