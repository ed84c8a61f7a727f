package dispatch

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"hpcc/job"
	"hpcc/job/atomicfile"
	"hpcc/job/kube"
)

// Follow writes what a task's program writes, of a target that keeps it, until the program ends; false
// where tasks write to files themselves.
func (s *Submission) Follow(ctx context.Context, t *job.Task, follow bool, w io.Writer) (bool, error) {
	if !s.Target.Pods() || t.Output != "" || t.Native == "" {
		return false, nil
	}
	api, err := s.openLogs(s.Within(ctx))
	if err != nil {
		return true, fmt.Errorf("reading the log of task %d: %w", t.Index, err)
	}
	defer api.Close()
	log, err := api.Log(s.Within(ctx), t.Native, follow)
	if err != nil {
		return true, fmt.Errorf("reading the log of task %d, of pod %s: %w", t.Index, t.Native, err)
	}
	defer log.Close()
	if err := kube.CopyLog(w, log); err != nil {
		return true, fmt.Errorf("reading the log of task %d, of pod %s: %w", t.Index, t.Native, err)
	}
	return true, nil
}

// collect brings the logs of tasks that have ended into the files that the job names, as on targets whose
// tasks write there: pods go away. With all, also of those that run.
func (s *Submission) collect(ctx context.Context, home string, all bool) error {
	list, err := job.Tasks(home)
	if err != nil {
		return err
	}
	var want []job.Task
	for _, t := range list {
		if s.wantsLog(&t, all) {
			want = append(want, t)
		}
	}
	if len(want) == 0 {
		return nil
	}
	ctx = s.Within(ctx)
	api, err := s.openLogs(ctx)
	if err != nil {
		return err
	}
	defer api.Close()
	var g errgroup.Group
	g.SetLimit(kube.LogsAtOnce)
	for i := range want {
		g.Go(func() error { return s.keepLog(ctx, api, home, &want[i]) })
	}
	return g.Wait()
}

// wantsLog says whether a task's output is to be brought here; with all also that of one that runs.
func (s *Submission) wantsLog(t *job.Task, all bool) bool {
	return s.Target.Pods() && (t.Ended() || all) && t.Output == "" && t.Native != "" && !t.Gone && s.Job.Output != os.DevNull
}

// keepLog writes a task's log to its file, those of the attempts before above it, and
// notes the file in the record. Of a pod that went away what was kept before counts.
func (s *Submission) keepLog(ctx context.Context, api kube.LogSource, home string, t *job.Task) error {
	file := s.Job.OutputOf(t, s.ID)
	if !filepath.IsAbs(file) {
		file = filepath.Join(s.Job.Dir, file)
	}
	f, err := atomicfile.Temp(file, 0o666&atomicfile.Perm(file))
	if err != nil {
		return fmt.Errorf("keeping the log of task %d: %w", t.Index, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	pods, err := s.podsOf(ctx, api, home, t)
	if err != nil {
		return fmt.Errorf("keeping the log of task %d: %w", t.Index, err)
	}
	for _, pod := range pods {
		log, err := api.Log(ctx, pod, false)
		if err == nil {
			err = kube.CopyLog(f, log)
			log.Close()
		}
		if kube.NoLog(err, t) {
			if pod != t.Native {
				continue
			}
			_, err := os.Stat(file)
			return t.NoteLog(home, file, err == nil)
		}
		if err != nil {
			return fmt.Errorf("keeping the log of task %d: %w", t.Index, err)
		}
	}
	if s.keptMore(f, file) {
		return t.NoteLog(home, file, true)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return fmt.Errorf("keeping the log of task %d: %w", t.Index, err)
	}
	return t.NoteLog(home, file, true)
}

// keptMore says whether a log that came is less than what was kept of it before the job was cancelled: of a pod whose
// log it cannot get an Argo server says nothing, as if the program had been silent.
func (s *Submission) keptMore(came *os.File, file string) bool {
	now, err := came.Stat()
	if err != nil || now.Size() > 0 || s.Target != job.Argo || s.Cancelled.IsZero() {
		return false
	}
	before, err := os.Stat(file)
	return err == nil && before.Size() > 0
}

// podsOf are the pods whose words make a task's output: those of the attempts before, then the last; or
// those of all nodes.
func (s *Submission) podsOf(ctx context.Context, api kube.LogSource, home string, t *job.Task) ([]string, error) {
	var names []string
	if k, ok := api.(*kube.API); ok && s.Job.AcrossPods() {
		ids := s.natives()
		name := ids[len(ids)-1]
		list, err := kube.List[kube.Pod](ctx, k, "/api/v1/"+k.Place("pods"), "labelSelector="+url.QueryEscape(kube.JobLabel+"="+name))
		slices.SortStableFunc(list, func(a, b kube.Pod) int { return a.Index() - b.Index() })
		for _, p := range list {
			names = append(names, p.Metadata.Name)
		}
		if len(names) > 0 || err != nil {
			return names, err
		}
	}
	for k := range t.Attempt {
		before := &job.Task{}
		if job.ReadRecord(home, t.EarlierName(k), before) && before.Native != t.Native && before.Native != "" {
			names = append(names, before.Native)
		}
	}
	return append(names, t.Native), nil
}
