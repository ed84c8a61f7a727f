package job

import (
	"testing"
	"time"
)

func TestAsked(t *testing.T) {
	for _, c := range []struct {
		job  Job
		want Request
		text string
	}{
		{Job{}, Request{}, ""},
		{Job{CPUs: 4, Memory: 1 << 30, GPUs: 1, Time: 90 * time.Second}, Request{4, 1 << 30, 1, 90 * time.Second}, "cpus=4,memory=1073741824,gpus=1,time=1m30s"},
		{Job{Tasks: 8}, Request{CPUs: 8}, "cpus=8"},
		{Job{Nodes: 2, Tasks: 7, CPUs: 2}, Request{CPUs: 8}, "cpus=8"}, // on a node
		{Job{Nodes: 2, TasksPerNode: 3}, Request{CPUs: 3}, "cpus=3"},
	} {
		got := c.job.Request()
		again, err := ParseRequest(got.String())
		if got != c.want || got.String() != c.text || again != got || err != nil {
			t.Errorf("%+v asks for %+v, %q, read again %+v, %v; want %+v, %q", c.job, got, got, again, err, c.want, c.text)
		}
	}
	for _, text := range []string{"cpus", "cpus=x", "x=1", "cpus=1,", "time=1"} {
		if a, err := ParseRequest(text); err == nil {
			t.Errorf("ParseRequest(%q) = %+v", text, a)
		}
	}
}
