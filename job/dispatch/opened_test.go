package dispatch_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/testdata/helpers/bigstore"
	"hpcc/testdata/helpers/testenv"
)

// manyJobs is the number of jobs in the stores of the tests below.
const manyJobs = 200

// storeOfJobs returns the directory of many jobs. The only scheduler knows none of them.
func storeOfJobs(t *testing.T, now time.Time) string {
	t.Helper()
	dir, bin := t.TempDir(), t.TempDir()
	testenv.Check(t, bigstore.Make(dir, bigstore.Size{Jobs: manyJobs}, now))
	testenv.Check(t, os.WriteFile(filepath.Join(bin, "squeue"), []byte("#!/bin/sh\n"), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return filepath.Join(dir, "jobs")
}

// latest returns the ID of the newest job with a name.
func latest(name string, now time.Time) (id string) {
	for i := range manyJobs {
		if next := bigstore.ID(i, manyJobs, now); strings.HasPrefix(next, name+"-2") {
			id = next
		}
	}
	return id
}

// TestFindOpens counts the jobs that are read to find one among many.
func TestFindOpens(t *testing.T) {
	now := time.Now()
	dir := storeOfJobs(t, now)
	middle := bigstore.ID(100, manyJobs, now)
	for _, c := range []struct {
		id   string
		want string // ID; "" if there is none
		most int    // jobs read
	}{
		{middle, middle, 1},
		{middle[:len(middle)-1], middle, 1},
		{bigstore.Native(101), bigstore.ID(101, manyJobs, now), 1},
		{"main", latest("main", now), 2},
		{"train", latest("train", now), 2},
		{"train-large", latest("train-large", now), 2},
		{"trian", "", 0},
		{"12345678", "", 0},
	} {
		opened := bigstore.Opened(t, dir, func() {
			s, err := dispatch.Find(dir, c.id)
			if (err == nil) != (c.want != "") || (err == nil && s.ID != c.want) {
				t.Errorf("Find(%q) = %v, %v; want %q", c.id, s, err, c.want)
			}
			if none := new(dispatch.NoJobError); c.id == "trian" && (!errors.As(err, &none) || none.Advice() != `did you mean "train"?`) {
				t.Errorf("Find(%q): %v; want the suggestion train", c.id, err)
			}
		})
		if n := bigstore.Count(opened, "job.json"); n > c.most {
			t.Errorf("Find(%q) reads %d jobs; want %d", c.id, n, c.most)
		}
		if n := bigstore.Count(opened, "task*"); n > 0 {
			t.Errorf("Find(%q) reads %d records of tasks", c.id, n)
		}
		opened = bigstore.Opened(t, dir, func() { _, _ = dispatch.Missing(dir, []string{c.id}) })
		if n := bigstore.Count(opened, "job.json"); n > c.most {
			t.Errorf("Missing(%q) reads %d jobs; want %d", c.id, n, c.most)
		}
	}
}

// TestFindNativeOpens checks that jobs which the list of native IDs lacks are read once.
func TestFindNativeOpens(t *testing.T) {
	now := time.Now()
	dir := storeOfJobs(t, now)
	testenv.Check(t, os.Remove(filepath.Join(dir, ".natives")))
	for _, most := range []int{manyJobs, 1} {
		opened := bigstore.Opened(t, dir, func() {
			if s, err := dispatch.Find(dir, bigstore.Native(7)); err != nil || s.ID != bigstore.ID(7, manyJobs, now) {
				t.Errorf("Find(%q) = %v, %v", bigstore.Native(7), s, err)
			}
		})
		if n := bigstore.Count(opened, "job.json"); n > most {
			t.Errorf("it reads %d jobs; want %d", n, most)
		}
	}
}

// overview returns the states of all jobs as text, by ID.
func overview(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, warnings, err := dispatch.Overview(t.Context(), dir, func(int, int) {})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("overview: %v, %q", err, warnings)
	}
	newestFirst := func(a, b *dispatch.Status) int { return b.Submitted.Compare(a.Submitted) }
	if !slices.IsSortedFunc(list, newestFirst) {
		t.Error("the jobs are not sorted")
	}
	return texts(t, list)
}

// texts returns what a table shows of states, by ID.
func texts(t *testing.T, list []*dispatch.Status) map[string]string {
	states := map[string]string{}
	for _, st := range list {
		shown := *st
		shown.Submission = &dispatch.Submission{ID: st.ID, Native: st.Native, Cluster: st.Cluster, Submitted: st.Submitted, Cancelled: st.Cancelled, Job: &job.Job{Name: st.Job.Name}}
		b, err := json.Marshal(&shown)
		testenv.Check(t, err)
		states[st.ID] = st.State() + " " + string(b)
	}
	return states
}

// records returns the states of all jobs by their records, as texts does.
func records(t *testing.T, dir string) map[string]string {
	t.Helper()
	var ids []string
	for id := range overview(t, dir) {
		ids = append(ids, id)
	}
	list, _, err := dispatch.Statuses(t.Context(), dir, ids)
	testenv.Check(t, err)
	for _, st := range list {
		if st.Total != st.Job.Count() {
			t.Errorf("%s has no tasks", st.ID)
		}
	}
	return texts(t, list)
}

func sameStates(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d jobs; want %d", what, len(got), len(want))
	}
	for id := range want {
		if got[id] != want[id] {
			t.Errorf("%s: %s is\n%s; want\n%s", what, id, got[id], want[id])
		}
	}
}

// TestOverviewOpens checks that an overview of all jobs reads those that have ended once, and that the
// cache never decides: the states are those of the records, whatever happens to the file.
func TestOverviewOpens(t *testing.T) {
	now := time.Now()
	dir := storeOfJobs(t, now)
	want := records(t, dir)
	testenv.Check(t, os.Remove(filepath.Join(dir, ".ended", "jobs.jsonl")))
	sameStates(t, "the first call", overview(t, dir), want)
	opened := bigstore.Opened(t, dir, func() { sameStates(t, "the second call", overview(t, dir), want) })
	// Three jobs are open, and the scheduler may requeue the failed ones of a week.
	if n := bigstore.Count(opened, "job.json"); n > 10 {
		t.Errorf("the second call reads %d of %d jobs", n, manyJobs)
	}
	for i := range manyJobs - 20 {
		if id := bigstore.ID(i, manyJobs, now); bigstore.Below(opened, id) > 0 {
			t.Errorf("the second call opens %d files of %s, which has ended", bigstore.Below(opened, id), id)
		}
	}
	for what, damage := range map[string]func(string) error{
		"no cache":      os.Remove,
		"a cut line":    func(file string) error { return os.Truncate(file, 1000) },
		"other content": func(file string) error { return os.WriteFile(file, []byte("x\n{}\n\n[1\n"), 0o644) },
		"read-only":     func(file string) error { return os.Chmod(file, 0o400) },
	} {
		testenv.Check(t, damage(filepath.Join(dir, ".ended", "jobs.jsonl")))
		sameStates(t, what, overview(t, dir), want)
	}
}

// TestOverviewAfterRerun checks that a job which has ended is read again when a task runs again, also
// if a program that does not know the cache has written the records.
func TestOverviewAfterRerun(t *testing.T) {
	now := time.Now()
	dir := storeOfJobs(t, now)
	before := overview(t, dir)
	id := bigstore.ID(19, manyJobs, now) // its task has failed
	home := filepath.Join(dir, id)
	task := &job.Task{Index: 0, Host: "n1", Start: now.Add(-2 * time.Minute), End: now.Add(-time.Minute)}
	(&job.Task{}).Retire(home)
	testenv.Check(t, task.Write(home))
	after := overview(t, dir)
	if before[id][:6] != "failed" || after[id][:4] != "done" {
		t.Errorf("the job was %s, and is %s", before[id], after[id])
	}
	sameStates(t, "after a rerun", after, records(t, dir))
	testenv.Check(t, os.RemoveAll(home))
	if _, there := overview(t, dir)[id]; there {
		t.Error("the job is in the list after its directory was removed")
	}
}

// TestComplete checks that the tasks of jobs which have ended are read when they are needed.
func TestComplete(t *testing.T) {
	now := time.Now()
	dir := storeOfJobs(t, now)
	for _, when := range []string{"without", "with"} {
		list, _, err := dispatch.Statuses(t.Context(), dir, nil)
		testenv.Check(t, err)
		tasks := 0
		for _, st := range list {
			if tasks += len(st.Tasks); st.Job.Memory != 4<<30 || st.Done > len(st.Tasks) {
				t.Errorf("%s a cache: %s has %d tasks, and the job %+v", when, st.ID, len(st.Tasks), st.Job)
			}
		}
		if tasks < 500 {
			t.Errorf("%s a cache: %d tasks", when, tasks)
		}
	}
}

// TestOverviewStaysSmall checks that the cache does not grow when jobs change again and again.
func TestOverviewStaysSmall(t *testing.T) {
	now := time.Now()
	dir := storeOfJobs(t, now)
	var size int64
	for n := range 5 {
		states := overview(t, dir)
		fi, err := os.Stat(filepath.Join(dir, ".ended", "jobs.jsonl"))
		testenv.Check(t, err)
		if size = max(size, fi.Size()); size > int64(len(states))*400*3 {
			t.Fatalf("it has %d bytes for %d jobs", size, len(states))
		}
		for id := range states {
			at := now.Add(-time.Duration(n+2) * 24 * time.Hour * 20)
			testenv.Check(t, os.Chtimes(filepath.Join(dir, id), at, at))
		}
	}
}
