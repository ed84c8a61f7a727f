package gridengine

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/node"
	"hpcc/text"
)

// target is the name of the batch system.
const target job.Target = "gridengine"

// Describe returns the properties of Grid Engine for other packages; see [batch.System].
func (System) Describe() *batch.Description {
	return &batch.Description{
		Dialect: &scripts, Adjust: adjust, Succeeded: succeeded, Version: []string{"qstat", "-help"}, Ping: []string{"qstat"},
		Is:       func(string) bool { return os.Getenv("SGE_ROOT") != "" },
		MaxArray: maxArray, Never: never,
		Index: job.Array.Nth, // its arrays start at 1 and have no gaps
		Node: &node.Scheduler{
			Name: target, IDs: []string{"JOB_ID", "SGE_TASK_ID", "SGE_CLUSTER_NAME"}, Task: task, NodePrefix: "SGE_",
			Overlaps: true, Restarts: "RESTARTED", Path: "SGE_O_PATH",
			// run the job again, without limit; hold it and its dependents (sge_job(5))
			Requests: []int{99, 100},
			// other software sets JOB_ID, too
			Proof:   []string{"SGE_TASK_ID", "SGE_ROOT"},
			Hosts:   func(getenv func(string) string) ([]string, error) { return node.HostFile("PE_HOSTFILE", getenv) }, // sge_pe(5)
			Spreads: spreads,
			Remote: func(host string, argv []string) []string { // qrsh passes one line to a shell
				return []string{"qrsh", "-inherit", "-nostdin", host, "exec " + text.CommandLine(argv)}
			},
		},
	}
}

// maxArray returns the most tasks of an array on this site, or 0 if Grid Engine does not answer.
func maxArray(ctx context.Context) int {
	out, err := invoke.Call(ctx, "/", "qconf", "-sconf")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "max_aj_tasks" { // sge_conf(5); 0: no limit
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}

// task returns the ID of a job, or ID.INDEX of a task of an array.
func task(getenv func(string) string) string {
	switch k := getenv("SGE_TASK_ID"); {
	case getenv("SGE_ROOT") == "":
		return ""
	case k != "" && k != "undefined":
		return getenv("JOB_ID") + "." + k
	}
	return getenv("JOB_ID")
}

// spreads reports whether a parallel environment placed the slots of the task, and how to choose another one.
func spreads(getenv func(string) string) (advice string, chosen bool) {
	return fmt.Sprintf("parallel environment %q places the slots; to use another one (\"qconf -spl\" lists them), add "+
		"--native \"-pe NAME SLOTS\"", getenv("PE")), getenv("PE_HOSTFILE") != ""
}

// variables lists the variables that Grid Engine sets and that hpcc can set elsewhere.
var variables = []job.Variable{
	{Name: "JOB_ID", Value: "$hpcc_id", Always: true},
	{Name: "SGE_TASK_ID", Value: "$HPCC_TASK_ID", Single: "undefined", Always: true},
	{Name: "SGE_TASK_FIRST", Value: "{first}", Single: "undefined"},
	{Name: "SGE_TASK_LAST", Value: "{last}", Single: "undefined"},
	{Name: "SGE_TASK_STEPSIZE", Value: "{step}", Single: "undefined"},
	{Name: "JOB_NAME", Value: "{name}"}, {Name: "QUEUE", Value: "{queue}"}, {Name: "SGE_O_WORKDIR", Value: "{dir}"},
	{Name: "SGE_O_HOME", Value: "$HOME"}, {Name: "SGE_O_HOST", Value: "$HOSTNAME"},
	{Name: "SGE_O_LOGNAME", Value: "${LOGNAME:-$USER}"}, {Name: "NSLOTS", Value: "{slots}"},
	{Name: "NHOSTS", Value: "${#hpcc_hosts[@]}", Hosts: true}, {Name: "NQUEUES", Value: "1"},
	{Name: "RESTARTED", Value: "0"},
	{Name: "PE_HOSTFILE", Value: "$(hpcc_file slots)", Hosts: true}, {Name: "TMPDIR", Value: "${TMPDIR:-/tmp}"},
}

// hostList is bash code that fills hpcc_hosts and hpcc_tasks, the number of tasks on each host.
const hostList = `if [ -r "$PE_HOSTFILE" ]; then
  while read -r k c _; do hpcc_hosts+=("$k"); hpcc_tasks+=($((c / {cpus}))); done <"$PE_HOSTFILE"
else
  hpcc_hosts=("$HOSTNAME") hpcc_tasks=({tasks})
fi
`
