package dispatch

import (
	"context"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// TestStates checks that indices of a batch system become those of hpcc, with reruns.
func TestStates(t *testing.T) {
	s := &Submission{Native: "1", Cluster: Cluster{Target: "gridengine"}, Job: jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "0-20:5") }),
		Reruns: []Rerun{{Native: "2", Array: jobtest.Array(t, "5,20")}}}
	var first, second batch.State
	first.Add(1, job.QueueRunning)
	first.Add(2, job.QueueEnding)
	second.Add(1, job.QueueWaiting)
	second.Add(2, job.QueueRunning)
	second.Add(3, job.QueueRunning) // not in the array
	got := s.states(map[string]batch.State{"1": first, "2": second, "3": first})
	want := map[int]job.Queue{0: job.QueueRunning, 5: job.QueueWaiting, 20: job.QueueRunning}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("states: %v; want %v", got, want)
	}
	s.Reruns[0].Array = jobtest.Array(t, "15")
	for _, k := range []int{0, 1, 15} {
		var one batch.State
		one.Add(k, job.QueueWaiting)
		if got := s.states(map[string]batch.State{"2": one}); len(got) != 1 || got[15] != job.QueueWaiting {
			t.Errorf("states of a rerun of one task, which the scheduler numbers %d: %v; want task 15", k, got)
		}
	}
	s.Job.Array, s.Reruns = job.Array{}, nil
	if got := s.states(map[string]batch.State{"1": first}); len(got) != 1 || got[0] != job.QueueRunning {
		t.Errorf("states of a job without an array: %v; want task 0 running", got)
	}
}

// TestKeptCounts checks the counts of tasks by a cluster that says how many run and wait, but not which, and which of
// the tasks a rerun would submit.
func TestKeptCounts(t *testing.T) {
	begun := []job.Task{{Index: 1, Start: time.Now(), End: time.Now()}, {Index: 2, Start: time.Now()}}
	for _, c := range []struct {
		known     batch.State
		cancelled time.Time
		want      job.Counts
		over      string
	}{
		{batch.State{Running: 1, Waiting: 2}, time.Time{}, job.Counts{Total: 4, Done: 1, Running: 1, Waiting: 2}, "[]"},
		{batch.State{Running: 1, Done: []int{3}}, time.Time{}, job.Counts{Total: 4, Done: 2, Running: 1, Lost: 1}, "[]"},
		{batch.State{Done: []int{3}, Failed: []int{4}}, time.Time{}, job.Counts{Total: 4, Done: 2, Failed: []int{4}, Lost: 1}, "[2 4]"},
		{batch.State{}, time.Time{}, job.Counts{Total: 4, Done: 1, Lost: 3}, "[2 3 4]"},
		{batch.State{}, time.Now(), job.Counts{Total: 4, Done: 1, Stopped: 3}, "[2 3 4]"},
		{batch.State{Alive: true}, time.Time{}, job.Counts{Total: 4, Done: 1, Running: 1, Waiting: 2}, "[]"},
	} {
		s := &Status{Submission: &Submission{Cluster: Cluster{Target: job.Kubernetes}, Cancelled: c.cancelled,
			Job: jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "1-4") })}, Tasks: begun}
		s.judgeKept(c.known)
		if !reflect.DeepEqual(s.Counts, c.want) || fmt.Sprint(s.over) != c.over {
			t.Errorf("%+v, cancelled %v: %+v, %v to rerun; want %+v, %s", c.known, !c.cancelled.IsZero(), s.Counts, s.over, c.want, c.over)
		}
	}
}

// An accountingToy is a toy with an accounting: one task failed, those from killed on used more memory
// than they requested, and the others succeeded. It knows nothing for the first late calls.
type accountingToy struct {
	*toy
	failed, killed, late int
}

func (a *accountingToy) Endings(_ context.Context, ids []string) (map[string]map[int]job.End, error) {
	if a.late--; a.late >= 0 {
		return nil, nil
	}
	return batch.EachEnding(ids, func(id string) (map[int]job.End, error) {
		ends := map[int]job.End{}
		for k := range a.queue[id].Job.Array.All() {
			switch {
			case k == a.failed:
			case k >= a.killed:
				ends[k] = job.End{State: job.Failed, Memory: true}
			default:
				ends[k] = job.End{State: job.Done}
			}
		}
		return ends, nil
	})
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
		if err != nil || st.Done != 399 || st.Lost != 1 || fmt.Sprint(st.over) != "[340]" {
			t.Fatalf("%d done, %d lost, %v to rerun, %v; want 399, 1 and task 340", st.Done, st.Lost, st.over, err)
		}
	}
	tasks, err := job.Tasks(filepath.Join(dir, sub.ID))
	if err != nil || len(tasks) != 399 || tasks[4].Host != "n1" || !tasks[4].OK() {
		t.Errorf("%d records, %v, the fifth %+v; want 399, and the host of task 5", len(tasks), err, tasks[4])
	}
}

// TestWaitForLost checks that Wait ends if tasks have left no record: without an accounting, and with one that reports
// their failures late.
func TestWaitForLost(t *testing.T) {
	plain := &toy{map[string]*batch.Request{}, map[string]bool{}}
	for _, s := range []batch.System{plain, &accountingToy{toy: plain, killed: 1, late: 1}} {
		registry = append(registry, s)
		dir := t.TempDir()
		j := jobtest.With(func(j *job.Job) { j.Dir, j.Array = t.TempDir(), jobtest.Array(t, "1-3") })
		sub, _, err := Submit(t.Context(), dir, j, Cluster{Target: toyTarget})
		testenv.Check(t, err)
		plain.ended[sub.Native] = true
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			none := func(context.Context) func() { return func() {} }
			if err := sub.Wait(ctx, dir, none, func(string) {}); err != nil {
				t.Errorf("Wait with %T: %v", s, err)
			}
		})
		registry = registry[:len(registry)-1]
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
