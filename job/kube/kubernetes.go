// Package kube writes Jobs for Kubernetes and OpenShift, and talks to the cluster.
//
//	Job ─► NewPod ─► manifest ─► kubectl create
//	kubectl proxy ─► Proxy ─► pods, logs, nodes, events
//
// It uses the login of kubectl or oc. The nodes do not need hpcc, so hpcc reads the results of a task
// from its pod before the cluster deletes the pod.
package kube

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/node"
)

// System is Kubernetes 1.29 or later, or OpenShift 4.16 or later. It runs Jobs of the API batch/v1
// through kubectl or oc. It is a [batch.Keeper].
type System struct {
	Target job.Target
	Source func(ctx context.Context, workflow string) (LogSource, error)           // opens the logs of the pods; nil: from the API
	Assign func(s *batch.Submitted, list []batch.Attempt) ([]batch.Attempt, error) // assigns attempts to tasks; nil: by their index
}

// The API's limits for Jobs, and how long a Job stays after its end.
const (
	maxCompletions  = 100_000
	MaxManifest     = 1 << 20 // bytes; etcd accepts 1.5 MB
	KeepEnded       = 7 * 24 * time.Hour
	completionIndex = "JOB_COMPLETION_INDEX"
)

// Render returns the job script; see [batch.System].
func (k System) Render(j *job.Job) (string, []string, error) {
	if j.Interactive {
		return k.interactive(j)
	}
	text, notes, err := k.manifest(j, job.Label(j.Name))
	if err == nil && job.Label(j.Name) != j.Name {
		notes = append(notes, fmt.Sprintf("the job name %s is not a DNS label; the Job uses %s", j.Name, job.Label(j.Name)))
	}
	return text, notes, err
}

// manifest returns the Job as YAML under the given name. On submission this is the label of its ID.
func (k System) manifest(j *job.Job, name string) (string, []string, error) {
	if err := Check(j, k.Target); err != nil {
		return "", nil, err
	}
	obj := k.job(j, name)
	objects := []any{obj}
	if j.AcrossPods() {
		objects = append([]any{headless(name, obj.Metadata.Labels)}, objects...)
	}
	if j.Pod.CodeFile != "" {
		m, err := newConfigMap(j, name)
		if err != nil {
			return "", nil, err
		}
		objects = append([]any{m}, objects...)
	}
	text, err := Documents(k.comment(j), objects...)
	if err == nil && len(text) > MaxManifest {
		err = fmt.Errorf("the manifest of job %q has %d bytes, above Kubernetes' limit of %d; submit the tasks in several "+
			"jobs, or put the script and the parameters into the image", j.Name, len(text), MaxManifest)
	}
	return text, Notes(j, k.Target), err
}

func (k System) comment(j *job.Job) string {
	command := "kubectl"
	if k.Target == job.OpenShift {
		command = "oc"
	}
	return fmt.Sprintf("# Written by hpcc for %s. Submit it with %s create -f.\n", j.Title(), command)
}

// job returns the Job of all tasks, or of all nodes of one task.
func (k System) job(j *job.Job, name string) *jobObject {
	labels := Labels(j, name)
	pod := NewPod(j, k.Target, completionIndex)
	if j.Pod.CodeFile != "" {
		mountCode(j, &pod, name)
	}
	spec := jobSpec{Completions: 1, Parallelism: 1, TTLSecondsAfterFinished: int(KeepEnded / time.Second), Suspend: j.Hold || j.Queue != ""}
	zero, times := 0, j.Retry.Times
	switch {
	case !j.Array.IsZero():
		spec.CompletionMode, spec.Completions, spec.Parallelism = "Indexed", j.Count(), j.Count()
		if j.Array.Limit > 0 {
			spec.Parallelism = min(j.Array.Limit, j.Count())
		}
		spec.BackoffLimitPerIndex = &times
		spec.PodFailurePolicy = newFailurePolicy(j, "FailIndex")
	case j.AcrossPods():
		spec.CompletionMode, spec.Completions, spec.Parallelism = "Indexed", j.Nodes, j.Nodes
		spec.BackoffLimit = &zero // a pod that restarts alone would miss the others
		spread(j, &pod, name)
	default:
		spec.BackoffLimit = &times
		spec.PodFailurePolicy = newFailurePolicy(j, "FailJob")
	}
	spec.Template = newTemplate(labels, pod)
	meta := Meta{Name: name, Labels: QueueLabels(j, name)}
	if j.AcrossPods() && pod.scheduler() == "volcano" { // its controller makes a PodGroup for the pods of a Job
		meta.Annotations = map[string]string{"scheduling.volcano.sh/group-min-member": strconv.Itoa(spec.Parallelism)}
	}
	return &jobObject{Object{"batch/v1", "Job", meta}, spec}
}

// newFailurePolicy returns the policy for failures that are not retried, or nil if each failure counts.
// end is the action for them. With a policy the cluster starts a retry only after the failed pod has
// ended, which a pod on a lost node never does.
func newFailurePolicy(j *job.Job, end string) *failurePolicy {
	codes, node := j.Retry.Statuses()
	p := &failurePolicy{}
	lost := []podCondition{{"DisruptionTarget"}} // the node was preempted or is gone
	switch {
	case j.Requeueing() == "yes" && j.Retry.Times == 0:
		p.Rules = append(p.Rules, failureRule{Action: "Ignore", OnPodConditions: lost})
	case j.Retry.Times > 0 && len(j.Retry.Endings) > 0 && node: // before the rule for exit statuses
		p.Rules = append(p.Rules, failureRule{Action: "Count", OnPodConditions: lost})
	case j.Retry.Times > 0 && !node:
		p.Rules = append(p.Rules, failureRule{Action: end, OnPodConditions: lost})
	}
	if len(codes) > 0 {
		p.Rules = append(p.Rules, failureRule{Action: end, OnExitCodes: &exitCodes{MainContainer, "NotIn", codes}})
	} else if len(j.Retry.Endings) > 0 { // only node losses
		p.Rules = append(p.Rules, failureRule{Action: end, OnExitCodes: &exitCodes{MainContainer, "NotIn", []int{0}}})
	}
	if len(p.Rules) == 0 {
		return nil
	}
	return p
}

// headless returns the Service through which the pods of a multi-node job get DNS names.
func headless(name string, labels map[string]string) *serviceObject {
	return &serviceObject{
		Object: Object{"v1", "Service", Meta{Name: name, Labels: labels}},
		Spec:   serviceSpec{ClusterIP: "None", PublishNotReadyAddresses: true, Selector: map[string]string{jobLabel: labels[jobLabel]}},
	}
}

// spread configures a pod as one of several nodes that find each other.
func spread(j *job.Job, p *PodSpec, name string) {
	p.Subdomain = name
	head := name + "-0." + name
	p.Containers[0].Env = append([]EnvVar{
		{Name: "HPCC_NODE_RANK", ValueFrom: &envFrom{fieldRef{"metadata.annotations['batch.kubernetes.io/job-completion-index']"}}},
		{Name: "HPCC_NODES", Value: strconv.Itoa(j.Nodes)},
		{Name: "HPCC_HEAD", Value: head},
		{Name: "MASTER_ADDR", Value: head}, // for torch.distributed, which also reads RANK and WORLD_SIZE
		{Name: "MASTER_PORT", Value: "29500"},
	}, p.Containers[0].Env...)
}

// Check returns an error for settings that pods do not support. Translation has already removed those
// of a script, with a row in the report.
func Check(j *job.Job, to job.Target) error {
	name := title(to)
	switch {
	case j.Image == "":
		return fmt.Errorf("%s needs an image; name one after the flags", name)
	case len(j.After)+len(j.AfterAny)+len(j.AfterFailed)+len(j.AfterEach) > 0 && to != job.Argo:
		return fmt.Errorf("%s cannot order Jobs; use --to argo for one workflow of all scripts, or submit the first job with --wait", name)
	case j.Count() > maxCompletions:
		return fmt.Errorf("%d tasks: a Job on %s has at most %d", j.Count(), name, maxCompletions)
	case !j.Array.IsZero() && j.AcrossPods():
		return fmt.Errorf("an array whose tasks have %d nodes each: %s does not support it; submit the tasks one by one", j.Nodes, name)
	case j.Nodes > 1 && j.ProcessesPerNode() > 1 && j.Script == nil:
		return fmt.Errorf("%d processes on each of %d nodes: MPI cannot start processes in another pod; request one node "+
			"with all processes (--nodes 1), or one process on each node (--tasks-per-node 1)", j.ProcessesPerNode(), j.Nodes)
	case j.Pod.Hostname != "" && (!j.Array.IsZero() || j.AcrossPods()):
		return errors.New("--hostname cannot be used with an array or several pods, which find each other by host name; leave it out")
	case j.Tensorboard != "" && len(j.Pod.Volumes) == 0:
		return errors.New("TensorBoard runs in a separate container, which needs the logs on a volume; add --volume " +
			"scratch:DIR or --volume CLAIM:DIR")
	case j.Measured() && len(j.Pod.Measurer.Argv) == 0:
		return errors.New("--measure needs hpcc in the image; add it with \"hpcc build --entry\"")
	case j.Mail != "":
		return fmt.Errorf("%s does not send mail", name)
	case j.Warning.Signal != "":
		return fmt.Errorf("%s sends SIGTERM at the time limit, %d s before SIGKILL, and no earlier signal",
			name, int(node.Grace/time.Second))
	}
	n, err := readNative(j.Native)
	if _, given := n.spec["enableServiceLinks"]; given && j.Pod.CleanEnv {
		return errors.New("--clean-env sets enableServiceLinks; leave out one of them")
	}
	return err
}

// Notes returns notes for users who come from another scheduler.
func Notes(j *job.Job, to job.Target) []string {
	var notes []string
	add := func(applies bool, format string, a ...any) {
		if applies {
			notes = append(notes, fmt.Sprintf(format, a...))
		}
	}
	add(j.Error != "", "a pod has one output stream: standard error is part of the output")
	add(j.Account != "", "account %s: %s charges namespaces, not accounts", j.Account, title(to))
	add(len(j.Modules) > 0, "modules %s: not loaded; the image must contain the software", strings.Join(j.Modules, " "))
	add(j.Exclusive, "exclusive: pods of other Jobs stay off the node; services of the cluster may run there")
	add(j.Queue != "" && to != job.Argo, "queue %s is a LocalQueue of Kueue, which decides when the job starts", j.Queue)
	add(j.Measure && j.Interactive, "nothing is measured: the pod of an interactive job is gone when the job ends")
	add(j.TimeMin > 0, "%s cannot shorten a time limit", title(to))
	return notes
}

// fullSeconds rounds up to seconds, the unit of the API.
func fullSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
