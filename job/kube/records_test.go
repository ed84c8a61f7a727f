package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// TestRecord checks the records of a task that is retried, rerun, and retried again, after each query of
// the cluster.
func TestRecord(t *testing.T) {
	dir := t.TempDir()
	s := &batch.Submitted{ID: "j", Home: dir, Natives: []string{"j"}, Arrays: []job.Array{jobtest.Array(t, "3,5")}, Job: &job.Job{Name: "j", Array: jobtest.Array(t, "3,5")}}
	query := func(ended bool, pods ...podState) string {
		t.Helper()
		known := map[string]batch.State{}
		for i, id := range s.Natives {
			var st batch.State
			var own []podState
			for _, p := range pods {
				if strings.HasPrefix(p.Metadata.Name, id+":") {
					own = append(own, p)
				}
			}
			learnPods(&st, own, func(int) bool { return ended || i+1 < len(s.Natives) })
			known[id] = st
		}
		testenv.Check(t, (System{}).Record(s, known))
		files, err := os.ReadDir(dir)
		testenv.Check(t, err)
		var out []string
		for _, f := range files {
			r := &job.Task{}
			if !job.ReadRecord(dir, f.Name(), r) {
				t.Fatalf("record %s cannot be read", f.Name())
			}
			state := "runs"
			if r.Ended() {
				state = r.Ending()
			}
			out = append(out, strings.TrimSuffix(strings.TrimPrefix(f.Name(), "task."), ".json")+" "+r.Native+" "+state)
		}
		return strings.Join(out, "; ")
	}
	a, b := podOf("0", "j:a", 10, "bad"), podOf("0", "j:b", 20, "bad")
	c, d := podOf("0", "j-r1:c", 30, "bad"), podOf("0", "j-r1:d", 40, "ok")
	other := podOf("1", "j:o", 11, "ok")
	for i, step := range []struct {
		ended bool
		pods  []podState
		rerun bool
		want  string
	}{
		{false, []podState{podOf("0", "j:a", 10, ""), other}, false, "3 j:a runs; 5 j:o status 0"},
		{false, []podState{a, other}, false, "3.0 j:a status 3; 5 j:o status 0"},
		{false, []podState{a, other, podOf("0", "j:b", 20, "")}, false, "3.0 j:a status 3; 3 j:b runs; 5 j:o status 0"},
		{false, []podState{b, other, a}, false, "3.0 j:a status 3; 3.1 j:b status 3; 5 j:o status 0"},
		{true, []podState{a, b, other}, false, "3.0 j:a status 3; 3 j:b status 3; 5 j:o status 0"},
		{true, nil, false, "3.0 j:a status 3; 3 j:b status 3; 5 j:o status 0"},
		{false, []podState{a, b, other}, true, "3.0 j:a status 3; 3.1 j:b status 3; 5 j:o status 0"},
		{false, []podState{a, b, c, other}, false, "3.0 j:a status 3; 3.1 j:b status 3; 3.2 j-r1:c status 3; 5 j:o status 0"},
		{true, []podState{a, b, d, c, other}, false, "3.0 j:a status 3; 3.1 j:b status 3; 3.2 j-r1:c status 3; 3 j-r1:d status 0; 5 j:o status 0"},
	} {
		if step.rerun {
			(&job.Task{Index: 3}).Retire(dir)
			s.Natives, s.Arrays = append(s.Natives, "j-r1"), append(s.Arrays, jobtest.Array(t, "3"))
		}
		if got := query(step.ended, step.pods...); got != step.want {
			t.Fatalf("records after query %d: %s; want %s", i, got, step.want)
		}
	}
}

// TestPodsOfNodes checks that a job of several nodes has a single record: that of the node that failed.
func TestPodsOfNodes(t *testing.T) {
	dir := t.TempDir()
	s := &batch.Submitted{ID: "j", Home: dir, Natives: []string{"j"}, Arrays: make([]job.Array, 1), Job: &job.Job{Name: "j", Nodes: 3}}
	var st batch.State
	learnPods(&st, []podState{podOf("2", "c", 1, "ok"), podOf("0", "a", 1, "ok"), podOf("1", "b", 1, "bad")}, func(int) bool { return true })
	testenv.Check(t, (System{}).Record(s, map[string]batch.State{"j": st}))
	got := &job.Task{}
	if !job.ReadRecord(dir, "task.0.json", got) || got.Native != "b" || got.Exit != 3 {
		t.Errorf("record %+v; want that of pod b, which failed", got)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 1 {
		t.Errorf("files %v; want one record", files)
	}
}

// TestPodsOfRunningNodes checks the record of a job while some of its nodes run: the success of a node
// does not end the job, its failure does.
func TestPodsOfRunningNodes(t *testing.T) {
	a, b, c := podOf("0", "a", 1, "ok"), podOf("1", "b", 2, ""), podOf("2", "c", 3, "bad")
	for _, test := range []struct {
		name  string
		pods  []podState
		ended bool
		want  string
	}{
		{"the first has ended, another runs", []podState{a, b}, false, "b running"},
		{"the first has ended, another has not started", []podState{a}, false, ""},
		{"one has failed, another runs", []podState{a, b, c}, false, "c status 3"},
		{"all have ended", []podState{a, podOf("1", "b", 2, "ok")}, true, "a status 0"},
	} {
		home := t.TempDir()
		s := &batch.Submitted{ID: "j", Home: home, Natives: []string{"j"}, Arrays: make([]job.Array, 1), Job: &job.Job{Name: "j", Nodes: 3}}
		st := batch.State{Waiting: 1}
		learnPods(&st, test.pods, func(int) bool { return true })
		if test.ended {
			st.Waiting = 0
		}
		got := ""
		testenv.Check(t, (System{}).Record(s, map[string]batch.State{"j": st}))
		if list, err := job.Tasks(home); err == nil && len(list) == 1 {
			got = list[0].Native + " " + map[bool]string{true: list[0].Ending(), false: "running"}[list[0].Ended()]
		}
		if got != test.want {
			t.Errorf("%s: %q; want %q", test.name, got, test.want)
		}
	}
}
