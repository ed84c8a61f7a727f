package job

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Measured returns the name of the file, in the job's directory, with the resource usage of the
// task's running or last attempt.
func (t *Task) Measured() string { return fmt.Sprintf("task.%d.jsonl", t.Index) }

// EarlierMeasured returns the name of the same file for an earlier attempt, counted from 0.
func (t *Task) EarlierMeasured(attempt int) string {
	return fmt.Sprintf("task.%d.%d.jsonl", t.Index, attempt)
}

// moveMeasured renames a file of measurements in home, if it exists.
func (t *Task) moveMeasured(home, from, to string) {
	_ = os.Rename(filepath.Join(home, from), filepath.Join(home, to))
}

// A Request holds the resources that a job requests for each task, or per node if a task has
// several nodes, because only the first node is measured. Zero means not requested.
type Request struct {
	CPUs   int
	Memory int64 // bytes
	GPUs   int
	Time   time.Duration
}

// Request returns the job's requests.
func (j *Job) Request() Request {
	a := Request{CPUs: j.CPUs, Memory: j.MemoryPerNode(), GPUs: j.GPUs, Time: j.Time}
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

// String returns the form that [ParseRequest] reads: cpus=4,memory=1073741824,gpus=1,time=1h0m0s.
func (a Request) String() string {
	var items []string
	add := func(name string, requested bool, value any) {
		if requested {
			items = append(items, fmt.Sprintf("%s=%v", name, value))
		}
	}
	add("cpus", a.CPUs > 0, a.CPUs)
	add("memory", a.Memory > 0, a.Memory)
	add("gpus", a.GPUs > 0, a.GPUs)
	add("time", a.Time > 0, a.Time)
	return strings.Join(items, ",")
}

// ParseRequest parses the result of String.
func ParseRequest(s string) (a Request, err error) {
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
			err = fmt.Errorf("%q is not one of cpus, memory, gpus and time", name)
		}
		if err != nil {
			return Request{}, fmt.Errorf("reading requests %q: %w", s, err)
		}
	}
	return a, nil
}

// RecordArgs returns the arguments of "hpcc task" for what it records: the image, and the measurements.
func (j *Job) RecordArgs() (w []string) {
	if j.Measure {
		w = append(w, "--measure")
	}
	if j.Image != "" && (j.Measure || j.ImageVersion != ImageVersion{}) {
		w = append(w, "--image="+j.ExactImage())
	}
	if j.ImageFile != "" {
		w = append(w, "--image-file="+j.ImageFile)
	}
	if request := j.Request().String(); j.Measure && request != "" {
		w = append(w, "--asked="+request)
	}
	return w
}
