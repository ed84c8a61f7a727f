package kube

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/queue"
)

// A jobState holds the fields of a Job (batch/v1) that hpcc reads.
type jobState struct {
	Metadata struct {
		Name, ResourceVersion string
		Labels                map[string]string
	}
	Spec   struct{ Completions int }
	Status struct {
		Active, Ready, Succeeded        int
		CompletedIndexes, FailedIndexes string
		Conditions                      []condition
	}
}

type condition struct{ Type, Status, Reason, Message string }

// A podState holds the fields of a pod that hpcc reads.
type podState struct {
	Metadata struct {
		Name              string
		Labels            map[string]string
		Annotations       map[string]string
		CreationTimestamp time.Time
		DeletionTimestamp *time.Time
	}
	Spec   struct{ NodeName string }
	Status struct {
		Phase, Reason, Message string
		StartTime              time.Time
		Conditions             []condition
		ContainerStatuses      []containerState
	}
}

// A containerState is the state of a container.
type containerState struct {
	Name    string
	ImageID string
	State   struct {
		Waiting *struct{ Reason, Message string }
		Running *struct{ StartedAt time.Time }

		Terminated *struct {
			ExitCode              int
			Reason, Message       string
			StartedAt, FinishedAt time.Time
		}
	}
}

// ended reports whether the Job has ended.
func (o *jobState) ended() bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c condition) bool {
		return (c.Type == "Complete" || c.Type == "Failed") && c.Status == "True"
	})
}

// queueState returns the queue state of a Job and its pods.
func (o *jobState) queueState(pods []podState) queue.State {
	ended, s := o.ended(), queue.State{}
	if slices.ContainsFunc(o.Status.Conditions, func(c condition) bool { return c.Type == "Suspended" && c.Status == "True" }) {
		s.Reason = "suspended"
	}
	failed := map[int]bool{}
	if a, err := job.ParseArray(o.Status.FailedIndexes); err == nil {
		for k := range a.All() {
			failed[k] = true
		}
	}
	learnPods(&s, pods, func(index int) bool { return ended || failed[index] })
	if !ended {
		s.Waiting = max(0, cmp.Or(o.Spec.Completions, 1)-o.Status.Succeeded-len(failed)-s.Running)
	}
	return s
}

// learnPods adds the attempts of pods to s. final reports whether a failed task will not be retried.
func learnPods(s *queue.State, pods []podState, final func(index int) bool) {
	slices.SortStableFunc(pods, func(a, b podState) int { return a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp) })
	newest := map[int]int{}
	for i := range pods {
		newest[pods[i].Index()] = i
	}
	for i := range pods {
		p := &pods[i]
		t, started := p.task()
		if why := p.waits(); why != "" && !t.Ended() {
			s.Reason = why
		}
		if !started {
			continue
		}
		if !t.Ended() {
			s.Running++
		}
		last := newest[t.Index] == i && (!t.Ended() || t.OK() || final(t.Index))
		a := queue.Attempt{Task: *t, Last: last}
		setOutcome(&a, p)
		s.Tasks = append(s.Tasks, a)
	}
}

// setOutcome sets the image and the termination message of an attempt from its pod.
func setOutcome(a *queue.Attempt, p *podState) {
	c := p.main()
	if a.Image = c.ImageID; c.State.Terminated != nil {
		a.Message = c.State.Terminated.Message
	}
}

// Index returns the position of the pod's task in the array, from 0.
func (p *podState) Index() int {
	n, _ := strconv.Atoi(p.Metadata.Annotations["batch.kubernetes.io/job-completion-index"])
	return n
}

// main returns the state of the program's container.
func (p *podState) main() *containerState {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == MainContainer {
			return c
		}
	}
	return &containerState{}
}

// task returns the record of the pod's task, and false if it has not started.
func (p *podState) task() (*job.Task, bool) {
	t := &job.Task{Index: p.Index(), Native: p.Metadata.Name, Host: p.Spec.NodeName, Start: p.Status.StartTime}
	if t.Start.IsZero() {
		t.Start = p.Metadata.CreationTimestamp
	}
	state := &p.main().State
	switch e := state.Terminated; {
	case e != nil:
		t.Start, t.End, t.Exit = e.StartedAt, e.FinishedAt, e.ExitCode
		if t.Start.Unix() <= 0 { // containerd's value for never
			t.Start = p.Metadata.CreationTimestamp
		}
		if t.End.Unix() <= 0 {
			t.End = t.Start
		}
		t.Problem = p.problem(e.Reason, Unmeasured(e.Message))
	case p.Status.Phase == "Failed": // before the program started, or its end was not reported
		t.End, t.Exit = t.Start, ExitLost
		t.Problem = cmp.Or(p.problem(p.Status.Reason, p.Status.Message), "the pod failed without a reason from the cluster")
	case state.Running != nil:
		t.Start = state.Running.StartedAt
	default:
		return t, false
	}
	return t, true
}

// ExitLost is the exit status of a program whose status the cluster lost.
const ExitLost = 125

// problem returns why a pod ended, with advice, or "" if its program ended by itself.
func (p *podState) problem(reason, message string) string {
	message = strings.Join(strings.Fields(message), " ")
	if p.Status.Reason == "DeadlineExceeded" {
		return "ended after its time limit; raise it with --time"
	}
	if p.Status.Reason == "Evicted" {
		message = strings.Join(strings.Fields(p.Status.Message), " ")
		if strings.Contains(message, "ephemeral") {
			message += "; request space with --scratch SIZE, or persistent space with --volume CLAIM:DIR"
		}
		return "evicted: " + message
	}
	switch reason {
	case "OOMKilled":
		return "killed because it used more than its memory (OOMKilled); raise the limit with --mem"
	case "Completed", "Error", "":
		if p.lost() {
			return "ended because its node was preempted or removed: " + p.Status.Message
		}
		return ""
	case "StartError", "ContainerCannotRun":
		return "the program could not be started: " + message
	}
	if message == "" {
		return reason
	}
	return reason + ": " + message
}

// lost reports whether the pod's node was preempted or removed.
func (p *podState) lost() bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c condition) bool { return c.Type == "DisruptionTarget" && c.Status == "True" })
}

// waits returns why a pod's program has not started, or "" if it is starting normally.
func (p *podState) waits() string {
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" {
			return c.Message
		}
	}
	w := p.main().State.Waiting
	if w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" || w.Reason == "" {
		return ""
	}
	why := w.Reason
	if w.Message != "" {
		why += ": " + strings.Join(strings.Fields(w.Message), " ")
	}
	switch w.Reason {
	case "ImagePullBackOff", "ErrImagePull", "InvalidImageName":
		why += "; \"hpcc deploy\" pushes the image to a registry, --pull-secret names the secret with its password"
	case "ErrImageNeverPull":
		why += "; the image is not on the node, and --pull never forbids pulling it"
	case "CreateContainerConfigError":
		if strings.Contains(w.Message, "runAsNonRoot") || strings.Contains(w.Message, "non-numeric") {
			why += "; use --uid NUMBER to run it as another user"
		}
	}
	return why
}

// recordHead is the beginning of the measurements in a termination message.
const recordHead = `{"kind":"header"`

// Unmeasured returns a message without the measurements at its end.
func Unmeasured(message string) string {
	if before, _, ok := strings.Cut(message, recordHead); ok {
		return strings.TrimRight(before, ": \n")
	}
	return message
}
