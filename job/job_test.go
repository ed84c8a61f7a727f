package job

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestPrepare checks which directories of output files are created, and which are refused.
func TestPrepare(t *testing.T) {
	for _, c := range []struct {
		name    string
		job     Job
		to      Target
		dry     bool
		problem string
		creates bool // the directory out/new
	}{
		{"a new directory", Job{Output: "out/new/o"}, "slurm", false, "", true},
		{"a dry run", Job{Output: "out/new/o"}, "slurm", true, "", false},
		{"a dry run, below a file", Job{Output: "file/new/o"}, "slurm", true, "not a directory", false},
		{"a dry run, below a directory that is not writable", Job{Output: "/proc/new/o"}, "slurm", true, "writing to /proc: ", false},
		{"a directory that is not writable", Job{Dir: "/proc"}, "slurm", false, "writing to /proc: ", false},
		{"pods in a directory that is not writable", Job{Dir: "/proc"}, Kubernetes, false, "", false},
		{"pods with --output", Job{Dir: "/proc", Output: "o"}, Kubernetes, false, "writing to /proc: ", false},
	} {
		dir := t.TempDir()
		testenv.Check(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
		if c.job.Dir == "" {
			c.job.Dir = dir
		}
		problem := ""
		if err := c.job.Prepare(c.to, c.dry); err != nil {
			problem = err.Error()
		}
		_, err := os.Stat(filepath.Join(dir, "out/new"))
		if (problem == "") != (c.problem == "") || !strings.Contains(problem, c.problem) || (err == nil) != c.creates {
			t.Errorf("%s: %q, created: %v; want %q, %v", c.name, problem, err == nil, c.problem, c.creates)
		}
	}
}

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

// TestCheckOrder checks that a job with several faults always gets the same error.
func TestCheckOrder(t *testing.T) {
	faulty := func() *Job {
		return &Job{Name: "a", Image: "sci", Dir: "/", Nodes: -1, Tasks: -1, CPUs: -1, Memory: -1, Time: -1, GPUs: -1}
	}
	words := func() *Job {
		j := &Job{Name: "a", Image: "sci", Dir: "/", Queue: "a b", Account: "a b", Mail: "a b"}
		j.QoS, j.Begin, j.Features = "a b", "a b", []string{"a b"}
		return j
	}
	for want, job := range map[string]func() *Job{"the requested number of nodes is negative": faulty, `queue "a b": contains characters that directives cannot hold`: words} {
		for range 50 {
			if err := job().Check(); err == nil || err.Error() != want {
				t.Fatalf("Check() = %v, want %q", err, want)
			}
		}
	}
}
