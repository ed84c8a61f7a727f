package slurm

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/node"
)

// target is the name of the batch system.
const target job.Target = "slurm"

// Describe returns the properties of Slurm for other packages; see [batch.System].
func (System) Describe() *batch.Description {
	return &batch.Description{
		Dialect: &scripts, Adjust: adjust, CutsTime: true, EndsExec: true, Index: batch.Indices(ownsIndices),
		MaxArray: maxArray, Never: never,
		Version: []string{"sbatch", "--version"}, Ping: []string{"scontrol", "ping"},
		InJob: func(name string) bool {
			return (strings.HasPrefix(name, "SLURM_") && name != "SLURM_CONF" && name != "SLURM_CLUSTERS") ||
				strings.HasPrefix(name, "SRUN_")
		},
		Node: &node.Scheduler{
			Name: target, IDs: []string{"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID",
				"SLURM_PROCID", "SLURM_CLUSTER_NAME"},
			Restarts: "SLURM_RESTART_COUNT", Each: eachNode, One: oneNode, Restart: restart, Rank: "SLURM_PROCID", Launched: launched,
		},
	}
}

// maxArray returns the most tasks of an array on this site, or 0 if Slurm does not answer.
func maxArray(ctx context.Context) int {
	out, err := invoke.Call(ctx, "/", "scontrol", "show", "config")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(out)) {
		if name, value, _ := strings.Cut(line, "="); strings.TrimSpace(name) == "MaxArraySize" {
			n, _ := strconv.Atoi(strings.TrimSpace(value))
			return n - 1 // the largest index, slurm.conf(5); hpcc numbers large arrays from 1
		}
	}
	return 0
}

// eachNode starts argv once on each node of the job.
func eachNode(nodes, cpus int, argv []string) []string {
	return step("--no-kill", nodes, cpus, argv)
}

// oneNode starts argv on one node of the job, by its number.
func oneNode(number, cpus int, argv []string) []string {
	return step("--relative="+strconv.Itoa(number), 1, cpus, argv)
}

// step starts argv once on each of some nodes, which where selects. The other nodes go on if one fails.
func step(where string, nodes, cpus int, argv []string) []string {
	// A site's WaitTime would end the other nodes soon after the first.
	w := []string{"srun", "--nodes=" + strconv.Itoa(nodes), "--ntasks=" + strconv.Itoa(nodes), "--ntasks-per-node=1",
		"--kill-on-bad-exit=0", "--wait=0", "--unbuffered", "--mpi=none", where}
	if cpus > 0 {
		w = append(w, "--cpus-per-task="+strconv.Itoa(cpus))
	} else { // all CPUs of the node
		w = append(w, "--cpu-bind=none")
	}
	return append(w, argv...)
}

// restart puts the job back into the queue if its first node has failed. With --no-kill, Slurm leaves it
// the other nodes then, where nothing runs the script.
func restart(ctx context.Context, script func(string) string) (wait bool, err error) {
	id, first := script("SLURM_JOB_ID"), script("SLURMD_NODENAME")
	if id == "" || first == "" {
		return false, nil
	}
	out, err := invoke.Call(ctx, "/", "squeue", "--noheader", "--jobs="+id, "--format=%B")
	if err != nil {
		return true, err
	}
	if host := strings.TrimSpace(string(out)); host == first {
		return true, nil // Slurm notices the failure of a node after SlurmdTimeout
	} else if host == "" || host == "n/a" { // the job has ended, or waits
		return false, nil
	}
	if _, err = invoke.Call(ctx, "/", "scontrol", "requeue", id); err == nil {
		return false, nil
	}
	_, failed := invoke.Call(ctx, "/", "scancel", id) // the site has JobRequeue=0
	return failed != nil, errors.Join(err, failed)
}

// launched returns the variables that identify the processes that the node's daemon started for srun.
func launched(argv []string, getenv func(string) string) []string {
	id, name := getenv("SLURM_JOB_ID"), getenv("SLURMD_NODENAME")
	if filepath.Base(argv[0]) != "srun" || id == "" || len(id) > 256 || name == "" {
		return nil
	}
	return []string{"SLURM_JOB_ID=" + id, "SLURMD_NODENAME=" + name}
}

// variables lists the variables that Slurm sets and that hpcc can set elsewhere.
var variables = []job.Variable{
	{Name: "SLURM_JOB_ID", Value: "$hpcc_id", Always: true},
	{Name: "SLURM_JOBID", Value: "$hpcc_id"},
	{Name: "SLURM_ARRAY_JOB_ID", Value: "$hpcc_id", Array: true},
	{Name: "SLURM_ARRAY_TASK_ID", Value: "$HPCC_TASK_ID", Array: true, Always: true},
	{Name: "SLURM_ARRAY_TASK_COUNT", Value: "{count}", Array: true},
	{Name: "SLURM_ARRAY_TASK_MIN", Value: "{first}", Array: true},
	{Name: "SLURM_ARRAY_TASK_MAX", Value: "{last}", Array: true},
	{Name: "SLURM_ARRAY_TASK_STEP", Value: "{step}", Array: true},
	{Name: "SLURM_JOB_NAME", Value: "{name}"}, {Name: "SLURM_JOB_PARTITION", Value: "{queue}"},
	{Name: "SLURM_JOB_ACCOUNT", Value: "{account}"},
	{Name: "SLURM_SUBMIT_DIR", Value: "{dir}"}, {Name: "SLURM_SUBMIT_HOST", Value: "$HOSTNAME"},
	{Name: "SLURM_NTASKS", Value: "{tasks}"}, {Name: "SLURM_NPROCS", Value: "{tasks}"},
	{Name: "SLURM_CPUS_PER_TASK", Value: "{cpus?}"}, {Name: "SLURM_CPUS_ON_NODE", Value: "{node_cpus}"},
	{Name: "SLURM_JOB_CPUS_PER_NODE", Value: "{node_cpus}"},
	{Name: "SLURM_NTASKS_PER_NODE", Value: "{node_tasks}"}, {Name: "SLURM_TASKS_PER_NODE", Value: "{node_tasks}"},
	{Name: "SLURM_GPUS_ON_NODE", Value: "{gpus?}"}, {Name: "SLURM_GPUS_PER_NODE", Value: "{gpus?}"},
	{Name: "SLURM_MEM_PER_NODE", Value: "{mem?}"},
	{Name: "SLURM_JOB_NUM_NODES", Value: "${#hpcc_hosts[@]}", Hosts: true}, {Name: "SLURM_NNODES", Value: "${#hpcc_hosts[@]}", Hosts: true},
	{Name: "SLURM_JOB_NODELIST", Value: "$(IFS=,; echo \"${hpcc_hosts[*]}\")", Hosts: true},
	{Name: "SLURM_NODELIST", Value: "$(IFS=,; echo \"${hpcc_hosts[*]}\")", Hosts: true},
	{Name: "SLURMD_NODENAME", Value: "${HOSTNAME%%.*}"}, {Name: "SLURM_CLUSTER_NAME", Value: "{to}"},
	{Name: "SLURM_RESTART_COUNT", Value: "0"},
	{Name: "SLURM_PROCID", Value: "0"}, {Name: "SLURM_LOCALID", Value: "0"}, {Name: "SLURM_NODEID", Value: "0"},
	{Name: "SLURM_TMPDIR", Value: "${TMPDIR:-/tmp}"},
}

// hostList is bash code that fills hpcc_hosts and hpcc_tasks, the number of tasks on each host.
const hostList = `mapfile -t hpcc_hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST" </dev/null)
for c in ${SLURM_TASKS_PER_NODE//,/ }; do # 2(x3),1
  k=1; case $c in *x*) k=${c##*x} k=${k%)} ;; esac
  for ((; k > 0; k--)); do hpcc_tasks+=("${c%%(*}"); done
done
`
