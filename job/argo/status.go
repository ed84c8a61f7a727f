package argo

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/kube"
	"hpcc/text"
)

// A Workflow is Argo's state of a submitted workflow.
type Workflow struct {
	Metadata struct {
		Name              string
		CreationTimestamp time.Time
	}
	Spec struct {
		Templates []struct {
			Name              string
			Container, Script struct{ Image string }
		}
	}
	Status struct {
		Phase, Message        string
		StartedAt, FinishedAt time.Time
		Nodes                 map[string]workflowNode
		// The controller compresses the nodes of a large workflow (gzip, base64), or stores them in a
		// database. The server returns them expanded, Kubernetes does not.
		CompressedNodes, OffloadNodeStatusVersion string
	}
}

// unpack expands compressed nodes.
func (w *Workflow) unpack() error {
	s := &w.Status
	if s.OffloadNodeStatusVersion != "" && len(s.Nodes) == 0 {
		return fmt.Errorf("workflow %s is so large that Argo stores its steps in a database, which only an Argo server can "+
			"read; give one with --server URL at submit", w.Metadata.Name)
	}
	if s.CompressedNodes == "" {
		return nil
	}
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(s.CompressedNodes)))
	if err == nil {
		err = json.NewDecoder(io.LimitReader(z, maxArgoAnswer)).Decode(&s.Nodes)
	}
	if err != nil {
		return fmt.Errorf("unpacking the steps of workflow %s: %w", w.Metadata.Name, err)
	}
	return nil
}

// A workflowNode is a step, or a group of steps.
type workflowNode struct {
	ID, Name, Type, TemplateName string
	TemplateRef                  struct{ Template string }
	Phase, Message, HostNodeName string
	StartedAt, FinishedAt        time.Time
	Outputs                      struct {
		ExitCode  json.Number
		Artifacts []json.RawMessage
	}
	Inputs   struct{ Parameters []nodeParameter }
	NodeFlag struct{ Retried bool }
	Children []string
}

type nodeParameter struct{ Name, Value string }

// phaseEnded reports whether the workflow or a step has ended.
func phaseEnded(phase string) bool {
	return slices.Contains([]string{"Succeeded", "Failed", "Error", "Skipped", "Omitted"}, phase)
}

// pods returns the steps that run or ran in pods, in the order in which they started.
func (w *Workflow) pods() []workflowNode {
	var out []workflowNode
	for _, n := range w.Status.Nodes {
		if n.Type == "Pod" {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b workflowNode) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// pod returns the name of the pod of a step, like the controller (POD_NAMES=v2, the default since
// 3.3): the workflow, the template and a hash (FNV-1a, 32 bits) of the step's full name.
func (w *Workflow) pod(n *workflowNode) string {
	if n.Name == w.Metadata.Name {
		return n.Name
	}
	prefix := w.Metadata.Name
	if t := n.template(); t != "" {
		prefix += "-" + t
	}
	const longest = 253 - 10 - 1 // without the hash
	h := fnv.New32a()
	h.Write([]byte(n.Name))
	return fmt.Sprintf("%s-%d", prefix[:min(len(prefix), longest)], h.Sum32())
}

// QueueState returns the queue state of a workflow's steps, with the reasons that why finds. Steps that
// never started because another failed get a record too, because they have no pod.
func (w *Workflow) QueueState(ctx context.Context, why *kube.StepReader) batch.State {
	s := batch.State{Alive: !phaseEnded(w.Status.Phase)}
	retries := map[string]string{} // phase of the retry node, by step
	for _, n := range w.Status.Nodes {
		if n.Type == "Retry" {
			for _, c := range n.Children {
				retries[c] = n.Phase
			}
		}
	}
	pods, newest, failed := w.pods(), map[string]string{}, false
	for _, n := range pods {
		newest[w.step(&n)] = n.ID
	}
	var waiting, running []batch.Attempt
	for _, n := range pods {
		t, begun := w.task(&n)
		a := batch.Attempt{Task: *t, Template: n.template(), Message: n.Message}
		if !begun {
			waiting = append(waiting, a)
			continue
		}
		if !t.Ended() {
			running = append(running, a)
		}
		if t.Ended() && !t.OK() {
			a.Problem, failed = problemOf(ctx, why, &a, n.Phase), true
		}
		phase, again := retries[n.ID]
		a.Last = newest[t.Step] == n.ID && (!t.Ended() || t.OK() || !again || phaseEnded(phase) || !s.Alive)
		s.Tasks = append(s.Tasks, a)
	}
	if s.Running, s.Waiting = len(running), len(waiting); s.Alive {
		s.Reason = cmp.Or(why.Reason(ctx, waiting, running), w.held())
	}
	for _, n := range w.Status.Nodes {
		if n.Phase == "Omitted" {
			t := job.Task{Step: w.step(&n), Start: n.StartedAt, End: n.FinishedAt, Exit: kube.ExitLost,
				Problem: "did not begin, since what it waits for did not go as it wants"}
			s.Tasks = append(s.Tasks, batch.Attempt{Task: t, Last: true, Template: n.template(), All: true})
		}
	}
	if !s.Alive && w.Status.Phase != "Succeeded" && !failed {
		t := job.Task{Step: w.Metadata.Name, Start: w.Status.StartedAt, End: w.Status.FinishedAt, Exit: kube.ExitLost,
			Problem: cmp.Or(text.OneLine(w.Status.Message), w.Status.Phase)}
		s.Tasks = append(s.Tasks, batch.Attempt{Task: t, Last: true})
	}
	return s
}

// controllerTime is how long Argo's controller may take to notice a workflow.
const controllerTime = time.Minute

// held returns why Argo's controller does not start the workflow, or "" if it has.
func (w *Workflow) held() string {
	age := time.Since(w.Metadata.CreationTimestamp)
	switch {
	case len(w.Status.Nodes) > 0:
		return ""
	case w.Status.Message != "":
		return text.OneLine(w.Status.Message)
	case w.Status.Phase == "" && !w.Metadata.CreationTimestamp.IsZero() && age > controllerTime:
		return fmt.Sprintf("Argo's controller has not noticed the workflow for %v; ask the cluster's administrators "+
			"whether it runs and serves this namespace", age.Round(controllerTime))
	}
	return ""
}

// step returns a step's name within the workflow, which all its attempts share.
func (w *Workflow) step(n *workflowNode) string {
	name := strings.TrimPrefix(n.Name, w.Metadata.Name)
	if i := strings.LastIndexByte(name, '('); n.NodeFlag.Retried && i >= 0 {
		name = name[:i]
	}
	return cmp.Or(strings.TrimPrefix(stepGroup().ReplaceAllString(name, "."), "."), w.Metadata.Name)
}

// stepGroup matches the index of a group of parallel steps in a node name. The names of the steps
// are unique without it.
var stepGroup = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\.?\[[0-9]+\]\.?`) })

func (n *workflowNode) template() string { return cmp.Or(n.TemplateRef.Template, n.TemplateName) }

// task returns the record of a step's pod, and false if it has not started. The index is the
// position in an array of hpcc, from 0.
func (w *Workflow) task(n *workflowNode) (*job.Task, bool) {
	t := &job.Task{Native: w.pod(n), Step: w.step(n), Host: n.HostNodeName, Start: n.StartedAt}
	for _, p := range n.Inputs.Parameters {
		if p.Name == placeInput {
			t.Index, _ = strconv.Atoi(p.Value)
		}
	}
	switch n.Phase {
	case "", "Pending":
		return t, false
	case "Running":
		return t, true
	}
	t.End = n.FinishedAt
	if t.End.IsZero() { // Argo has not yet seen that the pod ended
		t.End = time.Now().UTC().Truncate(time.Second)
	}
	if n.Phase == "Succeeded" || n.Phase == "Skipped" {
		return t, true
	}
	code, err := strconv.Atoi(n.Outputs.ExitCode.String())
	if t.Exit = code; err != nil || code == 0 {
		t.Exit = kube.ExitLost
	}
	return t, true
}

// artifactsDir is where Argo's executor packs the artifacts of a step.
const artifactsDir = "/var/run/argo/outputs/artifacts"

// problemOf returns why a step's pod ended in a phase, or "" if its program ended by itself.
func problemOf(ctx context.Context, why *kube.StepReader, a *batch.Attempt, phase string) string {
	message := why.Problem(ctx, a)
	switch {
	case strings.Contains(message, artifactsDir) && strings.Contains(message, "no such file"):
		_, file, _ := strings.Cut(message, artifactsDir)
		file, _, _ = strings.Cut(file, ":")
		return fmt.Sprintf("did not create the artifact %s", strings.TrimSuffix(file, ".tgz"))
	case strings.HasSuffix(message, fmt.Sprintf("Error (exit code %d)", a.Exit)):
		return ""
	}
	return cmp.Or(message, phase)
}
