package dispatch

import (
	"context"
	"io"
	"path/filepath"
	"slices"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/queue"
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

// Logs returns the output of the job's tasks that the cluster keeps. The caller must close it.
func (s *Submission) Logs() batch.Logs {
	k := s.keeper()
	if k == nil {
		return files{}
	}
	return logs{k.Logs(s.kept("")), s.Cluster}
}

// logs are the logs that a cluster keeps.
type logs struct {
	batch.Logs
	cluster Cluster
}

func (l logs) Follow(ctx context.Context, t *job.Task, follow bool, w io.Writer) (bool, error) {
	return l.Logs.Follow(l.cluster.Within(ctx), t, follow, w)
}

// files are the logs of tasks that write them to files.
type files struct{}

func (files) Follow(context.Context, *job.Task, bool, io.Writer) (bool, error) { return false, nil }
func (files) Close()                                                           {}

// SaveLogs saves the output of tasks that have ended and whose output the cluster keeps.
func (s *Submission) SaveLogs(ctx context.Context, dir string, tasks []int) error {
	k := s.keeper()
	if k == nil {
		return nil
	}
	kept := s.kept(filepath.Join(dir, s.ID))
	kept.Only = tasks
	return k.Collect(s.Within(ctx), kept, false)
}

// Update reads the records and output of tasks that the cluster keeps, unless their records are
// complete. It returns warnings.
func (s *Submission) Update(ctx context.Context, dir string, tasks []int) (warnings []string, err error) {
	st := &Status{Submission: s, only: tasks}
	if _, err := job.Readable(st.read(dir)); err != nil {
		return nil, err
	}
	records := st.records()
	complete := func(k int) bool {
		t := records[k]
		return t != nil && t.Ended() && (t.Output != "" || t.Gone)
	}
	if !slices.ContainsFunc(tasks, func(k int) bool { return !complete(k) }) {
		return nil, nil
	}
	for _, err := range []error{settle(ctx, dir, []*Status{st}, invoke.Patience), st.unkept} {
		if err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	return warnings, nil
}

// stillThere queries which native jobs the cluster still has.
func (s *Submission) stillThere(ctx context.Context, ids []string) (map[string]queue.State, error) {
	k := s.keeper()
	if k == nil {
		return s.Query(ctx, ids, invoke.Patience)
	}
	kept := s.kept("")
	kept.Only = []int{} // no records
	return s.within(ctx, invoke.Patience, func(ctx context.Context) (map[string]queue.State, error) {
		return k.QueryKept(ctx, []*batch.Submitted{kept})
	})
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
