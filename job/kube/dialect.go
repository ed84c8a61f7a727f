package kube

import (
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/dialect"
	"hpcc/job/field"
)

// title returns the name of a target for messages.
func title(t job.Target) string {
	return map[job.Target]string{job.Kubernetes: "Kubernetes", job.OpenShift: "OpenShift", job.Argo: "Argo"}[t]
}

// Describe returns the properties of the target for other packages; see [batch.System].
func (k System) Describe() *batch.Description {
	c, ping := "kubectl", "version"
	if k.Target == job.OpenShift {
		c, ping = "oc", "whoami"
	}
	return &batch.Description{
		Dialect: &dialect.Dialect{Target: k.Target, Title: title(k.Target), Command: c, Verdicts: verdicts(title(k.Target)), JobID: "$HPCC_JOB"},
		Version: []string{c, "version", "--client"}, Ping: []string{c, ping, "--request-timeout=2s"},
	}
}

// verdicts returns how targets with pods treat the fields of a job.
func verdicts(name string) map[field.Field]field.Verdict {
	later := field.Verdict{Fate: field.Refused, How: name + " keeps no order among Jobs: --to argo makes one workflow of them"}
	return map[field.Field]field.Verdict{
		field.Nodes:     {Fate: field.Refused, How: "a script begins on one node, and MPI cannot start processes in another pod: ask for one node", When: func(j *job.Job) bool { return j.Nodes > 1 }},
		field.GPUType:   {Fate: field.Changed, How: "the label " + labelGPU + ", which has the whole name of the model"},
		field.Queue:     {Fate: field.Changed, Drop: true, How: "only clusters with Kueue have queues: --queue NAME"},
		field.Account:   {Fate: field.Changed, Drop: true, How: "Kubernetes accounts by namespace"},
		field.Exclusive: {Fate: field.Changed, How: "no pod of another Job comes to the node"},
		field.Hosts:     {Fate: field.Changed, How: "one of them", When: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
		field.Features: {Fate: field.Refused, How: "nodes have labels: --node-label KEY=VALUE", When: func(j *job.Job) bool {
			return slices.ContainsFunc(j.Features, func(f string) bool { return !strings.Contains(f, "=") })
		}},
		field.After:       later,
		field.AfterAny:    later,
		field.AfterFailed: later,
		field.AfterEach:   later,
		field.Output:      {Fate: field.Emulated, How: "the pod's log, which hpcc copies to the file"},
		field.Error:       {Fate: field.Changed, Drop: true, How: "with the output: a pod has one stream"},
		field.Mail:        {Fate: field.Refused, How: name + " writes no mail"},
		field.MailOn:      {Fate: field.Refused, How: name + " writes no mail"},
		field.Dir:         {Fate: field.Changed, How: "a directory of this machine; pods start in the image's working directory or in --cd"},
		field.Signal:      {Fate: field.Refused, How: "SIGTERM comes at the time limit, and no signal before"},
		field.Begin:       {Fate: field.Refused, How: "Jobs start when resources are free"},
		field.QoS:         {Fate: field.Refused, How: "the cluster's PriorityClasses are not the site's QoS"},
		field.Hold:        {Fate: field.Changed, How: "the Job is suspended until somebody sets spec.suspend to false"},
		field.Append:      {Fate: field.Changed, How: "the file is overwritten", When: func(j *job.Job) bool { return j.Append }},
		field.Export:      {Fate: field.Changed, Drop: true, How: "the script has the image's environment; pass variables with --env"},
	}
}
