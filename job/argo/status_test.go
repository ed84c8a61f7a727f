package argo

import (
	"strings"
	"testing"

	"hpcc/testdata/jobtest"
)

// TestMeasuredSteps: Argo says what a failed step left behind its own words.
func TestMeasuredSteps(t *testing.T) {
	for message, want := range map[string]string{
		"Error (exit code 3): " + jobtest.PodHead + jobtest.PodFoot:          "",
		"OOMKilled (exit code 137): " + jobtest.PodHead:                      "killed, since it used more than its memory (OOMKilled); --mem gives it more",
		"Error (exit code 3): no such data":                                  "Error (exit code 3): no such data",
		"pod deleted during operation: " + jobtest.PodHead + jobtest.PodFoot: "pod deleted during operation",
	} {
		w := &Workflow{}
		w.Status.Nodes = map[string]workflowNode{"a": {ID: "a", Name: "x", Type: "Pod", Phase: "Failed", Message: message}}
		if words := w.QueueState().Tasks[0].Message; strings.Contains(words, jobtest.PodHead) != strings.Contains(message, jobtest.PodHead) {
			t.Errorf("of %.40q: words %q", message, words)
		}
		if got := (&workflowNode{Message: message, Phase: "Failed"}).problem(3); got != want {
			t.Errorf("problem of %.40q: %q; want %q", message, got, want)
		}
	}
}
