package pbs

import (
	"fmt"
	"testing"

	"hpcc/job"
)

// TestChunks checks the chunks of jobs with and without nodes: memory and GPUs are those of a node.
func TestChunks(t *testing.T) {
	for _, c := range []struct {
		j    job.Job
		want string // chunks, processes in each, memory of each
	}{
		{job.Job{Memory: 8000}, "1 1 8000"},
		{job.Job{Tasks: 4, Memory: 8000}, "4 1 2000"},
		{job.Job{Tasks: 3, Memory: 8000}, "3 1 2667"},
		{job.Job{Tasks: 4, CPUs: 2, Constraints: job.Constraints{MemoryPerCPU: 500}}, "4 1 1000"},
		{job.Job{Tasks: 4, GPUs: 2, Memory: 8000}, "1 4 8000"},
		{job.Job{Tasks: 8, TasksPerNode: 3, Memory: 8000}, "3 3 8000"},
		{job.Job{Nodes: 2, Tasks: 8, Memory: 8000}, "2 4 8000"},
	} {
		n, processes, mem := chunks(&c.j)
		if got := fmt.Sprint(n, processes, mem); got != c.want {
			t.Errorf("chunks of %d nodes, %d tasks: %s; want %s", c.j.Nodes, c.j.Tasks, got, c.want)
		}
	}
}
