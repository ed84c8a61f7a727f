// Package node is the part of hpcc on the node where a task runs. A Runner runs tasks, with a companion next to one
// of them.
//
// Each batch system describes the task and the hosts of its job in variables and files, which its package names in a
// [Scheduler]. This package reads them without querying a server.
package node

import (
	"cmp"
	"os"
	"time"

	"hpcc/job"
	"hpcc/job/tunnel"
)

// NativeID returns the scheduler's ID of the task with this environment, or "".
func (known Schedulers) NativeID(getenv func(string) string) (id string) {
	for _, s := range known {
		id = cmp.Or(id, s.task(getenv))
	}
	return id
}

// Begin returns the record of a task that starts in this process, with its host and native ID. It moves the record
// of an earlier attempt in dir, the job's directory, aside.
func (known Schedulers) Begin(dir string, index int) *job.Task {
	t := &job.Task{Index: index, Start: time.Now()}
	t.Native = known.NativeID(os.Getenv)
	t.Host = tunnel.Host()
	t.Retire(dir)
	t.Attempt = max(t.Attempts(dir), known.restarts(os.Getenv)) // attempts that were killed at once have no record
	return t
}
