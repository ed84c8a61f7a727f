package kube

import (
	"encoding/json"
	"errors"
	"fmt"

	"hpcc/job"
	"hpcc/job/jobscript"
	"hpcc/text"
)

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
