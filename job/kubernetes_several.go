package job

import (
	"encoding/json"
	"fmt"
	"slices"

	"hpcc/job/shellword"
)

// rayPods is shell that makes a Ray of the pods of a job: the first is its head and runs the program, the
// others lend it what they have.
func rayPods(j *Job) string {
	t := &text{}
	t.line(`if [ "$HPCC_NODE_RANK" != 0 ]; then`)
	t.line(`  until ray start --address="$HPCC_HEAD:6379" --block; do sleep 2; done`)
	t.line("  exit")
	t.line("fi")
	t.line("ray start --head --port=6379 --disable-usage-stats || exit")
	t.line("export RAY_ADDRESS=127.0.0.1:6379")
	t.line(`until [ "$(ray status 2>/dev/null | grep -c ' node_')" -ge "$HPCC_NODES" ]; do sleep 1; done`)
	t.line("%s", shellword.Join(slices.Concat(j.entrypoint(), j.Args)))
	t.line("s=$?; ray stop; exit $s")
	return t.String()
}

// queueLabels are those of the object itself, with the queue of Kueue.
func (j *Job) queueLabels(name string) map[string]string {
	labels := j.labels(name)
	if j.Queue != "" {
		labels[labelQueue] = j.Queue
	}
	return labels
}

// interactive is a shell script that runs a pod with the terminal of the one who runs it.
func (k kubernetes) interactive(j *Job) (string, []string, error) {
	if err := j.podable(k.target); err != nil {
		return "", nil, err
	}
	if j.Nodes > 1 {
		return "", nil, fmt.Errorf("an interactive job of %d nodes: a pod is on one", j.Nodes)
	}
	pod := j.podSpec(k.target, completionIndex)
	c := &pod.Containers[0]
	c.Stdin, c.TTY, c.StdinOnce = true, true, true
	overrides, err := json.Marshal(struct {
		APIVersion string  `json:"apiVersion"`
		Spec       podSpec `json:"spec"`
	}{"v1", pod})
	if err != nil {
		return "", nil, err
	}
	words := []string{kubeCommand(k.target), "run", "--rm", "--stdin", "--tty", "--quiet", "--restart=Never", "--image=" + j.podImage(), "--labels=" + labelText(j.labels(j.Name)), "--overrides=" + string(overrides)}
	t := &text{}
	t.line("#!/bin/bash")
	t.interactive(j)
	t.line(`name=$(printf %%s "$id" | tail -c 45 | tr A-Z_. a-z--)`)
	t.line(`exec %s ${HPCC_KUBE_CONTEXT:+--context="$HPCC_KUBE_CONTEXT"} ${HPCC_KUBE_NAMESPACE:+--namespace="$HPCC_KUBE_NAMESPACE"} "${name##-}"`, shellword.Join(words))
	return t.String(), j.podNotes(k.target), nil
}
