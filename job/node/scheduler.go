package node

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"hpcc/job"
)

// A Scheduler describes a batch system as a task sees it on its node: its variables and files.
type Scheduler struct {
	Name       job.Target
	IDs        []string                                // variables with the ID of the task; the first identifies it
	Proof      []string                                // variables of which one must be set; nil: no further condition
	Task       func(getenv func(string) string) string // native ID of the task; nil: the value of IDs[0]
	Restarts   string                                  // variable with the number of restarts
	Requests   []int                                   // exit statuses that it takes as requests, such as to run the job again
	Path       string                                  // variable with the PATH of the process that submitted the job
	Overlaps   bool                                    // it may start a task again before it has killed the earlier attempt
	NodePrefix string                                  // prefix of the variables that differ between the nodes of a job

	// Hosts lists the hosts of the job, perhaps with repetitions; nil if Each starts
	// processes on all of them.
	Hosts func(getenv func(string) string) ([]string, error)
	// Spreads reports whether the batch system chose the number of hosts, and how the user
	// can change that.
	Spreads func(getenv func(string) string) (advice string, chosen bool)
	// Remote returns the argv that runs argv on another host of the job.
	Remote func(host string, argv []string) []string
	// Each returns the argv that runs argv on each node of the job. The others go on if one
	// fails. Rank is the variable in which the processes find the number of their node.
	Each func(nodes, cpus int, argv []string) []string
	Rank string
	// One returns the argv that runs argv on one node of the job, whose number counts from 0.
	One func(number, cpus int, argv []string) []string
	// Restart starts the job again, or ends it, if its first node has failed and the batch system
	// leaves it the others. script is the environment of the job's script. It reports whether the
	// batch system may notice such a failure later; nil: the batch system itself ends such jobs.
	Restart func(ctx context.Context, script func(string) string) (wait bool, err error)
	// Launched returns the variables that all processes of a launcher have on this node, if argv
	// runs that launcher.
	Launched func(argv []string, getenv func(string) string) []string
}

// Schedulers lists all batch systems. If a task finds several, the first wins.
type Schedulers []*Scheduler

// matches reports whether an environment belongs to a task of the batch system.
func (s *Scheduler) matches(getenv func(string) string) bool {
	for _, name := range s.Proof {
		if getenv(name) != "" {
			return getenv(s.IDs[0]) != ""
		}
	}
	return s.Proof == nil && getenv(s.IDs[0]) != ""
}

// task returns the native ID of the task with this environment, or "".
func (s *Scheduler) task(getenv func(string) string) string {
	switch {
	case !s.matches(getenv):
		return ""
	case s.Task != nil:
		return s.Task(getenv)
	}
	return getenv(s.IDs[0])
}

// NativeIDs returns the variables in which batch systems name the task, if they are set,
// and the first of these batch systems.
func (known Schedulers) NativeIDs(getenv func(string) string) (ids map[string]string, from job.Target) {
	ids = map[string]string{}
	for _, s := range append(known[:len(known):len(known)], &Scheduler{IDs: []string{"HPCC_TASK_ID"}}) {
		if !s.matches(getenv) {
			continue
		}
		from = cmp.Or(from, s.Name)
		for _, n := range s.IDs {
			if v := getenv(n); v != "" && len(v) <= 256 {
				ids[n] = v
			}
		}
	}
	return ids, from
}

// restarts returns how often the batch system of this environment has started the task before. It returns 0 if
// the batch system does not report it.
func (known Schedulers) restarts(getenv func(string) string) (n int) {
	for _, s := range known {
		if k, err := strconv.Atoi(getenv(s.Restarts)); err == nil && s.matches(getenv) {
			n = max(n, k)
		}
	}
	return n
}

// countsRestarts reports whether a restart of the task by its batch system would be known. On this machine, hpcc itself
// runs the tasks.
func (known Schedulers) countsRestarts(getenv func(string) string) bool {
	return !slices.ContainsFunc(known, func(s *Scheduler) bool { return s.Restarts == "" && s.matches(getenv) })
}

// overlap reports whether the batch system of this environment may start a task again before it has killed the earlier
// attempt.
func (known Schedulers) overlap(getenv func(string) string) bool {
	return slices.ContainsFunc(known, func(s *Scheduler) bool { return s.Overlaps && s.matches(getenv) })
}

// Status returns the exit status with which a task ends for its batch system, if its program
// ended with exit: 1 in place of a status that the batch system takes as a request. The record
// has the program's own.
func (known Schedulers) Status(exit int, getenv func(string) string) int {
	_, from := known.NativeIDs(getenv)
	if slices.Contains(known.of(from).Requests, exit) {
		return 1
	}
	return exit
}

// Restart starts the job again if its first node has failed; see [Scheduler].
func (known Schedulers) Restart(ctx context.Context, script func(string) string) (wait bool, err error) {
	for _, s := range known {
		if s.Restart != nil && s.matches(script) {
			return s.Restart(ctx, script)
		}
	}
	return false, nil
}

// Differs reports whether the value of a variable may differ between the nodes of a job.
func (known Schedulers) Differs(name string) bool {
	for _, s := range known {
		if s.NodePrefix != "" && strings.HasPrefix(name, s.NodePrefix) {
			return true
		}
	}
	return false
}

// Launched returns the variables that all processes on this node have that the launcher in argv
// starts. It returns nil if these processes descend from the launcher, or if argv runs no launcher.
func (known Schedulers) Launched(argv []string, getenv func(string) string) []string {
	for _, s := range known {
		if s.Launched != nil {
			if env := s.Launched(argv, getenv); env != nil {
				return env
			}
		}
	}
	return nil
}

// of returns the batch system of a target, or a Scheduler with only the name.
func (known Schedulers) of(t job.Target) *Scheduler {
	for _, s := range known {
		if s.Name == t {
			return s
		}
	}
	return &Scheduler{Name: t}
}
