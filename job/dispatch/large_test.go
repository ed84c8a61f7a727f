package dispatch

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// A largeServer answers for a Job with many pods: of 20 tasks one has failed, one runs and the others
// have succeeded.
type largeServer struct {
	tasks   int
	old     bool             // before Kubernetes 1.28, pods have no index label
	gone    func(k int) bool // reports whether the pod of a task is deleted
	expire  bool             // the next token that continues a list is too old
	refuse  int              // answers pages of pods with an error after so many; 0: never
	pages   int
	lists   int // requests for lists
	logs    int
	version int
}

func (s *largeServer) outcome(k int) string {
	return map[int]string{7: "Failed", 9: "Running"}[k%20]
}

func (s *largeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case strings.HasSuffix(path, "/log"):
		s.logs++
		fmt.Fprintln(w, "output of", filepath.Base(filepath.Dir(path)))
		return
	case strings.HasSuffix(path, "/jobs"):
		s.lists++
		fmt.Fprint(w, s.job())
	case strings.HasSuffix(path, "/pods"):
		s.lists++
		s.page(w, r)
	default:
		fmt.Fprint(w, `{"items":[]}`)
	}
}

func (s *largeServer) job() string {
	var done, failed []string
	for k := range s.tasks {
		switch s.outcome(k) {
		case "Failed":
			failed = append(failed, strconv.Itoa(k))
		case "":
			done = append(done, strconv.Itoa(k))
		}
	}
	active := s.tasks / 20
	return fmt.Sprintf(`{"items":[{"metadata":{"name":"x","resourceVersion":"%d","labels":{"hpcc/job":"x"}},"spec":{"completions":%d},"status":{"active":%d,"ready":%d,"succeeded":%d,"completedIndexes":%q,"failedIndexes":%q}}]}`,
		s.version, s.tasks, active, active, len(done), strings.Join(done, ","), strings.Join(failed, ","))
}

// page answers with a page of pods that the selectors match.
func (s *largeServer) page(w http.ResponseWriter, r *http.Request) {
	if s.pages++; s.refuse > 0 && s.pages > s.refuse {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	q := r.URL.Query()
	token := q.Get("continue")
	if token != "" && s.expire {
		s.expire = false
		w.WriteHeader(http.StatusGone)
		fmt.Fprintf(w, `{"kind":"Status","reason":"Expired","message":"too old","metadata":{"continue":%q}}`, token)
		return
	}
	var only []string
	if _, list, ok := strings.Cut(q.Get("labelSelector"), " in ("); ok {
		only = strings.Split(strings.TrimSuffix(list, ")"), ",")
	}
	var names []int
	for k := range s.tasks {
		phase := s.outcome(k)
		matches := phase == "" || q.Get("fieldSelector") != "status.phase=Succeeded"
		if phase == "" && strings.HasPrefix(q.Get("fieldSelector"), "status.phase!=Succeeded") {
			matches = false
		}
		if matches && (only == nil || !s.old) && (only == nil || slices.Contains(only, strconv.Itoa(k))) && (s.gone == nil || !s.gone(k)) {
			names = append(names, k)
		}
	}
	first, _ := strconv.Atoi(token)
	limit, _ := strconv.Atoi(q.Get("limit"))
	end := min(len(names), first+limit)
	var page struct {
		Metadata struct {
			Continue string `json:"continue,omitempty"`
		} `json:"metadata"`
		Items []any `json:"items"`
	}
	if end < len(names) {
		page.Metadata.Continue = strconv.Itoa(end)
	}
	for _, k := range names[first:end] {
		page.Items = append(page.Items, s.pod(k))
	}
	_ = json.NewEncoder(w).Encode(page)
}

func (s *largeServer) pod(k int) any {
	begun, end := "2026-11-22T04:00:00Z", "2026-11-22T04:01:00Z"
	state := map[string]any{"terminated": map[string]any{"exitCode": 0, "startedAt": begun, "finishedAt": end}}
	switch s.outcome(k) {
	case "Failed":
		state = map[string]any{"terminated": map[string]any{"exitCode": 3, "reason": "Error", "startedAt": begun, "finishedAt": end}}
	case "Running":
		state = map[string]any{"running": map[string]any{"startedAt": begun}}
	}
	index := map[string]string{"batch.kubernetes.io/job-completion-index": strconv.Itoa(k)}
	labels := map[string]string{"hpcc/job": "x"}
	if !s.old {
		maps.Copy(labels, index)
	}
	return map[string]any{
		"metadata": map[string]any{"name": fmt.Sprintf("x-%d-abcde", k), "labels": labels, "annotations": index, "creationTimestamp": begun},
		"spec":     map[string]any{"nodeName": "n1"},
		"status":   map[string]any{"containerStatuses": []any{map[string]any{"name": "main", "state": state}}},
	}
}

// largeJob returns a job of the server's tasks, and a function that looks at it and checks its counts.
func largeJob(t *testing.T, server *largeServer) (s *Submission, dir string, look func(done, failed, unrecorded int) (lists, logs int)) {
	podsProxy(t, server.ServeHTTP)
	dir = t.TempDir()
	s = &Submission{ID: "x", Native: "x", Cluster: Cluster{Target: job.Kubernetes}, Job: &job.Job{
		Name: "x", Dir: t.TempDir(), Output: "x-{task}.out", Array: jobtest.Array(t, fmt.Sprintf("1-%d", server.tasks))}}
	testenv.Check(t, os.Mkdir(filepath.Join(dir, "x"), 0o755))
	testenv.Check(t, s.write(filepath.Join(dir, "x")))
	return s, dir, func(done, failed, unrecorded int) (lists, logs int) {
		t.Helper()
		server.lists, server.logs = 0, 0
		st := &Status{Submission: s}
		testenv.Check(t, st.read(dir))
		err := st.refresh(web.With(t.Context(), web.Limits{Backoff: time.Millisecond}), dir, time.Minute) // Look waits 5 s
		testenv.Check(t, err)
		if st.Done != done || len(st.Failed) != failed || st.unrecorded != unrecorded {
			t.Errorf("%d done, %d failed, %d without a record; want %d, %d, %d: %v", st.Done, len(st.Failed), st.unrecorded, done, failed, unrecorded, st.unkept)
		}
		return server.lists, server.logs
	}
}

// TestLargeJob bounds the requests of looks at a large job.
func TestLargeJob(t *testing.T) {
	server := &largeServer{tasks: 4000, expire: true, version: 1}
	s, dir, look := largeJob(t, server)
	if lists, logs := look(3600, 200, 0); lists > 1+1+1+8+1 || logs != 200 {
		t.Errorf("the first look took %d lists and %d logs", lists, logs)
	}
	if lists, logs := look(3600, 200, 0); lists != 1 || logs != 200 {
		t.Errorf("a look at an unchanged job took %d lists and %d logs", lists, logs)
	}
	tasks, err := job.Tasks(filepath.Join(dir, "x"))
	testenv.Check(t, err)
	unsaved := func(t job.Task) bool { return !t.Ended() || t.OK() || t.Output != "" }
	if tasks[7].Exit != 3 || tasks[7].Native != "x-7-abcde" || tasks[7].Index != 8 || !slices.ContainsFunc(tasks, unsaved) {
		t.Errorf("record %+v", tasks[7])
	}
	if n := len(slices.DeleteFunc(slices.Clone(tasks), func(t job.Task) bool { return t.OK() || unsaved(t) })); n > 0 {
		t.Errorf("%d failed tasks have no output after two looks, which save 200 logs each", n)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "x", "*"))
	if len(files) > 4+2*200 { // of failed and of running tasks
		t.Errorf("%d files for 4000 tasks", len(files))
	}
	server.lists, server.logs = 0, 0
	if warnings, err := s.Update(t.Context(), dir, []int{8}); err != nil || warnings != nil || server.lists+server.logs != 0 {
		t.Errorf("a saved log took %d requests: %q, %v", server.lists+server.logs, warnings, err)
	}
}

// TestLogOfLargeJob: the log of one task takes three requests before any look.
func TestLogOfLargeJob(t *testing.T) {
	server := &largeServer{tasks: 4000, version: 1}
	s, dir, _ := largeJob(t, server)
	warnings, err := s.Update(t.Context(), dir, []int{8})
	testenv.Check(t, err)
	tasks, err := job.Tasks(filepath.Join(dir, "x"))
	if err != nil || len(tasks) != 1 || tasks[0].Output == "" || server.lists != 2 || server.logs != 1 || warnings != nil {
		t.Errorf("%d records after %d lists and %d logs: %q, %v", len(tasks), server.lists, server.logs, warnings, err)
	}
}

// TestLargeJobOnOldServer: the records of few new successes come from the pods of all tasks.
func TestLargeJobOnOldServer(t *testing.T) {
	server := &largeServer{tasks: 520, old: true, version: 1}
	s, dir, look := largeJob(t, server)
	if lists, _ := look(468, 26, 0); lists > 1+1+2+2 {
		t.Errorf("the look took %d lists", lists)
	}
	tasks, err := job.Tasks(filepath.Join(dir, "x"))
	testenv.Check(t, err)
	if slices.ContainsFunc(tasks, func(t job.Task) bool { return t.Gone }) {
		t.Errorf("tasks are recorded as gone, but the cluster has their pods")
	}
	if warnings, err := s.Update(t.Context(), dir, []int{1}); err != nil || warnings != nil {
		t.Errorf("saving one log: %q, %v", warnings, err)
	}
}

// TestInterruptedLook: a look goes on at the page where the last one ended, and all tasks count from
// the first look on. Tasks whose pods are deleted get records.
func TestInterruptedLook(t *testing.T) {
	server := &largeServer{tasks: 4000, version: 1, refuse: 4, gone: func(k int) bool { return k%100 == 0 }}
	s, dir, look := largeJob(t, server)
	st := &Status{Submission: s}
	testenv.Check(t, st.read(dir))
	if err := st.refresh(web.With(t.Context(), web.Limits{Backoff: time.Millisecond}), dir, time.Minute); err == nil {
		t.Error("the server's error is lost")
	}
	if st.Done != 0 || st.Waiting != 4000 {
		t.Errorf("%d done, %d waiting after an error", st.Done, st.Waiting)
	}
	tasks, err := job.Tasks(filepath.Join(dir, "x"))
	if err != nil || len(tasks) < 400+3*500 {
		t.Errorf("%d records were kept: %v", len(tasks), err)
	}
	server.refuse = 0
	if lists, _ := look(3600, 200, 0); lists > 1+1+8-3+3 {
		t.Errorf("the second look took %d lists", lists)
	}
	if lists, _ := look(3600, 200, 0); lists > 1+1+1+1 {
		t.Errorf("the third look took %d lists", lists)
	}
}
