package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics/report"
)

// TestResultsOfAttempts: what an attempt before the last left is no result of the task.
func TestResultsOfAttempts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "task.1", "metrics.json")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"loss": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if err := os.Chtimes(file, now, now.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	p, err := openPlace(dir, "task.{task}")
	if err != nil {
		t.Fatal(err)
	}
	defer p.root.Close()
	p.own = true
	for attempt, want := range []int{1, 0} {
		r, err := p.read(&dispatch.Submission{Job: &job.Job{}}, &report.SweepTask{Index: 1, Attempt: attempt, Start: now})
		if err != nil || len(r) != want {
			t.Errorf("attempt %d has %d results, %v; want %d", attempt, len(r), err, want)
		}
	}
}

// TestHiddenPlace: a job's directory that cannot be opened, as somebody else's may be, has no results, and that is no
// error where nobody named it.
func TestHiddenPlace(t *testing.T) {
	hidden := filepath.Join(t.TempDir(), "hidden")
	if err := os.WriteFile(hidden, nil, 0o600); err != nil { // of one without rights root would open it
		t.Fatal(err)
	}
	sub := &dispatch.Submission{Job: &job.Job{Dir: hidden}}
	tasks := []report.SweepTask{{Index: 1}, {Index: 2}}
	p, err := findPlace("", sub, t.TempDir(), tasks)
	if err != nil || !p.own {
		t.Fatalf("%+v, %v; want the task's own directory", p, err)
	}
	p.root.Close()
	if _, err := findPlace("out/{task}", sub, t.TempDir(), tasks); err == nil {
		t.Error("a place that was named and cannot be opened is no error")
	}
}
