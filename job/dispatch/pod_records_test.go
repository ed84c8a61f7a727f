package dispatch

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/batch"
	"hpcc/job/kube"
)

// TestArgoRecords has the records of tasks that a workflow's nodes make, twice: the second look changes nothing.
func TestArgoRecords(t *testing.T) {
	read := func(phases ...string) batch.QueueState {
		text := threeNodes
		for _, p := range phases {
			text = strings.Replace(text, "%s", p, 1)
		}
		wf := &argo.Workflow{}
		if err := json.Unmarshal([]byte(text), wf); err != nil {
			t.Fatal(err)
		}
		return wf.Standing()
	}
	home := t.TempDir()
	s := &Submission{ID: "study-1", Native: "study-x", Cluster: Cluster{Target: job.Argo}, Job: threeJobs(t)}
	now := read("Running", "Pending", "Pending")
	if !now.Alive || now.Running != 0 || now.Waiting != 1 || now.Reason != "Unschedulable: 0/1 nodes are available" {
		t.Errorf("standing: %+v", now)
	}
	look := func(n batch.QueueState) (out []string) {
		t.Helper()
		if err := s.learn(home, map[string]batch.QueueState{"study-x": n}); err != nil {
			t.Fatal(err)
		}
		tasks, err := job.Tasks(home)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range tasks {
			text := itoa(k.Index) + " " + k.Step + " " + k.Ending() + " " + itoa(k.Attempt) + " " + k.Native
			if !k.Ended() {
				text = itoa(k.Index) + " " + k.Step + " runs"
			}
			out = append(out, text)
		}
		return out
	}
	want := []string{"1 Train status 0 1 study-x-train-264160191", "2 prune status 0 0 study-x-prune-1447176800",
		"3 prune killed, since it used more than its memory (OOMKilled); --mem gives it more 0 study-x-prune-344569204"}
	for range 2 {
		if got := look(now); !reflect.DeepEqual(got, want) {
			t.Errorf("records %q; want %q", got, want)
		}
	}
	want = append(want, "4 prune runs", "5 test did not begin, since what it waits for did not go as it wants 0 ")
	if got := look(read("Failed", "Running", "Omitted")); !reflect.DeepEqual(got, want) {
		t.Errorf("records %q; want %q", got, want)
	}
}

// TestArgoNumbers has steps of a workflow of somebody else keep the number that they got first.
func TestArgoNumbers(t *testing.T) {
	home := t.TempDir()
	s := &Submission{ID: "w-1", Native: "w-x", Cluster: Cluster{Target: job.Argo}, Job: &job.Job{Name: "w", Workflow: &job.Workflow{}}}
	at := time.Date(2026, 11, 22, 1, 0, 0, 0, time.UTC)
	step := func(name string, seconds int) batch.Attempt {
		t := job.Task{Native: "w-x-" + name, Step: name, Start: at.Add(time.Duration(seconds) * time.Second)}
		return batch.Attempt{Task: t, Last: true}
	}
	for _, list := range [][]batch.Attempt{{step("b", 0)}, {step("a", 0), step("b", 0), step("c", 5)}} {
		if err := s.learn(home, map[string]batch.QueueState{"w-x": {Alive: true, Tasks: list}}); err != nil {
			t.Fatal(err)
		}
	}
	tasks, err := job.Tasks(home)
	var got string
	for _, k := range tasks {
		got += k.Step + itoa(k.Index) + " "
	}
	if err != nil || got != "b0 a1 c2 " {
		t.Errorf("records %s, %v", got, err)
	}
}

// pod is one of a job's, as the server tells of it: index, name, when it was made, and how its program ended; "" while it runs.
func podOf(index, name string, made int, ended string) kube.Pod {
	var p kube.Pod
	p.Metadata.Name = name
	p.Metadata.Annotations = map[string]string{"batch.kubernetes.io/job-completion-index": index}
	p.Metadata.CreationTimestamp = time.Unix(int64(made), 0)
	p.Spec.NodeName = "n1"
	c := kube.ContainerState{Name: kube.MainContainer}
	if ended == "" {
		p.Status.Phase = "Running"
		c.State.Running = &struct{ StartedAt time.Time }{time.Unix(int64(made+1), 0)}
	} else {
		code := map[string]int{"ok": 0, "bad": 3}[ended]
		c.State.Terminated = &struct {
			ExitCode              int
			Reason, Message       string
			StartedAt, FinishedAt time.Time
		}{code, "Error", "", time.Unix(int64(made+1), 0), time.Unix(int64(made+2), 0)}
	}
	p.Status.ContainerStatuses = []kube.ContainerState{c}
	return p
}

// TestLearn follows a task with a retry, then a rerun with one, as the cluster tells of them look by look.
func TestLearn(t *testing.T) {
	dir := t.TempDir()
	s := &Submission{ID: "j", Native: "j", Cluster: Cluster{Target: job.Kubernetes}, Job: &job.Job{Name: "j", Array: array(t, "3,5")}}
	look := func(over bool, pods ...kube.Pod) string {
		t.Helper()
		known := map[string]batch.QueueState{}
		for i, id := range s.natives() {
			var st batch.QueueState
			var own []kube.Pod
			for _, p := range pods {
				if strings.HasPrefix(p.Metadata.Name, id+":") {
					own = append(own, p)
				}
			}
			kube.Learn(&st, own, func(int) bool { return over || i < len(s.Reruns) })
			known[id] = st
		}
		if err := s.learn(dir, known); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
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
		pods  []kube.Pod
		rerun bool
		want  string
	}{
		{false, []kube.Pod{podOf("0", "j:a", 10, ""), other}, false, "3 j:a runs; 5 j:o status 0"},
		{false, []kube.Pod{a, other}, false, "3.0 j:a status 3; 5 j:o status 0"},
		{false, []kube.Pod{a, other, podOf("0", "j:b", 20, "")}, false, "3.0 j:a status 3; 3 j:b runs; 5 j:o status 0"},
		{false, []kube.Pod{b, other, a}, false, "3.0 j:a status 3; 3.1 j:b status 3; 5 j:o status 0"},
		{true, []kube.Pod{a, b, other}, false, "3.0 j:a status 3; 3 j:b status 3; 5 j:o status 0"},
		{true, nil, false, "3.0 j:a status 3; 3 j:b status 3; 5 j:o status 0"},
		{false, []kube.Pod{a, b, other}, true, "3.0 j:a status 3; 3.1 j:b status 3; 5 j:o status 0"},
		{false, []kube.Pod{a, b, c, other}, false, "3.0 j:a status 3; 3.1 j:b status 3; 3.2 j-r1:c status 3; 5 j:o status 0"},
		{true, []kube.Pod{a, b, d, c, other}, false, "3.0 j:a status 3; 3.1 j:b status 3; 3.2 j-r1:c status 3; 3 j-r1:d status 0; 5 j:o status 0"},
	} {
		if step.rerun {
			(&job.Task{Index: 3}).Retire(dir)
			s.Reruns = []Rerun{{Native: "j-r1", Array: array(t, "3")}}
		}
		if got := look(step.over, step.pods...); got != step.want {
			t.Fatalf("look %d: %s; want %s", i, got, step.want)
		}
	}
}

// TestPodsOfNodes makes one record of a job of several nodes.
func TestPodsOfNodes(t *testing.T) {
	dir := t.TempDir()
	s := &Submission{ID: "j", Native: "j", Job: &job.Job{Name: "j", Nodes: 3}}
	var st batch.QueueState
	kube.Learn(&st, []kube.Pod{podOf("2", "c", 1, "ok"), podOf("0", "a", 1, "ok"), podOf("1", "b", 1, "bad")}, func(int) bool { return true })
	if err := s.learn(dir, map[string]batch.QueueState{"j": st}); err != nil {
		t.Fatal(err)
	}
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
		pods []kube.Pod
		over bool
		want string
	}{
		{"the first has ended, another runs", false, []kube.Pod{a, b}, false, "b running"},
		{"the first has ended, another has not begun", false, []kube.Pod{a}, false, ""},
		{"one has failed, another runs", false, []kube.Pod{a, b, c}, false, "c status 3"},
		{"all have ended", false, []kube.Pod{a, podOf("1", "b", 2, "ok")}, true, "a status 0"},
		{"Ray, whose program runs", true, []kube.Pod{podOf("0", "a", 1, ""), c}, false, "a running"},
		{"Ray, whose program has ended, and workers are told to", true, []kube.Pod{a, b, c}, false, "a status 0"},
		{"Ray, whose head has not begun", true, []kube.Pod{b}, false, ""},
	} {
		s := &Submission{ID: "j", Native: "j", Job: &job.Job{Name: "j", Nodes: 3, Ray: test.ray}}
		st := batch.QueueState{Waiting: 1}
		kube.Learn(&st, test.pods, func(int) bool { return true })
		if test.over {
			st.Waiting = 0
		}
		got := ""
		if list := s.ofNodes(st); len(list) == 1 {
			got = list[0].Native + " " + map[bool]string{true: list[0].Ending(), false: "running"}[list[0].Ended()]
		}
		if got != test.want {
			t.Errorf("%s: %q; want %q", test.name, got, test.want)
		}
	}
}

// What a scheduler took away is not taken for an end.
func TestStatusOfATaskThatReturns(t *testing.T) {
	s := &Status{Submission: &Submission{Job: with(func(j *job.Job) { j.Array, j.Retry.Times = array(t, "1-3"), 1 })}, Total: 3}
	s.Tasks = []job.Task{ended(1, 0, ""), ended(2, -1, "SIGTERM"), ended(3, 4, "")}
	if n := s.count(); n != 0 || len(s.Failed) != 2 {
		t.Fatalf("count = %d, %v; want none open and two that failed", n, s.Failed)
	}
	s.settle(batch.QueueState{Waiting: 1, Reason: "BeginTime"})
	if s.State() != "waiting" || s.Waiting != 1 || len(s.Failed) != 1 || s.Failed[0] != 3 {
		t.Errorf("state %s, waiting %d, failed %v; want one that waits, and 3 failed", s.State(), s.Waiting, s.Failed)
	}
	s.Failed = []int{2, 3}
	s.settle(batch.QueueState{})
	if s.State() != "failed" || len(s.Failed) != 2 {
		t.Errorf("when the scheduler has it no more: state %s, failed %v; want both", s.State(), s.Failed)
	}
}

func ended(index, exit int, signal string) job.Task {
	now := time.Now()
	return job.Task{Index: index, Start: now, End: now, Exit: exit, Signal: signal}
}

// nodes are what Argo said of the workflow of threeJobs, of which the training failed once and one
// pruning for good.
const threeNodes = `{"metadata":{"name":"study-x"},"status":{"phase":"%s","startedAt":"2026-11-22T01:00:00Z","finishedAt":null,"nodes":{
"n0":{"id":"n0","name":"study-x","type":"DAG","phase":"Running","templateName":"main"},
"n1":{"id":"n1","name":"study-x.train","type":"Retry","phase":"Succeeded","templateName":"train","children":["n2","n3"]},
"n2":{"id":"n2","name":"study-x.train(0)","type":"Pod","phase":"Failed","templateName":"train","message":"main: Error (exit code 3)","startedAt":"2026-11-22T01:00:01Z","finishedAt":"2026-11-22T01:00:05Z","hostNodeName":"node1","outputs":{"exitCode":"3"},"nodeFlag":{"retried":true}},
"n3":{"id":"n3","name":"study-x.train(1)","type":"Pod","phase":"Succeeded","templateName":"train","startedAt":"2026-11-22T01:00:06Z","finishedAt":"2026-11-22T01:00:09Z","hostNodeName":"node1","outputs":{"exitCode":"0"},"nodeFlag":{"retried":true}},
"n4":{"id":"n4","name":"study-x.prune","type":"DAG","phase":"Running","templateName":"prune-array"},
"n5":{"id":"n5","name":"study-x.prune.prune(0:0)","type":"Pod","phase":"Succeeded","templateName":"prune","startedAt":"2026-11-22T01:00:10Z","finishedAt":"2026-11-22T01:00:12Z","hostNodeName":"node1","inputs":{"parameters":[{"name":"place","value":"0"}]}},
"n6":{"id":"n6","name":"study-x.prune.prune(1:1)","type":"Pod","phase":"Failed","templateName":"prune","message":"OOMKilled (exit code 137)","startedAt":"2026-11-22T01:00:10Z","finishedAt":"2026-11-22T01:00:13Z","hostNodeName":"node1","inputs":{"parameters":[{"name":"place","value":"1"}]},"outputs":{"exitCode":"137"}},
"n7":{"id":"n7","name":"study-x.prune.prune(2:2)","type":"Pod","phase":"%s","templateName":"prune","message":"Unschedulable: 0/1 nodes are available","startedAt":"2026-11-22T01:00:13Z","finishedAt":null,"inputs":{"parameters":[{"name":"place","value":"2"}]}},
"n8":{"id":"n8","name":"study-x.test","type":"Skipped","phase":"%s","templateName":"test-array","startedAt":"2026-11-22T01:00:13Z","finishedAt":"2026-11-22T01:00:13Z"}
}}}`
