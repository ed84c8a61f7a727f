package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"hpcc/job"
	"hpcc/job/invoke"
	"hpcc/job/node"
	"hpcc/job/pack"
	"hpcc/text"
)

// status queries one job. If the scheduler does not answer, it returns an error and the state by
// the records.
func (s *Submission) status(ctx context.Context, dir string) (*Status, error) {
	st := &Status{Submission: s}
	if _, err := job.Readable(st.read(dir)); err != nil {
		return nil, err
	}
	if err := st.refresh(ctx, dir, invoke.LongTimeout); err != nil {
		return st, err
	}
	accountAll(ctx, dir, []*Status{st}, invoke.LongTimeout)
	return st, nil
}

// Cancel ends the tasks that have not ended. It returns false if there are none.
func (s *Submission) Cancel(ctx context.Context, dir string) (bool, error) {
	st, err := s.status(ctx, dir)
	if err != nil {
		return false, err
	}
	if st.Running+st.Waiting == 0 {
		return false, nil
	}
	home := filepath.Join(dir, s.ID)
	unkept := error(nil)
	if k := s.keeper(); k != nil { // cancelling removes their output
		unkept = k.Collect(s.Within(ctx), s.kept(home), true)
	}
	before := s.Cancelled
	s.Cancelled = time.Now().UTC().Truncate(time.Second)
	if err := s.write(home); err != nil {
		return false, err
	}
	if s.Job.Interactive {
		err = s.hangUp(ctx, st.Tasks)
	} else {
		err = s.cancelAll(ctx)
	}
	if err != nil {
		s.Cancelled = before // the job may still run
		return false, errors.Join(err, s.write(home))
	}
	for k := range st.requeued { // they ended before, and would be failed
		t := &job.Task{Index: k}
		if job.ReadRecord(home, t.FileName(), t) && t.Ended() && !t.OK() {
			t.Stop = job.StopCancelled
			_ = t.Write(home)
		}
	}
	if unkept != nil {
		return true, fmt.Errorf("job %s is being cancelled, but some output of its tasks could not be saved: %w", s.ID, unkept)
	}
	return true, nil
}

// cancelAll cancels the native jobs that the scheduler still knows.
func (s *Submission) cancelAll(ctx context.Context) error {
	known, err := s.stillThere(ctx, s.natives())
	if err != nil {
		return err
	}
	for _, id := range s.natives() {
		if known[id].Gone() {
			continue
		}
		err := systemOf(s.Target).Cancel(s.Within(ctx), id)
		if err == nil {
			continue
		}
		if now, qerr := s.stillThere(ctx, []string{id}); qerr != nil || !now[id].Gone() { // it has not ended meanwhile
			return err
		}
	}
	return nil
}

// hangUp ends an interactive job: through the scheduler if that has started it, else by
// ending the process that waits for it.
func (s *Submission) hangUp(ctx context.Context, tasks []job.Task) error {
	for _, t := range tasks {
		if !t.Ended() && t.Native != "" && s.Target != job.Local {
			return systemOf(s.Target).Cancel(s.Within(ctx), t.Native)
		}
	}
	alive, here := node.Alive(s.Native)
	host, pid := node.SplitID(s.Native)
	if !here {
		return fmt.Errorf("ending job %s: its terminal is on %s; cancel it on that host", s.ID, host)
	}
	if !alive {
		return nil
	}
	return syscall.Kill(pid, syscall.SIGTERM)
}

// ErrNothingFailed means that a job has no task to run again.
var ErrNothingFailed = errors.New("no task failed or was lost")

// Rerun resubmits the tasks that failed, were cancelled or were lost, under their own
// indices, and returns them. They get the memory, time and image of to where these are set, else those
// of their last attempt, grown if the job's retries say so. Their new records go to the job's
// directory, next to those of earlier attempts. Tasks that the target or check refuses do not change.
func (s *Submission) Rerun(ctx context.Context, dir string, to Rerun, check func(*job.Job) error) (tasks []int, notes []string, err error) {
	if s.Job.Interactive {
		return nil, nil, errors.New("an interactive job cannot be rerun; submit it again")
	}
	if err := s.checkImage(to.Image); err != nil {
		return nil, nil, err
	}
	st, err := s.status(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	if tasks = st.over; len(tasks) == 0 {
		if len(st.requeued) > 0 {
			return nil, nil, fmt.Errorf("%s; wait for its end (hpcc wait %s), or cancel it first (hpcc cancel %s)",
				st.requeuedText(), s.ID, s.ID)
		}
		return nil, nil, ErrNothingFailed
	}
	home := filepath.Join(dir, s.ID)
	if retry := descriptionOf(s.Target).Retry; retry != nil {
		if to.Memory > 0 || to.Time > 0 {
			return nil, nil, fmt.Errorf("%s runs failed steps again with their own requests; leave out --mem and --time", descriptionOf(s.Target).Title)
		}
		return tasks, nil, s.retry(ctx, home, retry, tasks)
	}
	if s.Job.Packed() {
		notes, err = s.repack(ctx, home, st.survey.Runs, to, check)
		return tasks, notes, err
	}
	sizes := st.sizes(tasks, job.Request{Memory: to.Memory, Time: to.Time})
	tasks = nil
	for _, size := range sorted(sizes) {
		to.Memory, to.Time = size.Memory, size.Time
		more, err := s.resubmit(ctx, home, sizes[size], to, check)
		if err != nil && len(tasks) > 0 {
			err = fmt.Errorf("tasks %s run again, but not %s: %w", list(tasks), list(sizes[size]), err)
		}
		if err != nil {
			return tasks, notes, err
		}
		tasks, notes = append(tasks, sizes[size]...), more
	}
	slices.Sort(tasks)
	return tasks, notes, nil
}

// sizes returns the tasks to rerun by their requests; see [Submission.Rerun].
func (s *Status) sizes(tasks []int, to job.Request) map[job.Request][]int {
	sizes, records := map[job.Request][]int{}, s.records()
	for _, k := range tasks {
		next := s.request(k)
		if t := records[k]; t != nil && s.Grows(t) {
			next, _ = s.Job.Grow(t, next)
		}
		next.Memory, next.Time = cmp.Or(to.Memory, next.Memory), cmp.Or(to.Time, next.Time)
		sizes[next] = append(sizes[next], k)
	}
	return sizes
}

// checkImage refuses an image for tasks that run again if other settings of the job depend on it.
func (s *Submission) checkImage(image string) error {
	j := s.Job
	switch {
	case image == "":
		return nil
	case j.Image == "" || s.Target.Pods():
		return fmt.Errorf("--image changes only the image of jobs in which hpcc starts it; submit the job again with %s", image)
	case j.Script != nil && j.ImageDigest == "" && image != j.Image: // its name alone may be part of other lines
		return fmt.Errorf("the lines of %s name their image without a digest; submit it again with %s", j.Script.Name, image)
	}
	return nil
}

// Imaged returns the job with the image of its last submission.
func (s *Submission) Imaged() *job.Job {
	j := *s.Job
	for _, r := range s.Reruns {
		if r.Image != "" {
			j.Image, j.ImageVersion = r.Image, r.ImageVersion
		}
	}
	return &j
}

// Images returns the digests of the images of all submissions of the job.
func (s *Submission) Images() []string {
	digests := []string{s.Job.ImageDigest}
	for _, r := range s.Reruns {
		digests = append(digests, r.ImageDigest)
	}
	return slices.DeleteFunc(digests, func(d string) bool { return d == "" })
}

// resubmit submits tasks again as one native job with the memory, time and image of to. If the target
// or check refuses the job, nothing changes.
func (s *Submission) resubmit(ctx context.Context, home string, tasks []int, to Rerun,
	check func(*job.Job) error) (notes []string, err error) {
	part, err := s.part(to, check)
	if err != nil {
		return nil, err
	}
	if !part.Array.IsZero() {
		part.Array, part.ArraySize = s.Job.Array.Of(tasks), s.Job.FullCount()
	}
	return s.resubmitPart(ctx, home, part, tasks, to, 0)
}

// repack submits a packed job again, which has begun runs times. Its tasks that have succeeded do not
// run again.
func (s *Submission) repack(ctx context.Context, home string, runs int, to Rerun, check func(*job.Job) error) (notes []string, err error) {
	to.Memory, to.Time = cmp.Or(to.Memory, s.Job.MemoryPerNode()), cmp.Or(to.Time, s.Job.Time)
	part, err := s.part(to, check)
	if err != nil {
		return nil, err
	}
	return s.resubmitPart(ctx, home, part, nil, to, pack.First(runs, s.Job.Retry))
}

// part returns the job for a resubmission with the memory, time and image of to.
func (s *Submission) part(to Rerun, check func(*job.Job) error) (*job.Job, error) {
	part := s.Imaged()
	if err := part.Params.Reopen(); err != nil {
		return nil, err
	}
	part.After = nil // its dependencies have already ended
	part.Append = true
	part.Resize(job.Request{Memory: to.Memory, Time: to.Time})
	if to.Image != "" {
		part.Image, part.ImageVersion = to.Image, to.ImageVersion
	}
	if part.Script != nil && part.ExactImage() != s.Job.ExactImage() {
		script := *part.Script // its launchers start the image
		script.Body = strings.ReplaceAll(script.Body, text.Quote(s.Job.ExactImage())+" --", text.Quote(part.ExactImage())+" --")
		part.Script = &script
	}
	if check != nil {
		return part, check(part)
	}
	return part, nil
}

// resubmitPart submits a part of the job. The records of tasks move aside; in a packed job, those of
// attempts before first count no more.
func (s *Submission) resubmitPart(ctx context.Context, home string, part *job.Job, tasks []int,
	to Rerun, first int) (notes []string, err error) {
	script, notes, err := s.render(ctx, part)
	if err != nil {
		return nil, err
	}
	if err := part.Prepare(s.Target, false); err != nil {
		return nil, err
	}
	file := filepath.Join(home, "script."+strconv.Itoa(len(s.Reruns)+1))
	if err := claim(file); err != nil {
		return nil, err
	}
	if err := s.writeScript(file, script); err != nil {
		return nil, fmt.Errorf("writing the script of job %q: %w", s.Job.Name, err)
	}
	r := Rerun{Submitted: time.Now().UTC().Truncate(time.Second), Array: part.Array, First: first,
		Image: to.Image, ImageVersion: to.ImageVersion}
	if to.Memory != s.Job.MemoryPerNode() {
		r.Memory = to.Memory
	}
	if to.Time != s.Job.Time {
		r.Time = to.Time
	}
	before, cancelled := s.Reruns, s.Cancelled
	s.Reruns, s.Cancelled = append(slices.Clip(before), r), time.Time{}
	if err := s.write(home); err != nil { // before the records change, so that the tasks do not seem lost
		s.Reruns, s.Cancelled = before, cancelled
		delete(s.Scripts, filepath.Base(file))
		return nil, errors.Join(err, os.Remove(file))
	}
	var back []func()
	for _, k := range tasks {
		back = append(back, (&job.Task{Index: k}).Retire(home))
	}
	again := &Submission{ID: s.ID, Cluster: s.Cluster, Job: part, Scripts: s.Scripts}
	err = again.submit(ctx, part, file, s.natives())
	if errors.As(err, new(*unansweredError)) {
		return nil, err
	}
	if err != nil {
		for _, undo := range back {
			undo()
		}
		delete(s.Scripts, filepath.Base(file))
		s.Reruns, s.Cancelled = before, cancelled
		return nil, errors.Join(err, os.Remove(file), s.write(home))
	}
	s.Reruns[len(before)].Native, s.ended = again.Native, again.ended
	again.noteNative(filepath.Dir(home))
	return notes, s.write(home)
}

// retry lets the batch system itself rerun the failed tasks of a job.
func (s *Submission) retry(ctx context.Context, home string, retry func(context.Context, string) error, tasks []int) error {
	if err := retry(s.Within(ctx), s.Native); err != nil {
		return err
	}
	for _, k := range tasks {
		(&job.Task{Index: k}).Retire(home)
	}
	s.Reruns = append(s.Reruns, Rerun{Native: s.Native, Submitted: time.Now().UTC().Truncate(time.Second)})
	s.Cancelled, s.Over = time.Time{}, false
	return s.write(home)
}
