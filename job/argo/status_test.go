package argo

import (
	"strings"
	"testing"

	"hpcc/job/kube"
	"hpcc/testdata/helpers/jobtest"
)

// TestMeasuredSteps checks the message of a failed step, in which Argo puts its own text before
// the termination message of the step.
func TestMeasuredSteps(t *testing.T) {
	for message, want := range map[string]string{
		"Error (exit code 3): " + jobtest.PodHead + jobtest.PodFoot:          "",
		"OOMKilled (exit code 137): " + jobtest.PodHead:                      "killed because it used more than its memory (OOMKilled); raise the limit with --mem",
		"main: Error (exit code 3)":                                          "",
		"main: OOMKilled (exit code 137)":                                    "killed because it used more than its memory (OOMKilled); raise the limit with --mem",
		"Error (exit code 3): no such data":                                  "Error (exit code 3): no such data",
		"The node was low on resource: ephemeral-storage. Threshold: 1":      "evicted: The node was low on resource: ephemeral-storage. Threshold: 1; request space with --scratch SIZE, or persistent space with --volume CLAIM:DIR",
		"pod deleted during operation: " + jobtest.PodHead + jobtest.PodFoot: "pod deleted during operation",
	} {
		w := &Workflow{}
		n := workflowNode{ID: "a", Name: "x", Type: "Pod", Phase: "Failed", Message: message}
		n.Outputs.ExitCode = "3"
		w.Status.Nodes = map[string]workflowNode{"a": n}
		task := w.QueueState(t.Context(), &kube.StepReader{}).Tasks[0]
		if got := task.Message; strings.Contains(got, jobtest.PodHead) != strings.Contains(message, jobtest.PodHead) {
			t.Errorf("attempt for %.40q: message %q", message, got)
		}
		if task.Problem != want {
			t.Errorf("problem of %.40q: %q; want %q", message, task.Problem, want)
		}
	}
}

// TestStepWaits checks the message of a step whose pod has no node, or no image.
func TestStepWaits(t *testing.T) {
	for message, want := range map[string]string{
		"PodInitializing": "",
		"Unschedulable: 0/2 nodes are available: 2 Insufficient cpu. preemption: none": "no node of 2 fits: 2 insufficient cpu; request less with --cpus, or wait until other jobs end; \"hpcc nodes\" shows what nodes have",
		"ImagePullBackOff: Back-off pulling image \"x\"":                               "ImagePullBackOff: Back-off pulling image \"x\"; \"hpcc deploy\" pushes the image to a registry, --pull-secret names the secret with its password",
	} {
		w := &Workflow{}
		w.Status.Nodes = map[string]workflowNode{"a": {ID: "a", Name: "x", Type: "Pod", Phase: "Pending", Message: message}}
		if got := w.QueueState(t.Context(), &kube.StepReader{}).Reason; got != want {
			t.Errorf("%q: %q; want %q", message, got, want)
		}
	}
}
