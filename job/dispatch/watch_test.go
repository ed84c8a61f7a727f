package dispatch

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// A watchServer answers for a Job whose tasks wait until a stream reports their start.
type watchServer struct {
	lock    sync.Mutex
	tasks   int
	status  string                                  // of the pods; "": pending
	streams []func(w http.ResponseWriter) (on bool) // answers to watches, in order; on: the stream stays open
	watched []string                                // paths and selectors of watches
}

func (s *watchServer) start() {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.status = `,"containerStatuses":[{"name":"main","state":{"running":{"startedAt":"2026-11-22T04:00:00Z"}}}]`
}

func (s *watchServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.lock.Lock()
	q := r.URL.Query()
	if q.Has("watch") {
		stream := func(http.ResponseWriter) bool { return true }
		if n := len(s.watched); n < len(s.streams) {
			stream = s.streams[n]
		}
		s.watched = append(s.watched, filepath.Base(r.URL.Path)+" "+strings.TrimSuffix(q.Get("labelSelector")+" "+q.Get("fieldSelector"), " ")+" from "+q.Get("resourceVersion"))
		s.lock.Unlock()
		if stream(w) {
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
		return
	}
	defer s.lock.Unlock()
	switch path := r.URL.Path; {
	case q.Get("limit") == "1":
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"%d"},"items":[]}`, 100*(1+len(s.watched)))
	case strings.HasSuffix(path, "/jobs"):
		fmt.Fprintf(w, `{"items":[{"metadata":{"name":"x","labels":{"hpcc/job":"x"}},"spec":{"completions":%d},"status":{"active":%d}}]}`, s.tasks, s.tasks)
	case strings.HasSuffix(path, "/pods"):
		fmt.Fprintf(w, `{"items":[{"metadata":{"name":"x-6-abcde","labels":{"hpcc/job":"x"},"annotations":{"batch.kubernetes.io/job-completion-index":"6"},"creationTimestamp":"2026-11-22T04:00:00Z"},"status":{"phase":"Pending"%s}}]}`, s.status)
	default:
		fmt.Fprint(w, `{"items":[]}`)
	}
}

// events returns the answer to a watch with these events.
func events(list ...string) func(http.ResponseWriter) bool {
	return func(w http.ResponseWriter) bool {
		fmt.Fprintln(w, strings.Join(list, "\n"))
		return false
	}
}

const (
	bookmark = `{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"150"}}}`
	expired  = `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version: 150"}}`
)

func watchJob(t *testing.T, server *watchServer) (*Submission, string) {
	podsProxy(t, server.ServeHTTP)
	dir := t.TempDir()
	s := &Submission{ID: "x", Native: "x", Cluster: Cluster{Target: job.Kubernetes}, Job: &job.Job{Name: "x", Dir: dir, Output: "x-{task}.out", Array: jobtest.Array(t, fmt.Sprintf("1-%d", server.tasks))}}
	testenv.Check(t, os.Mkdir(filepath.Join(dir, "x"), 0o755))
	testenv.Check(t, s.write(filepath.Join(dir, "x")))
	return s, dir
}

// TestWatchForStart: a caller that waits for a task learns its start from one watch, of this task only,
// which goes on after the server has closed the stream and after its version has expired.
func TestWatchForStart(t *testing.T) {
	for _, tasks := range []int{20, 10_000} {
		server := &watchServer{tasks: tasks}
		server.streams = []func(http.ResponseWriter) bool{events(bookmark), events(expired), func(w http.ResponseWriter) bool {
			server.start()
			fmt.Fprintln(w, `{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"301"}}}`)
			return true
		}}
		s, dir := watchJob(t, server)
		var reports []string
		got, err := s.RunningTask(t.Context(), dir, 7, func(text string) { reports = append(reports, text) })
		if err != nil || got.Native != "x-6-abcde" || len(reports) != 1 {
			t.Fatalf("%d tasks: %+v, %v, reports %q", tasks, got, err, reports)
		}
		selector := "pods hpcc/job in (x),batch.kubernetes.io/job-completion-index in (6) from "
		want := []string{selector + "100", selector + "150", selector + "300"}
		if fmt.Sprint(server.watched) != fmt.Sprint(want) {
			t.Errorf("%d tasks: watched %q; want %q", tasks, server.watched, want)
		}
	}
}

// TestWatchOfJob: a caller that waits for a job watches the job, not its pods, and queries the cluster
// only after changes.
func TestWatchOfJob(t *testing.T) {
	server := &watchServer{tasks: 10}
	s, dir := watchJob(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var states []string
	err := s.Follow(ctx, dir, func(st *Status, _ []string) bool {
		states = append(states, st.State())
		server.lock.Lock()
		defer server.lock.Unlock()
		if len(server.watched) == 0 {
			server.streams = []func(http.ResponseWriter) bool{func(w http.ResponseWriter) bool {
				server.start()
				fmt.Fprintln(w, `{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"301"}}}`)
				return true
			}}
		}
		return st.Running == 0
	})
	if err != nil || states[len(states)-1] != "running" || fmt.Sprint(server.watched) != "[jobs hpcc/job in (x) from 100]" {
		t.Errorf("states %q, watched %q: %v", states, server.watched, err)
	}
}

// TestWatchOfWorkflow: a workflow is one object of the cluster. An Argo server has no watches of it.
func TestWatchOfWorkflow(t *testing.T) {
	server := &watchServer{tasks: 2}
	s, _ := watchJob(t, server)
	s.Target = job.Argo
	ctx, cancel := context.WithCancel(t.Context())
	server.streams = []func(http.ResponseWriter) bool{func(http.ResponseWriter) bool { cancel(); return false }}
	for range s.keeper().Watch(ctx, s.kept("")) {
	}
	if fmt.Sprint(server.watched) != "[workflows  metadata.name=x from 100]" {
		t.Errorf("watched %q", server.watched)
	}
	t.Setenv(argo.ServerVariable, "http://127.0.0.1:1")
	if s.keeper().Watch(t.Context(), s.kept("")) != nil {
		t.Error("an Argo server is watched")
	}
}

// TestNoWatch: the channel closes when the server refuses to be watched, and when the caller ends.
func TestNoWatch(t *testing.T) {
	for _, code := range []int{http.StatusForbidden, http.StatusMethodNotAllowed} {
		server := &watchServer{tasks: 2, streams: []func(http.ResponseWriter) bool{func(w http.ResponseWriter) bool { w.WriteHeader(code); return false }}}
		s, _ := watchJob(t, server)
		for range s.keeper().Watch(t.Context(), s.kept("")) {
		}
		if len(server.watched) != 1 {
			t.Errorf("status %d: watched %q", code, server.watched)
		}
	}
	s, _ := watchJob(t, &watchServer{tasks: 2})
	ctx, cancel := context.WithCancel(t.Context())
	changed := s.keeper().Watch(ctx, s.kept(""))
	<-changed // of the list
	cancel()
	if _, open := <-changed; open {
		t.Error("the channel is open after the end of the context")
	}
}

// TestPace: with a watch, a poll queries the scheduler after a change, and seldom otherwise. Without one, or
// after an incomplete answer, it does so regularly.
func TestPace(t *testing.T) {
	changed := make(chan struct{}, 1)
	at := func(p *pace, until int) (list []int) {
		for n := p.last + 1; n <= until; n++ {
			if p.due(n) {
				list = append(list, n)
				p.last, p.stale = n, false
			}
		}
		return list
	}
	p := &pace{each: 3, changed: changed}
	if got := fmt.Sprint(at(p, 130)); got != "[60 120]" {
		t.Errorf("queries without a change: %s", got)
	}
	changed <- struct{}{}
	if got := fmt.Sprint(at(p, 140)); got != "[123]" {
		t.Errorf("queries after a change: %s", got)
	}
	p.stale = true
	if got := fmt.Sprint(at(p, 150)); got != "[126]" {
		t.Errorf("queries after an incomplete answer: %s", got)
	}
	close(changed)
	if got := fmt.Sprint(at(p, 138)); got != "[129 132 135 138]" {
		t.Errorf("queries after the end of the watch: %s", got)
	}
}
