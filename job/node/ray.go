package node

import (
	"strconv"

	"hpcc/job"
	"hpcc/job/shellword"
)

// PerNode are the commands that together start words once on each node of the
// job whose environment getenv reads, of which there have to be so many. The process on the first node
// finds its number, 0, behind words as the others find theirs, --rank=N, but for
// Slurm: SLURM_PROCID. Where there are others it is told one of them, --peer=HOST. The first command is for the first node, or for all.
func PerNode(to job.Target, nodes, cpus int, words []string, getenv func(string) string) ([][]string, error) {
	if to == "slurm" {
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
func remote(to job.Target, host string, words []string) []string {
	switch to {
	case "gridengine": // qrsh gives one line to a shell
		return []string{"qrsh", "-inherit", "-nostdin", host, "exec " + shellword.Join(words)}
	case "lsf":
		return append([]string{"blaunch", host}, words...)
	case "pbs":
		return append([]string{"pbs_tmrsh", host}, words...)
	}
	return words
}
