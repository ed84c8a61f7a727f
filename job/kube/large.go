package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/batch"
)

// The Job of a large array counts its tasks and lists which of them have ended. hpcc reads a pod only
// for what the Job does not say: the host, times and exit status of a task, and why it waits.
//
//	Job unchanged since the last look   no pods, or one page of waiting ones
//	tasks that run or have failed       pages of their pods
//	tasks that have succeeded           pages of all, or one request for the few that are new
//
// The records of a page are written before the next page is requested, and the place in the list is
// kept. So a look that ends early, at its deadline, goes on in the next one.

// pageSize is the number of objects in a page, and of tasks that one request names.
const pageSize = 500

// indexLabel is the label of a pod with the position of its task (Kubernetes 1.28).
const indexLabel = "batch.kubernetes.io/job-completion-index"

// isLarge reports whether the pods of a Job of s fill more than a page.
func isLarge(s *batch.Submitted, i int) bool {
	return !s.Job.AcrossPods() && s.Arrays[i].Count() > pageSize
}

// eachPage lists objects of the namespace from the page of a token, "" for the first. each gets a page
// with its token and that of the next page, which is "" after the last. It gets the first page again
// if the server no longer knows the list.
func eachPage[T any](ctx context.Context, api *Proxy, resource, query, token string, each func(items []T, token, next string) error) error {
	for expiries := 0; ; {
		var page struct {
			Metadata struct{ Continue string }
			Items    []T
		}
		err := api.get(ctx, fmt.Sprintf("%s?limit=%d&%s&continue=%s", resource, pageSize, query, url.QueryEscape(token)), &page)
		if old := new(expiredError); errors.As(err, &old) && token != "" && expiries < maxExpiries {
			token = old.next
			expiries++
			continue
		}
		if err != nil {
			return err
		}
		if err := each(page.Items, token, page.Metadata.Continue); err != nil {
			return err
		}
		if token = page.Metadata.Continue; token == "" {
			return nil
		}
	}
}

// errEnough ends a list before its last page.
var errEnough = errors.New("no more pages are needed")

// maxExpiries is how often a list may expire while it is read.
const maxExpiries = 10

// An expiredError is the answer to a token that is too old. next continues the list with the present
// state of the objects; "" if it cannot be continued.
type expiredError struct {
	err  *Error
	next string
}

func (e *expiredError) Error() string { return e.err.Error() }
func (e *expiredError) Unwrap() error { return e.err }

// refusal returns the error for an answer of the server.
func refusal(code int, status string, body []byte) error {
	var answer struct {
		Message  string
		Metadata struct{ Continue string }
	}
	if json.Unmarshal(body, &answer) == nil && answer.Message != "" {
		body = []byte(answer.Message)
	}
	err := &Error{code, readError(body, errors.New(status))}
	if code == http.StatusGone {
		return &expiredError{err, answer.Metadata.Continue}
	}
	return err
}

// QueryKept returns the queue state of jobs, and writes records of large ones; see [batch.Keeper].
func (k System) QueryKept(ctx context.Context, list []*batch.Submitted) (map[string]batch.State, error) {
	var small, large []string
	var surveys []*survey
	for _, s := range list {
		for i, id := range s.Natives {
			if !isLarge(s, i) {
				small = append(small, id)
				continue
			}
			large = append(large, id)
			surveys = append(surveys, &survey{ctx: ctx, k: k, s: s, i: i, array: s.Arrays[i]})
		}
	}
	if len(large) == 0 {
		return k.Query(ctx, small)
	}
	api, err := k.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer api.Close()
	known := map[string]batch.State{}
	if len(small) > 0 {
		if known, err = k.query(ctx, api, small); err != nil {
			return nil, err
		}
	}
	jobs, err := listOf[jobState](ctx, api, "/apis/batch/v1/"+api.Path("jobs"), jobsSelector(large))
	if err != nil {
		return nil, fmt.Errorf("querying %s for jobs: %w", title(k.Target), err)
	}
	for _, l := range surveys {
		id := l.s.Natives[l.i]
		if at := slices.IndexFunc(jobs, func(o jobState) bool { return o.Metadata.Labels[jobLabel] == id }); at >= 0 {
			l.job = &jobs[at]
		}
		l.api = api
		st, there, err := l.state()
		if err != nil {
			return nil, fmt.Errorf("querying %s for pods: %w", title(k.Target), err)
		}
		if there {
			known[id] = st
		}
	}
	return known, nil
}

// A survey reads what has changed in a large Job since the last one.
type survey struct {
	ctx   context.Context
	k     System
	api   *Proxy
	s     *batch.Submitted
	i     int       // of s.Natives
	array job.Array // of the Job's tasks
	job   *jobState // nil: it is deleted
	kept  progress

	completed, failed map[int]bool      // positions of tasks that have ended
	last              map[int]*job.Task // records by index
	earlier           map[int]int       // number of earlier attempts by index
	known             map[run]bool      // attempts with a complete record
	pulls             map[string]time.Duration
	params            job.Params
	pods, running     int        // that were read
	indexed           bool       // these have the index label
	leaving           []podState // pods that are deleted and have not ended
}

// A run identifies an attempt of a task.
type run struct {
	pod   string
	start int64
}

func runOf(t *job.Task) run { return run{t.Native, t.Start.UnixNano()} }

// progress is what surveys at a Job keep for the next one.
type progress struct {
	Seen       string `json:"seen,omitempty"`       // version of the Job at the last complete look
	Unfinished string `json:"unfinished,omitempty"` // token of the page to go on with, in the list of pods that have not succeeded
	Succeeded  string `json:"succeeded,omitempty"`  // the same for those that have
}

// progressFile is the file, in a job's directory, with the progress of its native jobs.
const progressFile = "pods.json"

// state writes the records of the Job's tasks and returns its queue state, without them. It returns
// false if the cluster has nothing of the Job. At the deadline of its context, it leaves the rest of
// the records to the next look.
func (l *survey) state() (st batch.State, there bool, err error) {
	if err := l.open(); err != nil {
		return st, false, err
	}
	var all struct {
		Jobs map[string]progress `json:"jobs"` // by native ID
	}
	if l.s.Home != "" && job.ReadJSON(filepath.Join(l.s.Home, progressFile), &all) == nil {
		l.kept = all.Jobs[l.s.Natives[l.i]]
	}
	if all.Jobs == nil {
		all.Jobs = map[string]progress{}
	}
	before := l.kept
	if l.job != nil {
		st = l.counts()
	}
	err = l.read()
	if l.kept != before {
		all.Jobs[l.s.Natives[l.i]] = l.kept
		if b, jerr := json.Marshal(all); jerr == nil {
			err = errors.Join(err, files.Write(filepath.Join(l.s.Home, progressFile), b))
		}
	}
	if errors.Is(l.ctx.Err(), context.DeadlineExceeded) {
		err = nil
	}
	if l.job == nil {
		return batch.State{Running: l.running}, l.pods > 0, err
	}
	if st.Reason == "" && len(l.leaving) > 0 {
		st.Reason = l.why(l.leaving, &st)
	}
	for _, k := range l.unrecorded(l.completed) {
		st.Done = append(st.Done, l.index(k))
	}
	for _, k := range l.unrecorded(l.failed) {
		st.Failed = append(st.Failed, l.index(k))
	}
	return st, true, err
}

// open reads the records of the job, and which tasks of the Job have ended.
func (l *survey) open() error {
	if l.params = l.s.Job.Params; l.params.Reopen() != nil { // see Record
		l.params = job.Params{}
	}
	l.last, l.earlier, l.known = map[int]*job.Task{}, map[int]int{}, map[run]bool{}
	if l.completed, l.failed = map[int]bool{}, map[int]bool{}; l.job != nil {
		l.completed, l.failed = positions(l.job.Status.CompletedIndexes), positions(l.job.Status.FailedIndexes)
	}
	if l.s.Home == "" {
		return nil
	}
	var r job.Records
	err := r.Read(l.s.Home, true)
	for i := range r.Last {
		l.note(&r.Last[i])
	}
	for i := range r.Earlier {
		l.earlier[r.Earlier[i].Index]++
		l.known[runOf(&r.Earlier[i])] = true
	}
	return err
}

// note adds the record of a task's last attempt.
func (l *survey) note(t *job.Task) {
	l.last[t.Index] = t
	if t.Ended() {
		l.known[runOf(t)] = true
	}
}

// positions parses the indexes in the status of a Job.
func positions(text string) map[int]bool {
	set := map[int]bool{}
	if a, err := job.ParseArray(text); err == nil {
		for k := range a.All() {
			set[k] = true
		}
	}
	return set
}

// index returns the index of the task at a position in the Job.
func (l *survey) index(position int) int {
	k, _ := l.array.Nth(position + 1)
	return k
}

// rerun reports whether a later Job has the task at a position.
func (l *survey) rerun(position int) bool { return isIn(l.s.Arrays[l.i+1:], l.index(position)) }

// counts returns the queue state by the Job's own counts. Its reason is that of the first page of
// waiting pods.
func (l *survey) counts() batch.State {
	var waiting []podState
	if o := &l.job.Status; o.Active > o.Ready && l.s.Only == nil {
		waiting, _ = pagesOf[podState](l.ctx, l.api, "/api/v1/"+l.api.Path("pods"), l.selector("status.phase=Pending", nil), 1)
	}
	st := l.job.queueState(waiting)
	st.Tasks = nil
	st.Running = min(l.job.Status.Ready, st.Waiting)
	st.Waiting -= st.Running
	idle := l.job.Status.Active == 0 && len(l.completed)+len(l.failed) < l.array.Count() // the Job has no pods
	if l.s.Only == nil && (len(waiting) > 0 || idle || l.job.suspended()) {
		st.Reason = l.why(waiting, &st)
	}
	return st
}

// why returns why tasks do not start or go on, from their pods.
func (l *survey) why(pods []podState, st *batch.State) string {
	return newReader(l.ctx, l.api, []jobState{*l.job}).job(l.job, pods, st)
}

// selector returns the query for pods of the Job, by their fields and the positions of their tasks.
func (l *survey) selector(fields string, positions []int) string {
	labels := jobLabel + "=" + l.s.Natives[l.i]
	if len(positions) > 0 {
		var list []string
		for _, k := range positions {
			list = append(list, strconv.Itoa(k))
		}
		labels += "," + indexLabel + " in (" + strings.Join(list, ",") + ")"
	}
	return "labelSelector=" + url.QueryEscape(labels) + "&fieldSelector=" + url.QueryEscape(fields)
}

// read writes the records that are missing.
func (l *survey) read() error {
	if l.s.Only != nil {
		return l.readOnly()
	}
	if l.job != nil && l.kept.Seen == l.job.Metadata.ResourceVersion && len(l.unrecorded(l.completed)) == 0 &&
		len(l.unrecorded(l.failed)) == 0 {
		return nil
	}
	started := l.kept.Unfinished == ""
	if err := l.unfinished(); err != nil || l.job == nil {
		return err
	}
	if err := l.succeeded(); err != nil {
		return err
	}
	if !started { // the list may be older than the Job
		return nil
	}
	for _, k := range l.unrecorded(l.failed) {
		t := l.withoutPod(k)
		t.Exit, t.Problem = ExitLost, "failed; the cluster had deleted its pod before hpcc could read it"
		if err := t.Write(l.s.Home); err != nil {
			return err
		}
		l.note(t)
	}
	l.kept.Seen = l.job.Metadata.ResourceVersion
	return nil
}

// readOnly writes the records of the tasks that the caller has named.
func (l *survey) readOnly() error {
	var want []int
	position := 0
	for k := range l.array.All() {
		if before := l.last[k]; slices.Contains(l.s.Only, k) && (before == nil || !before.Ended()) && !l.rerun(position) {
			want = append(want, position)
		}
		position++
	}
	for part := range slices.Chunk(want, pageSize) {
		if err := l.all("", part); err != nil {
			return err
		}
	}
	return nil
}

// all reads all pods that a selector matches, and writes their records. On clusters whose pods have no
// index label, no positions select pods, so it reads those of all tasks.
func (l *survey) all(fields string, positions []int) error {
	var pods []podState
	err := eachPage(l.ctx, l.api, "/api/v1/"+l.api.Path("pods"), l.selector(fields, positions), "",
		func(items []podState, token, _ string) error {
			if token == "" {
				pods = nil
			}
			pods = append(pods, items...)
			return nil
		})
	if err != nil {
		return err
	}
	if len(pods) == 0 && len(positions) > 0 && !l.indexed {
		return l.all(fields, nil)
	}
	return l.record(pods)
}

// unfinished reads the pods of tasks that run or have failed. The pods of a task follow each other in
// the list, which is ordered by name. Those of the last task in a page wait for the next page.
func (l *survey) unfinished() error {
	var rest []podState
	query := l.selector("status.phase!=Succeeded,status.phase!=Pending", nil)
	err := eachPage(l.ctx, l.api, "/api/v1/"+l.api.Path("pods"), query, l.kept.Unfinished,
		func(items []podState, token, next string) error {
			if token == "" {
				rest = nil
			}
			l.kept.Unfinished = token
			rest = append(rest, items...)
			n := len(rest)
			for next != "" && n > 0 && rest[n-1].Index() == rest[len(rest)-1].Index() {
				n--
			}
			err := l.record(slices.Clone(rest[:n]))
			rest = rest[n:]
			return err
		})
	if err == nil {
		l.kept.Unfinished = ""
	}
	return err
}

// succeeded reads the pods of successful tasks without a record. A task whose pod is deleted gets a
// record without its times.
func (l *survey) succeeded() error {
	missing := l.unrecorded(l.completed)
	for started := false; len(missing) > pageSize && !started; missing = l.unrecorded(l.completed) {
		started = l.kept.Succeeded == ""
		query := l.selector("status.phase=Succeeded", nil)
		err := eachPage(l.ctx, l.api, "/api/v1/"+l.api.Path("pods"), query, l.kept.Succeeded, func(items []podState, _, next string) error {
			if err := l.record(items); err != nil {
				return err
			}
			l.kept.Succeeded = next
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(missing) > 0 && len(missing) <= pageSize {
		if err := l.all("status.phase=Succeeded", missing); err != nil {
			return err
		}
	}
	var list []job.Task
	for _, k := range l.unrecorded(l.completed) {
		list = append(list, *l.withoutPod(k))
	}
	return l.collect(list)
}

// withoutPod returns the record of a task that has ended and whose pod is deleted.
func (l *survey) withoutPod(position int) *job.Task {
	k, now := l.index(position), time.Now().UTC()
	return &job.Task{Index: k, Attempt: l.earlier[k], Start: now, End: now, Gone: true, Params: l.params.Row(k)}
}

// unrecorded returns the positions of ended tasks without a complete record.
func (l *survey) unrecorded(ended map[int]bool) (list []int) {
	for k := range ended {
		if t := l.last[l.index(k)]; (t == nil || !t.Ended()) && !l.rerun(k) {
			list = append(list, k)
		}
	}
	slices.Sort(list)
	return list
}

// record writes the records of pods. All pods of a task that have not succeeded must be among them.
func (l *survey) record(pods []podState) error {
	var st batch.State
	learnPods(&st, pods, func(k int) bool { return l.failed[k] || (!l.completed[k] && (l.job == nil || l.job.ended())) })
	l.pods, l.running = l.pods+len(pods), l.running+st.Running
	for i := range pods {
		l.indexed = l.indexed || pods[i].Metadata.Labels[indexLabel] != ""
		if pods[i].Metadata.DeletionTimestamp != nil && !pods[i].over() {
			l.leaving = append(l.leaving, pods[i])
		}
	}
	var good []job.Task
	for i := range st.Tasks {
		a := &st.Tasks[i]
		k, rerun := l.index(a.Index), l.rerun(a.Index)
		before := l.last[k]
		if before == nil {
			before = &job.Task{}
		}
		same := before.Native == a.Native && before.Host == a.Host && before.Start.Equal(a.Start)
		if l.known[runOf(&a.Task)] || before.OK() || (same && !a.Ended()) {
			continue
		}
		if err := l.addMeasurements(a); err != nil {
			return err
		}
		t := a.Task
		t.Index, t.Params = k, l.params.Row(k)
		if collect := a.OK() && a.Last && !rerun && (l.last[k] == nil || (before.Native == a.Native && !before.Ended())); collect {
			t.Attempt = l.earlier[k]
			if l.s.Job.Measured() {
				if err := l.k.keepMeasured(l.s, a, &t); err != nil {
					return err
				}
			}
			good = append(good, t)
			continue
		}
		if err := l.k.recordAttempt(l.s, l.i, a, l.params); err != nil {
			return err
		}
		if a.Last || !a.Ended() {
			l.note(&t)
		} else if l.earlier[k]++; before.Native == a.Native {
			delete(l.last, k)
		}
	}
	return l.collect(good)
}

// collect writes the records of successful tasks.
func (l *survey) collect(list []job.Task) error {
	if len(list) == 0 {
		return nil
	}
	if err := list[0].CollectWith(l.s.Home, list[1:]...); err != nil {
		return err
	}
	for i := range list {
		l.note(&list[i])
	}
	return nil
}

// addMeasurements sets how long the image pull of a measured attempt took.
func (l *survey) addMeasurements(a *batch.Attempt) error {
	if !l.s.Job.Measured() || !a.Ended() {
		return nil
	}
	if l.pulls == nil {
		l.pulls = l.api.pullTimes(l.ctx)
	}
	a.Pulled = l.pulls[a.Native]
	return l.ctx.Err()
}
