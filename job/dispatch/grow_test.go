package dispatch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// growing submits a job with four tasks to a toy. Tasks 1 and 3 ended for lack of memory, 2 failed.
func growing(t *testing.T, s *toy) (sub *Submission, dir string) {
	t.Helper()
	registry = append(registry, s)
	t.Cleanup(func() { registry = registry[:len(registry)-1] })
	dir = t.TempDir()
	j := jobtest.With(func(j *job.Job) { j.Dir, j.Array, j.Memory = t.TempDir(), jobtest.Array(t, "1-4"), 1<<30 })
	testenv.Check(t, j.Retry.ParseGrowth("x2,3G", ""))
	sub, _, err := Submit(t.Context(), dir, j, Cluster{Target: toyTarget})
	testenv.Check(t, err)
	home := filepath.Join(dir, sub.ID)
	end := func(k, exit int) {
		task := &job.Task{Index: k, Start: time.Now(), End: time.Now(), Exit: exit, Usage: json.RawMessage(`{"max_rss_bytes":9999999999}`)}
		testenv.Check(t, task.Write(home))
	}
	end(1, 137)
	end(2, 1)
	end(3, 137)
	end(4, 0)
	s.ended[sub.Native] = true
	return sub, dir
}

func newToy() *toy { return &toy{map[string]*batch.Request{}, map[string]bool{}} }

// TestGrow checks that tasks that lack memory are submitted again once, up to the maximum.
func TestGrow(t *testing.T) {
	s := newToy()
	sub, dir := growing(t, s)
	home := filepath.Join(dir, sub.ID)
	grow := func(want ...string) {
		t.Helper()
		fresh, err := ReadJob(home)
		testenv.Check(t, err)
		texts, err := fresh.Grow(t.Context(), dir, false)
		if err != nil || !slices.Equal(texts, want) {
			t.Errorf("Grow: %q, %v; want %q", texts, err, want)
		}
	}
	grow("job " + sub.ID + ": 2 tasks run again with 2G of memory: 1,3")
	grow() // they wait in the queue
	if r := s.queue["toy-2"]; r.Job.Memory != 2<<30 || r.Job.Array.String() != "1,3" || r.Job.FullCount() != 4 {
		t.Errorf("submitted %+v", r.Job)
	}
	list, _, err := Statuses(t.Context(), dir, nil)
	testenv.Check(t, err)
	if st := list[0]; st.State() != "waiting" || st.Done != 1 || len(st.Failed) != 1 || st.Waiting != 2 {
		t.Errorf("%s: %+v", st.State(), st)
	}
	for k := 1; k <= 3; k += 2 {
		testenv.Check(t, (&job.Task{Index: k, Attempt: 1, Start: time.Now(), End: time.Now(), Exit: 137, Usage: json.RawMessage(`{"max_rss_bytes":9999999999}`)}).Write(home))
	}
	grow() // the scheduler has requeued them
	s.ended["toy-2"] = true
	grow("job " + sub.ID + ": 2 tasks run again with 3G of memory: 1,3")
	s.ended["toy-3"] = true
	for k := 1; k <= 3; k += 2 {
		testenv.Check(t, (&job.Task{Index: k, Attempt: 2, Start: time.Now(), End: time.Now(), Exit: 137, Usage: json.RawMessage(`{"max_rss_bytes":9999999999}`)}).Write(home))
	}
	grow() // at the maximum
	list, _, err = Statuses(t.Context(), dir, nil)
	testenv.Check(t, err)
	want := []string{"2 of 4 tasks ran with more memory: 3G instead of 1G; submit with --mem 3G next time",
		"2 of 4 tasks had too little memory (3G); request more: hpcc rerun --mem 6G " + sub.ID}
	if got := list[0].Lessons(); !slices.Equal(got, want) {
		t.Errorf("Lessons: %q; want %q", got, want)
	}
	fresh, err := ReadJob(home)
	testenv.Check(t, err)
	tasks, _, err := fresh.Rerun(t.Context(), dir, Rerun{Memory: 8 << 30, Time: time.Hour}, nil)
	if r := s.queue["toy-4"]; err != nil || len(tasks) != 3 || r.Job.Memory != 8<<30 || r.Job.Time != time.Hour {
		t.Errorf("Rerun: %v, %v", tasks, err)
	}
}

// TestGrowRefused checks that nothing changes if the scheduler refuses the larger request, and that
// the tasks of a cancelled job do not grow.
func TestGrowRefused(t *testing.T) {
	sub, dir := growing(t, newToy())
	home := filepath.Join(dir, sub.ID)
	sub.Job.Name = "never"
	_, err := sub.Grow(t.Context(), dir, false)
	if err == nil || !strings.Contains(err.Error(), "running tasks 1,3 of job "+sub.ID+" again with 2G of memory: the toy would never start it") {
		t.Errorf("Grow: %v", err)
	}
	fresh, err := ReadJob(home)
	if err != nil || len(fresh.Reruns) != 0 || len(fresh.Scripts) != 1 {
		t.Errorf("the job has %+v, %v", fresh, err)
	}
	if tasks, err := job.Tasks(home); err != nil || len(tasks) != 4 || tasks[0].Exit != 137 {
		t.Errorf("the records are %+v, %v", tasks, err)
	}
	if _, err := os.Stat(filepath.Join(home, "script.1")); err == nil {
		t.Error("a script is left")
	}
	fresh.Cancelled = time.Now()
	if texts, err := fresh.Grow(t.Context(), dir, false); len(texts) > 0 || err != nil {
		t.Errorf("a cancelled job grows: %q, %v", texts, err)
	}
}

// TestRerunSizes checks that a rerun groups the failed tasks by their requests.
func TestRerunSizes(t *testing.T) {
	s := newToy()
	sub, dir := growing(t, s)
	tasks, _, err := sub.Rerun(t.Context(), dir, Rerun{}, nil)
	if err != nil || !slices.Equal(tasks, []int{1, 2, 3}) || len(sub.Reruns) != 2 {
		t.Fatalf("Rerun: %v, %v", tasks, err)
	}
	for id, want := range map[string]int64{"toy-2": 1 << 30, "toy-3": 2 << 30} {
		if got := s.queue[id].Job.Memory; got != want {
			t.Errorf("%s requests %d; want %d", id, got, want)
		}
	}
}

// TestSubmitting checks that a task counts as waiting while hpcc submits it again.
func TestSubmitting(t *testing.T) {
	now := time.Now()
	s := &Status{Submission: &Submission{Job: jobtest.With(func(j *job.Job) { j.Array = jobtest.Array(t, "1-2") }), Reruns: []Rerun{{Submitted: now, Array: jobtest.Array(t, "2")}}}}
	s.answer = job.Listed
	if s.judge(now); s.Waiting != 1 || s.Lost != 1 {
		t.Errorf("%d wait, %d are lost; want 1 and 1", s.Waiting, s.Lost)
	}
	if s.judge(now.Add(2 * submitTime)); s.Waiting != 0 || s.Lost != 2 {
		t.Errorf("later %d wait, %d are lost; want 0 and 2", s.Waiting, s.Lost)
	}
}

// TestLeaveJob checks which variables a submission from within a job does not inherit.
func TestLeaveJob(t *testing.T) {
	registry = append(registry, newToy())
	defer func() { registry = registry[:len(registry)-1] }()
	for _, name := range []string{"TOY_ID", "HPCC_TASK_ID", "HPCC_TASK_COUNT", "HPCC_STORE"} {
		t.Setenv(name, "7")
	}
	leaveJob()
	for _, name := range []string{"TOY_ID", "HPCC_TASK_ID", "HPCC_TASK_COUNT"} {
		if _, ok := os.LookupEnv(name); ok {
			t.Errorf("%s is set", name)
		}
	}
	if os.Getenv("HPCC_STORE") != "7" {
		t.Error("HPCC_STORE is not set")
	}
}
