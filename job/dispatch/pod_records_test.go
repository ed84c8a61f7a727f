package dispatch

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/batch"
	"hpcc/job/kube"
	"hpcc/testdata/helpers/testenv"
)

// TestArgoRecords derives task records from workflow nodes twice; the second poll changes nothing.
func TestArgoRecords(t *testing.T) {
	read := func(phases ...string) batch.State {
		text := threeNodes
		for _, p := range phases {
			text = strings.Replace(text, "%s", p, 1)
		}
		wf := &argo.Workflow{}
		testenv.Check(t, json.Unmarshal([]byte(text), wf))
		return wf.QueueState(t.Context(), &kube.StepReader{})
	}
	home := t.TempDir()
	s := &Submission{ID: "study-1", Native: "study-x", Cluster: Cluster{Target: job.Argo}, Job: threeJobs(t)}
	now := read("Running", "Pending", "Pending")
	if !now.Alive || now.Running != 0 || now.Waiting != 1 || now.Reason != "Unschedulable: 0/1 nodes are available" {
		t.Errorf("standing: %+v", now)
	}
	look := func(n batch.State) (out []string) {
		t.Helper()
		testenv.Check(t, s.keeper().Record(s.kept(home), map[string]batch.State{"study-x": n}))
		tasks, err := job.Tasks(home)
		testenv.Check(t, err)
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
		"3 prune killed because it used more than its memory (OOMKilled); raise the limit with --mem 0 study-x-prune-344569204"}
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

// TestArgoNumbers: steps of a foreign workflow keep the number that they got first.
func TestArgoNumbers(t *testing.T) {
	home := t.TempDir()
	s := &Submission{ID: "w-1", Native: "w-x", Cluster: Cluster{Target: job.Argo}, Job: &job.Job{Name: "w", Workflow: &job.Workflow{}}}
	at := time.Date(2026, 11, 22, 1, 0, 0, 0, time.UTC)
	step := func(name string, seconds int) batch.Attempt {
		t := job.Task{Native: "w-x-" + name, Step: name, Start: at.Add(time.Duration(seconds) * time.Second)}
		return batch.Attempt{Task: t, Last: true}
	}
	for _, list := range [][]batch.Attempt{{step("b", 0)}, {step("a", 0), step("b", 0), step("c", 5)}} {
		testenv.Check(t, s.keeper().Record(s.kept(home), map[string]batch.State{"w-x": {Alive: true, Tasks: list}}))
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

// threeNodes is Argo's status of the workflow of threeJobs, in which the training failed once
// and one pruning failed for good.
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
