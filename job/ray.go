package job

import (
	"errors"
	"strconv"
)

// A Ray job runs "hpcc ray" as its task. That starts one process on each node with the
// scheduler's launcher.

// checkRay returns an error for settings that --ray does not support.
func (j *Job) checkRay() error {
	switch {
	case !j.Ray:
		return nil
	case j.Script != nil || j.Image == "":
		return errors.New("--ray starts a program in an image; a script of --from starts its Ray itself")
	case j.Interactive:
		return errors.New("--ray cannot be used with --interactive: the Ray cluster needs a program that ends it")
	case j.Tasks > 0 || j.TasksPerNode > 1:
		return errors.New("--ray starts one Ray process per node; give --nodes N, and --cpus, --gpus and --mem per node")
	}
	for _, r := range j.Run {
		if r == "--pid" || r == "--network=none" {
			return errors.New("--ray cannot be used with " + r + ": the program needs the processes and the network of its Ray cluster")
		}
	}
	return nil
}

// RayArgs returns the arguments that start the job's Ray cluster and run the following
// arguments in it.
func (j *Job) RayArgs(to Target) []string {
	w := []string{j.Program, "ray", "--to=" + string(to)}
	nodes := max(j.Nodes, 1)
	if to == Local {
		nodes = 1
	}
	w = append(w, "--nodes="+strconv.Itoa(nodes))
	cpus := j.CPUs
	if cpus == 0 && !j.Exclusive && to != Local {
		cpus = 1 // the schedulers' default
	}
	if cpus > 0 {
		w = append(w, "--cpus="+strconv.Itoa(cpus))
	}
	if j.GPUs > 0 && to != Local {
		w = append(w, "--gpus="+strconv.Itoa(j.GPUs))
	}
	if j.Memory > 0 {
		w = append(w, "--mem="+strconv.FormatInt(j.Memory, 10))
	}
	return append(w, "--image-words="+strconv.Itoa(len(j.inImage())), "--")
}
