package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/testdata/testenv"
)

func TestTopText(t *testing.T) {
	now := &topState{ID: "big-1\x1b[2J", Target: "slurm", State: "running", Total: 1000, Running: 1000}
	for k := range 1000 {
		now.Tasks = append(now.Tasks, topTask{Task: k, Host: "n\x1b]0;x\a1", CPUs: float64(k % 7), Granted: 8, Limit: 1 << 30, Start: time.Now().Add(-time.Hour), Age: 120})
		now.Sum.add(&now.Tasks[k])
	}
	sortTop(now.Tasks, "cpu")
	lines := strings.Split(strings.TrimSuffix(topText(now, 20, 0), "\n"), "\n")
	if len(lines) != 3+1000 || strings.Join(lines[23:], "") != "" {
		t.Errorf("%d lines, of which the last are %q", len(lines), strings.Join(lines[23:], "|"))
	}
	if !strings.HasPrefix(lines[3], "6 ") || !strings.Contains(lines[3], "6.00/8") || !strings.HasSuffix(lines[3], "as of 2m00s ago") || !strings.HasPrefix(lines[4], "13 ") {
		t.Errorf("the busiest first, and how old that is: %q, %q", lines[3], lines[4])
	}
	if strings.ContainsAny(strings.Join(lines, ""), "\x1b\a") {
		t.Errorf("control characters: %q", lines[:4])
	}
	if want := "CPU 2997.0 of 8000 (37%)  memory 0 B of 1073.7 GB  read 0 B/s  write 0 B/s"; lines[1] != want {
		t.Errorf("%q; want %q", lines[1], want)
	}
}

// TestTopNarrow checks that narrow terminals lose columns, but never the diagnosis.
func TestTopNarrow(t *testing.T) {
	now := &topState{ID: "train-261121-090000", Target: "slurm", State: "running", Total: 1, Running: 1}
	now.Tasks = []topTask{{
		Task: 1234, Host: "login-node-with-a-long-name.cluster.example", CPUs: 31.25, Granted: 32, Memory: 123e9, Peak: 124e9, Limit: 128e9,
		Read: 1e8, Written: 1e8, Threads: 99, Stalled: 12.5, GPUs: []metrics.GPUSample{{Utilisation: 50, Memory: 1e9}},
		Pressure: &metrics.Pressure{Memory: .61}, Start: time.Now().Add(-90 * time.Minute),
	}}
	now.Sum.add(&now.Tasks[0])
	for _, c := range []struct {
		columns int
		titles  string
	}{
		{0, "TASK HOST TIME CPU MEM PEAK LIMIT READ/S WRITE/S THREADS GPU GPUMEM THROTTLED WAITS"},
		{120, "TASK HOST TIME CPU MEM LIMIT GPU THROTTLED WAITS"},
		{79, "TASK CPU MEM LIMIT GPU THROTTLED WAITS"},
		{40, "TASK CPU MEM THROTTLED WAITS"},
	} {
		lines := strings.Split(topText(now, 20, c.columns), "\n")
		if got := strings.Join(strings.Fields(lines[2]), " "); got != c.titles || !strings.HasSuffix(lines[3], "12.50      memory 61%") {
			t.Errorf("%d columns: %q, %q; want %q", c.columns, got, lines[3], c.titles)
		}
		if c.columns > 70 && width(lines[3]) > c.columns {
			t.Errorf("%d columns: a line has %d", c.columns, width(lines[3]))
		}
	}
}

// TestTopRow: rates are those between the first and the last sample, whatever a record says.
func TestTopRow(t *testing.T) {
	samples := func(list ...metrics.Sample) *watchedTask {
		k := &watchedTask{task: job.Task{Index: 3, Host: "n1"}}
		k.tail.Samples = list
		k.tail.Header.Start = time.Unix(1000, 0)
		return k
	}
	one := samples(metrics.Sample{At: 4, CPU: 2, RSS: 5, Peak: 9}).row(time.Unix(1010, 0))
	if one.CPUs != .5 || one.Memory != 5 || one.Peak != 9 || one.Age != 6 || one.Host != "n1" {
		t.Errorf("of one sample: %+v", one)
	}
	own := samples(metrics.Sample{At: 1, Cgroup: &metrics.CgroupUse{}}, metrics.Sample{At: 3, RSS: 5, Cgroup: &metrics.CgroupUse{Memory: 100, Cache: 10, Peak: 120, Throttled: 1}})
	if r := own.row(time.Unix(1003, 0)); r.Memory != 90 || r.Peak != 120 || r.Stalled != .5 {
		t.Errorf("of its own cgroup: %+v", r)
	}
	own.tail.Header.Limits.Shared = true
	own.peak = 7
	if r := own.row(time.Unix(1003, 0)); r.Memory != 5 || r.Peak != 7 {
		t.Errorf("of a cgroup with others: %+v", r)
	}
	own = samples(metrics.Sample{At: 3, RSS: 5, Peak: 9, Cgroup: &metrics.CgroupUse{CPU: 1}})
	if r := own.row(time.Unix(1003, 0)); r.Memory != 5 || r.Peak != 9 {
		t.Errorf("of a cgroup without memory: %+v", r)
	}
	own = samples(metrics.Sample{At: 3, RSS: 5, Peak: 9, Cgroup: &metrics.CgroupUse{Memory: 8}})
	if r := own.row(time.Unix(1003, 0)); r.Memory != 8 || r.Peak != 9 {
		t.Errorf("of a cgroup without a peak: %+v", r)
	}
	wild := samples(metrics.Sample{At: 0, CPU: -math.MaxFloat64, Read: math.MinInt64}, metrics.Sample{At: 1e-300, CPU: math.MaxFloat64, Read: math.MaxInt64, RSS: -1, Pressure: &metrics.Pressure{CPU: 1e308, IO: -1}})
	r := wild.row(time.Time{})
	if _, err := json.Marshal(r); err != nil {
		t.Errorf("of a wild record: %v", err)
	}
	if what, part := r.waits(); what != "cpu" || part != 1 {
		t.Errorf("it waits for %s, %g", what, part)
	}
}

// TestTopWild: tasks whose records say anything are shown with the others.
func TestTopWild(t *testing.T) {
	const text = `{"kind":"header","version":1,"limits":{"cpus":1.7e308,"memory_bytes":9223372036854775807}}
{"kind":"sample","t":1.6e308,"cpu_s":-1.7e308,"pressure":{"cpu_s":-1.7e308},"gpus":[{"utilisation":1.7e308}]}
{"kind":"sample","t":1.7e308,"cpu_s":1.7e308,"pressure":{"cpu_s":1.7e308},"rss_bytes":9223372036854775807,"gpus":[{"utilisation":1.7e308},{"utilisation":1.7e308}]}
`
	now := &topState{}
	for k := range 3 {
		tail, err := metrics.ReadTail(strings.NewReader(text))
		testenv.Check(t, err)
		now.Tasks = append(now.Tasks, (&watchedTask{task: job.Task{Index: k}, tail: *tail}).row(time.Now()))
		now.Sum.add(&now.Tasks[k])
	}
	if b, err := json.Marshal(now); err != nil || now.Sum.Memory < 0 {
		t.Errorf("%s, %v", b, err)
	}
}

// TestTopGPUs: what is not known of parts of GPUs is not idle.
func TestTopGPUs(t *testing.T) {
	for _, c := range []struct {
		name string
		gpus []metrics.GPUSample
		want string
	}{
		{"known", []metrics.GPUSample{{Utilisation: 50, Memory: 1e9}, {Memory: 1e9}}, "GPU 25% of 2, 2.0 GB"},
		{"one of two", []metrics.GPUSample{{Utilisation: 50, Memory: 1e9}, {Unknown: true, Memory: 1e9}}, "GPU 50% of 2, 2.0 GB"},
		{"parts", []metrics.GPUSample{{Unknown: true, Memory: 1e9}, {Unknown: true, Memory: 1e9}}, "GPU – of 2, 2.0 GB"},
	} {
		now := &topState{Tasks: []topTask{{GPUs: c.gpus}}}
		now.Sum.add(&now.Tasks[0])
		text := topText(now, 9, 0)
		row := strings.NewReplacer("GPU ", "", " of 2, ", " ").Replace(c.want)
		if !strings.Contains(text, c.want+"  read ") || !strings.Contains(strings.Join(strings.Fields(text), " "), " 0 "+row) {
			t.Errorf("%s: %q; want %q and %q", c.name, text, c.want, row)
		}
	}
}

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
	testenv.Check(t, err)
}

// runningJob is a job of so many tasks.
func runningJob(t *testing.T, target job.Target, tasks int) *dispatch.Submission {
	t.Helper()
	a, err := job.ParseArray(fmt.Sprintf("1-%d", tasks))
	testenv.Check(t, err)
	host, err := os.Hostname()
	testenv.Check(t, err)
	return &dispatch.Submission{ID: "x-1", Native: host + "/1/no", Cluster: dispatch.Cluster{Target: target}, Job: &job.Job{Name: "x", Measure: true, Array: a}}
}

// TestTopCancelled: that somebody else cancels the job is seen, and its tasks run no more.
func TestTopCancelled(t *testing.T) {
	dir := t.TempDir()
	s := runningJob(t, job.Local, 2)
	writeJob(t, dir, s, 2)
	p := &topReader{sub: s, dir: dir, tasks: map[int]*watchedTask{}, asked: time.Now()}
	if now, err := p.refresh(t.Context()); err != nil || now.State != "running" || now.Silent != 2 {
		t.Fatalf("%+v, %v", now, err)
	}
	cancelled := *s
	cancelled.Cancelled = time.Now()
	writeJob(t, dir, &cancelled, 0)
	p.asked = time.Time{}
	if now, err := p.refresh(t.Context()); err != nil || now.State != "cancelled" || now.Silent != 0 || len(now.Tasks) != 0 {
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
	testenv.Check(t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	s := runningJob(t, job.Kubernetes, tasks)
	writeJob(t, dir, s, tasks)
	for all, want := range map[bool][2]int{true: {tasks, 0}, false: {topPods, 6}} {
		p := &topReader{sub: s, dir: dir, all: all, tasks: map[int]*watchedTask{}, asked: time.Now().Add(time.Hour)}
		now, err := p.refresh(t.Context())
		if err != nil || len(now.Tasks) != want[0] || now.Unseen != want[1] || now.Silent != 0 || now.Sum.CPUs != float64(want[0]) {
			t.Errorf("all %v: %d tasks, %d unseen, %d silent, %g processors, %v: %.200q", all, len(now.Tasks), now.Unseen, now.Silent, now.Sum.CPUs, err, now.Warnings)
		}
	}
}
