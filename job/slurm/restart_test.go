package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestRestart checks what a node of a packed job does without a coordinator. TestPackNodesKilled of
// cmd/hpcc does it with a real Slurm.
func TestRestart(t *testing.T) {
	tests := []struct {
		name, host, requeue string // the node with the script as squeue prints it; the status of scontrol
		job                 string
		wait, failed        bool
		ran                 string // commands after squeue
	}{
		{"the first node is there", "n1", "0", "7", true, false, ""},
		{"the first node has failed", "n2", "0", "7", false, false, "scontrol requeue 7\n"},
		{"the site does not allow requeueing", "n2", "1", "7", false, true, "scontrol requeue 7\nscancel 7\n"},
		{"the job has ended", "", "0", "7", false, false, ""},
		{"the job waits again", "n/a", "0", "7", false, false, ""},
		{"no job", "n2", "0", "", false, false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, line := range map[string]string{"squeue": "echo " + test.host, "scontrol": "echo scontrol $* >>" + dir + "/ran; exit " + test.requeue, "scancel": "echo scancel $* >>" + dir + "/ran"} {
				testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+line+"\n"), 0o755))
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			env := map[string]string{"SLURM_JOB_ID": test.job, "SLURMD_NODENAME": "n1"}
			wait, err := restart(t.Context(), func(name string) string { return env[name] })
			if wait != test.wait || (err != nil) != test.failed {
				t.Errorf("restart = %v, %v", wait, err)
			}
			ran, _ := os.ReadFile(filepath.Join(dir, "ran"))
			if got := strings.ReplaceAll(string(ran), dir+"/", ""); got != test.ran {
				t.Errorf("ran %q; want %q", got, test.ran)
			}
		})
	}
}
