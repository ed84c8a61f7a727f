package jobscript

import (
	"testing"

	"hpcc/job"
)

// plain is a job as the command line makes it of the fewest words.
func plain() *job.Job {
	return &job.Job{Name: "main", Dir: "/home/u/job", Program: "/usr/bin/hpcc", Store: "/home/u/.local/share/hpcc", Image: "sci", Args: []string{"python", "main.py"}}
}

func with(change func(*job.Job)) *job.Job {
	j := plain()
	change(j)
	return j
}

func array(t *testing.T, s string) job.Array {
	t.Helper()
	a, err := job.ParseArray(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
