package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/dispatch"
)

// writeJob writes job.json of a job in a directory of jobs, and records of so many tasks that run.
func writeJob(t *testing.T, dir string, s *dispatch.Submission, running int) {
	t.Helper()
	home := filepath.Join(dir, s.ID)
	b, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(home, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(home, "job.json"), b, 0o644)
	}
	for k := range running {
		if err == nil {
			task := &job.Task{Index: k + 1, Native: fmt.Sprintf("pod-%d", k), Start: time.Now()}
			err = task.Write(home)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// runningJob is a job of so many tasks.
func runningJob(t *testing.T, target job.Target, tasks int) *dispatch.Submission {
	t.Helper()
	a, err := job.ParseArray(fmt.Sprintf("1-%d", tasks))
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return &dispatch.Submission{ID: "x-1", Native: host + "/1/no", Cluster: dispatch.Cluster{Target: target}, Job: &job.Job{Name: "x", Measure: true, Array: a}}
}

// TestTopCancelled: that somebody else cancels the job is seen, and its tasks run no more.
func TestTopCancelled(t *testing.T) {
	dir := t.TempDir()
	s := runningJob(t, job.Local, 2)
	writeJob(t, dir, s, 2)
	p := &topper{sub: s, dir: dir, tasks: map[int]*watchedTask{}, asked: time.Now()}
	if now, err := p.look(t.Context()); err != nil || now.State != "running" || now.Silent != 2 {
		t.Fatalf("%+v, %v", now, err)
	}
	cancelled := *s
	cancelled.Cancelled = time.Now()
	writeJob(t, dir, &cancelled, 0)
	p.asked = time.Time{}
	if now, err := p.look(t.Context()); err != nil || now.State != "cancelled" || now.Silent != 0 || len(now.Tasks) != 0 {
		t.Errorf("%+v, %v", now, err)
	}
}

// TestTopPods: who looks once looks at all pods; who watches at some, and says so.
func TestTopPods(t *testing.T) {
	const tasks = topPods + 6
	dir, bin := t.TempDir(), t.TempDir()
	kubectl := `#!/bin/sh
echo '{"kind":"header","version":1,"start":"2026-11-22T04:00:00Z","command":["x"],"machine":{"host":"n","architecture":"amd64","cpus":2,"memory_bytes":1,"kernel":"6"},"limits":{"cpus":1}}'
echo '{"kind":"sample","t":1,"cpu_s":1,"rss_bytes":5}'
`
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	s := runningJob(t, job.Kubernetes, tasks)
	writeJob(t, dir, s, tasks)
	for all, want := range map[bool][2]int{true: {tasks, 0}, false: {topPods, 6}} {
		p := &topper{sub: s, dir: dir, all: all, tasks: map[int]*watchedTask{}, asked: time.Now().Add(time.Hour)}
		now, err := p.look(t.Context())
		if err != nil || len(now.Tasks) != want[0] || now.Unseen != want[1] || now.Silent != 0 || now.Sum.CPUs != float64(want[0]) {
			t.Errorf("all %v: %d tasks, %d unseen, %d silent, %g processors, %v: %.200q", all, len(now.Tasks), now.Unseen, now.Silent, now.Sum.CPUs, err, now.Warnings)
		}
	}
}
