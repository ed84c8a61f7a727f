package dispatch

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/results"
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

// Fetch calls each for every result of the job at path p, with a tar stream of one file or
// directory; see [batch.Keeper]. dir holds all jobs. Without a path, the results are the
// artifacts of a workflow, the volume of pods, or the output files of the tasks. If image is not
// empty, its tar reads the volume.
func (s *Submission) Fetch(ctx context.Context, dir, p, image string, report func(string), each func(name string, tar io.ReadCloser) error) error {
	home := filepath.Join(dir, s.ID)
	k := s.keeper()
	if k == nil {
		return s.fetchLocal(ctx, home, p, each)
	}
	list, _, err := Statuses(ctx, dir, []string{s.ID})
	if err != nil {
		return err
	}
	f := &batch.Fetch{Submitted: s.kept(home), Path: p, Image: image, Report: report}
	for i := range list[0].Tasks {
		if t := &list[0].Tasks[i]; !t.Ended() && t.Native != "" && list[0].Running > 0 {
			f.Running = t
			break
		}
	}
	return k.Fetch(s.Within(ctx), f, each)
}

// fetchLocal is Fetch for a job whose files this machine sees.
func (s *Submission) fetchLocal(ctx context.Context, home, p string, each func(name string, tar io.ReadCloser) error) error {
	if p != "" {
		if !filepath.IsAbs(p) {
			p = filepath.Join(s.Job.Dir, p)
		}
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("finding a result of job %s: %w", s.ID, err)
		}
		return each("", send(ctx, p))
	}
	tasks, err := job.Tasks(home)
	if _, err := job.Readable(err); err != nil {
		return err
	}
	names := map[string]bool{}
	for _, t := range tasks {
		name := filepath.Base(t.Output)
		if t.Output == "" || names[name] {
			continue
		}
		names[name] = true
		if err := each(name, send(ctx, t.Output)); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("job %s has no output files yet; name a PATH", s.ID)
	}
	return nil
}

// send returns a tar stream of a file or directory of this machine.
func send(ctx context.Context, file string) io.ReadCloser {
	return results.Pipe(func(w io.Writer) error { return results.Send(ctx, w, file, filepath.Base(file)) })
}
