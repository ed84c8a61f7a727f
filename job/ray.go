package job

import (
	"errors"
	"strconv"

	"hpcc/job/shellword"
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

// rayWords start the Ray of a job, in which the words after them run.
func (j *Job) rayWords(to Target) []string {
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

// PerNode are the commands that together start words once on each node of the
// job whose environment getenv reads, of which there have to be so many. The process on the first node
// finds its number, 0, behind words as the others find theirs, --rank=N, but for
// Slurm: SLURM_PROCID. Where there are others it is told one of them, --peer=HOST. The first command is for the first node, or for all.
func PerNode(to Target, nodes, cpus int, words []string, getenv func(string) string) ([][]string, error) {
	if to == Slurm {
		// A site's WaitTime would end the others soon after the first of them.
		w := []string{"srun", "--nodes=" + strconv.Itoa(nodes), "--ntasks=" + strconv.Itoa(nodes), "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--wait=0", "--unbuffered", "--mpi=none"}
		if cpus > 0 {
			w = append(w, "--cpus-per-task="+strconv.Itoa(cpus))
		}
		return [][]string{append(w, words...)}, nil
	}
	hosts := []string{""}
	if nodes > 1 {
		var err error
		if hosts, err = given(to, nodes, getenv); err != nil {
			return nil, err
		}
	}
	var out [][]string
	for rank, host := range hosts {
		w := append(words[:len(words):len(words)], "--rank="+strconv.Itoa(rank))
		switch {
		case rank > 0:
			w = remote(to, host, w)
		case nodes > 1:
			w = append(w, "--peer="+hosts[1])
		}
		out = append(out, w)
	}
	return out, nil
}

// remote is a command that starts words on another host of the job, under the
// scheduler's eyes.
func remote(to Target, host string, words []string) []string {
	switch to {
	case GridEngine: // qrsh gives one line to a shell
		return []string{"qrsh", "-inherit", "-nostdin", host, "exec " + shellword.Join(words)}
	case LSF:
		return append([]string{"blaunch", host}, words...)
	case PBS:
		return append([]string{"pbs_tmrsh", host}, words...)
	}
	return words
}
