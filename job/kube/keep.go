package kube

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/batch"
)

// Logs returns the logs of a job's pods; see [batch.Keeper].
func (k System) Logs(s *batch.Submitted) batch.Logs { return &podLogs{k: k, s: s} }

// podLogs are the logs of a job's pods. All tasks share one connection, which the first one opens.
type podLogs struct {
	k    System
	s    *batch.Submitted
	lock sync.Mutex
	api  LogSource
}

// Follow copies the log of a task; see [batch.Logs].
func (l *podLogs) Follow(ctx context.Context, t *job.Task, follow bool, w io.Writer) (bool, error) {
	if t.Output != "" || t.Native == "" || t.Gone {
		return false, nil
	}
	api, err := l.open(ctx)
	if err != nil {
		return true, fmt.Errorf("reading the log of task %d: %w", t.Index, err)
	}
	log, err := api.Log(ctx, t.Native, follow)
	if err != nil {
		return true, fmt.Errorf("reading the log of task %d, of pod %s: %w", t.Index, t.Native, err)
	}
	defer log.Close()
	if err := copyLog(w, log); err != nil {
		return true, fmt.Errorf("reading the log of task %d, of pod %s: %w", t.Index, t.Native, err)
	}
	return true, nil
}

func (l *podLogs) open(ctx context.Context) (LogSource, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	var err error
	if l.api == nil {
		l.api, err = l.k.openLogs(ctx, l.s)
	}
	return l.api, err
}

// Close closes the connection.
func (l *podLogs) Close() {
	if l.api != nil {
		l.api.Close()
	}
}

// openLogs opens the source of the logs of a job's pods.
func (k System) openLogs(ctx context.Context, s *batch.Submitted) (LogSource, error) {
	if k.Source != nil {
		return k.Source(ctx, s.Natives[0])
	}
	return k.Open(ctx)
}

// maxLogs is the number of logs that Collect saves in one call, unless its caller needs them. Each
// takes a request, and about 5 ms on an idle server.
const maxLogs = 200

// Collect copies logs to the job's output files before the cluster deletes the pods; see
// [batch.Keeper].
func (k System) Collect(ctx context.Context, s *batch.Submitted, all bool) error {
	list, err := job.Tasks(s.Home)
	if err != nil {
		return err
	}
	var want []job.Task
	for _, t := range list {
		if wantsLog(s, &t, all) && (s.Only == nil || slices.Contains(s.Only, t.Index)) {
			want = append(want, t)
		}
	}
	if len(want) == 0 {
		return nil
	}
	if !all && s.Only == nil && len(want) > maxLogs {
		failedFirst := func(a, b job.Task) int {
			switch {
			case a.OK() == b.OK():
				return 0
			case b.OK():
				return -1
			}
			return 1
		}
		slices.SortStableFunc(want, failedFirst)
		want = want[:maxLogs]
	}
	api, err := k.openLogs(ctx, s)
	if err != nil {
		return err
	}
	defer api.Close()
	var g errgroup.Group
	g.SetLimit(MaxConcurrentLogs)
	for i := range want {
		g.Go(func() error { return k.keepLog(ctx, api, s, &want[i]) })
	}
	return g.Wait()
}

// wantsLog reports whether to fetch a task's output. With all that includes running tasks.
func wantsLog(s *batch.Submitted, t *job.Task, all bool) bool {
	return (t.Ended() || all) && t.Output == "" && t.Native != "" && !t.Gone && s.Job.Output != os.DevNull
}

// Unread reports whether the log of a task that has ended is still in the cluster; see
// [batch.Keeper].
func (System) Unread(s *batch.Submitted, t *job.Task) bool {
	return wantsLog(s, t, false) && time.Since(t.End) < KeepEnded
}

// keepLog writes a task's log to its file, after those of earlier attempts, and records the file's
// path. If the pod is gone, the earlier copy is kept.
func (k System) keepLog(ctx context.Context, api LogSource, s *batch.Submitted, t *job.Task) error {
	file := s.Job.OutputOf(t, s.ID)
	if !filepath.IsAbs(file) {
		file = filepath.Join(s.Job.Dir, file)
	}
	f, err := files.Temp(file, 0o666&files.Perm(file))
	if err != nil {
		return fmt.Errorf("saving the log of task %d: %w", t.Index, err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	pods, err := podsOf(ctx, api, s, t)
	if err != nil {
		return fmt.Errorf("saving the log of task %d: %w", t.Index, err)
	}
	for _, pod := range pods {
		log, err := api.Log(ctx, pod, false)
		if err == nil {
			err = copyLog(f, log)
			log.Close()
		}
		if noLog(err, t) {
			if pod != t.Native {
				continue
			}
			_, err := os.Stat(file)
			return t.NoteLog(s.Home, file, err == nil)
		}
		if err != nil {
			return fmt.Errorf("saving the log of task %d: %w", t.Index, err)
		}
	}
	if k.keptMore(s, f, file) {
		return t.NoteLog(s.Home, file, true)
	}
	if err := files.Commit(f, nil, file, true); err != nil {
		return fmt.Errorf("saving the log of task %d: %w", t.Index, err)
	}
	return t.NoteLog(s.Home, file, true)
}

// keptMore reports whether a log is shorter than the copy that was saved when the job was
// cancelled. An Argo server returns an empty log for a deleted pod.
func (k System) keptMore(s *batch.Submitted, came *os.File, file string) bool {
	now, err := came.Stat()
	if err != nil || now.Size() > 0 || k.Target != job.Argo || s.Cancelled.IsZero() {
		return false
	}
	before, err := os.Stat(file)
	return err == nil && before.Size() > 0
}

// podsOf returns the pods whose logs are a task's output: all attempts, the last one last, or all
// nodes.
func podsOf(ctx context.Context, api LogSource, s *batch.Submitted, t *job.Task) ([]string, error) {
	var names []string
	if a, ok := api.(*Proxy); ok && s.Job.AcrossPods() {
		name := s.Natives[len(s.Natives)-1]
		list, err := listOf[podState](ctx, a, "/api/v1/"+a.Path("pods"), "labelSelector="+url.QueryEscape(jobLabel+"="+name))
		slices.SortStableFunc(list, func(x, y podState) int { return x.Index() - y.Index() })
		for _, p := range list {
			names = append(names, p.Metadata.Name)
		}
		if len(names) > 0 || err != nil {
			return names, err
		}
	}
	for k := range t.Attempt {
		before := &job.Task{}
		if job.ReadRecord(s.Home, t.EarlierName(k), before) && before.Native != t.Native && before.Native != "" {
			names = append(names, before.Native)
		}
	}
	return append(names, t.Native), nil
}
