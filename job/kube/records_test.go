package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/jobtest"
	"hpcc/testdata/testenv"
)

// TestLearn follows a task with a retry, then a rerun with one, as the cluster reports them query by query.
func TestLearn(t *testing.T) {
	dir := t.TempDir()
	s := &batch.Submitted{ID: "j", Home: dir, Natives: []string{"j"}, Arrays: []job.Array{jobtest.Array(t, "3,5")}, Job: &job.Job{Name: "j", Array: jobtest.Array(t, "3,5")}}
	look := func(over bool, pods ...podState) string {
		t.Helper()
		known := map[string]batch.QueueState{}
		for i, id := range s.Natives {
			var st batch.QueueState
			var own []podState
			for _, p := range pods {
				if strings.HasPrefix(p.Metadata.Name, id+":") {
					own = append(own, p)
				}
			}
			learnPods(&st, own, func(int) bool { return over || i+1 < len(s.Natives) })
			known[id] = st
		}
		testenv.Check(t, (System{}).Learn(s, known))
		files, err := os.ReadDir(dir)
		testenv.Check(t, err)
		var out []string
		for _, f := range files {
			r := &job.Task{}
			if !job.ReadRecord(dir, f.Name(), r) {
				t.Fatalf("%s cannot be read", f.Name())
			}
			word := "runs"
			if r.Ended() {
				word = r.Ending()
			}
			out = append(out, strings.TrimSuffix(strings.TrimPrefix(f.Name(), "task."), ".json")+" "+r.Native+" "+word)
		}
		return strings.Join(out, "; ")
	}
	a, b := podOf("0", "j:a", 10, "bad"), podOf("0", "j:b", 20, "bad")
	c, d := podOf("0", "j-r1:c", 30, "bad"), podOf("0", "j-r1:d", 40, "ok")
	other := podOf("1", "j:o", 11, "ok")
	for i, step := range []struct {
		over  bool
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
		if got := look(step.over, step.pods...); got != step.want {
			t.Fatalf("look %d: %s; want %s", i, got, step.want)
		}
	}
}

// TestPodsOfNodes makes one record of a job of several nodes.
func TestPodsOfNodes(t *testing.T) {
	dir := t.TempDir()
	s := &batch.Submitted{ID: "j", Home: dir, Natives: []string{"j"}, Arrays: make([]job.Array, 1), Job: &job.Job{Name: "j", Nodes: 3}}
	var st batch.QueueState
	learnPods(&st, []podState{podOf("2", "c", 1, "ok"), podOf("0", "a", 1, "ok"), podOf("1", "b", 1, "bad")}, func(int) bool { return true })
	testenv.Check(t, (System{}).Learn(s, map[string]batch.QueueState{"j": st}))
	got := &job.Task{}
	if !job.ReadRecord(dir, "task.0.json", got) || got.Native != "b" || got.Exit != 3 {
		t.Errorf("the record is %+v; want that of the node that failed", got)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) != 1 {
		t.Errorf("there are %v; want one record", files)
	}
}

// TestPodsOfNodesGoOn: what some nodes have done says nothing while others run, but that they failed.
func TestPodsOfNodesGoOn(t *testing.T) {
	a, b, c := podOf("0", "a", 1, "ok"), podOf("1", "b", 2, ""), podOf("2", "c", 3, "bad")
	for _, test := range []struct {
		name string
		ray  bool
		pods []podState
		over bool
		want string
	}{
		{"the first has ended, another runs", false, []podState{a, b}, false, "b running"},
		{"the first has ended, another has not begun", false, []podState{a}, false, ""},
		{"one has failed, another runs", false, []podState{a, b, c}, false, "c status 3"},
		{"all have ended", false, []podState{a, podOf("1", "b", 2, "ok")}, true, "a status 0"},
		{"Ray, whose program runs", true, []podState{podOf("0", "a", 1, ""), c}, false, "a running"},
		{"Ray, whose program has ended, and workers are asked to", true, []podState{a, b, c}, false, "a status 0"},
		{"Ray, whose head has not begun", true, []podState{b}, false, ""},
	} {
		home := t.TempDir()
		s := &batch.Submitted{ID: "j", Home: home, Natives: []string{"j"}, Arrays: make([]job.Array, 1), Job: &job.Job{Name: "j", Nodes: 3, Ray: test.ray}}
		st := batch.QueueState{Waiting: 1}
		learnPods(&st, test.pods, func(int) bool { return true })
		if test.over {
			st.Waiting = 0
		}
		got := ""
		testenv.Check(t, (System{}).Learn(s, map[string]batch.QueueState{"j": st}))
		if list, err := job.Tasks(home); err == nil && len(list) == 1 {
			got = list[0].Native + " " + map[bool]string{true: list[0].Ending(), false: "running"}[list[0].Ended()]
		}
		if got != test.want {
			t.Errorf("%s: %q; want %q", test.name, got, test.want)
		}
	}
}
