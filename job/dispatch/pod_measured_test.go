package dispatch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// TestMeasuredWorkflow checks that each step of a workflow is measured against its own requests.
func TestMeasuredWorkflow(t *testing.T) {
	step := func(name, image string, cpus int) *job.Job {
		return jobtest.With(func(j *job.Job) {
			j.Name, j.Measure, j.Image, j.CPUs, j.Args = name, true, image, cpus, []string{"run-" + name}
			j.Pod.Measurer = job.Measurer{Argv: []string{"/m", "--"}, Digest: "sha256:" + image}
		})
	}
	j, err := job.NewSteps("study", []*job.Job{step("Train", "a", 4), step("test", "b", 1)}, nil)
	testenv.Check(t, err)
	if text, _, err := Render(j, job.Argo); err != nil || !strings.Contains(text, "run-Train") {
		t.Fatalf("%v: %s", err, text)
	}
	home := t.TempDir()
	s := &Submission{ID: "study-1", Native: "study-1", Cluster: Cluster{Target: job.Argo}, Job: j}
	begun := time.Date(2026, 11, 22, 4, 0, 0, 0, time.UTC)
	tasks := []batch.Attempt{{Task: job.Task{Native: "a", Step: "train", Start: begun, End: begun.Add(time.Minute)}, Template: "train", Last: true},
		{Task: job.Task{Native: "b", Step: "test", Start: begun, End: begun.Add(time.Minute)}, Template: "test", Last: true}}
	if !j.Measured() {
		t.Fatal("the workflow is not measured")
	}
	testenv.Check(t, s.keeper().Record(s.kept(home), map[string]batch.State{"study-1": {Tasks: tasks}}))
	for k, want := range []string{`"asked":{"cpus":4},"command":["run-Train"],"digest":"sha256:a","image":"a"`, `"asked":{"cpus":1},"command":["run-test"],"digest":"sha256:b","image":"b"`} {
		text, err := os.ReadFile(filepath.Join(home, fmt.Sprintf("task.%d.jsonl", k+1)))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("task %d: %v: %s; want %s", k+1, err, text, want)
		}
	}
}

// TestSubmissionTime: the last submission before a task started.
func TestSubmissionTime(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 11, 21, 9, minute, 0, 0, time.UTC) }
	s := &Submission{Submitted: at(0), Reruns: []Rerun{{Submitted: at(10), Array: jobtest.Array(t, "2-3")}, {Submitted: at(20), Array: jobtest.Array(t, "3")}}}
	for _, c := range []struct{ index, start, want int }{{1, 30, 0}, {2, 5, 0}, {2, 30, 10}, {3, 15, 10}, {3, 20, 20}} {
		if got := s.SubmissionTime(&job.Task{Index: c.index, Start: at(c.start)}); !got.Equal(at(c.want)) {
			t.Errorf("task %d of %v: submitted at %v; want minute %d", c.index, at(c.start), got, c.want)
		}
	}
	home := t.TempDir()
	s.Target, s.Job = "slurm", &job.Job{Name: "train"}
	testenv.Check(t, s.write(home))
	if name, to, got := submissionOf(home, &job.Task{Index: 2, Start: at(30)}); name != "train" || to != "slurm" || !got.Equal(at(10)) {
		t.Errorf("submissionOf = %q, %q, %v; want train, slurm, minute 10", name, to, got)
	}
	if got := s.kept(home).At(&job.Task{Index: 1, Start: at(30)}); !got.Equal(at(0)) {
		t.Errorf("a pod without a rerun was submitted at %v; want minute 0", got)
	}
}
