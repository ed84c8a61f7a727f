package kube

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
)

// A jobState holds the fields of a Job (batch/v1) that hpcc reads.
type jobState struct {
	Metadata struct {
		Name, UID, ResourceVersion string
		Labels                     map[string]string
	}
	Spec struct {
		Completions int
		Suspend     bool
	}
	Status struct {
		Active, Ready, Succeeded        int
		CompletedIndexes, FailedIndexes string
		Conditions                      []condition
	}
}

type condition struct{ Type, Status, Reason, Message string }

// find returns a condition by its type, or nil.
func find(list []condition, name string) *condition {
	if i := slices.IndexFunc(list, func(c condition) bool { return c.Type == name }); i >= 0 {
		return &list[i]
	}
	return nil
}

// condition returns a condition of the Job that is true, or nil.
func (o *jobState) condition(name string) *condition {
	if c := find(o.Status.Conditions, name); c != nil && c.Status == "True" {
		return c
	}
	return nil
}

// suspended reports whether the Job has not ended and does not create pods.
func (o *jobState) suspended() bool {
	return !o.ended() && (o.Spec.Suspend || o.condition("Suspended") != nil)
}

// ended reports whether the Job creates no more pods. A Job with the condition FailureTarget waits for
// pods that end, and some never do.
func (o *jobState) ended() bool {
	return o.condition("Complete") != nil || o.condition("Failed") != nil || o.condition("FailureTarget") != nil
}

// A podState holds the fields of a pod that hpcc reads.
type podState struct {
	Metadata struct {
		Name, UID         string
		Labels            map[string]string
		Annotations       map[string]string
		CreationTimestamp time.Time
		DeletionTimestamp *time.Time
	}
	Spec struct {
		NodeName   string
		Containers []struct {
			Name      string
			Resources struct{ Requests map[string]string }
		}
		Volumes []struct {
			Name                  string
			PersistentVolumeClaim struct{ ClaimName string }
			Secret                struct{ SecretName string }
		}
	}
	Status struct {
		Phase, Reason, Message string
		StartTime              time.Time
		Conditions             []condition
		ContainerStatuses      []containerState
		InitContainerStatuses  []containerState
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

// queueState returns the queue state of a Job and its pods, without the reason.
func (o *jobState) queueState(pods []podState) batch.State {
	s, ended := batch.State{}, o.ended()
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

// learnPods sorts pods by their age and adds their attempts to s. final reports whether a failed task
// will not be retried.
func learnPods(s *batch.State, pods []podState, final func(index int) bool) {
	slices.SortStableFunc(pods, func(a, b podState) int { return a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp) })
	newest, now := newestOf(pods), time.Now()
	for i := range pods {
		p := &pods[i]
		t, started := p.task()
		if isNewest := newest[t.Index] == i; p.overdue(now) && (!isNewest || final(t.Index)) {
			t.End, t.Exit, started = *p.Metadata.DeletionTimestamp, ExitLost, true
			t.Problem = p.problem("NodeLost", "")
		}
		if !started {
			continue
		}
		if !t.Ended() {
			s.Running++
		}
		last := newest[t.Index] == i && (!t.Ended() || t.OK() || final(t.Index))
		a := batch.Attempt{Task: *t, Last: last}
		setOutcome(&a, p)
		s.Tasks = append(s.Tasks, a)
	}
}

// newestOf returns the position of the newest pod of each task.
func newestOf(pods []podState) map[int]int {
	newest := map[int]int{}
	for i := range pods {
		newest[pods[i].Index()] = i
	}
	return newest
}

// setOutcome sets the image and the termination message of an attempt from its pod.
func setOutcome(a *batch.Attempt, p *podState) {
	c := p.main()
	a.Image = c.ImageID
	if a.Task.ImageDigest = digestIn(a.Image); c.State.Terminated != nil {
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
		t.Problem = p.problem(e.Reason, unmeasured(e.Message))
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

// problem returns why a pod ended, with advice, or "" if its program ended by itself. reason and
// message are those of its container, or of the pod.
func (p *podState) problem(reason, message string) string {
	facts := []fact{{from: ended, reason: reason, message: message}}
	if c := p.disrupted(); c != nil && reason != "OOMKilled" && p.Status.Phase != "Succeeded" {
		facts = slices.Insert(facts, 0, fact{from: lost, reason: c.Reason, message: cmp.Or(c.Message, p.Status.Message)})
	}
	if p.Status.Reason != "" { // the pod's own reason, such as DeadlineExceeded, comes first
		facts = slices.Insert(facts, 0, fact{from: ended, reason: p.Status.Reason, message: p.Status.Message})
	}
	for _, f := range facts {
		f.about = p.subject()
		if text, _ := explain(f); text != "" {
			return text
		}
	}
	return ""
}

// subject returns what an explanation names of the pod, without its own name: most pods of a job share it.
func (p *podState) subject() subject {
	s := subject{node: p.Spec.NodeName}
	for _, c := range p.Spec.Containers {
		if c.Name == MainContainer {
			s.requests = labelText(c.Resources.Requests)
		}
	}
	return s
}

// claims returns the names of the pod's volume claims.
func (p *podState) claims() []string {
	var names []string
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim.ClaimName != "" {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

// disrupted returns the condition of a pod that was preempted, evicted or removed from its node, or nil.
func (p *podState) disrupted() *condition {
	if c := find(p.Status.Conditions, "DisruptionTarget"); c != nil && c.Status == "True" {
		return c
	}
	return nil
}

// scheduled returns the condition of a pod that has no node yet, or nil.
func (p *podState) scheduled() *condition {
	if c := find(p.Status.Conditions, "PodScheduled"); c != nil && c.Status == "False" {
		return c
	}
	return nil
}

// running reports whether the pod's program runs. A pod of a set of containers has no main one.
func (p *podState) running() bool {
	c := p.main()
	return c.State.Running != nil || (c.Name == "" && p.Status.Phase == "Running")
}

// over reports whether the pod's program has ended.
func (p *podState) over() bool {
	return p.main().State.Terminated != nil || p.Status.Phase == "Failed" || p.Status.Phase == "Succeeded"
}

// overdue reports whether the deadline of a deleted pod has passed without a report of its end, because
// its node does not respond.
func (p *podState) overdue(now time.Time) bool {
	d := p.Metadata.DeletionTimestamp
	return d != nil && !p.over() && now.Sub(*d) > overdueTime
}

// nodeNotReady reports whether the cluster has marked a running pod as not ready because of its node. The
// node's own marks have a reason.
func (p *podState) nodeNotReady() bool {
	c := find(p.Status.Conditions, "Ready")
	return p.running() && p.Metadata.DeletionTimestamp == nil && c != nil && c.Status == "False" && c.Reason == ""
}

// recordHead is the beginning of the measurements in a termination message.
const recordHead = `{"kind":"header"`

// unmeasured returns a message without the measurements at its end.
func unmeasured(message string) string {
	if before, _, ok := strings.Cut(message, recordHead); ok {
		return strings.TrimRight(before, ": \n")
	}
	return message
}
