package argo

import (
	"cmp"
	"compress/gzip"
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
)

// A Workflow is what Argo says of one that was handed in.
type Workflow struct {
	Metadata struct{ Name string }
	Status   struct {
		Phase, Message        string
		StartedAt, FinishedAt time.Time
		Nodes                 map[string]workflowNode
		// Of a large workflow the controller packs the nodes (gzip, base64), or keeps them in a database:
		// the server brings them back, and Kubernetes does not.
		CompressedNodes, OffloadNodeStatusVersion string
	}
}

// unpack brings the nodes back that the controller has packed.
func (w *Workflow) unpack() error {
	s := &w.Status
	if s.OffloadNodeStatusVersion != "" && len(s.Nodes) == 0 {
		return fmt.Errorf("workflow %s is so large that Argo keeps its steps in a database, which only an Argo server reads: name one with --server URL at submit", w.Metadata.Name)
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

// A workflowNode is a step, or what groups steps.
type workflowNode struct {
	ID, Name, Type, TemplateName string
	TemplateRef                  struct{ Template string }
	Phase, Message, HostNodeName string
	StartedAt, FinishedAt        time.Time
	Outputs                      struct{ ExitCode json.Number }
	Inputs                       struct{ Parameters []nodeParameter }
	NodeFlag                     struct{ Retried bool }
	Children                     []string
}

type nodeParameter struct{ Name, Value string }

// phaseEnded says whether the workflow, or a step, is over.
func phaseEnded(phase string) bool {
	return slices.Contains([]string{"Succeeded", "Failed", "Error", "Skipped", "Omitted"}, phase)
}

// pods are the steps that ran, or run, in pods, in the order in which they began.
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

// pod is the name of the pod in which a step runs, as the controller makes it
// (POD_NAMES=v2, the default since 3.3): of the workflow, the template and a hash
// (FNV-1a, 32 bits) of the step's whole name.
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

// Standing is what the steps of a workflow say. Those that never began, since another
// failed, have a record as well: nobody else tells of them.
func (w *Workflow) Standing() batch.QueueState {
	s := batch.QueueState{Alive: !phaseEnded(w.Status.Phase)}
	retries := map[string]string{} // phase of what tries a step again, by the step
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
	for _, n := range pods {
		t, begun := w.task(&n)
		if !begun {
			s.Waiting++
			s.Reason = cmp.Or(n.waits(), s.Reason)
			continue
		}
		if !t.Ended() {
			s.Running++
		}
		failed = failed || (t.Ended() && !t.OK())
		phase, again := retries[n.ID]
		last := newest[t.Step] == n.ID && (!t.Ended() || t.OK() || !again || phaseEnded(phase) || !s.Alive)
		s.Tasks = append(s.Tasks, batch.Attempt{Task: *t, Last: last, Template: n.template(), Words: n.Message})
	}
	for _, n := range w.Status.Nodes {
		if n.Phase == "Omitted" {
			t := job.Task{Step: w.step(&n), Start: n.StartedAt, End: n.FinishedAt, Exit: kube.ExitLost, Problem: "did not begin, since what it waits for did not go as it wants"}
			s.Tasks = append(s.Tasks, batch.Attempt{Task: t, Last: true, Template: n.template(), All: true})
		}
	}
	if !s.Alive && w.Status.Phase != "Succeeded" && !failed {
		t := job.Task{Step: w.Metadata.Name, Start: w.Status.StartedAt, End: w.Status.FinishedAt, Exit: kube.ExitLost, Problem: cmp.Or(oneSpace(w.Status.Message), w.Status.Phase)}
		s.Tasks = append(s.Tasks, batch.Attempt{Task: t, Last: true})
	}
	return s
}

// step is a step's name within the workflow, the same for all its attempts.
func (w *Workflow) step(n *workflowNode) string {
	name := strings.TrimPrefix(n.Name, w.Metadata.Name)
	if i := strings.LastIndexByte(name, '('); n.NodeFlag.Retried && i >= 0 {
		name = name[:i]
	}
	return cmp.Or(strings.TrimPrefix(stepGroup().ReplaceAllString(name, "."), "."), w.Metadata.Name)
}

// stepGroup is the place of parallel steps among others in the name of a node: their own
// names tell them apart.
var stepGroup = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\.?\[[0-9]+\]\.?`) })

func (n *workflowNode) template() string { return cmp.Or(n.TemplateRef.Template, n.TemplateName) }

// task is the record of what a step's pod ran; false when it has not begun. The index is the
// place in an array of ours, from 0.
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
	if t.End.IsZero() { // Argo has not looked at the pod yet, which it tells to end
		t.End = time.Now().UTC().Truncate(time.Second)
	}
	if n.Phase == "Succeeded" || n.Phase == "Skipped" {
		return t, true
	}
	code, err := strconv.Atoi(n.Outputs.ExitCode.String())
	if t.Exit = code; err != nil || code == 0 {
		t.Exit = kube.ExitLost
	}
	t.Problem = n.problem(t.Exit)
	return t, true
}

// artifactsDir is where Argo's program puts what a step leaves, packed.
const artifactsDir = "/var/run/argo/outputs/artifacts"

// problem says in words why a step's pod ended that its program did not end; "" where it did.
func (n *workflowNode) problem(exit int) string {
	message := oneSpace(kube.Unmeasured(n.Message))
	switch {
	case strings.Contains(message, "OOMKilled"):
		return "killed, since it used more than its memory (OOMKilled); --mem gives it more"
	case strings.Contains(message, "longer than the specified deadline"), strings.Contains(message, "exceeded its deadline"):
		return "ended after its time limit; --time gives it more"
	case strings.Contains(message, artifactsDir) && strings.Contains(message, "no such file"):
		_, file, _ := strings.Cut(message, artifactsDir)
		file, _, _ = strings.Cut(file, ":")
		return fmt.Sprintf("left no %s, which is to be an artifact", strings.TrimSuffix(file, ".tgz"))
	case strings.HasSuffix(message, fmt.Sprintf("Error (exit code %d)", exit)):
		return ""
	}
	return cmp.Or(message, n.Phase)
}

// waits is why a step's pod has not begun; "" when that goes its way.
func (n *workflowNode) waits() string {
	message := oneSpace(n.Message)
	if message == "PodInitializing" || message == "ContainerCreating" {
		return ""
	}
	if strings.Contains(message, "ImagePull") {
		message += "; \"hpcc deploy\" pushes the image to a registry, --pull-secret names the secret with its password"
	}
	return message
}

func oneSpace(s string) string { return strings.Join(strings.Fields(s), " ") }
