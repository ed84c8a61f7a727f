package runtime

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"hpcc/runtime/process"
)

// Peers returns a tag for the tasks of this node that belong together and their number, from
// the launcher's variables in env; the number is 0 if unknown. MPI launchers are read before
// Slurm: under mpirun, Slurm's variables count the launcher's own daemons, one for each
// node.
func Peers(env func(string) string) (tag string, count int, err error) {
	for _, name := range []string{
		"OMPI_COMM_WORLD_LOCAL_SIZE", // Open MPI, PRRTE
		"MV2_COMM_WORLD_LOCAL_SIZE",  // MVAPICH2
		"MPI_LOCALNRANKS",            // Hydra: MPICH, Intel MPI
		"PALS_LOCAL_SIZE",            // Cray PALS
		"JSM_NAMESPACE_LOCAL_SIZE",   // jsrun
	} {
		v := env(name)
		if v == "" {
			continue
		}
		if count, err = strconv.Atoi(v); err != nil || count < 1 {
			return "", 0, fmt.Errorf("%s is %q, not a number of tasks; use --join-ct N", name, v)
		}
		break
	}
	if ns := env("PMIX_NAMESPACE"); ns != "" {
		// The directory is that of the daemon of the node: virtual nodes on one machine share the others.
		tag = strings.TrimSuffix("pmix-"+ns+"-"+env("PMIX_SERVER_TMPDIR"), "-")
	}
	if job := env("SLURM_JOB_ID"); count == 0 && env("SLURM_STEP_ID") != "" {
		if tag == "" {
			tag = "slurm-" + job + "." + env("SLURM_STEP_ID")
		}
		count, err = slurmTasks(env("SLURM_STEP_TASKS_PER_NODE"), env("SLURM_NODEID"))
		// Virtual nodes on one machine share directories.
		tag += "-" + env("SLURMD_NODENAME")
	}
	if tag == "" {
		tag = "parent-" + parent()
	}
	return tag, count, err
}

// slurmTasks returns this node's number of tasks from Slurm's list. "2(x3),1" means three
// nodes with two tasks and one with one.
func slurmTasks(list, node string) (int, error) {
	bad := fmt.Errorf("SLURM_STEP_TASKS_PER_NODE is %q, not a list of tasks; use --join-ct N", list)
	if list == "" {
		return 0, nil
	}
	index, _ := strconv.Atoi(node)
	for _, item := range strings.Split(list, ",") {
		text, times, repeated := strings.Cut(item, "(x")
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return 0, bad
		}
		k := 1
		if repeated {
			if k, err = strconv.Atoi(strings.TrimSuffix(times, ")")); err != nil || k < 1 {
				return 0, bad
			}
		}
		if index < k {
			return n, nil
		}
		index -= k
	}
	return 0, bad
}

// parent returns a name for the parent process that a later process with the same pid does
// not share.
func parent() string {
	pid := os.Getppid()
	if started, err := process.StartTime(pid); err == nil {
		return fmt.Sprintf("%d-%d", pid, started)
	}
	return strconv.Itoa(pid)
}
