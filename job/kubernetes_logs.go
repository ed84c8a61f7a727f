package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"hpcc/job/atomicfile"
	"hpcc/store/wait"
)

// logsAtOnce is how many logs are fetched at the same time.
const logsAtOnce = 8

// log opens what a pod's program wrote; with follow it goes on until that ends.
func (a *kubeAPI) log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error) {
	if follow {
		ctx = wait.Forever(ctx)
	}
	return a.stream(ctx, fmt.Sprintf("/api/v1/%s/%s/log?container=%s&follow=%t", a.place("pods"), url.PathEscape(pod), mainContainer, follow))
}

// Follow writes what a task's program writes, of a target that keeps it, until the program ends; false
// where tasks write to files themselves.
func (s *Submission) Follow(ctx context.Context, t *Task, follow bool, w io.Writer) (bool, error) {
	if !s.Target.Pods() || t.Output != "" || t.Native == "" {
		return false, nil
	}
	api, err := s.openLogs(s.Within(ctx))
	if err != nil {
		return true, fmt.Errorf("reading the log of task %d: %w", t.Index, err)
	}
	defer api.close()
	log, err := api.log(s.Within(ctx), t.Native, follow)
	if err != nil {
		return true, fmt.Errorf("reading the log of task %d, of pod %s: %w", t.Index, t.Native, err)
	}
	defer log.Close()
	if err := copyLog(w, log); err != nil {
		return true, fmt.Errorf("reading the log of task %d, of pod %s: %w", t.Index, t.Native, err)
	}
	return true, nil
}

// collect brings the logs of tasks that have ended into the files that the job names, as on targets whose
// tasks write there: pods go away. With all, also of those that run.
func (s *Submission) collect(ctx context.Context, home string, all bool) error {
	list, err := Tasks(home)
	if err != nil {
		return err
	}
	var want []Task
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
	defer api.close()
	var g errgroup.Group
	g.SetLimit(logsAtOnce)
	for i := range want {
		g.Go(func() error { return s.keepLog(ctx, api, home, &want[i]) })
	}
	return g.Wait()
}

// wantsLog says whether a task's output is to be brought here; with all also that of one that runs.
func (s *Submission) wantsLog(t *Task, all bool) bool {
	return s.Target.Pods() && (t.Ended() || all) && t.Output == "" && t.Native != "" && !t.Gone && s.Job.Output != os.DevNull
}

// keepLog writes a task's log to its file, those of the attempts before above it, and
// notes the file in the record. Of a pod that went away what was kept before counts.
func (s *Submission) keepLog(ctx context.Context, api logSource, home string, t *Task) error {
	file := s.Job.outputOf(t, s.ID)
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
		log, err := api.log(ctx, pod, false)
		if err == nil {
			err = copyLog(f, log)
			log.Close()
		}
		if noLog(err, t) {
			if pod != t.Native {
				continue
			}
			_, err := os.Stat(file)
			return t.noteLog(home, file, err == nil)
		}
		if err != nil {
			return fmt.Errorf("keeping the log of task %d: %w", t.Index, err)
		}
	}
	if s.keptMore(f, file) {
		return t.noteLog(home, file, true)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), file); err != nil {
		return fmt.Errorf("keeping the log of task %d: %w", t.Index, err)
	}
	return t.noteLog(home, file, true)
}

// noteLog notes in the record where the log is, or that there is none.
func (t *Task) noteLog(home, file string, there bool) error {
	if t.Gone = !there; there {
		t.Output = file
	}
	return t.Write(home)
}

// keptMore says whether a log that came is less than what was kept of it before the job was cancelled: of a pod whose
// log it cannot get an Argo server says nothing, as if the program had been silent.
func (s *Submission) keptMore(came *os.File, file string) bool {
	now, err := came.Stat()
	if err != nil || now.Size() > 0 || s.Target != Argo || s.Cancelled.IsZero() {
		return false
	}
	before, err := os.Stat(file)
	return err == nil && before.Size() > 0
}

// noLog says of an error that there is no log and will be none: that of a pod that went away, or, of a task that
// has ended, of a container that never began, as when the time limit was over before.
func noLog(err error, t *Task) bool {
	refused := new(kubeError)
	return errors.As(err, &refused) && (refused.code == http.StatusNotFound || (refused.code == http.StatusBadRequest && t.Ended()))
}

// podsOf are the pods whose words make a task's output: those of the attempts before, then the last; or
// those of all nodes.
func (s *Submission) podsOf(ctx context.Context, api logSource, home string, t *Task) ([]string, error) {
	var names []string
	if k, ok := api.(*kubeAPI); ok && s.Job.acrossPods() {
		ids := s.natives()
		name := ids[len(ids)-1]
		list, err := kubeList[kubePod](ctx, k, "/api/v1/"+k.place("pods"), "labelSelector="+url.QueryEscape(labelJob+"="+name))
		slices.SortStableFunc(list, func(a, b kubePod) int { return a.index() - b.index() })
		for _, p := range list {
			names = append(names, p.Metadata.Name)
		}
		if len(names) > 0 || err != nil {
			return names, err
		}
	}
	for k := range t.Attempt {
		before := &Task{}
		if readRecord(home, t.earlierName(k), before) && before.Native != t.Native && before.Native != "" {
			names = append(names, before.Native)
		}
	}
	return append(names, t.Native), nil
}

// lostLog is what a node says in the place of a log, and as a success, when the container or its file has
// been taken away and the pod not yet: it has begun its answer before it looks (GetKubeletContainerLogs of
// Kubernetes 1.34, ReadLogs of k8s.io/cri-client 0.34).
var lostLog = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(unable to retrieve container logs for [a-z0-9.-]+://[0-9a-f]+|` +
		`failed to (try resolving symlinks in path|open log file) "/var/log/pods/[^"\n]+": [^\n]+)\n?$`)
})

// copyLog writes a log; one that the node has no more is an error like that of a pod that is gone.
func copyLog(w io.Writer, log io.Reader) error {
	begin := make([]byte, 4<<10)
	n, err := io.ReadAtLeast(log, begin, 1)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil && lostLog().Match(begin[:n]) {
		err = &kubeError{http.StatusNotFound, errors.New("its node has taken the log away")}
	}
	if err == nil {
		_, err = w.Write(begin[:n])
	}
	if err == nil {
		_, err = io.Copy(w, log)
	}
	return err
}
