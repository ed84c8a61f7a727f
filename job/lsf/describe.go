package lsf

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/node"
	"hpcc/text"
)

// target is the name of the batch system.
const target job.Target = "lsf"

// Describe returns the properties of LSF for other packages; see [batch.System].
func (System) Describe() *batch.Description {
	return &batch.Description{
		Dialect: &scripts, Succeeded: succeeded, Never: never, Version: []string{"lsid", "-V"}, Ping: []string{"lsid"},
		Index: batch.Indices(ownsIndices),
		Node: &node.Scheduler{
			Name: target, IDs: []string{"LSB_JOBID", "LSB_JOBINDEX"}, Task: task, NodePrefix: "LSB_", Hosts: jobHosts,
			Remote: func(host string, argv []string) []string { return append([]string{"blaunch", host}, argv...) },
		},
	}
}

// task returns the ID of a job, or ID[INDEX] of a task of an array.
func task(getenv func(string) string) string {
	if k := getenv("LSB_JOBINDEX"); k != "" && k != "0" {
		return getenv("LSB_JOBID") + "[" + k + "]"
	}
	return getenv("LSB_JOBID")
}

// jobHosts parses LSB_MCPU_HOSTS: HOST SLOTS HOST SLOTS ….
func jobHosts(getenv func(string) string) (list []string, err error) {
	f := strings.Fields(getenv("LSB_MCPU_HOSTS"))
	for i := 0; i+1 < len(f); i += 2 {
		if _, err := strconv.Atoi(f[i+1]); err != nil {
			return nil, fmt.Errorf("LSB_MCPU_HOSTS %q is not a list of hosts and slots", text.Short(strings.Join(f, " ")))
		}
		list = append(list, f[i])
	}
	return list, nil
}

// variables lists the variables that LSF sets and that hpcc can set elsewhere.
var variables = []job.Variable{
	{Name: "LSB_JOBID", Value: "$hpcc_id", Always: true},
	{Name: "LSB_JOBINDEX", Value: "$HPCC_TASK_ID", Single: "0", Always: true},
	{Name: "LSB_JOBINDEX_END", Value: "{last}", Array: true}, {Name: "LSB_JOBINDEX_STEP", Value: "{step}", Array: true},
	{Name: "LSB_BATCH_JID", Value: "$hpcc_id[$HPCC_TASK_ID]", Single: "$hpcc_id"},
	{Name: "LSB_JOBNAME", Value: "{name}"}, {Name: "LSB_QUEUE", Value: "{queue}"}, {Name: "LSB_PROJECT_NAME", Value: "{account}"},
	{Name: "LS_SUBCWD", Value: "{dir}"}, {Name: "LSB_OUTDIR", Value: "{dir}"}, {Name: "LSB_SUBCWD", Value: "{dir}"},
	{Name: "LSB_SUB_HOST", Value: "$HOSTNAME"},
	{Name: "LSB_DJOB_NUMPROC", Value: "{tasks}"}, {Name: "LSB_MAX_NUM_PROCESSORS", Value: "{tasks}"},
	{Name: "LSB_HOSTS", Value: "$(hpcc_each; echo \"${hpcc_list[*]}\")", Hosts: true},
	{Name: "LSB_MCPU_HOSTS", Value: "$(for i in \"${!hpcc_hosts[@]}\"; do printf '%s %s ' \"${hpcc_hosts[i]}\" " +
		"\"${hpcc_tasks[i]}\"; done)", Hosts: true},
	{Name: "LSB_DJOB_HOSTFILE", Value: "$(hpcc_file hosts)", Hosts: true},
}

// hostList is bash code that fills hpcc_hosts and hpcc_tasks, the number of tasks on each host.
const hostList = `read -ra c <<<"$LSB_MCPU_HOSTS"
for ((k = 0; k + 1 < ${#c[@]}; k += 2)); do hpcc_hosts+=("${c[k]}"); hpcc_tasks+=("${c[k+1]}"); done
`

// refusal returns the message of a command as an error, without the usage that follows it if the command does not
// have an option.
func refusal(out []byte, err error) error {
	out, _, _ = bytes.Cut(out, []byte("Usage:"))
	return invoke.Error(out, err)
}
