package gridengine

import "hpcc/job"

// Name is the target.
const Name job.Target = "gridengine"

// variables are those that Grid Engine sets and that hpcc can supply elsewhere.
var variables = []job.Variable{
	{Name: "JOB_ID", Value: "$hpcc_id", Always: true},
	{Name: "SGE_TASK_ID", Value: "$HPCC_TASK_ID", Single: "undefined", Always: true},
	{Name: "SGE_TASK_FIRST", Value: "{first}", Single: "undefined"}, {Name: "SGE_TASK_LAST", Value: "{last}", Single: "undefined"}, {Name: "SGE_TASK_STEPSIZE", Value: "{step}", Single: "undefined"},
	{Name: "JOB_NAME", Value: "{name}"}, {Name: "QUEUE", Value: "{queue}"}, {Name: "SGE_O_WORKDIR", Value: "{dir}"}, {Name: "SGE_O_HOME", Value: "$HOME"}, {Name: "SGE_O_HOST", Value: "$HOSTNAME"},
	{Name: "SGE_O_LOGNAME", Value: "${LOGNAME:-$USER}"}, {Name: "NSLOTS", Value: "{slots}"}, {Name: "NHOSTS", Value: "${#hpcc_hosts[@]}", Hosts: true}, {Name: "NQUEUES", Value: "1"}, {Name: "RESTARTED", Value: "0"},
	{Name: "PE_HOSTFILE", Value: "$(hpcc_file slots)", Hosts: true}, {Name: "TMPDIR", Value: "${TMPDIR:-/tmp}"},
}

// hostList is bash that fills hpcc_hosts and, for each of them, hpcc_tasks.
const hostList = `if [ -r "$PE_HOSTFILE" ]; then
  while read -r k c _; do hpcc_hosts+=("$k"); hpcc_tasks+=($((c / {cpus}))); done <"$PE_HOSTFILE"
else
  hpcc_hosts=("$HOSTNAME") hpcc_tasks=({tasks})
fi
`
