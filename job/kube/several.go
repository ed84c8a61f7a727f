package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"hpcc/job"
	"hpcc/job/jobscript"
	"hpcc/text"
)

// rayPods returns shell code that forms a Ray cluster from the pods of a job: the first is its head and
// runs the program, the others join it.
func rayPods(j *job.Job) string {
	t := &jobscript.Writer{}
	t.Line(`if [ "$HPCC_NODE_RANK" != 0 ]; then`)
	t.Line(`  until ray start --address="$HPCC_HEAD:6379" --block; do sleep 2; done`)
	t.Line("  exit")
	t.Line("fi")
	t.Line("ray start --head --port=6379 --disable-usage-stats || exit")
	t.Line("export RAY_ADDRESS=127.0.0.1:6379")
	t.Line(`until [ "$(ray status 2>/dev/null | grep -c ' node_')" -ge "$HPCC_NODES" ]; do sleep 1; done`)
	t.Line("%s", text.CommandLine(slices.Concat(j.Entrypoint(), j.Args)))
	t.Line("s=$?; ray stop; exit $s")
	return t.String()
}

// QueueLabels returns the labels of the object itself, with the queue of Kueue.
func QueueLabels(j *job.Job, name string) map[string]string {
	labels := Labels(j, name)
	if j.Queue != "" {
		labels[labelQueue] = j.Queue
	}
	return labels
}

// interactive returns a shell script that runs a pod with the user's terminal.
func (k System) interactive(j *job.Job) (string, []string, error) {
	if err := Check(j, k.Target); err != nil {
		return "", nil, err
	}
	if j.Nodes > 1 {
		return "", nil, fmt.Errorf("an interactive job runs on one node, not on %d", j.Nodes)
	}
	if j.Retry.Times > 0 {
		return "", nil, errors.New("the pod of an interactive job is not started again; leave out --retry")
	}
	pod := NewPod(j, k.Target, completionIndex)
	c := &pod.Containers[0]
	c.Stdin, c.TTY, c.StdinOnce = true, true, true
	overrides, err := json.Marshal(struct {
		APIVersion string  `json:"apiVersion"`
		Metadata   Meta    `json:"metadata,omitzero"`
		Spec       PodSpec `json:"spec"`
	}{"v1", pod.native.meta, pod})
	if err != nil {
		return "", nil, err
	}
	argv := []string{commandName(k.Target), "run", "--rm", "--stdin", "--tty", "--quiet", "--restart=Never",
		"--image=" + imageOf(j), "--labels=" + labelText(Labels(j, j.Name)), "--overrides=" + string(overrides)}
	t := &jobscript.Writer{}
	t.Line("#!/bin/bash")
	t.Interactive(j)
	t.Line(`name=$(printf %%s "$id" | tail -c 45 | tr A-Z_. a-z--)`)
	t.Line(`exec %s ${HPCC_KUBE_CONTEXT:+--context="$HPCC_KUBE_CONTEXT"} `+
		`${HPCC_KUBE_NAMESPACE:+--namespace="$HPCC_KUBE_NAMESPACE"} "${name##-}"`, text.CommandLine(argv))
	return t.String(), Notes(j, k.Target), nil
}
