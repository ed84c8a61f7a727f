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
	d := &dialect.Dialect{Target: k.Target, Title: title(k.Target), Command: c, Verdicts: verdicts(title(k.Target)), JobID: "$HPCC_JOB"}
	if k.Target == job.Kubernetes { // OpenShift has the same manifests
		d.IsManifest, d.ReadManifest = isManifest, readManifest
	}
	return &batch.Description{
		Dialect: d,
		Version: []string{c, "version", "--client"}, Ping: []string{c, ping, "--request-timeout=2s"},
	}
}

// verdicts returns how targets with pods treat the fields of a job.
func verdicts(name string) map[field.Field]field.Verdict {
	later := field.Verdict{Fate: field.Refused, How: name + " cannot order Jobs: use --to argo for one workflow of all scripts"}
	return map[field.Field]field.Verdict{
		field.Nodes: {Fate: field.Refused, How: "a script starts on one node, and MPI cannot start processes in " +
			"another pod: request one node", When: func(j *job.Job) bool { return j.Nodes > 1 }},
		field.GPUType: {Fate: field.Changed, When: func(j *job.Job) bool { return j.GPUType != typeAMD },
			How: "node label " + labelGPU + ", whose value is the full name of the model"},
		field.Queue:     {Fate: field.Changed, Drop: true, How: "only clusters with Kueue have queues: use --queue NAME"},
		field.Account:   {Fate: field.Changed, Drop: true, How: "Kubernetes charges namespaces, not accounts"},
		field.Exclusive: {Fate: field.Changed, How: "pods of other Jobs stay off the node"},
		field.Hosts: {Fate: field.Changed, How: "the pod runs on one of these hosts",
			When: func(j *job.Job) bool { return len(j.Hosts) > 1 }},
		field.Features: {Fate: field.Refused, How: "nodes have labels, not features: use --node-label KEY=VALUE",
			When: func(j *job.Job) bool {
				return slices.ContainsFunc(j.Features, func(f string) bool { return !strings.Contains(f, "=") })
			}},
		field.After:       later,
		field.AfterAny:    later,
		field.AfterFailed: later,
		field.AfterEach:   later,
		field.Output:      {Fate: field.Emulated, How: "the pod's log, which hpcc copies to the file"},
		field.Error:       {Fate: field.Changed, Drop: true, How: "part of the output: a pod has one output stream"},
		field.Mail:        {Fate: field.Refused, How: name + " does not send mail"},
		field.MailOn:      {Fate: field.Refused, How: name + " does not send mail"},
		field.Dir:         {Fate: field.Changed, How: "a directory of this machine; pods start in the image's working directory or in --cd"},
		field.Signal:      {Fate: field.Refused, How: "the first signal is SIGTERM at the time limit"},
		field.Begin:       {Fate: field.Refused, How: "Jobs start when resources are free"},
		field.QoS:         {Fate: field.Refused, How: "the cluster's PriorityClasses are not the site's QoS"},
		field.Hold:        {Fate: field.Changed, How: "the Job is suspended until spec.suspend is set to false"},
		field.Append:      {Fate: field.Changed, How: "the file is overwritten", When: func(j *job.Job) bool { return j.Append }},
		field.Export:      {Fate: field.Changed, Drop: true, How: "the script has the image's environment; pass variables with --env"},
	}
}
