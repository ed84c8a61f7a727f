package snakemake

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"hpcc/job"
)

// cancelTime is for how long Cancel waits. Snakemake kills its caller after two seconds.
const cancelTime = 1500 * time.Millisecond

// Cancel starts hpcc with argv and the IDs of those jobs that have not ended, in a session of its own,
// which goes on after Snakemake's end. jobs is the directory of the records of jobs.
func Cancel(jobs string, ids []string, argv ...string) error {
	open := slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		tasks, err := job.Tasks(filepath.Join(jobs, id))
		return id == "" || (err == nil && len(tasks) == 1 && tasks[0].Ended())
	})
	if len(open) == 0 {
		return nil
	}
	cmd := exec.Command("/proc/self/exe", append(argv, open...)...)
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(cancelTime):
		return nil
	}
}
