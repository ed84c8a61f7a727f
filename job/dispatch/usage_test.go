package dispatch

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
	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// TestUsageRow: rates are those between the first and the last sample, whatever a record says.
func TestUsageRow(t *testing.T) {
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
	if what, part := r.Waits(); what != "cpu" || part != 1 {
		t.Errorf("it waits for %s, %g", what, part)
	}
}

// TestUsageWild checks that extreme figures of records neither overflow the sums nor break the JSON.
func TestUsageWild(t *testing.T) {
	const text = `{"kind":"header","version":1,"limits":{"cpus":1.7e308,"memory_bytes":9223372036854775807}}
{"kind":"sample","t":1.6e308,"cpu_s":-1.7e308,"pressure":{"cpu_s":-1.7e308},"gpus":[{"utilisation":1.7e308}]}
{"kind":"sample","t":1.7e308,"cpu_s":1.7e308,"pressure":{"cpu_s":1.7e308},"rss_bytes":9223372036854775807,"gpus":[{"utilisation":1.7e308},{"utilisation":1.7e308}]}
`
	now := &Usage{}
	for k := range 3 {
		tail, err := metrics.ReadTail(strings.NewReader(text))
		testenv.Check(t, err)
		now.Tasks = append(now.Tasks, (&watchedTask{task: job.Task{Index: k}, tail: *tail}).row(time.Now()))
		now.Sum.Add(&now.Tasks[k])
	}
	if b, err := json.Marshal(now); err != nil || now.Sum.Memory < 0 {
		t.Errorf("%s, %v", b, err)
	}
}

// writeRunning writes a job to a directory of jobs, and records of so many tasks that run.
func writeRunning(t *testing.T, dir string, s *Submission, running int) {
	t.Helper()
	home := filepath.Join(dir, s.ID)
	testenv.Check(t, os.MkdirAll(home, 0o755))
	testenv.Check(t, s.write(home))
	for k := range running {
		task := &job.Task{Index: k + 1, Native: fmt.Sprintf("pod-%d", k), Start: time.Now()}
		testenv.Check(t, task.Write(home))
	}
}

// runningJob is a job of so many tasks.
func runningJob(t *testing.T, target job.Target, tasks int) *Submission {
	t.Helper()
	a, err := job.ParseArray(fmt.Sprintf("1-%d", tasks))
	testenv.Check(t, err)
	host, err := os.Hostname()
	testenv.Check(t, err)
	return &Submission{ID: "x-1", Native: host + "/1/no", Cluster: Cluster{Target: target}, Job: &job.Job{Name: "x", Measure: true, Array: a}}
}

// TestUsageCancelled: that somebody else cancels the job is seen, and its tasks run no more.
func TestUsageCancelled(t *testing.T) {
	dir := t.TempDir()
	s := runningJob(t, job.Local, 2)
	writeRunning(t, dir, s, 2)
	p := &UsageReader{Dir: dir, ID: s.ID, asked: time.Now()}
	if now, err := p.Refresh(t.Context()); err != nil || now.State != "running" || now.Silent != 2 {
		t.Fatalf("%+v, %v", now, err)
	}
	cancelled := *s
	cancelled.Cancelled = time.Now()
	writeRunning(t, dir, &cancelled, 0)
	p.asked = time.Time{}
	if now, err := p.Refresh(t.Context()); err != nil || now.State != "cancelled" || now.Silent != 0 || len(now.Tasks) != 0 {
		t.Errorf("%+v, %v", now, err)
	}
}

// TestUsagePods checks that one query covers all pods, and that a repeated one covers some and reports it.
func TestUsagePods(t *testing.T) {
	const tasks = usagePods + 6
	dir, bin := t.TempDir(), t.TempDir()
	kubectl := `#!/bin/sh
echo '{"kind":"header","version":1,"start":"2026-11-22T04:00:00Z","command":["x"],"machine":{"host":"n","architecture":"amd64","cpus":2,"memory_bytes":1,"kernel":"6"},"limits":{"cpus":1}}'
echo '{"kind":"sample","t":1,"cpu_s":1,"rss_bytes":5}'
`
	testenv.Check(t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	s := runningJob(t, job.Kubernetes, tasks)
	writeRunning(t, dir, s, tasks)
	for all, want := range map[bool][2]int{true: {tasks, 0}, false: {usagePods, 6}} {
		p := &UsageReader{Dir: dir, ID: s.ID, All: all, Tail: []string{"tail"}, asked: time.Now().Add(time.Hour)}
		now, err := p.Refresh(t.Context())
		if err != nil || len(now.Tasks) != want[0] || now.Unseen != want[1] || now.Silent != 0 || now.Sum.CPUs != float64(want[0]) {
			t.Errorf("all %v: %d tasks, %d unseen, %d silent, %g processors, %v: %.200q", all, len(now.Tasks), now.Unseen, now.Silent, now.Sum.CPUs, err, now.Warnings)
		}
	}
}
