package lsf

import "hpcc/job"

// Name is the target.
const Name job.Target = "lsf"

// variables are those that LSF sets and that hpcc can supply elsewhere.
var variables = []job.Variable{
	{Name: "LSB_JOBID", Value: "$hpcc_id", Always: true},
	{Name: "LSB_JOBINDEX", Value: "$HPCC_TASK_ID", Single: "0", Always: true},
	{Name: "LSB_JOBINDEX_END", Value: "{last}", Array: true}, {Name: "LSB_JOBINDEX_STEP", Value: "{step}", Array: true},
	{Name: "LSB_BATCH_JID", Value: "$hpcc_id[$HPCC_TASK_ID]", Single: "$hpcc_id"},
	{Name: "LSB_JOBNAME", Value: "{name}"}, {Name: "LSB_QUEUE", Value: "{queue}"}, {Name: "LSB_PROJECT_NAME", Value: "{account}"},
	{Name: "LS_SUBCWD", Value: "{dir}"}, {Name: "LSB_SUBCWD", Value: "{dir}"}, {Name: "LSB_SUB_HOST", Value: "$HOSTNAME"},
	{Name: "LSB_DJOB_NUMPROC", Value: "{tasks}"}, {Name: "LSB_MAX_NUM_PROCESSORS", Value: "{tasks}"},
	{Name: "LSB_HOSTS", Value: "$(hpcc_each; echo \"${hpcc_list[*]}\")", Hosts: true},
	{Name: "LSB_MCPU_HOSTS", Value: "$(for i in \"${!hpcc_hosts[@]}\"; do printf '%s %s ' \"${hpcc_hosts[i]}\" \"${hpcc_tasks[i]}\"; done)", Hosts: true},
	{Name: "LSB_DJOB_HOSTFILE", Value: "$(hpcc_file hosts)", Hosts: true},
}

// hostList is bash that fills hpcc_hosts and, for each of them, hpcc_tasks.
const hostList = `read -ra c <<<"$LSB_MCPU_HOSTS"
for ((k = 0; k + 1 < ${#c[@]}; k += 2)); do hpcc_hosts+=("${c[k]}"); hpcc_tasks+=("${c[k+1]}"); done
`
