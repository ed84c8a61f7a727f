package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Measured is the name, in the job's directory, of the file that holds what was
// measured of a task: of one that runs, and of the last attempt.
func (t *Task) Measured() string { return fmt.Sprintf("task.%d.jsonl", t.Index) }

// EarlierMeasured is that of an attempt, from 0, that another one followed.
func (t *Task) EarlierMeasured(attempt int) string {
	return fmt.Sprintf("task.%d.%d.jsonl", t.Index, attempt)
}

// moveMeasured moves what was measured along with the record of the task; there may be nothing.
func (t *Task) moveMeasured(home, from, to string) {
	_ = os.Rename(filepath.Join(home, from), filepath.Join(home, to))
}

// An Asked is what a job asks for of each task, on a node where that has several: what is
// measured is the first one's. Zero is what it does not say.
type Asked struct {
	CPUs   int
	Memory int64 // bytes
	GPUs   int
	Time   time.Duration
}

// Asked is what the job asks for.
func (j *Job) Asked() Asked {
	a := Asked{CPUs: j.CPUs, Memory: j.MemoryPerNode(), GPUs: j.GPUs, Time: j.Time}
	n := j.TasksPerNode
	if n == 0 {
		nodes := max(j.Nodes, 1)
		n = (j.Tasks + nodes - 1) / nodes
	}
	if n > 1 {
		a.CPUs = max(j.CPUs, 1) * n
	}
	return a
}

// String writes it as a word that [ParseAsked] reads: cpus=4,memory=1073741824,gpus=1,time=1h0m0s.
func (a Asked) String() string {
	var items []string
	add := func(name string, some bool, value any) {
		if some {
			items = append(items, fmt.Sprintf("%s=%v", name, value))
		}
	}
	add("cpus", a.CPUs > 0, a.CPUs)
	add("memory", a.Memory > 0, a.Memory)
	add("gpus", a.GPUs > 0, a.GPUs)
	add("time", a.Time > 0, a.Time)
	return strings.Join(items, ",")
}

// ParseAsked reads what String writes.
func ParseAsked(s string) (a Asked, err error) {
	for item := range strings.SplitSeq(s, ",") {
		if s == "" {
			break
		}
		name, value, _ := strings.Cut(item, "=")
		switch name {
		case "cpus":
			a.CPUs, err = strconv.Atoi(value)
		case "memory":
			a.Memory, err = strconv.ParseInt(value, 10, 64)
		case "gpus":
			a.GPUs, err = strconv.Atoi(value)
		case "time":
			a.Time, err = time.ParseDuration(value)
		default:
			err = fmt.Errorf("%q is none of cpus, memory, gpus and time", name)
		}
		if err != nil {
			return Asked{}, fmt.Errorf("reading what was asked for, %q: %w", s, err)
		}
	}
	return a, nil
}

// MeasureArgs are those of "hpcc task" for a job that is to be measured.
func (j *Job) MeasureArgs() []string {
	if !j.Measure {
		return nil
	}
	w := []string{"--measure"}
	if j.Image != "" {
		w = append(w, "--image="+j.Image)
	}
	if asked := j.Asked().String(); asked != "" {
		w = append(w, "--asked="+asked)
	}
	return w
}
