package job

import (
	"errors"
	"strconv"
)

// A Ray job starts "hpcc ray" in its task. That starts one process for each
// node, by the launcher of the scheduler; see [PerNode]. The script holds no more
// of it than these words.

// checkRay refuses what a Ray cannot be started with.
func (j *Job) checkRay() error {
	switch {
	case !j.Ray:
		return nil
	case j.Script != nil || j.Image == "":
		return errors.New("--ray starts a program in an image; a script of --from starts its Ray itself")
	case j.Interactive:
		return errors.New("--ray and --interactive do not go together: a Ray has a program that ends it")
	case j.Tasks > 0 || j.TasksPerNode > 1:
		return errors.New("--ray starts one Ray on each node; give --nodes N and, for each, --cpus, --gpus and --mem")
	}
	for _, r := range j.Run {
		if r == "--pid" || r == "--network=none" {
			return errors.New("--ray and " + r + " do not go together: the program has to see the processes and the network of its Ray")
		}
	}
	return nil
}

// RayArgs start the Ray of a job, in which the words after them run.
func (j *Job) RayArgs(to Target) []string {
	w := []string{j.Program, "ray", "--to=" + string(to)}
	nodes := max(j.Nodes, 1)
	if to == Local {
		nodes = 1
	}
	w = append(w, "--nodes="+strconv.Itoa(nodes))
	cpus := j.CPUs
	if cpus == 0 && !j.Exclusive && to != Local {
		cpus = 1 // what schedulers give who asks for nothing
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
