package job

import (
	"testing"
	"time"
)

func TestRequest(t *testing.T) {
	for _, c := range []struct {
		job  Job
		want Request
		text string
	}{
		{Job{}, Request{}, ""},
		{Job{CPUs: 4, Memory: 1 << 30, GPUs: 1, Time: 90 * time.Second}, Request{4, 1 << 30, 1, 90 * time.Second}, "cpus=4,memory=1073741824,gpus=1,time=1m30s"},
		{Job{Tasks: 8}, Request{CPUs: 8}, "cpus=8"},
		{Job{Nodes: 2, Tasks: 7, CPUs: 2}, Request{CPUs: 8}, "cpus=8"}, // per node
		{Job{Nodes: 2, TasksPerNode: 3}, Request{CPUs: 3}, "cpus=3"},
	} {
		got := c.job.Request()
		parsed, err := ParseRequest(got.String())
		if got != c.want || got.String() != c.text || parsed != got || err != nil {
			t.Errorf("Request() of %+v = %+v, %q, parsed as %+v, %v; want %+v, %q", c.job, got, got, parsed, err, c.want, c.text)
		}
	}
	for _, text := range []string{"cpus", "cpus=x", "x=1", "cpus=1,", "time=1"} {
		if a, err := ParseRequest(text); err == nil {
			t.Errorf("ParseRequest(%q) = %+v; want an error", text, a)
		}
	}
}
