package job

import (
	"slices"
	"testing"
)

// TestJoins checks which jobs let the processes of a node share memory.
func TestJoins(t *testing.T) {
	for _, c := range []struct {
		name string
		job  Job
		want bool
	}{
		{"one process", Job{}, false},
		{"several on one node", Job{Tasks: 4}, true},
		{"several on each node", Job{Nodes: 2, TasksPerNode: 2}, true},
		{"more than nodes", Job{Nodes: 2, Tasks: 3}, true},
		{"one on each node", Job{Nodes: 4}, false},
		{"as many as nodes", Job{Nodes: 4, Tasks: 4}, false},
		{"several on one node, without sharing", Job{Tasks: 4, Run: []string{"--join=false"}}, false},
	} {
		c.job.Image, c.job.Args = "sci", []string{"true"}
		if got := slices.Contains(c.job.Argv(), "--join"); got != c.want {
			t.Errorf("%s: %q; want --join: %v", c.name, c.job.Argv(), c.want)
		}
	}
}
