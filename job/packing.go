package job

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// A packing packs the tasks of an array into one allocation, in which hpcc runs them. The zero value
// of its fields is that of a job as the user describes it: Nodes, and TasksPerNode as the number of
// tasks that run at once on a node, are of the allocation; CPUs, Memory and GPUs are of a task.
type packing struct {
	Keep   bool    `json:"keep,omitempty"` // start the image once on each node
	Array  Array   `json:"-"`              // of an allocation: the tasks
	Slots  int     `json:"-"`              // of an allocation: tasks that run at once on a node; 0: all that fit
	Each   Request `json:"-"`              // of an allocation: the request of a task
	Output string  `json:"-"`              // of an allocation: pattern of the tasks' output files; "": hpcc's own
	Error  string  `json:"-"`              // the same for standard error; "": Output
}

// SetPack packs the tasks of the job. With keep, the image is started once on each node, and runs all
// tasks of the node.
func (j *Job) SetPack(keep bool) { j.Pack = &packing{Keep: keep} }

// checkPack returns an error for settings that packed jobs do not support.
func (j *Job) checkPack() error {
	if j.Pack == nil || !j.Pack.Array.IsZero() {
		return nil
	}
	other := ""
	switch {
	case j.Interactive:
		other = "--interactive"
	case j.Tensorboard != "":
		other = "--tensorboard"
	case j.Warning.Signal != "":
		other = "--signal"
	case j.Retry.Grows():
		other = "--retry-mem and --retry-time"
	}
	switch {
	case other != "":
		return fmt.Errorf("--pack cannot be used with %s", other)
	case j.Array.IsZero():
		return errors.New("--pack needs tasks: --array 1-1000, --sweep or --params")
	case j.Script != nil:
		return errors.New("--pack cannot be used with --from: the script describes its own tasks")
	case j.Tasks > 0:
		return errors.New("--pack: each task is one process; --tasks-per-node N sets how many run at once on a node")
	case j.Measure:
		return errors.New("--pack cannot be used with --measure, which writes a file for each task; the records have the CPU time and memory of each task")
	case j.Pack.Keep && (j.Image == "" || slices.ContainsFunc(j.Run, func(w string) bool { return len(j.placeholders(w)) > 0 })):
		return errors.New("--pack=keep starts the image once for all tasks, so its flags cannot contain {task} or a parameter")
	case j.GPUs > 0 && j.TasksPerNode == 0:
		return errors.New("--pack with --gpus: how many tasks run at once on a node? Give --tasks-per-node N")
	}
	return nil
}

// Allocation returns the job that the scheduler gets for a packed job: one task, which runs all
// others. exclusive reports whether the target gives full nodes to a job that requests no CPUs.
func (j *Job) Allocation(exclusive bool) *Job {
	a := *j
	a.Pack = &packing{Keep: j.Pack.Keep, Array: j.Array, Slots: j.TasksPerNode,
		Each: Request{CPUs: j.CPUs, Memory: j.MemoryPerNode(), GPUs: j.GPUs}, Output: j.Output, Error: j.Error}
	if a.Pack.Error != "" && a.Pack.Output == "" {
		a.Pack.Output = j.OutputPattern()
	}
	a.Array, a.ArraySize, a.Output, a.Error, a.TasksPerNode = Array{}, j.FullCount(), "", "", 0
	if n := j.TasksPerNode; n > 0 {
		a.CPUs, a.Memory, a.GPUs = max(1, j.CPUs)*n, j.MemoryPerNode()*int64(n), j.GPUs*n
	} else {
		a.CPUs, a.Memory, a.Exclusive = 0, 0, exclusive
	}
	a.MemoryPerCPU = 0
	return &a
}

// Alone returns the job as one of its tasks requests it: in a packed job, the nodes belong to the
// allocation.
func (j *Job) Alone() *Job {
	if j.Pack == nil {
		return j
	}
	t := *j
	t.Nodes, t.TasksPerNode = 0, 0
	return &t
}

// PackArgs returns the flags of "hpcc task" for the allocation of a packed job.
func (j *Job) PackArgs(to Target) []string {
	if j.Pack == nil {
		return nil
	}
	w := []string{"--pack=" + strconv.Itoa(j.Pack.Slots), "--to=" + string(to), "--array=" + j.Pack.Array.String(), "--name=" + j.Name}
	if j.Pack.Keep {
		w = append(w, "--image-words="+strconv.Itoa(len(j.inImage())))
	}
	if j.Nodes > 1 && to != Local {
		w = append(w, "--nodes="+strconv.Itoa(j.Nodes))
	}
	if each := j.Pack.Each.String(); each != "" {
		w = append(w, "--asked="+each)
	}
	if j.Pack.Output != "" {
		w = append(w, "--output="+j.Pack.Output)
	}
	if j.Pack.Error != "" {
		w = append(w, "--error="+j.Pack.Error)
	}
	return w
}

// Packed reports whether the tasks of the job are packed into one allocation.
func (j *Job) Packed() bool { return j.Pack != nil }
