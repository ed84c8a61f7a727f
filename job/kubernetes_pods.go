package job

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What of a Job and a Pod hpcc reads (batch/v1, core/v1).
type kubeJob struct {
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec   struct{ Completions int }
	Status struct {
		Succeeded                       int
		CompletedIndexes, FailedIndexes string
		Conditions                      []kubeCondition
	}
}

type kubeCondition struct{ Type, Status, Reason, Message string }

type kubePod struct {
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
		Conditions             []kubeCondition
		ContainerStatuses      []kubeContainer
	}
}

type kubeContainer struct {
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

// An attempt is the record of a task as a scheduler keeps it that runs no "hpcc task".
// Its index is the place in the array, from 0.
type attempt struct {
	Task
	last     bool          // no other follows
	words    string        // that its program left, with what was measured; see podRecord
	image    string        // by digest, where the cluster says it
	pulled   time.Duration // that its image took to come, where the cluster says it
	template string        // of the step of a workflow
	all      bool          // of all tasks of the step
}

// standing is what a Job and its pods say together.
func (o *kubeJob) standing(pods []kubePod) standing {
	over, s := false, standing{}
	for _, c := range o.Status.Conditions {
		switch {
		case c.Status != "True":
		case c.Type == "Complete" || c.Type == "Failed":
			over = true
		case c.Type == "Suspended":
			s.reason = "suspended"
		}
	}
	failed := map[int]bool{}
	if a, err := ParseArray(o.Status.FailedIndexes); err == nil {
		for k := range a.All() {
			failed[k] = true
		}
	}
	s.learn(pods, func(index int) bool { return over || failed[index] })
	if !over {
		s.waiting = max(0, cmp.Or(o.Spec.Completions, 1)-o.Status.Succeeded-len(failed)-s.running)
	}
	return s
}

// learn makes records of pods. final says whether the failure of a task was its last.
func (s *standing) learn(pods []kubePod, final func(index int) bool) {
	slices.SortStableFunc(pods, func(a, b kubePod) int { return a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp) })
	newest := map[int]int{}
	for i := range pods {
		newest[pods[i].index()] = i
	}
	for i := range pods {
		p := &pods[i]
		t, begun := p.task()
		if why := p.waits(); why != "" && !t.Ended() {
			s.reason = why
		}
		if !begun {
			continue
		}
		if !t.Ended() {
			s.running++
		}
		last := newest[t.Index] == i && (!t.Ended() || t.OK() || final(t.Index))
		a := attempt{Task: *t, last: last}
		a.left(p)
		s.tasks = append(s.tasks, a)
	}
}

// left notes what the pod of the attempt says of its image, and what its program left.
func (a *attempt) left(p *kubePod) {
	c := p.main()
	if a.image = c.ImageID; c.State.Terminated != nil {
		a.words = c.State.Terminated.Message
	}
}

// index is the place of the pod's task in the array, from 0.
func (p *kubePod) index() int {
	n, _ := strconv.Atoi(p.Metadata.Annotations["batch.kubernetes.io/job-completion-index"])
	return n
}

// main is the state of the program's container.
func (p *kubePod) main() *kubeContainer {
	for i := range p.Status.ContainerStatuses {
		if c := &p.Status.ContainerStatuses[i]; c.Name == mainContainer {
			return c
		}
	}
	return &kubeContainer{}
}

// task is the record of what the pod ran; false when it has not begun.
func (p *kubePod) task() (*Task, bool) {
	t := &Task{Index: p.index(), Native: p.Metadata.Name, Host: p.Spec.NodeName, Start: p.Status.StartTime}
	if t.Start.IsZero() {
		t.Start = p.Metadata.CreationTimestamp
	}
	state := &p.main().State
	switch e := state.Terminated; {
	case e != nil:
		t.Start, t.End, t.Exit = e.StartedAt, e.FinishedAt, e.ExitCode
		if t.Start.Unix() <= 0 { // containerd's word for never
			t.Start = p.Metadata.CreationTimestamp
		}
		if t.End.Unix() <= 0 {
			t.End = t.Start
		}
		t.Problem = p.problem(e.Reason, unmeasured(e.Message))
	case p.Status.Phase == "Failed": // before the program began, or its end was lost
		t.End, t.Exit = t.Start, exitLost
		t.Problem = cmp.Or(p.problem(p.Status.Reason, p.Status.Message), "the pod failed, and the cluster does not say why")
	case state.Running != nil:
		t.Start = state.Running.StartedAt
	default:
		return t, false
	}
	return t, true
}

// exitLost is the status of a program of which the cluster keeps none.
const exitLost = 125

// problem says in words, with what to do, why a pod ended that its program did not end; "" where it did.
func (p *kubePod) problem(reason, message string) string {
	message = strings.Join(strings.Fields(message), " ")
	if p.Status.Reason == "DeadlineExceeded" {
		return "ended after its time limit; --time gives it more"
	}
	if p.Status.Reason == "Evicted" {
		message = strings.Join(strings.Fields(p.Status.Message), " ")
		if strings.Contains(message, "ephemeral") {
			message += "; --scratch SIZE asks for room, --volume CLAIM:DIR for some that stays"
		}
		return "evicted: " + message
	}
	switch reason {
	case "OOMKilled":
		return "killed, since it used more than its memory (OOMKilled); --mem gives it more"
	case "Completed", "Error", "":
		if p.lost() {
			return "ended with its node, which was taken away: " + p.Status.Message
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

// lost says whether the pod's node was taken away.
func (p *kubePod) lost() bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c kubeCondition) bool { return c.Type == "DisruptionTarget" && c.Status == "True" })
}

// waits is why a pod's program has not begun; "" when that goes its way.
func (p *kubePod) waits() string {
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
		why += "; the image is not on the node, and --pull never forbids to fetch it"
	case "CreateContainerConfigError":
		if strings.Contains(w.Message, "runAsNonRoot") || strings.Contains(w.Message, "non-numeric") {
			why += "; --uid NUMBER runs it as another user"
		}
	}
	return why
}

// learn keeps what a scheduler tells of the tasks, where they keep no records themselves. A record that is
// whole stays as it is: pods go away before it does.
func (s *Submission) learn(home string, known map[string]standing) error {
	params := s.Job.Params
	if params.Reopen() != nil { // the pods have them all the same: their file may change
		params = Params{}
	}
	for i, id := range s.natives() {
		array := s.Job.Array
		if i > 0 {
			array = s.Reruns[i-1].Array
		}
		list := s.ofNodes(known[id])
		if s.Target == Argo {
			var err error
			if list, err = s.placed(home, list); err != nil {
				return err
			}
		}
		for _, a := range list {
			t := a.Task
			if s.Job.Workflow == nil {
				t.Index, _ = array.Nth(t.Index + 1) // 0 without an array
			}
			t.Params = params.Row(t.Index)
			if before := (&Task{}); t.Native == "" && readRecord(home, t.fileName(), before) { // its pod went away
				t.Native, t.Host = before.Native, before.Host
			}
			over := s.Target != Argo && s.againAfter(i, t.Index) // what it was, a rerun has put aside
			if over && !t.Ended() {
				continue
			}
			keep := func() error { return nil }
			if s.Job.measured() && t.Ended() {
				keep = func() error { return s.keepMeasured(home, &a, &t) }
			}
			if err := t.learn(home, a.last && !over, s.Target == Argo, keep); err != nil {
				return err
			}
		}
	}
	return nil
}

// againAfter says whether a task was handed in again after the i-th time.
func (s *Submission) againAfter(i, index int) bool {
	return slices.ContainsFunc(s.Reruns[i:], func(r Rerun) bool {
		return r.Array.IsZero() || r.Array.has(index)
	})
}

// ofNodes makes one record of those of the pods of a job of several nodes: that of the first that
// failed, else of the first node, which has not succeeded before all have. The program of a Ray is the first node's alone.
func (s *Submission) ofNodes(st standing) []attempt {
	list := st.tasks
	if !s.Job.acrossPods() || len(list) == 0 {
		return list
	}
	if i := slices.IndexFunc(list, func(a attempt) bool { return a.Index == 0 }); s.Job.Ray && (i >= 0 || !st.gone()) {
		list = list[max(i, 0) : i+1]
	}
	var one *attempt
	for i := range list {
		a := &list[i]
		if a.OK() && !s.Job.Ray && !st.gone() {
			continue
		}
		if one == nil || a.before(one) {
			one = a
		}
	}
	if one == nil {
		return nil
	}
	one.last = true
	return []attempt{*one}
}

// before says whether an attempt of one node tells more of a job than that of another.
func (a *attempt) before(b *attempt) bool {
	bad, other := a.Ended() && !a.OK(), b.Ended() && !b.OK()
	switch {
	case bad && other:
		return a.End.Before(b.End)
	case bad || other:
		return bad
	}
	return a.Index < b.Index
}

// learn writes the record of an attempt, unless it is there and whole; keep writes before what was measured.
// Where names of pods come again, their beginning tells them apart.
func (t *Task) learn(home string, last, again bool, keep func() error) error {
	same := func(o *Task) bool { return o.Native == t.Native && (!again || o.Start.Equal(t.Start)) }
	now := &Task{Index: t.Index}
	there := readRecord(home, now.fileName(), now)
	if there && same(now) {
		if now.Ended() {
			return nil
		}
		t.Attempt = now.Attempt
	} else {
		n := t.attempts(home)
		for k := range n {
			before := &Task{}
			if !readRecord(home, t.earlierName(k), before) || !same(before) {
				continue
			}
			if last && !there && k == n-1 { // no other followed after all
				return before.Last(home)
			}
			return nil
		}
		if there {
			now.retire(home)
			n++
		}
		t.Attempt = n
	}
	if err := keep(); err != nil {
		return err
	}
	if last || !t.Ended() {
		return t.Write(home)
	}
	if err := t.Write(home); err != nil {
		return err
	}
	return t.WriteEarlier(home)
}
