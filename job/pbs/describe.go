package pbs

import (
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/node"
)

// target is the name of the batch system.
const target job.Target = "pbs"

// Describe returns the properties of PBS for other packages; see [batch.System].
func (System) Describe() *batch.Description {
	return &batch.Description{
		Dialect: &scripts, Never: never, CutsTime: true, Succeeded: succeeded, Version: []string{"qstat", "--version"},
		Ping:  []string{"qstat", "-B"},
		Is:    func(version string) bool { return strings.Contains(version, "pbs") },
		Index: batch.Indices(func(a job.Array) bool { return len(a.Ranges) == 1 }),
		Node: &node.Scheduler{
			Name: target, IDs: []string{"PBS_JOBID", "PBS_ARRAY_INDEX", "PBS_ARRAYID"}, NodePrefix: "PBS_", Path: "PBS_O_PATH",
			Hosts: func(getenv func(string) string) ([]string, error) { // the file has a line for each process
				return node.HostFile("PBS_NODEFILE", getenv)
			},
			Remote: func(host string, argv []string) []string { return append([]string{"pbs_tmrsh", host}, argv...) },
		},
	}
}

// variables lists the variables that PBS sets and that hpcc can set elsewhere.
var variables = []job.Variable{
	{Name: "PBS_JOBID", Value: "$hpcc_id[$HPCC_TASK_ID]", Single: "$hpcc_id", Always: true},
	{Name: "PBS_ARRAY_INDEX", Value: "$HPCC_TASK_ID", Array: true, Always: true},
	{Name: "PBS_ARRAYID", Value: "$HPCC_TASK_ID", Array: true}, {Name: "PBS_ARRAY_ID", Value: "$hpcc_id[]", Array: true},
	{Name: "PBS_O_WORKDIR", Value: "{dir}", Always: true}, {Name: "PBS_O_HOME", Value: "$HOME"},
	{Name: "PBS_O_PATH", Value: "$PATH"}, {Name: "PBS_O_SHELL", Value: "${SHELL:-/bin/sh}"},
	{Name: "PBS_O_HOST", Value: "$HOSTNAME"}, {Name: "PBS_O_LOGNAME", Value: "${LOGNAME:-$USER}"},
	{Name: "PBS_JOBNAME", Value: "{name}"}, {Name: "PBS_QUEUE", Value: "{queue}"}, {Name: "PBS_O_QUEUE", Value: "{queue}"},
	{Name: "PBS_ENVIRONMENT", Value: "PBS_BATCH"},
	{Name: "PBS_NODEFILE", Value: "$(hpcc_file hosts)", Hosts: true}, {Name: "PBS_NP", Value: "{tasks}"},
	{Name: "PBS_NUM_NODES", Value: "${#hpcc_hosts[@]}", Hosts: true}, {Name: "PBS_NUM_PPN", Value: "{node_tasks}"},
	{Name: "NCPUS", Value: "{node_cpus}"}, {Name: "OMP_NUM_THREADS", Value: "{cpus}"}, {Name: "TMPDIR", Value: "${TMPDIR:-/tmp}"},
}

// hostList is bash code that fills hpcc_hosts and hpcc_tasks, the number of tasks on each host.
const hostList = `declare -A hpcc_n
while read -r k; do
  [ -n "${hpcc_n[$k]}" ] || hpcc_hosts+=("$k")
  hpcc_n[$k]=$((${hpcc_n[$k]:-0} + 1))
done <"$PBS_NODEFILE"
for k in "${hpcc_hosts[@]}"; do hpcc_tasks+=("${hpcc_n[$k]}"); done
`
