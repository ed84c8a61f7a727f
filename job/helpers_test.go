package job

import "testing"

// plain is a job as the command line makes it of the fewest words.
func plain() *Job {
	return &Job{Name: "main", Dir: "/home/u/job", Program: "/usr/bin/hpcc", Store: "/home/u/.local/share/hpcc", Image: "sci", Args: []string{"python", "main.py"}}
}

func with(change func(*Job)) *Job {
	j := plain()
	change(j)
	return j
}

func array(t *testing.T, s string) Array {
	t.Helper()
	a, err := ParseArray(s)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
