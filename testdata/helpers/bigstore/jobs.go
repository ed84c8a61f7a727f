package bigstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/dispatch"
)

// Names are the names of the jobs. A job has the first one with a probability of 1/2, and so on.
var Names = []string{"main", "train", "train-large", "align", "postprocess", "reduce"}

// OpenJobs is the number of jobs that wait or run.
const OpenJobs = 3

// Native returns the scheduler's ID of job i.
func Native(i int) string { return fmt.Sprint(100_000 + i) }

// ID returns the ID of job i of n. The last one is the newest.
func ID(i, n int, now time.Time) string {
	return nameOf(i) + "-" + submitted(i, n, now).Local().Format("060102-150405")
}

func submitted(i, n int, now time.Time) time.Time {
	return now.Add(-period / time.Duration(n) * time.Duration(n-i)).UTC().Truncate(time.Second)
}

func nameOf(i int) string {
	for k := range Names {
		if i>>k&1 == 0 {
			return Names[k]
		}
	}
	return Names[0]
}

// makeJob writes the directory of job i of n. It returns a line for the list of native IDs.
func makeJob(jobs string, i, n int, now time.Time) (line string, err error) {
	home := filepath.Join(jobs, ID(i, n, now))
	if err := os.Mkdir(home, 0o755); err != nil {
		return "", err
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	at := submitted(i, n, now)
	script := []byte("#!/bin/sh\n#SBATCH --job-name=" + nameOf(i) + "\nexec hpcc task -- hpcc run sci -- python main.py\n")
	if err := writeAt(filepath.Join(home, "script"), script, at); err != nil {
		return "", err
	}
	j := &job.Job{Name: nameOf(i), Dir: "/home/lab/project", Program: "/usr/bin/hpcc", Store: filepath.Dir(jobs), Image: ImageName(0),
		Args: []string{"python", "main.py", "--id={task}"}, Memory: 4 << 30, Time: time.Hour, CPUs: 4}
	s := &dispatch.Submission{ID: filepath.Base(home), Native: Native(i), Submitted: at, Job: j, Cluster: dispatch.Cluster{Target: "slurm"}}
	if i%5 == 0 {
		s.Target, s.Native = job.Local, fmt.Sprintf("%s/%d/1", host, i+2) // no process has started at that time
	}
	switch {
	case i%100 == 99 && i < n-OpenJobs: // submitted by hand
		return "", makeTasks(home, s, i, n, at)
	case i%100 >= 96:
		j.Array, err = job.ParseArray("1-500")
	case i%100 >= 84:
		j.Array, err = job.ParseArray("1-10")
	}
	if err != nil {
		return "", err
	}
	if i%100 == 50 {
		s.Cancelled = at.Add(time.Hour)
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		b, err = files.SealObject(b)
	}
	if err == nil {
		err = writeAt(filepath.Join(home, "job.json"), b, at)
	}
	if err == nil {
		err = makeTasks(home, s, i, n, at)
	}
	return s.Native + "\t" + s.ID + "\n", err
}

// makeTasks writes the records of a job's tasks. Successes of arrays from 500 tasks are collected.
func makeTasks(home string, s *dispatch.Submission, i, n int, at time.Time) error {
	tasks := []int{0}
	if !s.Job.Array.IsZero() {
		tasks = tasks[:0]
		for k := range s.Job.Array.All() {
			tasks = append(tasks, k)
		}
	}
	var collected bytes.Buffer
	last := at
	for _, k := range tasks {
		t := recordOf(s, i, n, k, at)
		if t == nil {
			continue
		}
		b, err := files.SealJSON(t)
		if err != nil {
			return err
		}
		if last = later(t.Start, t.End); t.OK() && len(tasks) >= 500 {
			collected.WriteByte('\n')
			collected.Write(b)
			continue
		}
		if err := writeAt(filepath.Join(home, t.FileName()), b, last); err != nil {
			return err
		}
	}
	if collected.Len() > 0 {
		if err := writeAt(filepath.Join(home, "tasks.n1.jsonl"), collected.Bytes(), last); err != nil {
			return err
		}
	}
	return os.Chtimes(home, last, last)
}

// recordOf returns the record of task k of job i, or nil if it has none.
func recordOf(s *dispatch.Submission, i, n, k int, at time.Time) *job.Task {
	start := at.Add(time.Minute)
	t := &job.Task{Index: k, Native: s.Native, Host: "n1", Start: start, End: start.Add(50 * time.Minute),
		Output: fmt.Sprintf("/home/lab/project/%s_%d.out", s.ID, k), PID: 4000 + k,
		Usage: json.RawMessage(`{"user_s":2812.5,"system_s":33.6,"max_rss_bytes":2152038400,"read_blocks":812,"written_blocks":8,"involuntary_switches":223}`)}
	switch {
	case i >= n-OpenJobs && k%2 == 1:
		return nil
	case i >= n-OpenJobs, i%1000 == 30:
		t.End, t.Usage = time.Time{}, nil
	case i%100 == 50:
		t.End, t.Exit, t.Signal = s.Cancelled.Add(time.Second), -1, "SIGTERM"
	case i%12 == 7 && k%10 == 0:
		t.Exit = 1
	}
	return t
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
