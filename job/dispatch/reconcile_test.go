package dispatch

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// TestReconcile checks the state of a task for each record and each state in the queue, and
// whether Rerun would submit it.
func TestReconcile(t *testing.T) {
	now := time.Now()
	attempt := func(end time.Time, exit int, signal string) []job.Task {
		return []job.Task{{Index: 7, Start: now.Add(-time.Hour), End: end, Exit: exit, Signal: signal}}
	}
	good, bad, old := attempt(now, 0, ""), attempt(now, 3, ""), attempt(now.Add(-2*endingTime), 3, "")
	killed, open := attempt(now, -1, "SIGTERM"), attempt(time.Time{}, 0, "")
	const absent = batch.TaskState(0)
	for _, c := range []struct {
		what      string
		record    []job.Task
		queue     batch.TaskState
		want      string
		rerun     bool
		cancelled string // the state if the job was cancelled before the end of the task
	}{
		{"success", good, absent, "done", false, "done"},
		{"success", good, batch.TaskEnding, "done", false, "done"},
		{"success", good, batch.TaskWaiting, "done", false, "done"},
		{"success", good, batch.TaskRunning, "done", false, "done"},
		{"failure", bad, absent, "failed", true, "cancelled"},
		{"failure", bad, batch.TaskEnding, "running", false, "running"},
		{"old failure", old, batch.TaskEnding, "failed", true, "cancelled"},
		{"old failure", old, batch.TaskWaiting, "waiting", false, "waiting"},
		{"failure", bad, batch.TaskWaiting, "waiting", false, "waiting"},
		{"failure", bad, batch.TaskRunning, "running", false, "running"},
		{"killed", killed, absent, "failed", true, "cancelled"},
		{"killed", killed, batch.TaskWaiting, "waiting", false, "waiting"},
		{"none", nil, absent, "lost", true, "cancelled"},
		{"none", nil, batch.TaskEnding, "running", false, "running"},
		{"none", nil, batch.TaskWaiting, "waiting", false, "waiting"},
		{"none", nil, batch.TaskRunning, "running", false, "running"},
		{"open", open, absent, "lost", true, "cancelled"},
		{"open", open, batch.TaskEnding, "running", false, "running"},
		{"open", open, batch.TaskWaiting, "waiting", false, "waiting"},
		{"open", open, batch.TaskRunning, "running", false, "running"},
	} {
		for _, cancelled := range []time.Time{{}, now.Add(-time.Second)} {
			want := c.want
			if !cancelled.IsZero() {
				want = c.cancelled
			}
			s := &Status{Submission: &Submission{Cancelled: cancelled, Job: jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "7") })}, Total: 1, Tasks: c.record}
			s.queue = map[int]batch.TaskState{7: c.queue}
			s.reconcile(now)
			what := fmt.Sprintf("%s, queue %d, cancelled %v", c.what, c.queue, !cancelled.IsZero())
			if got := s.State(); got != want {
				t.Errorf("%s: %s; want %s", what, got, want)
			}
			if n := s.Done + len(s.Failed) + s.Running + s.Waiting + s.Stopped + s.Lost; n != 1 {
				t.Errorf("%s: the task counts as %d tasks: %+v", what, n, s)
			}
			if got := len(s.again()) == 1; got != c.rerun {
				t.Errorf("%s: rerun %v; want %v", what, got, c.rerun)
			}
		}
	}
}

// TestStates checks that indices of a batch system become those of hpcc, with reruns.
func TestStates(t *testing.T) {
	s := &Submission{Native: "1", Cluster: Cluster{Target: "gridengine"}, Job: jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "0-20:5") }),
		Reruns: []Rerun{{Native: "2", Array: jobtest.Array(t, "5,20")}}}
	var first, second batch.State
	first.Add(1, batch.TaskRunning)
	first.Add(2, batch.TaskEnding)
	second.Add(1, batch.TaskWaiting)
	second.Add(2, batch.TaskRunning)
	second.Add(3, batch.TaskRunning) // not in the array
	got := s.states(map[string]batch.State{"1": first, "2": second, "3": first})
	want := map[int]batch.TaskState{0: batch.TaskRunning, 5: batch.TaskWaiting, 20: batch.TaskRunning}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("states: %v; want %v", got, want)
	}
	s.Reruns[0].Array = jobtest.Array(t, "15")
	for _, k := range []int{0, 1, 15} {
		var one batch.State
		one.Add(k, batch.TaskWaiting)
		if got := s.states(map[string]batch.State{"2": one}); len(got) != 1 || got[15] != batch.TaskWaiting {
			t.Errorf("states of a rerun of one task, which the scheduler numbers %d: %v; want task 15", k, got)
		}
	}
	s.Job.Array, s.Reruns = job.Array{}, nil
	if got := s.states(map[string]batch.State{"1": first}); len(got) != 1 || got[0] != batch.TaskRunning {
		t.Errorf("states of a job without an array: %v; want task 0 running", got)
	}
}

// An accountingToy is a toy with an accounting: one task failed, those from killed on used more memory
// than they requested, and the others succeeded.
type accountingToy struct {
	*toy
	failed, killed int
}

func (a *accountingToy) Endings(_ context.Context, id string) (map[int]batch.Ending, error) {
	ends := map[int]batch.Ending{}
	for k := range a.queue[id].Job.Array.All() {
		if k != a.failed {
			ends[k] = batch.Ending{Killed: k >= a.killed}
		}
	}
	return ends, nil
}

// TestAccount checks that tasks without a record, or with one of their start, are done if the accounting says so, that
// they get a record, and that the one that failed stays lost.
func TestAccount(t *testing.T) {
	s := &accountingToy{toy: &toy{map[string]*batch.Request{}, map[string]bool{}}, failed: 340, killed: 1000}
	registry = append(registry, s)
	defer func() { registry = registry[:len(registry)-1] }()
	dir := t.TempDir()
	j := jobtest.With(func(j *job.Job) { j.Dir, j.Array = t.TempDir(), jobtest.Array(t, "1-400") })
	sub, _, err := Submit(t.Context(), dir, j, Cluster{Target: toyTarget})
	testenv.Check(t, err)
	s.ended[sub.Native] = true
	begun := &job.Task{Index: 5, Native: "toy-1.5", Host: "n1", Start: time.Now().Add(-time.Hour)}
	testenv.Check(t, begun.Write(filepath.Join(dir, sub.ID)))
	for range 2 { // by the accounting, then by the records
		st, err := sub.status(t.Context(), dir)
		if err != nil || st.Done != 399 || st.Lost != 1 || fmt.Sprint(st.again()) != "[340]" {
			t.Fatalf("%d done, %d lost, %v to rerun, %v; want 399, 1 and task 340", st.Done, st.Lost, st.again(), err)
		}
	}
	tasks, err := job.Tasks(filepath.Join(dir, sub.ID))
	if err != nil || len(tasks) != 399 || tasks[4].Host != "n1" || !tasks[4].OK() {
		t.Errorf("%d records, %v, the fifth %+v; want 399, and the host of task 5", len(tasks), err, tasks[4])
	}
}

// TestAccountKilled checks that tasks that the scheduler killed for their memory are failed and lack memory: with the
// record of a signal, or with none. A task that did not use its request was cancelled.
func TestAccountKilled(t *testing.T) {
	s := &accountingToy{toy: &toy{map[string]*batch.Request{}, map[string]bool{}}, killed: 3}
	registry = append(registry, s)
	defer func() { registry = registry[:len(registry)-1] }()
	dir := t.TempDir()
	j := jobtest.With(func(j *job.Job) { j.Dir, j.Array, j.Memory = t.TempDir(), jobtest.Array(t, "1-5"), 100<<20 })
	sub, _, err := Submit(t.Context(), dir, j, Cluster{Target: toyTarget})
	testenv.Check(t, err)
	s.ended[sub.Native] = true
	for k, peak := range map[int]int{3: 99 << 20, 5: 9 << 20} {
		ended := &job.Task{Index: k, Start: time.Now().Add(-time.Hour), End: time.Now(), Exit: -1, Signal: "SIGTERM", Usage: fmt.Appendf(nil, `{"max_rss_bytes":%d}`, peak)}
		testenv.Check(t, ended.Write(filepath.Join(dir, sub.ID)))
	}
	for range 2 { // by the accounting, then by the records
		st, err := sub.status(t.Context(), dir)
		if err != nil || st.Done != 2 || fmt.Sprint(st.Failed) != "[3 4 5]" || st.Lost != 0 {
			t.Fatalf("%d done, %v failed, %d lost, %v; want 2, tasks 3 to 5, and 0", st.Done, st.Failed, st.Lost, err)
		}
		if lines := strings.Join(st.Lessons(), "\n"); !strings.Contains(lines, "2 of 5 tasks had too little memory (100M)") {
			t.Errorf("status shows %q; want that 2 tasks had too little memory", lines)
		}
		if got := st.Tasks[2].Ending(); got != "the toy killed it because it used more memory than it requested" {
			t.Errorf("task 3 ended as %q", got)
		}
	}
}
