package dispatch

import (
	"context"
	"io"

	"hpcc/job"
	"hpcc/job/batch"
)

// keeper returns what keeps the records of tasks for hpcc; nil if hpcc is on their nodes.
func (c Cluster) keeper() batch.Keeper {
	k, _ := systemOf(c.Target).(batch.Keeper)
	return k
}

// kept returns the job for a keeper, with the directory of its records.
func (s *Submission) kept(home string) *batch.Submitted {
	k := &batch.Submitted{ID: s.ID, Home: home, Job: s.Job, Natives: s.natives(), Arrays: []job.Array{s.Job.Array}, Cancelled: s.Cancelled, At: s.SubmissionTime}
	for _, r := range s.Reruns {
		if r.Native != "" {
			k.Arrays = append(k.Arrays, r.Array)
		}
	}
	return k
}

// Pin selects the cluster that is the default now, unless c names one, so that a submitted job
// is asked for there later.
func (c *Cluster) Pin(ctx context.Context) error {
	k := c.keeper()
	if k == nil {
		return nil
	}
	env, err := k.Pin(c.Within(ctx))
	if err != nil {
		return err
	}
	for name, v := range c.Env {
		env[name] = v
	}
	c.Env = env
	return nil
}

// Follow copies what a task's program writes, with follow until it ends; false if tasks write
// to files themselves.
func (s *Submission) Follow(ctx context.Context, t *job.Task, follow bool, w io.Writer) (bool, error) {
	k := s.keeper()
	if k == nil {
		return false, nil
	}
	return k.Follow(s.Within(ctx), s.kept(""), t, follow, w)
}

// Enter returns the argv that runs argv, or a shell, next to the program of a task; nil if
// hpcc itself enters its node.
func (s *Submission) Enter(ctx context.Context, t *job.Task, argv []string, terminal bool) []string {
	k := s.keeper()
	if k == nil {
		return nil
	}
	return k.Enter(s.Within(ctx), t, argv, terminal)
}

// Read runs argv next to the program of a task whose node hpcc does not see, and returns its
// output, at most so many bytes of it.
func (s *Submission) Read(ctx context.Context, t *job.Task, most int64, argv ...string) ([]byte, error) {
	return s.keeper().Read(s.Within(ctx), t, most, argv...)
}
