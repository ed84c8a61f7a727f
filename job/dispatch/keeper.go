package dispatch

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/results"
)

// keeper returns what keeps the records of tasks for hpcc; nil if hpcc is on their nodes.
func (c Cluster) keeper() batch.Keeper {
	k, _ := systemOf(c.Target).(batch.Keeper)
	return k
}

// kept returns the job for a keeper, with the directory of its records.
func (s *Submission) kept(home string) *batch.Submitted {
	k := &batch.Submitted{ID: s.ID, Home: home, Job: s.Job, Natives: s.natives(), Arrays: []job.Array{s.Job.Array},
		Cancelled: s.Cancelled, At: s.SubmissionTime}
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
		return ownFiles{}
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

// ownFiles are the logs of tasks that write them to files.
type ownFiles struct{}

func (ownFiles) Follow(context.Context, *job.Task, bool, io.Writer) (bool, error) { return false, nil }
func (ownFiles) Close()                                                           {}

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
	for _, err := range []error{settle(ctx, dir, []*Status{st}, invoke.LongTimeout), st.unkept} {
		if err != nil {
			warnings = append(warnings, err.Error())
		}
	}
	return warnings, nil
}

// stillThere queries which native jobs the cluster still has.
func (s *Submission) stillThere(ctx context.Context, ids []string) (map[string]batch.State, error) {
	k := s.keeper()
	if k == nil {
		return s.Query(ctx, ids, invoke.LongTimeout)
	}
	kept := s.kept("")
	kept.Only = []int{} // no records
	return s.within(ctx, invoke.LongTimeout, func(ctx context.Context) (map[string]batch.State, error) {
		return k.QueryKept(ctx, []*batch.Submitted{kept})
	})
}

// Read runs argv next to the program of a task whose node hpcc does not see, and returns its
// output, at most so many bytes of it.
func (s *Submission) Read(ctx context.Context, t *job.Task, most int64, argv ...string) ([]byte, error) {
	return s.keeper().Read(s.Within(ctx), t, most, argv...)
}

// Fetch writes the results of the job at path p to w, as one tar stream. dir holds all jobs. Without a
// path, the results are the artifacts of a workflow, the volume of pods, or the output files of the
// tasks, each below the job's ID. If image is not empty, its tar reads the volume.
func (s *Submission) Fetch(ctx context.Context, dir, p, image string, o results.Options, report func(string), w io.Writer) error {
	t, several := tar.NewWriter(w), false
	err := s.eachResult(ctx, dir, p, image, o, report, func(name string, r io.ReadCloser) error {
		if name != "" {
			several = true
			return results.Join(t, r, path.Join(s.ID, name))
		}
		_, err := io.Copy(w, r)
		if cerr := r.Close(); cerr != nil {
			return cerr
		}
		return err
	})
	if err == nil && several {
		err = t.Close()
	}
	return err
}

// eachResult calls each for every result of [Submission.Fetch], with a tar stream of one file or
// directory; see [batch.Keeper].
func (s *Submission) eachResult(ctx context.Context, dir, p, image string, o results.Options,
	report func(string), each func(name string, tar io.ReadCloser) error) error {
	home := filepath.Join(dir, s.ID)
	k := s.keeper()
	if k == nil {
		return s.fetchLocal(ctx, home, p, each)
	}
	list, _, err := Statuses(ctx, dir, []string{s.ID})
	if err != nil {
		return err
	}
	f := &batch.Fetch{Submitted: s.kept(home), Path: p, Image: image, Temp: o.Temp, Max: o.Max, Report: report}
	for i := range list[0].Tasks {
		if t := &list[0].Tasks[i]; !t.Ended() && t.Native != "" && list[0].Running > 0 {
			f.Running = t
			break
		}
	}
	return k.Fetch(s.Within(ctx), f, each)
}

// fetchLocal is eachResult for a job whose files this machine sees.
func (s *Submission) fetchLocal(ctx context.Context, home, p string, each func(name string, tar io.ReadCloser) error) error {
	if p != "" {
		if !filepath.IsAbs(p) {
			p = filepath.Join(s.Job.Dir, p)
		}
		if _, err := os.Stat(p); err != nil {
			return fmt.Errorf("%w; relative paths are below %s, and without PATH hpcc fetches the output files", err, s.Job.Dir)
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
