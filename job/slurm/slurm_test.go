package slurm

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// TestSilentCommand checks that hpcc ends a scheduler's command that hangs, and says so.
func TestSilentCommand(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "scancel"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	begun := time.Now()
	err := System{}.Cancel(web.With(t.Context(), web.Limits{Header: 100 * time.Millisecond}), "7")
	if err == nil || !strings.Contains(err.Error(), "scancel did not answer within 300ms and was ended") || time.Since(begun) > 20*time.Second {
		t.Errorf("Cancel = %v after %v; want an error after about 300ms", err, time.Since(begun))
	}
}

// TestSlurmQueue parses output of squeue 22.05, and states that only sites with certain plugins have.
func TestSlurmQueue(t *testing.T) {
	got := parseQueue("7|3|RUNNING|None\n7|2|PENDING|BeginTime\n7|1|COMPLETING|None\n7|4|SIGNALING|None\n8|N/A|REQUEUE_HOLD|launch failed requeued held\n9|N/A|COMPLETED|None\n10|N/A|PENDING|None\nslurm_load_jobs: a message\n")
	want := map[string]batch.State{
		"7":  {Running: 3, Waiting: 1, Reason: "BeginTime", States: map[int]job.Queue{1: job.QueueEnding, 2: job.QueueWaiting, 3: job.QueueRunning, 4: job.QueueRunning}},
		"8":  {Waiting: 1, Reason: "launch failed requeued held", States: map[int]job.Queue{0: job.QueueWaiting}},
		"9":  {},
		"10": {Waiting: 1, States: map[int]job.Queue{0: job.QueueWaiting}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("queue: %+v; want %+v", got, want)
	}
}

// TestEndings parses lines of sacct 22.05.
func TestEndings(t *testing.T) {
	got := endings(`37_4|COMPLETED|0:0|2026-11-21T00:00:42|None|n1
37_5|FAILED|1:0|2026-11-21T00:00:42|NonZeroExitCode|n1
37_6|RUNNING|0:0|Unknown|None|n1
37_7|COMPLETED|0:0|Unknown|None|n1
37_10|OUT_OF_MEMORY|0:125|2026-11-21T00:00:42|OutOfMemory|n1
37_11|CANCELLED by 0|0:15|2026-11-21T00:00:42|None|n1
37_12|TIMEOUT|0:0|2026-11-21T00:00:42|TimeLimit|n1
37_13|NODE_FAIL|1:0|2026-11-21T00:00:42|NodeDown|n2
37_14|PREEMPTED|0:15|2026-11-21T00:00:42|None|n1
37_15|FAILED|0:53|2026-11-21T00:00:42|None|n3
37_[8-9]|PENDING|0:0|Unknown|None|None assigned
38|CANCELLED|0:0|2026-11-21T00:00:42|DependencyNeverSatisfied|None assigned
`)
	at := time.Date(2026, 11, 21, 0, 0, 42, 0, time.Local)
	want := map[string]map[int]job.End{"37": {4: {State: job.Done, At: at}, 5: {State: job.Failed, At: at, Why: "ended with 1:0 (status:signal)"}, 7: {State: job.Done},
		10: {State: job.Failed, At: at, Memory: true}, 11: {State: job.Stopped, At: at, Why: "cancelled by root"}, 12: {State: job.Failed, At: at, Why: "ended at its time limit"},
		13: {State: job.Failed, At: at, Why: "its node failed (n2)"}, 14: {State: job.Stopped, At: at, Why: "preempted"},
		15: {State: job.Failed, At: at, Why: "it could not start, because its working directory or output file is missing on n3"}},
		"38": {0: {State: job.Stopped, At: at, Why: "cancelled by Slurm (DependencyNeverSatisfied)"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("endings: %v; want %v", got, want)
	}
}

// TestIndices checks which arrays Slurm counts, and the conversion of its indices.
func TestIndices(t *testing.T) {
	for _, c := range []struct {
		array string
		n     int // index of Slurm
		want  int
		owns  bool
	}{{"0-1000", 7, 7, true}, {"1000-1001%4", 2, 1001, false}, {"5,2000", 1, 5, false}, {"1-5000", 4999, 4999, true}} {
		a, err := job.ParseArray(c.array)
		testenv.Check(t, err)
		if got, ok := batch.Indices(ownsIndices)(a, c.n); got != c.want || !ok || ownsIndices(a) != c.owns {
			t.Errorf("%s: index %d is %d, %v, owned %v; want %d, owned %v", c.array, c.n, got, ok, ownsIndices(a), c.want, c.owns)
		}
	}
}

// TestBroadcasts checks which jobs send their image to several nodes.
func TestBroadcasts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*job.Job)
		want   bool
	}{
		{"two nodes", func(j *job.Job) { j.Nodes = 2 }, true},
		{"tasks on any nodes", func(j *job.Job) { j.Tasks = 8 }, true},
		{"an array of jobs with two nodes", func(j *job.Job) { j.Nodes, j.Array = 2, jobtest.Array(t, "1-3") }, true},
		{"one process", func(*job.Job) {}, false},
		{"an array", func(j *job.Job) { j.Array = jobtest.Array(t, "1-3") }, false},
		{"one node", func(j *job.Job) { j.Nodes, j.TasksPerNode = 1, 8 }, false},
		{"a SquashFS file", func(j *job.Job) { j.Nodes, j.Image = 2, "/home/u/sci.sqfs" }, true},
		{"a directory", func(j *job.Job) { j.Nodes, j.Image = 2, "/home/u/tree" }, false},
		{"without --stage", func(j *job.Job) { j.Nodes, j.Run = 2, []string{"--gpu"} }, false},
		{"a script", func(j *job.Job) { j.Nodes, j.Script = 2, &job.Script{} }, false},
		{"a terminal", func(j *job.Job) { j.Nodes, j.Interactive = 2, true }, false},
	} {
		j := jobtest.With(func(j *job.Job) { j.Run = []string{"--stage"}; c.change(j) })
		script, notes, err := System{}.Render(j)
		testenv.Check(t, err)
		if got := strings.Contains(script, "hpcc stage ") && len(notes) == 1; got != c.want {
			t.Errorf("%s: the script sends the image: %v; want %v\n%s", c.name, got, c.want, script)
		}
	}
}
