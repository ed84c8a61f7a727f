// Package node is what hpcc does on the node where a task runs. A Runner runs tasks, with a
// companion next to one of them; StartRay starts a Ray on all nodes of a job.
//
// Which task the process belongs to, and the hosts of the job, stand in variables and files
// of each batch system. The package reads them and asks no server.
package node

import (
	"os"
	"strconv"
	"time"

	"hpcc/job"
	"hpcc/job/tunnel"
)

// Begin is the record of a task that begins in this process: where it is, and
// which of the scheduler's tasks it is, by the environment. dir is the job's directory;
// a record of this task that is there is of an attempt before, and is put aside.
func Begin(dir string, index int) *job.Task {
	t := &job.Task{Index: index, Start: time.Now(), Native: nativeTask(os.Getenv)}
	t.Host = tunnel.Host()
	t.Retire(dir)
	t.Attempt = t.Attempts(dir)
	if n, err := strconv.Atoi(os.Getenv("SLURM_RESTART_COUNT")); err == nil {
		t.Attempt = max(t.Attempt, n) // one that was killed before it left a record
	}
	return t
}
