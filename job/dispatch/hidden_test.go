package dispatch

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestHidden checks that tests do not see the commands of any batch system on this machine.
func TestHidden(t *testing.T) {
	for _, d := range describe() {
		names := append(slices.Collect(maps.Keys(d.Launchers)), d.Commands...)
		for _, command := range [][]string{{d.Command}, d.Version, d.Ping} {
			names = append(names, command[:min(len(command), 1)]...)
		}
		for _, name := range names {
			if name != "" && !testenv.IsSchedulerCommand(name) {
				t.Errorf("testenv does not know the command %s of %s", name, d.Title)
			}
			if file, err := exec.LookPath(name); err == nil {
				t.Errorf("PATH has %s", file)
			}
		}
	}
	for _, name := range testenv.ClusterVariables() {
		if v := os.Getenv(name); name != "PATH" && v != "" {
			t.Errorf("%s is %s", name, v)
		}
	}
}

// TestHiddenElsewhere starts tests on a machine with a Slurm, whose commands are in a directory with others.
func TestHiddenElsewhere(t *testing.T) {
	const conf, tool = "/etc/slurm/test.conf", "hpcc-test-tool"
	if os.Getenv("HPCC_TEST_ELSEWHERE") == "" {
		dir := testenv.Files(t, "usr/bin/sbatch", "#!/bin/sh\necho $SLURM_CONF\n", "usr/bin/"+tool, "#!/bin/sh\ncat $(dirname $0)/../lib/text\n", "usr/lib/text", "of the tool\n")
		for _, name := range []string{"sbatch", tool} {
			testenv.Check(t, os.Chmod(filepath.Join(dir, "usr/bin", name), 0o755))
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestHiddenElsewhere$")
		cmd.Env = append(os.Environ(), "HPCC_TEST_PREPARED=", "HPCC_TEST_ELSEWHERE=1", "SLURM_CONF="+conf, "PATH="+filepath.Join(dir, "usr/bin")+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if file, err := exec.LookPath("sbatch"); err == nil || os.Getenv("SLURM_CONF") != "" {
		t.Errorf("tests see the Slurm: %q, %q", file, os.Getenv("SLURM_CONF"))
	}
	if out, err := exec.Command(tool).CombinedOutput(); err != nil || string(out) != "of the tool\n" {
		t.Errorf("another program: %v: %s", err, out)
	}
	if out, err := testenv.SchedulerCommand("slurm", "sbatch").CombinedOutput(); err != nil || string(out) != conf+"\n" {
		t.Errorf("a test that needs Slurm: %v: %s", err, out)
	}
	cmd := exec.Command("env", "sbatch")
	if cmd.Env = append(os.Environ(), testenv.Scheduler(os.Getenv("PATH"), "gridengine")...); cmd.Run() == nil {
		t.Error("a test that needs Grid Engine sees Slurm")
	}
}
