// Package dispatch knows all batch systems and what to do with jobs across them: submit,
// status, logs, cancel, rerun, capacity and sites.
//
//	cmd/hpcc ─► dispatch ─► registry ─► batch.System of one target
//	                     ─► job.json, records of tasks
//	                     ─► ssh ─► hpcc of a remote site
//
// The records of the tasks come first. A batch system is queried, once for all jobs, only
// for what the records lack. So status survives an outage of the accounting.
package dispatch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/atomicfile"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/node"
	"hpcc/store/seal"
)

// A Submission is a submitted job, as stored in job.json in its directory.
type Submission struct {
	ID     string `json:"id"`               // hpcc's ID, the name of the directory
	Native string `json:"native,omitempty"` // the target's ID; "" until it has answered
	Cluster
	Submitted time.Time `json:"submitted"`
	Job       *job.Job  `json:"job"`
	Cancelled time.Time `json:"cancelled,omitzero"` // when it was cancelled
	Reruns    []Rerun   `json:"reruns,omitempty"`
	Scripts   digests   `json:"scripts,omitempty"` // of the submitted files
	Over      bool      `json:"over,omitempty"`    // a foreign workflow has ended, so no steps will be added

	ended     <-chan struct{} // closed when a job that is a child of this process ends
	namesakes int             // jobs with the name by which this one, the newest, was found; else 0
}

// Namesakes returns the number of jobs with the name by which the job was found; 0 if it was
// found by its ID.
func (s *Submission) Namesakes() int { return s.namesakes }

// digests maps files of a job's directory to their SHA-256 digests in hexadecimal.
type digests map[string]string

// writeScript writes a script or manifest of the job and records its digest.
func (s *Submission) writeScript(file, text string) error {
	if s.Scripts == nil {
		s.Scripts = digests{}
	}
	sum := sha256.Sum256([]byte(text))
	s.Scripts[filepath.Base(file)] = hex.EncodeToString(sum[:])
	return atomicfile.WriteSynced(file, []byte(text))
}

// A Rerun is a resubmission of some tasks of a job.
type Rerun struct {
	Native    string    `json:"native"`
	Submitted time.Time `json:"submitted"`
	Array     job.Array `json:"array,omitzero"` // the tasks; empty for a job without an array
}

// natives returns the native IDs of the job, the latest last.
func (s *Submission) natives() []string {
	ids := []string{s.Native}
	for _, r := range s.Reruns {
		if r.Native != s.Native { // a retried workflow keeps its ID
			ids = append(ids, r.Native)
		}
	}
	return ids
}

// Submit submits a job. dir holds the job directories; the job's own gets the script,
// job.json and the task records. With wait, Submit returns when the job has ended. A
// refused job leaves no files behind.
func Submit(ctx context.Context, dir string, j *job.Job, to Cluster, wait bool) (*Submission, []string, error) {
	if j.Interactive {
		return nil, nil, errors.New("an interactive job runs at a terminal and cannot be submitted")
	}
	s := &Submission{Cluster: to, Submitted: time.Now().UTC().Truncate(time.Second), Job: j}
	home, script, notes, err := s.create(dir)
	if err != nil {
		return nil, nil, err
	}
	if err := s.send(ctx, home, script, wait); err != nil {
		if s.Native == "" {
			os.RemoveAll(home)
		}
		return nil, nil, err
	}
	return s, notes, nil
}

// Interact creates the directory of an interactive job that this process runs, by bash with
// the script. The job lives as long as the process.
func Interact(dir string, j *job.Job, to Cluster) (s *Submission, script string, notes []string, err error) {
	s = &Submission{Cluster: to, Submitted: time.Now().UTC().Truncate(time.Second), Job: j, Native: node.ProcessID(os.Getpid())}
	home, script, notes, err := s.create(dir)
	if err != nil {
		return nil, "", nil, err
	}
	return s, script, notes, s.write(home)
}

// Keep creates the directory and script of an interactive job that another process will
// run. The job has no record before it starts.
func Keep(dir string, j *job.Job, to Cluster) (s *Submission, script string, notes []string, err error) {
	s = &Submission{Cluster: to, Submitted: time.Now().UTC().Truncate(time.Second), Job: j}
	_, script, notes, err = s.create(dir)
	return s, script, notes, err
}

// create creates the job's directory and its script. It moves the values of variables to
// separate files, which s.Job then names. A refused job leaves no files behind.
func (s *Submission) create(dir string) (home, script string, notes []string, err error) {
	if _, notes, err = Render(s.Job, s.Target); err != nil {
		return "", "", nil, err
	}
	if err := s.Job.Prepare(); err != nil {
		return "", "", nil, err
	}
	if home, err = s.directory(dir); err != nil {
		return "", "", nil, fmt.Errorf("creating a directory for job %q: %w", s.Job.Name, err)
	}
	text := ""
	if s.Job, err = s.Job.HideValues(home, s.Target); err == nil {
		text, _, err = Render(s.Job, s.Target)
	}
	script = filepath.Join(home, "script")
	if err == nil {
		err = s.writeScript(script, text)
	}
	if err != nil {
		os.RemoveAll(home)
		return "", "", nil, fmt.Errorf("writing the script of the job: %w", err)
	}
	return home, script, notes, nil
}

// directory creates the job's directory and sets the ID: name, date, time, and a number if
// two jobs with that name start in one second. If the job carries values of variables, only
// the owner can open the directory.
func (s *Submission) directory(dir string) (string, error) {
	if err := atomicfile.MakeDir(dir); err != nil {
		return "", err
	}
	mode := 0o777 & atomicfile.Perm(filepath.Join(dir, "job"))
	if s.Job.CarriesValues() {
		mode = 0o700
	}
	id := s.Job.Name + "-" + s.Submitted.Local().Format("060102-150405")
	for n := 2; ; n++ {
		home := filepath.Join(dir, id)
		err := os.Mkdir(home, mode)
		if err == nil {
			s.ID = id
			return home, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
		id = fmt.Sprintf("%s-%s-%d", s.Job.Name, s.Submitted.Local().Format("060102-150405"), n)
	}
}

// send records the submission, submits the script, and records the native ID.
func (s *Submission) send(ctx context.Context, home, script string, wait bool) error {
	if err := s.write(home); err != nil {
		return err
	}
	if err := s.Submit(ctx, s.Job, script); err != nil {
		return err
	}
	if err := s.write(home); err != nil || !wait {
		return err
	}
	return s.await(ctx, home)
}

// Submit submits the script of j: the job, or its tasks that run again.
func (s *Submission) Submit(ctx context.Context, j *job.Job, script string) error {
	r := &batch.Request{ID: s.ID, Job: j, Script: script, Rewrite: func(text string) error { return s.writeScript(script, text) }}
	if err := systemOf(s.Target).Submit(s.Within(ctx), r); err != nil {
		return err
	}
	s.Native, s.ended = r.Native, r.Ended
	return nil
}

func (s *Submission) write(home string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		b, err = seal.Object(b)
	}
	if err == nil {
		err = atomicfile.WriteSynced(filepath.Join(home, "job.json"), b)
	}
	if err != nil {
		return fmt.Errorf("recording job %q: %w", s.Job.Name, err)
	}
	return nil
}

// askEach and keptEach are after how many polls of the records a waiting submission queries
// the scheduler.
const (
	askEach  = 10
	keptEach = 3 // if the scheduler keeps the records
)

// await returns when the job has ended. If ctx ends first, await also cancels a job that is
// a child of this process.
func (s *Submission) await(ctx context.Context, home string) error {
	err := s.watch(ctx, home)
	switch {
	case err != nil && s.ended != nil:
		return errors.Join(err, systemOf(s.Target).Cancel(s.Within(context.WithoutCancel(ctx)), s.Native))
	case err != nil:
		return fmt.Errorf("waiting for job %s (%s %s, still active): %w", s.ID, s.Target, s.Native, err)
	}
	return nil
}

func (s *Submission) watch(ctx context.Context, home string) error {
	for n := 1; ; n++ {
		st := &Status{Submission: s, Total: s.Job.Count()}
		var err error
		st.Tasks, err = job.Tasks(home)
		if _, err := job.Readable(err); err != nil {
			return err
		}
		returns := false
		if st.count() == 0 {
			if returns = slices.ContainsFunc(st.Failed, st.returns); !returns {
				return nil
			}
		}
		switch {
		case s.keeper() != nil:
			if n%keptEach == 0 && settle(ctx, filepath.Dir(home), []*Status{st}, invoke.Patience) == nil && st.Running+st.Waiting == 0 {
				return nil
			}
		case returns || n%askEach == 0:
			if known, err := s.Query(ctx, s.natives(), invoke.Patience); err == nil && s.standing(known).Gone() {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ended:
			return nil
		case <-time.After(batch.Poll):
		}
	}
}

// scheduler returns the cluster's batch system.
func (c Cluster) scheduler() (batch.System, error) {
	to := systemOf(c.Target)
	if to == nil {
		return nil, fmt.Errorf("unknown target %q: a newer hpcc submitted the job", c.Target)
	}
	return to, nil
}

// standing sums the queue states of the job and its reruns.
func (s *Submission) standing(known map[string]batch.QueueState) batch.QueueState {
	var sum batch.QueueState
	if s.Job.Interactive {
		alive, here := node.Alive(s.Native)
		return batch.QueueState{Alive: alive || !here}
	}
	for _, id := range s.natives() {
		n := known[id]
		sum.Running, sum.Waiting, sum.Alive = sum.Running+n.Running, sum.Waiting+n.Waiting, sum.Alive || n.Alive
		if n.Reason != "" {
			sum.Reason = n.Reason
		}
	}
	return sum
}

// A Status is the state of a job.
type Status struct {
	*Submission
	Total   int        `json:"total"`
	Done    int        `json:"done"`
	Failed  []int      `json:"failed,omitempty"` // indices of tasks that ended badly
	Running int        `json:"running"`
	Waiting int        `json:"waiting"`
	Stopped int        `json:"stopped"`          // ended by cancelling the job, or not begun because of it
	Lost    int        `json:"lost"`             // neither ended nor known to the scheduler
	Reason  string     `json:"reason,omitempty"` // why tasks wait, in the scheduler's word
	Tasks   []job.Task `json:"-"`

	AsOf time.Time `json:"as_of,omitzero"` // when the site, which does not answer, did last

	unkept error // why not all could be kept that the target tells of its tasks
	later  bool  // nothing of it was, for another look may bring what was measured
}

// State is the job in one word.
func (s *Status) State() string {
	switch {
	case s.Running > 0:
		return "running"
	case s.Waiting > 0:
		return "waiting"
	case !s.Cancelled.IsZero() && s.Done < s.Total:
		return "cancelled"
	case s.Lost > 0:
		return "lost"
	case len(s.Failed) > 0:
		return "failed"
	}
	return "done"
}

// Statuses reads the jobs below dir, newest first, or those that ids name by ID, prefix or
// native ID. It queries schedulers only for jobs with incomplete records. A scheduler that
// does not answer is a warning; so is an unreadable job, unless ids name it.
func Statuses(ctx context.Context, dir string, ids []string) (list []*Status, warnings []string, err error) {
	subs, bad, err := submissions(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		if len(match(subs, []string{id})) == 0 || names(bad, id) {
			return nil, nil, noJob(id, bad)
		}
	}
	if len(ids) == 0 {
		for _, b := range bad {
			warnings = append(warnings, b.Error())
		}
	}
	open := map[string][]*Status{} // by cluster
	for _, s := range match(subs, ids) {
		st := &Status{Submission: s, Total: s.Job.Count()}
		st.Tasks, err = job.Tasks(filepath.Join(dir, s.ID))
		warning, err := job.Readable(err)
		if err != nil && len(ids) == 0 {
			warnings = append(warnings, fmt.Sprintf("skipping job %s: %v", s.ID, err))
			continue
		} else if err != nil {
			return nil, nil, err
		}
		if warning != "" {
			warnings = append(warnings, fmt.Sprintf("job %s: %s", s.ID, warning))
		}
		if st.count() > 0 || slices.ContainsFunc(st.Failed, st.returns) || slices.ContainsFunc(st.Tasks, st.unread) {
			open[s.key()] = append(open[s.key()], st)
		}
		list = append(list, st)
	}
	return list, append(warnings, settleAll(ctx, dir, open)...), nil
}

// settleAll queries the clusters concurrently and returns their errors as warnings.
func settleAll(ctx context.Context, dir string, open map[string][]*Status) (warnings []string) {
	clusters := slices.Sorted(maps.Keys(open))
	answers := make([]error, len(clusters))
	var g sync.WaitGroup
	for i, key := range clusters {
		g.Go(func() { answers[i] = settle(ctx, dir, open[key], invoke.Glance) })
	}
	g.Wait()
	for i, err := range answers {
		if err != nil {
			warnings = append(warnings, err.Error())
		}
		for _, st := range open[clusters[i]] {
			if st.unkept != nil {
				warnings = append(warnings, fmt.Sprintf("job %s: %v", st.ID, st.unkept))
			}
		}
	}
	return warnings
}

// settle queries a cluster once about the open tasks of its jobs. If it does not answer,
// they count as waiting.
func settle(ctx context.Context, dir string, list []*Status, limit time.Duration) error {
	var ids []string
	for _, st := range list {
		ids = append(ids, st.natives()...)
	}
	known, err := list[0].Query(ctx, ids, limit)
	for _, st := range list {
		if err != nil {
			st.Waiting = st.open() - st.Running
			continue
		}
		if st.keeper() != nil {
			st.unkept = st.renew(ctx, filepath.Join(dir, st.ID), known)
		}
		st.settle(st.standing(known))
	}
	return err
}

// unread reports whether the cluster still holds the output of a task that has ended. It
// removes the output after a while.
func (s *Status) unread(t job.Task) bool {
	k := s.keeper()
	return k != nil && k.Unread(s.kept(""), &t)
}

// collecting limits one collection of logs: logs of lost nodes never end.
const collecting = 2 * time.Minute

// renew writes the records that the target keeps, collects the tasks' output, and counts
// again. If the usage of ended tasks is not available yet, it leaves all of that for later.
func (s *Status) renew(ctx context.Context, home string, known map[string]batch.QueueState) error {
	var unheard error
	k, kept := s.keeper(), s.kept(home)
	if s.Job.Measured() {
		if s.later, unheard = k.Hear(s.Within(ctx), kept, known); s.later {
			return unheard
		}
	}
	err := k.Learn(kept, known)
	if s.Job.Workflow != nil && err == nil && !s.Over && s.standing(known).Gone() {
		s.Over = true
		err = s.write(home)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, collecting)
		defer cancel()
		err = k.Collect(s.Within(ctx), kept, false)
	}
	tasks, rerr := job.Tasks(home)
	if _, rerr = job.Readable(rerr); rerr == nil {
		s.Tasks, s.Done, s.Failed, s.Running, s.Stopped = tasks, 0, nil, 0, 0
		s.count()
	}
	return errors.Join(unheard, err, rerr)
}

// count sorts the records by state and returns the number of tasks without an end.
func (s *Status) count() int {
	if s.Job.Workflow != nil { // its steps appear as they start, until it is over
		if s.Total = len(s.Tasks); !s.Over || s.Total == 0 {
			s.Total++
		}
	}
	for _, t := range s.Tasks {
		switch {
		case !t.Ended():
			s.Running++
		case t.OK():
			s.Done++
		case !s.Cancelled.IsZero() && !t.End.Before(s.Cancelled): // Cancelled has a resolution of one second
			s.Stopped++
		default:
			s.Failed = append(s.Failed, t.Index)
		}
	}
	return s.open()
}

// open returns the number of tasks without an end.
func (s *Status) open() int { return s.Total - s.Done - len(s.Failed) - s.Stopped }

// settle counts the open tasks by the scheduler's queue state.
func (s *Status) settle(n batch.QueueState) {
	if s.later { // the scheduler knows more than the records
		s.Waiting = s.open() - s.Running
		return
	}
	if n.Alive {
		if s.Job.Workflow != nil && s.Running+n.Waiting > 0 {
			s.Total += n.Waiting - 1
		}
		s.Waiting, s.Reason = s.open()-s.Running, n.Reason
		return
	}
	back := max(0, n.Running+n.Waiting-s.open()) // ended tasks that the scheduler has requeued
	s.Failed = slices.DeleteFunc(s.Failed, func(k int) bool {
		if back == 0 || !s.returns(k) {
			return false
		}
		back--
		return true
	})
	s.Running, s.Waiting, s.Reason = n.Running, n.Waiting, n.Reason
	s.Lost = max(0, s.open()-s.Running-s.Waiting)
	if !s.Cancelled.IsZero() {
		s.Lost, s.Stopped = 0, s.Stopped+s.Lost
	}
}

// returns reports whether the scheduler may requeue a task: a signal ended it, possibly
// because its node was lost.
func (s *Status) returns(index int) bool {
	if !s.Job.Retry.Requeue() || !s.Cancelled.IsZero() {
		return false
	}
	i := slices.IndexFunc(s.Tasks, func(t job.Task) bool { return t.Index == index })
	return i >= 0 && s.Tasks[i].Taken()
}

// An unreadableJobError reports a job whose job.json cannot be read.
type unreadableJobError struct {
	ID   string
	Home string // its directory
	Err  error
}

func (e *unreadableJobError) Error() string {
	return fmt.Sprintf("job %s: %v; its script and the records of its tasks are in %s: restore job.json, or remove the directory", e.ID, e.Err, e.Home)
}

func (e *unreadableJobError) Unwrap() error { return e.Err }

// names reports whether an unreadable job has exactly this ID. A prefix does not count.
func names(bad []*unreadableJobError, id string) bool {
	return slices.ContainsFunc(bad, func(b *unreadableJobError) bool { return b.ID == id })
}

// noJob returns the error for an ID that no readable job has.
func noJob(id string, bad []*unreadableJobError) error {
	for _, b := range bad {
		if strings.HasPrefix(b.ID, id) {
			return b
		}
	}
	return &NoJobError{id}
}

// submissions reads all jobs, newest first, and lists the unreadable ones. It skips a
// directory without job.json, whose script was submitted by hand.
func submissions(dir string) (out []*Submission, bad []*unreadableJobError, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("reading the jobs: %w", err)
	}
	for _, e := range entries {
		home := filepath.Join(dir, e.Name())
		s, err := ReadJob(home)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && s.ID != e.Name() {
			err = fmt.Errorf("reading %q: the job has another ID", filepath.Join(home, "job.json"))
		}
		if err != nil {
			bad = append(bad, &unreadableJobError{e.Name(), home, err})
			continue
		}
		out = append(out, s)
	}
	sort.Slice(out, func(i, j int) bool {
		if !out[i].Submitted.Equal(out[j].Submitted) {
			return out[i].Submitted.After(out[j].Submitted)
		}
		return out[i].ID > out[j].ID
	})
	return out, bad, nil
}

// ReadJob reads the job in the directory home. The error is [fs.ErrNotExist] if home is not a
// job's directory.
func ReadJob(home string) (*Submission, error) {
	s := &Submission{}
	file := filepath.Join(home, "job.json")
	if err := job.ReadJSON(file, s); err != nil {
		return nil, err
	}
	if s.Job == nil {
		return nil, fmt.Errorf("reading %q: not a job", file)
	}
	return s, nil
}

// match returns the jobs that ids name, in the order of subs; all of them without ids.
func match(subs []*Submission, ids []string) []*Submission {
	if len(ids) == 0 {
		return subs
	}
	named := map[*Submission]bool{}
	for _, id := range ids {
		for _, s := range matchOne(subs, id) {
			named[s] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(subs), func(s *Submission) bool { return !named[s] })
}

// matchOne returns the job with an ID or native ID, else the newest job with that name, else
// the jobs whose IDs begin with id.
func matchOne(subs []*Submission, id string) []*Submission {
	if id == "" {
		return nil
	}
	var exact, named, begins []*Submission
	for _, s := range subs {
		switch {
		case s.ID == id || s.Native == id:
			exact = append(exact, s)
		case s.Job != nil && s.Job.Name == id:
			named = append(named, s)
		case strings.HasPrefix(s.ID, id):
			begins = append(begins, s)
		}
	}
	switch {
	case len(exact) > 0:
		return exact
	case len(named) > 0:
		newest := slices.MaxFunc(named, func(a, b *Submission) int { return a.Submitted.Compare(b.Submitted) })
		newest.namesakes = len(named)
		return []*Submission{newest}
	}
	return begins
}

// HandedIn returns the name, target and submission time of a starting task's job (see
// [Submission.HandedInFor]). They are zero if the script was submitted by hand.
func HandedIn(home string, t *job.Task) (name string, to job.Target, at time.Time) {
	var s Submission
	if job.ReadJSON(filepath.Join(home, "job.json"), &s) != nil {
		return "", "", at
	}
	if s.Job != nil {
		name = s.Job.Name
	}
	return name, s.Target, s.HandedInFor(t)
}

// HandedInFor returns the time of the last submission before the task started: a rerun
// submits some tasks of a job again.
func (s *Submission) HandedInFor(t *job.Task) time.Time {
	at := s.Submitted
	for _, r := range s.Reruns {
		if (r.Array.IsZero() || r.Array.Has(t.Index)) && !r.Submitted.After(t.Start) {
			at = r.Submitted
		}
	}
	return at
}
