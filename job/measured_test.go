package job

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestAsked(t *testing.T) {
	for _, c := range []struct {
		job  Job
		want Asked
		text string
	}{
		{Job{}, Asked{}, ""},
		{Job{CPUs: 4, Memory: 1 << 30, GPUs: 1, Time: 90 * time.Second}, Asked{4, 1 << 30, 1, 90 * time.Second}, "cpus=4,memory=1073741824,gpus=1,time=1m30s"},
		{Job{Tasks: 8}, Asked{CPUs: 8}, "cpus=8"},
		{Job{Nodes: 2, Tasks: 7, CPUs: 2}, Asked{CPUs: 8}, "cpus=8"}, // on a node
		{Job{Nodes: 2, TasksPerNode: 3}, Asked{CPUs: 3}, "cpus=3"},
	} {
		got := c.job.Asked()
		again, err := ParseAsked(got.String())
		if got != c.want || got.String() != c.text || again != got || err != nil {
			t.Errorf("%+v asks for %+v, %q, read again %+v, %v; want %+v, %q", c.job, got, got, again, err, c.want, c.text)
		}
	}
	for _, text := range []string{"cpus", "cpus=x", "x=1", "cpus=1,", "time=1"} {
		if a, err := ParseAsked(text); err == nil {
			t.Errorf("ParseAsked(%q) = %+v", text, a)
		}
	}
}

// TestHandedInFor: of a task the last time that it was handed in and then began.
func TestHandedInFor(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 11, 21, 9, minute, 0, 0, time.UTC) }
	s := &Submission{Submitted: at(0), Reruns: []Rerun{{Submitted: at(10), Array: array(t, "2-3")}, {Submitted: at(20), Array: array(t, "3")}}}
	for _, c := range []struct{ index, start, want int }{{1, 30, 0}, {2, 5, 0}, {2, 30, 10}, {3, 15, 10}, {3, 20, 20}} {
		if got := s.HandedInFor(&Task{Index: c.index, Start: at(c.start)}); !got.Equal(at(c.want)) {
			t.Errorf("task %d of %v: handed in at %v; want minute %d", c.index, at(c.start), got, c.want)
		}
	}
	home := t.TempDir()
	s.Target, s.Job = Slurm, &Job{Name: "train"}
	if err := s.write(home); err != nil {
		t.Fatal(err)
	}
	if name, to, got := HandedIn(home, &Task{Index: 2, Start: at(30)}); name != "train" || to != Slurm || !got.Equal(at(10)) {
		t.Errorf("what was written down: %q, %q, %v", name, to, got)
	}
	header := recordLine{}
	s.describe(header, &podHeader{}, &attempt{}, &Task{Index: 1, Start: at(30)})
	if got := string(header["job"]); !strings.Contains(got, `"submitted":"2026-11-21T09:00:00Z"`) {
		t.Errorf("a pod that was not run again has %s", got)
	}
}

func TestNativeIDs(t *testing.T) {
	for _, c := range []struct{ env, want map[string]string }{
		{map[string]string{"JOB_ID": "anybody's"}, map[string]string{}},
		{map[string]string{"JOB_ID": "7", "SGE_TASK_ID": "2", "X": "1"}, map[string]string{"JOB_ID": "7", "SGE_TASK_ID": "2"}},
		{map[string]string{"SLURM_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3", "HPCC_TASK_ID": "3"}, map[string]string{"SLURM_JOB_ID": "8", "SLURM_ARRAY_TASK_ID": "3", "HPCC_TASK_ID": "3"}},
		{map[string]string{"LSB_JOBID": "9", "LSB_JOBINDEX": "0"}, map[string]string{"LSB_JOBID": "9", "LSB_JOBINDEX": "0"}},
		{map[string]string{"PBS_JOBID": "5[2].host"}, map[string]string{"PBS_JOBID": "5[2].host"}},
	} {
		if got, _ := NativeIDs(func(n string) string { return c.env[n] }); !reflect.DeepEqual(got, c.want) {
			t.Errorf("NativeIDs(%v) = %v; want %v", c.env, got, c.want)
		}
	}
}

// TestMeasuredMoves: what was measured of an attempt goes where its record goes.
func TestMeasuredMoves(t *testing.T) {
	dir := t.TempDir()
	task := Begin(dir, 3)
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, task.Measured()), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return string(b)
	}
	write("first")
	task.Write(dir)
	if err := task.WriteEarlier(dir); err != nil {
		t.Fatal(err)
	}
	if got := read("task.3.0.jsonl"); got != "first" {
		t.Errorf("of the first attempt: %q", got)
	}
	if err := task.Last(dir); err != nil || read("task.3.jsonl") != "first" {
		t.Errorf("of the last attempt: %q, %v", read("task.3.jsonl"), err)
	}
	task.Write(dir)
	undo := (&Task{Index: 3}).retire(dir)
	if read("task.3.0.jsonl") != "first" {
		t.Error("a rerun lost what was measured before")
	}
	undo()
	if read("task.3.jsonl") != "first" {
		t.Error("a rerun that was refused lost what was measured before")
	}
	if next := Begin(dir, 3); next.Attempt != 1 || read(next.EarlierMeasured(0)) != "first" {
		t.Errorf("attempt %d, %q", next.Attempt, read(next.EarlierMeasured(0)))
	}
	if list, err := Tasks(dir); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}
