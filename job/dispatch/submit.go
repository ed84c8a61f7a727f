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
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/node"
	"hpcc/metrics"
	"hpcc/text"
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

	dry       bool            // the job is only checked
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
	return files.WriteSynced(file, []byte(text))
}

// A Rerun is a resubmission of some tasks of a job.
type Rerun struct {
	Native    string        `json:"native"` // "" until the target has answered
	Submitted time.Time     `json:"submitted"`
	Array     job.Array     `json:"array,omitzero"`         // the tasks; empty for a job without an array
	Memory    int64         `json:"memory_bytes,omitempty"` // per node, if not as the job
	Time      time.Duration `json:"time_ns,omitempty"`      // if not as the job
	First     int           `json:"first,omitempty"`        // of a packed job: the records of earlier attempts do not count
	Image     string        `json:"image,omitempty"`        // of this submission and those after it, if not as the job
	job.ImageVersion
}

// natives returns the native IDs of the job, the latest last.
func (s *Submission) natives() []string {
	if s.Job.Interactive { // Native is a process of hpcc
		return nil
	}
	ids := []string{s.Native}
	for _, r := range s.Reruns {
		if r.Native != "" && r.Native != s.Native { // a retried workflow keeps its ID
			ids = append(ids, r.Native)
		}
	}
	return ids
}

// Submit submits a job. dir holds the job directories; the job's own gets the script,
// job.json and the task records. A refused job leaves no files behind; one whose submission has no
// answer keeps them (see [unansweredError]).
func Submit(ctx context.Context, dir string, j *job.Job, to Cluster) (*Submission, []string, error) {
	if j.Interactive {
		return nil, nil, errors.New("an interactive job runs at a terminal and cannot be submitted")
	}
	packed := packLarge(ctx, j, to)
	s := newSubmission(j, to)
	home, script, notes, err := s.create(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	notes = append(packed, notes...)
	if err := s.send(ctx, home, script); err != nil {
		if s.Native == "" && !errors.As(err, new(*unansweredError)) {
			os.RemoveAll(home)
		}
		return nil, nil, err
	}
	return s, notes, nil
}

// A neverError is the refusal of a job that its site would accept and never start.
type neverError struct{ job, why string }

func (e *neverError) Error() string { return fmt.Sprintf("job %q would never start: %s", e.job, e.why) }

// Advice returns what to do next.
func (e *neverError) Advice() string {
	return "request less; if the site allows more, pass the request to its scheduler with --native"
}

// checkLimits returns a neverError if the site never grants the requests of a job. If options that only the
// scheduler reads could change that, it returns a note instead.
func checkLimits(ctx context.Context, j *job.Job, t job.Target) (notes []string, err error) {
	never := descriptionOf(t).Never
	if never == nil {
		return nil, nil
	}
	if j.Packed() {
		j = j.Allocation(true)
	}
	switch why, sure := never(ctx, j); {
	case why == "":
		return nil, nil
	case !sure || len(j.Native) > 0 || j.QoS != "":
		return []string{"the job may never start: " + why}, nil
	default:
		return nil, &neverError{j.Name, why}
	}
}

// usualArray is the number of tasks that all sites take as an array.
const usualArray = 1000

// packLarge packs the tasks of an array that is too large for the site, if it can, and returns a note.
func packLarge(ctx context.Context, j *job.Job, to Cluster) (notes []string) {
	limit := descriptionOf(to.Target).MaxArray
	if j.Packed() || j.MultiProcess() || limit == nil || j.Array.Count() <= usualArray {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, invoke.ShortTimeout)
	defer cancel()
	n := limit(to.Within(ctx))
	if n <= 0 || j.Array.Count() <= n {
		return nil
	}
	if j.SetPack(false); j.Check() != nil {
		j.Pack = nil // then the batch system refuses the array, with its reason
		return nil
	}
	return []string{fmt.Sprintf("the array has %d tasks, and this site takes %d, so one job runs all of them; --pack --nodes N gives it more nodes", j.Array.Count(), n)}
}

// Interact runs an interactive job on this terminal, and returns the exit status of its program. It removes the
// record of a job that the scheduler refused.
func Interact(ctx context.Context, dir string, j *job.Job, to Cluster, logf func(format string, a ...any)) (status int, err error) {
	s := newSubmission(j, to)
	s.Native = node.ProcessID(os.Getpid())
	home, script, notes, err := s.create(ctx, dir)
	if err == nil {
		err = s.write(home)
	}
	if err != nil {
		return 0, err
	}
	for _, n := range notes {
		logf("note: %s", n)
	}
	cmd := exec.Command("bash", script, s.ID)
	cmd.Env = to.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	run, err := metrics.Measure(ctx, cmd, metrics.Options{})
	tasks, terr := job.Tasks(home)
	warning, terr := job.Readable(terr)
	if warning != "" {
		logf("warning: %s", text.OneLine(warning))
	}
	if err = cmp.Or(err, terr); err == nil && len(tasks) == 0 {
		err = os.RemoveAll(home)
	}
	if err != nil {
		return 0, fmt.Errorf("running an interactive job: %w", err)
	}
	return run.Status(), nil
}

// Keep creates the directory and script of an interactive job, and returns shell commands that run the job and remove
// both. The job has no record before it starts.
func Keep(ctx context.Context, dir string, j *job.Job, to Cluster) (commands string, notes []string, err error) {
	s := newSubmission(j, to)
	_, script, notes, err := s.create(ctx, dir)
	if err != nil {
		return "", notes, err
	}
	remove := append([]string{script}, s.Job.ValueFiles()...)
	return fmt.Sprintf("bash %s; status=$?\nrm -f -- %s\nrmdir %s 2>/dev/null\nexit $status\n",
		text.Arguments([]string{script, s.ID}), text.Arguments(remove), text.Arguments([]string{filepath.Dir(script)})), notes, nil
}

func newSubmission(j *job.Job, to Cluster) *Submission {
	return &Submission{Cluster: to, Submitted: time.Now().UTC().Truncate(time.Second), Job: j}
}

// create creates the job's directory and its script. It moves the values of variables to
// separate files, which s.Job then names. A refused job leaves no files behind.
func (s *Submission) create(ctx context.Context, dir string) (home, script string, notes []string, err error) {
	if _, notes, err = s.render(ctx, s.Job); err != nil {
		return "", "", nil, err
	}
	if err := s.Job.Prepare(s.Target, s.dry); err != nil {
		return "", "", nil, err
	}
	if home, err = s.directory(dir); err != nil {
		return "", "", nil, fmt.Errorf("creating a directory for job %q: %w", s.Job.Name, err)
	}
	text := ""
	if s.Job, err = s.Job.HideValues(home, s.Target); err == nil {
		err = s.keepCaller(home)
	}
	if err == nil {
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

// Check returns an error for a job that Submit would refuse before it asks the scheduler.
func (c Cluster) Check(ctx context.Context, j *job.Job) error {
	_, _, err := c.render(ctx, j)
	return err
}

// render is [Render] for a job that is submitted next. It refuses a job that the site would never start.
func (c Cluster) render(ctx context.Context, j *job.Job) (script string, notes []string, err error) {
	if script, notes, err = Render(j, c.Target); err != nil {
		return "", nil, err
	}
	limits, err := checkLimits(c.Within(ctx), j, c.Target)
	return script, append(notes, limits...), err
}

// idTime is the layout of the time in the IDs of jobs.
const idTime = "060102-150405"

// directory creates the job's directory and sets the ID: name, date, time, and a number if
// two jobs with that name start in one second. If the job carries values of variables, only
// the owner can open the directory.
func (s *Submission) directory(dir string) (string, error) {
	if err := files.MakeDir(dir); err != nil {
		return "", err
	}
	mode := 0o777 & files.Perm(filepath.Join(dir, "job"))
	if s.Job.CarriesValues() {
		mode = 0o700
	}
	id := s.Job.Name + "-" + s.Submitted.Local().Format(idTime)
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
		id = fmt.Sprintf("%s-%s-%d", s.Job.Name, s.Submitted.Local().Format(idTime), n)
	}
}

// send records the submission, submits the script, and records the native ID.
func (s *Submission) send(ctx context.Context, home, script string) error {
	if err := s.write(home); err != nil {
		return err
	}
	if err := s.submit(ctx, s.Job, script, nil); err != nil {
		return err
	}
	if err := s.write(home); err != nil {
		return err
	}
	s.noteNative(filepath.Dir(home))
	return nil
}

// submit submits the script of j: the job, or its tasks that run again after the native jobs known.
func (s *Submission) submit(ctx context.Context, j *job.Job, script string, known []string) error {
	r := &batch.Request{ID: s.ID, Job: j, Script: script, Rewrite: func(text string) error { return s.writeScript(script, text) }}
	err := systemOf(s.Target).Submit(s.Within(ctx), r)
	if err != nil {
		err = s.settleError(ctx, r, known, err)
	}
	if err != nil {
		return err
	}
	s.Native, s.ended = r.Native, r.Ended
	return nil
}

func (s *Submission) write(home string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		b, err = files.SealObject(b)
	}
	if err == nil {
		err = files.WriteSynced(filepath.Join(home, "job.json"), b)
	}
	if err != nil {
		return fmt.Errorf("recording job %q: %w", s.Job.Name, err)
	}
	return nil
}

// When Wait queries the scheduler besides; see [pace].
const (
	askSoon = 5 // polls after the end of a job with failed tasks, each of which queries the scheduler
	askLost = 2 // queries before it gives up lost tasks, since the accounting may be late
)

// takenFor is the number of consecutive queries after which a job that its scheduler may requeue
// counts as gone: the scheduler may list it as ended for a moment.
const takenFor = 3

// Wait returns when the job below dir has ended: no task runs or waits, the scheduler has requeued
// none, and none needs a larger request. It submits the latter again, while lock keeps other
// processes from changing the job. It calls report then, and when failed tasks wait in the queue
// again, which may need an action of the user. If ctx ends first, Wait also cancels a job that is a
// child of this process.
func (s *Submission) Wait(ctx context.Context, dir string, lock func(context.Context) (release func()), report func(string)) error {
	child := s.ended != nil
	err := s.watch(ctx, dir, report)
	for err == nil && s.Job.Retry.Grows() {
		var again bool
		if again, err = s.continues(ctx, dir, lock, report); !again || err != nil {
			break
		}
		err = s.watch(ctx, dir, report)
	}
	if k := s.keeper(); k != nil && err == nil {
		err = k.Collect(s.Within(ctx), s.kept(filepath.Join(dir, s.ID)), true)
	}
	switch {
	case err != nil && child:
		return errors.Join(err, s.cancelAll(context.WithoutCancel(ctx)))
	case err != nil:
		return fmt.Errorf("waiting for job %s (%s %s, still active): %w", s.ID, s.Target, s.Native, err)
	}
	return nil
}

func (s *Submission) watch(ctx context.Context, dir string, report func(string)) error {
	reported, p := "", s.pace(nil)
	defer p.stop()
	ended := 0 // number of polls in a row that found the ends of all tasks
	lost := 0  // number of queries that found lost tasks
	gone := 0  // number of queries in a row that found nothing in the queue
	for n := 1; ; n++ {
		st := &Status{Submission: s}
		if _, err := job.Readable(st.read(dir)); err != nil {
			return err
		}
		if ended++; st.open() > 0 {
			ended = 0
		} else if !st.mayReturn() {
			return nil
		}
		if p.due(n) || (ended > 0 && ended <= askSoon) {
			err := st.refresh(ctx, dir, invoke.LongTimeout)
			accountAll(ctx, dir, []*Status{st}, invoke.LongTimeout)
			late := false // the accounting may explain lost tasks
			if _, ok := systemOf(s.Target).(batch.Accountant); ok && st.Lost > 0 {
				lost++
				late = lost <= askLost
			}
			if st.Active() || st.unrecorded > 0 || (err != nil && ended == 0) || late {
				gone = 0
			} else if gone++; gone == takenFor || err != nil || !st.taken() {
				return nil
			}
			if text := st.requeuedText(); ended > 0 && st.Waiting > 0 && text != reported {
				report(text)
				reported = text
			}
			p.asked(ctx, n, st)
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

// Verdict returns an error with a hint if a job below dir that has ended did not succeed. Its status is that of the
// program if the job has one task, and 1 otherwise.
func Verdict(ctx context.Context, dir, id string) (warnings []string, err error) {
	list, warnings, err := Statuses(ctx, dir, []string{id})
	if err != nil || list[0].Done == list[0].Total {
		return warnings, err
	}
	st := list[0]
	line := fmt.Sprintf("job %s: %d of %s did not succeed", id, st.Total-st.Done, text.Count(st.Total, "task", "tasks"))
	switch {
	case st.Stopped > 0 && !st.Cancelled.IsZero():
		line += fmt.Sprintf(", %d of them because the job was cancelled", st.Stopped)
	case st.Stopped > 0:
		line += fmt.Sprintf(" (stopped: %d)", st.Stopped)
	}
	if len(st.Failed) > 0 {
		line += ": " + job.Indices(st.Failed)
	}
	failed := &text.Error{Err: errors.New(line)}
	if len(st.Failed) == 0 && st.Stopped > 0 && st.Cancelled.IsZero() {
		return warnings, failed.Hint("\"hpcc status %s\" shows why; \"hpcc rerun %s\" runs them again", id, id)
	}
	for _, t := range st.Tasks {
		if t.OK() || len(st.Failed) == 0 {
			continue
		}
		if st.Total == 1 && t.Problem == "" {
			failed.Status = t.Status()
		}
		switch {
		case t.Part != nil:
			return warnings, failed.Hint("hpcc logs %s %d shows the output of task %d", id, t.Index, t.Index)
		case t.Output != "":
			return warnings, failed.Hint("see the output of task %d in %s", t.Index, t.Output)
		}
	}
	return warnings, failed
}

// scheduler returns the cluster's batch system.
func (c Cluster) scheduler() (batch.System, error) {
	to := systemOf(c.Target)
	if to == nil {
		return nil, fmt.Errorf("unknown target %q: a newer hpcc submitted the job", c.Target)
	}
	return to, nil
}

// queueState sums the queue states of the job and its reruns.
func (s *Submission) queueState(known map[string]batch.State) batch.State {
	var sum batch.State
	if s.Job.Interactive {
		alive, here := node.Alive(s.Native)
		return batch.State{Alive: alive || !here}
	}
	ids := s.natives()
	for i, id := range ids {
		n := known[id]
		sum.Done, sum.Failed = append(sum.Done, n.Done...), append(sum.Failed, n.Failed...)
		sum.Running, sum.Waiting, sum.Alive = sum.Running+n.Running, sum.Waiting+n.Waiting, sum.Alive || n.Alive
		if n.Reason != "" && (!n.Gone() || i == len(ids)-1) { // a rerun outdates why an earlier job never started
			sum.Reason = n.Reason
		}
	}
	return sum
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

// submissionOf returns the name, target and submission time of a starting task's job (see
// [Submission.SubmissionTime]). They are zero if the script was submitted by hand.
func submissionOf(home string, t *job.Task) (name string, to job.Target, at time.Time) {
	var s Submission
	if job.ReadJSON(filepath.Join(home, "job.json"), &s) != nil {
		return "", "", at
	}
	if s.Job != nil {
		name = s.Job.Name
	}
	return name, s.Target, s.SubmissionTime(t)
}

// SubmissionTime returns the time of the last submission before the task started: a rerun
// submits some tasks of a job again.
func (s *Submission) SubmissionTime(t *job.Task) time.Time {
	at := s.Submitted
	for _, r := range s.Reruns {
		if (r.Array.IsZero() || r.Array.Has(t.Index)) && !r.Submitted.After(t.Start) {
			at = r.Submitted
		}
	}
	return at
}

// Redacted returns a copy of the submission without the values of variables.
func (s *Submission) Redacted() *Submission {
	c := *s
	c.Job = s.Job.Redacted()
	return &c
}
