package metrics

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestMeasureCountsKin: processes that a daemon started for the run are found by their environment, and
// others are not.
func TestMeasureCountsKin(t *testing.T) {
	const script = "sleep 0.3; " + burn + "; " + burn + "; sleep 1"
	start := func(env string) {
		daemon := exec.Command("sh", "-c", env+` NODE=n1 sh -c "$1" & wait`, "sh", script)
		daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Kill(-daemon.Process.Pid, syscall.SIGKILL); daemon.Wait() })
	}
	for range 2 {
		start("JOB=17")
	}
	start("JOB=171")
	start("XJOB=17")
	file := filepath.Join(t.TempDir(), "run.jsonl")
	cmd := exec.Command("sleep", "1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if _, err := Measure(cmd, Options{File: file, Kin: []string{"JOB=17", "NODE=n1"}}); err != nil {
		t.Fatal(err)
	}
	r, err := ReadRecord(file, true)
	if err != nil {
		t.Fatal(err)
	}
	if f := r.Footer; f.Processes < 3 || f.Processes > 5 || f.Usage.User+f.Usage.System <= 0 {
		t.Errorf("%+v; want the program, its two kin, and their sleeps", f)
	}
}
