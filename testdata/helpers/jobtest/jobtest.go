// Package jobtest compares what batch systems report with what tests expect.
package jobtest

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
)

// Recorded returns the recorded output of a batch system.
func Recorded(t testing.TB, file string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// describe formats a node in a few words, for comparisons.
func describe(n *capacity.Node) string {
	return fmt.Sprintf("%s %s cpus %d/%d memory %dM/%dM gpus %d/%d %s %s", n.Name, n.State, n.FreeCPUs, n.CPUs, n.FreeMemory>>20, n.Memory>>20, n.FreeGPUs, n.GPUs, n.GPUType, strings.Join(n.Queues, ","))
}

// CheckNodes compares nodes with one line for each.
func CheckNodes(t *testing.T, nodes []capacity.Node, want ...string) {
	t.Helper()
	var got []string
	for i := range nodes {
		got = append(got, strings.Join(strings.Fields(describe(&nodes[i])), " "))
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("nodes are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// ThatDay returns a time on the day of the recordings.
func ThatDay(t testing.TB, clock string) time.Time {
	t.Helper()
	at, err := time.ParseInLocation("2006-01-02T15:04:05", "2026-11-21T"+clock, time.Local)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// CheckFree checks the invariants of a snapshot, which may come from a fuzzed listing.
func CheckFree(t *testing.T, c *capacity.Snapshot, now time.Time) {
	t.Helper()
	for i := range c.Nodes {
		n := &c.Nodes[i]
		n.Settle(now)
		if (n.CPUs >= 0 && (n.FreeCPUs < 0 || n.FreeCPUs > n.CPUs)) || n.FreeMemory < 0 || n.FreeMemory > n.Memory || n.FreeGPUs < 0 || n.FreeGPUs > n.GPUs {
			t.Fatalf("free resources exceed those of the node: %+v", n)
		}
	}
	x := capacity.NewNeed(&job.Job{CPUs: 2, Time: time.Hour}, 0, nil)
	if f := x.Fit(c, "", now); f.When == "" {
		t.Fatal("a job starts neither now nor later nor never")
	}
}

// Plain returns the job of a minimal command line.
func Plain() *job.Job {
	return &job.Job{Name: "main", Dir: "/home/u/job", Program: "/usr/bin/hpcc", Store: "/home/u/.local/share/hpcc", Image: "sci", Args: []string{"python", "main.py"}}
}

// With returns a changed [Plain].
func With(change func(*job.Job)) *job.Job {
	j := Plain()
	change(j)
	return j
}

// Array returns a parsed array.
func Array(t *testing.T, s string) job.Array {
	t.Helper()
	a, err := job.ParseArray(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Unexpanded returns an argument after Kubernetes' expansion, if it contains none of its variables
// (k8s.io/kubernetes, third_party/forked/golang/expansion).
func Unexpanded(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		b.WriteByte(s[i])
		if s[i] == '$' && i+1 < len(s) && s[i+1] == '$' {
			i++
		}
	}
	return b.String()
}

// PodHead and PodFoot are the header and footer of the record that a measured pod writes.
const (
	PodHead = `{"kind":"header","version":1,"start":"2026-11-22T04:00:00Z","command":["main"],"machine":{"host":"train-x-0-abc","architecture":"amd64","cpus":2,"memory_bytes":1000,"kernel":"6"},"limits":{"cpus":2}}` + "\n"
	PodFoot = `{"kind":"footer","end":"2026-11-22T04:00:10Z","wall_s":10,"exit":0,"usage":{"user_s":4,"system_s":1,"max_rss_bytes":1000},"memory_peak_bytes":2000,"memory_from":"cgroup","later":7}` + "\n"
)
