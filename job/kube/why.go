package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"hpcc/job/batch"
	"hpcc/text"
)

// A reader finds why jobs do not start or do not go on. It takes facts from their pods and Jobs, and
// requests other objects only if these have no answer: each list once, and a few single objects.
type reader struct {
	ctx       context.Context
	api       *Proxy
	now       time.Time
	known     map[fact]explanation
	warnings  func() map[string]eventState // the newest about each pod and Job, by kind/name
	claims    func() map[string]claimState // by name
	bindings  func() map[string]eventState // the newest event of each claim, by kind/name
	workloads func() map[string]*workload  // of Kueue, by the uid of the Job
	nodes     map[string]string            // why nodes are not ready, by name
}

type explanation struct {
	text string
	rank int
}

// Bounds of a reader's requests and delays.
const (
	maxPages    = 4                // of 500 objects
	maxNodes    = 4                // requests for single nodes
	startTime   = 10 * time.Second // after which a pod that does not start needs an explanation
	overdueTime = 10 * time.Second // after its deadline, in which a node reports the end of a deleted pod
)

func newReader(ctx context.Context, api *Proxy, jobs []jobState) *reader {
	r := &reader{ctx: ctx, api: api, now: time.Now(), known: map[fact]explanation{}, nodes: map[string]string{}}
	// The scheduler's warnings are conditions of pods, too; those of claims may be normal events.
	r.warnings = sync.OnceValue(func() map[string]eventState { return r.listEvents("type=Warning,reason!=FailedScheduling") })
	r.bindings = sync.OnceValue(func() map[string]eventState { return r.listEvents("involvedObject.kind=PersistentVolumeClaim") })
	r.claims = sync.OnceValue(r.listClaims)
	r.workloads = sync.OnceValue(func() map[string]*workload { return r.listWorkloads(suspendedOf(jobs)) })
	return r
}

type eventState struct {
	Type, Reason, Message string
	InvolvedObject        struct{ Kind, Name string }
	FirstTimestamp        time.Time
	LastTimestamp         time.Time
	EventTime             time.Time
	Series                struct{ LastObservedTime time.Time }
}

// last returns when the event was observed last.
func (e *eventState) last() time.Time {
	return slices.MaxFunc([]time.Time{e.FirstTimestamp, e.LastTimestamp, e.EventTime, e.Series.LastObservedTime}, time.Time.Compare)
}

// listEvents returns the newest of the namespace's events about each object, by kind/name.
func (r *reader) listEvents(selector string) map[string]eventState {
	list, _ := pagesOf[eventState](r.ctx, r.api, "/api/v1/"+r.api.Path("events"), "fieldSelector="+url.QueryEscape(selector), maxPages)
	return newestEvents(list)
}

// newestEvents returns the event about each object that explains most. Normal events about a pod explain
// nothing, except its removal.
func newestEvents(list []eventState) map[string]eventState {
	newest := map[string]eventState{}
	for _, e := range list {
		if e.InvolvedObject.Kind == "Pod" && e.Type == "Normal" && !e.disrupts() {
			continue
		}
		key := e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name
		if before, ok := newest[key]; !ok || explainsLess(&before, &e) {
			newest[key] = e
		}
	}
	return newest
}

// disrupts reports whether the cluster removed the pod of the event from its node.
func (e *eventState) disrupts() bool {
	return slices.Contains([]string{"Preempted", "TaintManagerEviction", "Evicted", "NodeNotReady"}, e.Reason)
}

// explainsLess reports whether b explains more than a: the newer event does, but the removal of a pod
// causes others, and "Error: ImagePullBackOff" follows the cause of a failed pull.
func explainsLess(a, b *eventState) bool {
	if disrupts := b.disrupts(); disrupts != a.disrupts() {
		return disrupts
	}
	if vague := strings.HasPrefix(b.Message, "Error: "); vague != strings.HasPrefix(a.Message, "Error: ") {
		return !vague
	}
	return b.last().After(a.last())
}

type claimState struct {
	Metadata struct{ Name string }
	Spec     struct{ VolumeName string }
	Status   struct{ Phase string }
}

func (r *reader) listClaims() map[string]claimState {
	list, _ := pagesOf[claimState](r.ctx, r.api, "/api/v1/"+r.api.Path("persistentvolumeclaims"), "", maxPages)
	claims := map[string]claimState{}
	for _, c := range list {
		claims[c.Metadata.Name] = c
	}
	return claims
}

// A workload holds the fields of Kueue's Workload that hpcc reads.
type workload struct {
	Metadata struct{ Labels map[string]string }
	Spec     struct{ Active *bool }
	Status   struct {
		Conditions      []condition
		AdmissionChecks []struct{ Name, State, Message string }
	}
}

// labelJobUID is the label of a Workload with the uid of its Job.
const labelJobUID = "kueue.x-k8s.io/job-uid"

// suspendedOf returns the uids of suspended jobs.
func suspendedOf(jobs []jobState) (uids []string) {
	for i := range jobs {
		if jobs[i].suspended() && len(uids) < maxSelected {
			uids = append(uids, jobs[i].Metadata.UID)
		}
	}
	return uids
}

// listWorkloads lists the Workloads of Jobs or pods, by their uid, in the version of the API that the
// cluster prefers.
func (r *reader) listWorkloads(uids []string) map[string]*workload {
	var group struct{ PreferredVersion struct{ GroupVersion string } }
	if r.api.get(r.ctx, "/apis/kueue.x-k8s.io", &group) != nil || group.PreferredVersion.GroupVersion == "" {
		return nil
	}
	resource := "/apis/" + group.PreferredVersion.GroupVersion + "/" + r.api.Path("workloads")
	list, _ := pagesOf[workload](r.ctx, r.api, resource,
		"labelSelector="+url.QueryEscape(labelJobUID+" in ("+strings.Join(uids, ",")+")"), maxPages)
	of := map[string]*workload{}
	for i := range list {
		of[list[i].Metadata.Labels[labelJobUID]] = &list[i]
	}
	return of
}

// explain is [explain], once for equal facts.
func (r *reader) explain(f fact) explanation {
	e, ok := r.known[f]
	if !ok {
		e.text, e.rank = explain(f)
		r.known[f] = e
	}
	return e
}

// job returns why tasks of a job wait or do not go on, or "".
func (r *reader) job(o *jobState, pods []podState, s *batch.State) string {
	if o.suspended() {
		return r.suspended(o)
	}
	counts, live, newest := map[explanation]int{}, 0, newestOf(pods)
	for i := range pods {
		p := &pods[i]
		abandoned := p.overdue(r.now) && (newest[p.Index()] != i || o.ended())
		if !p.over() && !abandoned {
			live++
			counts[r.pod(p)]++
		}
	}
	text := mostSerious(counts, live)
	switch {
	case text != "":
	case live == 0 && !s.Gone():
		if e, ok := r.warnings()["Job/"+o.Metadata.Name]; ok && e.Reason == "FailedCreate" {
			return r.explain(fact{from: answer, message: e.Message}).text
		}
	case len(pods) == 0:
		if c := o.condition("Failed"); c != nil { // it never had a pod
			return r.explain(fact{from: ended, reason: c.Reason, message: c.Message}).text
		}
	}
	return text
}

// mostSerious returns the explanation of the first rule, or the most frequent, with the number of the pods
// that it concerns if others are live.
func mostSerious(counts map[explanation]int, live int) string {
	delete(counts, explanation{})
	if len(counts) == 0 {
		return ""
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(counts)), func(a, b explanation) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(counts[b], counts[a]), cmp.Compare(a.text, b.text))
	})
	if n := counts[first]; n < live {
		return fmt.Sprintf("%d of %d pods: %s", n, live, first.text)
	}
	return first.text
}

// suspended returns why a suspended job is not started: the state of its Workload if it has a queue of
// Kueue.
func (r *reader) suspended(o *jobState) string {
	about := subject{name: o.Metadata.Name, queue: o.Metadata.Labels[labelQueue], several: o.Spec.Completions > 1}
	if about.queue == "" {
		return r.explain(fact{from: queued, reason: "Suspended", about: about}).text
	}
	return r.held(about, o.Metadata.UID).text
}

// held returns why Kueue holds the Job or pod with a uid.
func (r *reader) held(about subject, uid string) explanation {
	f := fact{from: queued, reason: "Pending", message: "Kueue holds the job", about: about}
	w := r.workloads()[uid]
	if w == nil {
		return r.explain(f)
	}
	f.reason, f.message = w.state()
	e := r.explain(f)
	// The scheduler replaces the message about a preemption as soon as it tries to admit the job again.
	if c := w.condition("Preempted"); c != nil && f.message != c.Message && f.reason != "Deactivated" {
		e.text += "; " + r.explain(fact{from: queued, reason: "PreemptedBefore", message: c.Message, about: about}).text
	}
	return e
}

// condition returns a condition of a Workload that is true, or nil.
func (w *workload) condition(name string) *condition {
	if c := find(w.Status.Conditions, name); c != nil && c.Status == "True" {
		return c
	}
	return nil
}

// gated is the reason of a pod that the scheduler must not place yet.
const gated = "SchedulingGated"

// state returns the condition of a Workload that holds its job.
func (w *workload) state() (reason, message string) {
	evicted, reserved := w.condition("Evicted"), find(w.Status.Conditions, "QuotaReserved")
	switch finished := w.condition("Finished"); {
	case finished != nil: // Kueue could not start the job
		return finished.Reason, finished.Message
	case w.Spec.Active != nil && !*w.Spec.Active: // QuotaReserved keeps the state before
		if evicted != nil {
			message = evicted.Message
		}
		return "Deactivated", message
	case evicted != nil && strings.HasSuffix(evicted.Reason, "QueueStopped"): // QuotaReserved: the queue is inactive
		return evicted.Reason, evicted.Message
	case reserved != nil && reserved.Status == "False" && reserved.Message != "":
		return reserved.Reason, reserved.Message
	case evicted != nil: // its pods are ending
		return evicted.Reason, evicted.Message
	}
	for _, c := range w.Status.AdmissionChecks {
		if c.State != "Ready" {
			return c.State, fmt.Sprintf("waits for admission check %s (%s) %s", c.Name, c.State, c.Message)
		}
	}
	return "Pending", "Kueue holds the job"
}

// pod returns why a pod does not start or does not go on; the zero value if it does.
func (r *reader) pod(p *podState) explanation {
	f := fact{about: p.subject()}
	switch c := p.scheduled(); {
	case p.overdue(r.now):
		f.about.name = p.Metadata.Name
		f.from, f.reason, f.message = lost, "NodeLost",
			fmt.Sprintf("the pod should have ended at %s%s", p.Metadata.DeletionTimestamp.Local().Format(time.DateTime),
				r.node(p))
	case p.disrupted() != nil:
		f.from, f.reason, f.message = lost, p.disrupted().Reason, p.disrupted().Message
	case p.nodeNotReady():
		f.from, f.reason, f.message = event, "NodeNotReady", r.node(p)
	case c != nil && strings.Contains(c.Message, "ersistentVolumeClaim"):
		return r.unbound(p, c)
	case c != nil && c.Reason == gated && p.Metadata.Labels[labelQueue] != "":
		return r.held(subject{queue: p.Metadata.Labels[labelQueue]}, p.Metadata.UID)
	case c != nil:
		f.from, f.reason, f.message = starting, "", c.Message
		if c.Reason == gated {
			f.reason = c.Reason
		}
	default:
		return r.container(p)
	}
	return r.explain(f)
}

// container returns why the containers of a scheduled pod do not start.
func (r *reader) container(p *podState) explanation {
	f := fact{about: p.subject()}
	if p.running() {
		return explanation{}
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil {
			continue
		}
		f.from, f.reason, f.message = starting, w.Reason, w.Message
		if e := r.explain(f); e.text != "" && !strings.HasSuffix(strings.TrimSpace(w.Message), `"`) {
			return e
		} else if e.text != "" { // Kubernetes before 1.31: 'Back-off pulling image "x"', without the cause
			return cmp.Or(r.happened(p, "Failed"), e)
		}
	}
	begun := p.Status.StartTime
	if begun.IsZero() {
		begun = p.Metadata.CreationTimestamp
	}
	since := r.now.Sub(begun)
	switch {
	case since < startTime:
	case p.Status.StartTime.IsZero() && p.Spec.NodeName != "" && since > time.Minute:
		f.from, f.reason, f.message = event, "NotAccepted", fmt.Sprintf("for %s%s", since.Round(time.Minute), r.node(p))
		return r.explain(f)
	case p.Spec.NodeName != "":
		return r.happened(p, "")
	}
	return explanation{}
}

// happened explains the newest warning about a pod, if it has the given reason or any.
func (r *reader) happened(p *podState, reason string) explanation {
	e, ok := r.warnings()["Pod/"+p.Metadata.Name]
	if !ok || (reason != "" && e.Reason != reason) {
		return explanation{}
	}
	about := p.subject()
	if strings.HasPrefix(e.Reason, "Failed") {
		about.claim = r.claimOf(p, e.Message)
	}
	return r.explain(fact{from: event, reason: e.Reason, message: e.Message, about: about})
}

// claimOf returns the claim of a pod's volume that a message names, by the name of the volume in the
// pod or by that of the persistent volume. A message about all volumes means the only claim.
func (r *reader) claimOf(p *podState, message string) string {
	claims := p.claims()
	for _, v := range p.Spec.Volumes {
		if strings.Contains(message, `"`+v.Name+`"`) || strings.Contains(message, "unmounted volumes=["+v.Name) {
			return cmp.Or(prefixed("volume claim ", v.PersistentVolumeClaim.ClaimName),
				prefixed("secret ", v.Secret.SecretName), "volume "+v.Name)
		}
	}
	if len(claims) == 1 {
		return "volume claim " + claims[0]
	}
	for _, name := range claims {
		if v := r.claims()[name].Spec.VolumeName; v != "" && strings.Contains(message, v) {
			return "volume claim " + name
		}
	}
	if m := volumeNamed().FindStringSubmatch(text.Cut(message, maxMatched)); m != nil {
		return text.OneLine("volume " + cmp.Or(m[1], m[2]))
	}
	return ""
}

// volumeNamed matches the name of a volume in a message.
var volumeNamed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`for volume "([^"]{1,253})"|unmounted volumes=\[([^],\s]{1,253})`)
})

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// unbound explains why a pod waits for a claim.
func (r *reader) unbound(p *podState, c *condition) explanation {
	for _, name := range p.claims() {
		claim, ok := r.claims()[name]
		f := fact{from: event, about: p.subject()}
		f.about.claim = "volume claim " + name
		switch {
		case !ok || claim.Status.Phase == "Bound":
			continue
		case claim.Status.Phase == "Lost":
			f.reason, f.message = "ClaimLost", claim.Spec.VolumeName
		default:
			f.reason, f.message = "ClaimPending", cmp.Or(r.bindings()["PersistentVolumeClaim/"+name].Message, "no event explains it")
		}
		return r.explain(f)
	}
	return r.explain(fact{from: starting, message: c.Message, about: p.subject()})
}

// node returns why a pod's node is not ready, after a separator; "" if the cluster does not say or does not
// allow to read nodes.
func (r *reader) node(p *podState) string {
	name := p.Spec.NodeName
	if name == "" {
		return ""
	}
	if _, asked := r.nodes[name]; !asked && len(r.nodes) < maxNodes {
		var n nodeState
		if r.nodes[name] = ""; r.api.get(r.ctx, "/api/v1/nodes/"+url.PathEscape(name), &n) == nil {
			r.nodes[name] = prefixed("; the node is ", n.off())
		}
	}
	return r.nodes[name]
}

// A StepReader explains the pods of workflow steps. Argo describes each in a message, which is silent
// about volumes, lost nodes and the cause of a deletion. Where messages do not suffice, the StepReader
// requests the pods and their events, each list once. The zero value reads only messages.
type StepReader struct {
	System   System                                  // opens the API of the cluster
	Selector string                                  // labels of the pods in the API; "": the API is not used
	Events   func(selector string) []json.RawMessage // reads events by their fields, without the API; nil: none

	reader *reader
	pods   func() map[string]*podState // by name, without those that succeeded
}

// stepEvents selects events about the pods of steps. A preempted pod, or one that is removed from a lost
// node, has only a normal event.
const stepEvents = "involvedObject.kind=Pod,reason!=FailedScheduling,reason!=Scheduled," +
	"reason!=Pulling,reason!=Pulled,reason!=Created,reason!=Started,reason!=Killing,reason!=BackOff"

// start prepares the requests, which are sent when their answers are needed.
func (s *StepReader) start(ctx context.Context) {
	if s.reader != nil {
		return
	}
	s.reader = newReader(ctx, nil, nil)
	s.pods = sync.OnceValue(s.list)
	s.reader.warnings = sync.OnceValue(func() map[string]eventState {
		if s.Selector != "" {
			if s.pods(); s.reader.api == nil {
				return nil
			}
			return s.reader.listEvents(stepEvents)
		}
		var list []eventState
		if s.Events != nil {
			for _, b := range s.Events(stepEvents) {
				var e eventState
				if json.Unmarshal(b, &e) == nil {
					list = append(list, e)
				}
			}
		}
		return newestEvents(list)
	})
	s.reader.workloads = sync.OnceValue(func() map[string]*workload {
		var uids []string
		for _, p := range s.pods() {
			if c := p.scheduled(); c != nil && c.Reason == gated && len(uids) < maxSelected {
				uids = append(uids, p.Metadata.UID)
			}
		}
		return s.reader.listWorkloads(uids)
	})
}

// list requests the pods. Without an answer, the messages of the steps remain.
func (s *StepReader) list() map[string]*podState {
	pods := map[string]*podState{}
	if s.Selector == "" {
		return pods
	}
	if s.reader.api == nil {
		api, err := s.System.Open(s.reader.ctx)
		if err != nil {
			return pods
		}
		s.reader.api = api
	}
	api := s.reader.api
	query := "labelSelector=" + url.QueryEscape(s.Selector) + "&fieldSelector=" + url.QueryEscape("status.phase!=Succeeded")
	list, _ := pagesOf[podState](s.reader.ctx, api, "/api/v1/"+api.Path("pods"), query, maxPages)
	for i := range list {
		pods[list[i].Metadata.Name] = &list[i]
	}
	return pods
}

// Close ends the access to the API.
func (s *StepReader) Close() {
	if s.reader != nil && s.reader.api != nil {
		s.reader.api.Close()
	}
}

// Reason returns why steps do not start, or running ones do not go on, with advice; "" if all do.
func (s *StepReader) Reason(ctx context.Context, waiting, running []batch.Attempt) string {
	s.start(ctx)
	counts := map[explanation]int{}
	for i := range waiting {
		counts[s.waits(&waiting[i])]++
	}
	for i := range running {
		if p := s.listed(&running[i]); p != nil && !p.over() {
			counts[s.reader.pod(p)]++
		}
	}
	return mostSerious(counts, len(waiting)+len(running))
}

// listed returns the pod of a step that has not just begun, or nil if it is unknown.
func (s *StepReader) listed(a *batch.Attempt) *podState {
	if s.reader.now.Sub(a.Start) < startTime {
		return nil
	}
	return s.pods()[a.Native]
}

// waits returns why a step does not start.
func (s *StepReader) waits(a *batch.Attempt) explanation {
	if f := stepFact(a.Message); f.from == answer {
		return s.reader.explain(f)
	}
	p := s.listed(a)
	switch {
	case p == nil:
		p = stated(a)
	case p.over():
		return explanation{}
	}
	return s.reader.pod(p)
}

// stated returns the pod of a step that waits, as its message describes it: the condition of a pod
// without a node, or the state of a container.
func stated(a *batch.Attempt) *podState {
	p := &podState{}
	p.Metadata.Name, p.Metadata.CreationTimestamp = a.Native, a.Start
	p.Spec.NodeName, p.Status.StartTime = a.Host, a.Start
	text := unmeasured(a.Message)
	if strings.HasPrefix(text, "Unschedulable") {
		p.Status.Conditions = []condition{{Type: "PodScheduled", Status: "False", Message: text}}
	} else if text != "" {
		c := containerState{Name: MainContainer}
		c.State.Waiting = &struct{ Reason, Message string }{}
		c.State.Waiting.Reason, c.State.Waiting.Message, _ = strings.Cut(text, ": ")
		p.Status.ContainerStatuses = []containerState{c}
	}
	return p
}

// Problem returns why a step's pod ended, with advice and without measurements; "" for a step without a
// message. If the program was killed and the message has no reason, it looks for one in the
// cluster.
func (s *StepReader) Problem(ctx context.Context, a *batch.Attempt) string {
	s.start(ctx)
	f := stepFact(a.Message)
	f.about = subject{node: a.Host}
	e := s.reader.explain(f)
	const signals = 128 // exit statuses above it are signals, 125 is an unknown one
	killed := a.Exit > signals || a.Exit == ExitLost
	unexplained := e.text == "" || e.rank == len(rules)
	if killed && unexplained {
		if text := s.removed(a); text != "" {
			return text
		}
	}
	if e.text != "" {
		return e.text
	}
	return text.Cut(text.OneLine(unmeasured(a.Message)), maxShown)
}

// removed returns why the cluster ended a step's pod, or "".
func (s *StepReader) removed(a *batch.Attempt) string {
	if p := s.pods()[a.Native]; p != nil {
		if text := p.problem(p.Status.Reason, p.Status.Message); text != "" {
			return text
		}
	}
	if e, ok := s.reader.warnings()["Pod/"+a.Native]; ok && e.disrupts() {
		return s.reader.explain(fact{from: lost, reason: e.Reason, message: e.Message, about: subject{node: a.Host}}).text
	}
	return ""
}

// Forms of Argo's messages: "main: OOMKilled (exit code 137): TEXT", of an init container that did not
// start, and of a refused pod.
var (
	stepEnd = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?s)^(?:[\w.-]+: )?(\w+) \(exit code [0-9]+\)(?:: (.*))?$`)
	})
	stepUnstarted = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?s)^Pod failed before \S+ container starts due to (\w+): (.*)`)
	})
	stepRefused = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`pods "[^"]*" is forbidden: `) })
)

// stepFact returns the fact in the message of a step, without measurements.
func stepFact(message string) fact {
	message = unmeasured(message)
	if m := stepEnd().FindStringSubmatch(message); m != nil {
		return fact{from: ended, reason: m[1], message: m[2]}
	}
	if m := stepUnstarted().FindStringSubmatch(message); m != nil {
		return fact{from: starting, reason: m[1], message: m[2]}
	}
	if stepRefused().MatchString(text.Cut(message, maxShown)) {
		return fact{from: answer, message: message}
	}
	return fact{from: ended | starting, message: message}
}
