package capacity

import (
	"testing"
	"time"

	"hpcc/job"
)

// TestNever checks which jobs a site can never start, whatever its load.
func TestNever(t *testing.T) {
	nodes := []Node{
		{Name: "n1", CPUs: 4, Memory: 4 << 30, Queues: []string{"cpu"}}, // without free resources
		{Name: "n2", CPUs: 8, Memory: 8 << 30, State: Off, Queues: []string{"cpu", "big"}},
	}
	limits := map[string]time.Duration{"cpu": time.Hour, "big": 4 * time.Hour, "free": 0}
	for _, x := range []struct {
		name, queue string
		job         job.Job
		more        []Node
		want        string
	}{
		{"no free resources", "cpu", job.Job{CPUs: 4, Time: time.Hour}, nil, ""},
		{"a node that is off", "cpu", job.Job{CPUs: 8}, nil, ""},
		{"more CPUs", "", job.Job{CPUs: 9}, nil, "no node has 9 CPUs: the largest, n2, has 8 CPUs"},
		{"more memory", "big", job.Job{Memory: 9 << 30}, nil, "no node has 9G of memory: the largest, n2, has 8G of memory"},
		{"more nodes", "big", job.Job{Nodes: 2}, nil, "the job needs 2 nodes, and the cluster has 1"},
		{"GPUs of a name that hpcc does not know", "", job.Job{GPUs: 1}, nil, ""},
		{"a node that reports nothing", "", job.Job{CPUs: 9}, []Node{{Name: "n3", State: Off}}, ""},
		{"a queue of no node, which may lead to others", "route", job.Job{CPUs: 8}, []Node{{Name: "n3", CPUs: 2, Memory: 1 << 30}}, ""},
		{"more CPUs than any node", "route", job.Job{CPUs: 9}, nil, "no node has 9 CPUs: the largest, n2, has 8 CPUs"},
		{"more time", "cpu", job.Job{Time: 2 * time.Hour}, nil, "queue cpu limits jobs to 1h, and the job requests 2h"},
		{"more time than each queue", "cpu,big", job.Job{Time: 5 * time.Hour}, nil, "queue big limits jobs to 4h, and the job requests 5h"},
		{"more time than the first queue", "cpu,big", job.Job{Time: 2 * time.Hour}, nil, ""},
		{"a queue without a limit", "cpu,free", job.Job{Time: 900 * time.Hour}, nil, ""},
		{"a limit that may be shortened", "cpu", job.Job{Time: 2 * time.Hour, TimeMin: time.Hour}, nil, ""},
		{"more nodes than the queue allows", "cpu", job.Job{Nodes: 3, Time: time.Hour}, nil, "queue cpu limits jobs to 2 nodes, and the job requests 3"},
	} {
		c := &Snapshot{Nodes: append(append([]Node{}, nodes...), x.more...), Limits: limits, MaxNodes: map[string]int{"cpu": 2}}
		need := NewNeed(&x.job, 0, nil)
		why := need.OverLimit(c, x.queue)
		if why == "" {
			why = need.Never(c, x.queue)
		}
		if why != x.want {
			t.Errorf("%s: %q; want %q", x.name, why, x.want)
		}
	}
}
