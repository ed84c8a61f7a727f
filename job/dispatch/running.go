package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
)

// AnyTask selects the only running task of a job.
const AnyTask = -1

// FindTask returns the job below dir that JOB or JOB.TASK names (see [Find]) and the task's
// index, or [AnyTask] without one.
func FindTask(dir, name string) (*Submission, int, error) {
	s, err := Find(dir, name)
	if err == nil {
		return s, AnyTask, nil
	}
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return nil, 0, err
	}
	k, kerr := strconv.Atoi(name[i+1:])
	if kerr != nil || k < 0 {
		return nil, 0, err
	}
	if s, err = Find(dir, name[:i]); err != nil {
		return nil, 0, err
	}
	if !slices.Contains(s.indices(), k) && s.Job.Workflow == nil {
		return nil, 0, fmt.Errorf("job %s has no task %d", s.ID, k)
	}
	return s, k, nil
}

// indices returns the indices of the job's tasks.
func (s *Submission) indices() []int {
	if s.Job.Array.IsZero() {
		return []int{0}
	}
	return slices.Collect(s.Job.Array.All())
}

// RunningTask waits until a task runs and returns its record. With [AnyTask] it takes the only
// task that runs. It calls report once with what it waits for. A task that has ended or can
// never start is an error.
func (s *Submission) RunningTask(ctx context.Context, dir string, index int, report func(string)) (*job.Task, error) {
	if n := s.indices(); index == AnyTask && len(n) == 1 {
		index = n[0]
	}
	var only []int
	if s.keeper() != nil && index != AnyTask {
		only = []int{index}
	}
	last, p := "", s.pace(only)
	defer p.stop()
	for n := p.each; ; n++ {
		ask := p.due(n)
		st, err := s.readSome(ctx, dir, ask, only)
		if err != nil {
			return nil, err
		}
		t, err := st.running(index)
		if t != nil || err != nil {
			return t, err
		}
		if word := st.waits(index); ask && word != last {
			report(word)
			last = word
		}
		if ask {
			p.asked(ctx, n, st)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(batch.Poll):
		}
	}
}

// Status reads the records below dir and, if ask is set, queries the scheduler. If that does
// not answer, the records decide.
func (s *Submission) Status(ctx context.Context, dir string, ask bool) (*Status, error) {
	return s.readSome(ctx, dir, ask, nil)
}

// readSome is Status for a caller that needs the records of some tasks only; of all for nil.
func (s *Submission) readSome(ctx context.Context, dir string, ask bool, only []int) (*Status, error) {
	st := &Status{Submission: s, only: only}
	if _, err := job.Readable(st.read(dir)); err != nil {
		return nil, err
	}
	if ask {
		_ = st.refresh(ctx, dir, invoke.ShortTimeout)
	}
	return st, nil
}

// running returns the record of the task, or nil if it may still start.
func (s *Status) running(index int) (*job.Task, error) {
	var run []int
	for i := range s.Tasks {
		t := &s.Tasks[i]
		switch {
		case t.Index == index && s.requeued[index]:
			return nil, nil
		case t.Index == index && t.Ended():
			return nil, fmt.Errorf("task %d of job %s ended at %s: %s", t.Index, s.ID, t.End.Local().Format(time.DateTime), t.Ending())
		case s.Lost > 0 && s.Lost == s.open() && (t.Index == index || index == AnyTask) && !t.Ended():
			return nil, fmt.Errorf("task %d of job %s is lost: it started on %s and the scheduler no longer runs it", t.Index, s.ID, t.Host)
		case t.Index == index:
			return t, nil
		case !t.Ended():
			run = append(run, i)
		}
	}
	switch {
	case index == AnyTask && len(run) == 1:
		return &s.Tasks[run[0]], nil
	case index == AnyTask && len(run) > 1:
		return nil, fmt.Errorf("%d tasks of job %s are running; name one, such as %s.%d", len(run), s.ID, s.ID, s.Tasks[run[0]].Index)
	case s.open() == 0 || s.Lost == s.open():
		return nil, fmt.Errorf("job %s has ended: %s; \"hpcc status %s\" shows details", s.ID, s.State(), s.ID)
	}
	return nil, nil
}

// waits returns a message with the reason why a task has not started.
func (s *Status) waits(index int) string {
	what := "job " + s.ID
	if index > 0 || (index == 0 && !s.Job.Array.IsZero()) {
		what = fmt.Sprintf("task %d of job %s", index, s.ID)
	}
	if s.Reason != "" {
		return what + " has not started (" + s.Reason + "); waiting"
	}
	return what + " has not started; waiting"
}

// Goes reports whether a started task still runs according to its record. With byScheduler it
// also queries the scheduler, which knows of tasks that were killed before they could record it.
func (s *Submission) Goes(ctx context.Context, dir string, t *job.Task, byScheduler bool) bool {
	var now job.Task
	err := job.ReadJSON(filepath.Join(dir, s.ID, t.FileName()), &now)
	if errors.Is(err, fs.ErrNotExist) {
		return false // moved aside for another attempt
	}
	if err == nil && (now.Ended() || now.Attempt != t.Attempt) {
		return false
	}
	if !byScheduler {
		return true
	}
	known, err := s.stillThere(ctx, s.natives())
	return err != nil || !s.queueState(known).Gone()
}

// After how many polls of the records a caller that waits queries the scheduler.
const (
	askEach     = 10
	keptEach    = 3  // if the scheduler keeps the records
	watchedEach = 60 // if the cluster reports changes: for reasons and losses, which no change announces
)

// A pace decides which polls of the records query the scheduler, for a caller that waits. After the first
// query, a cluster that can be watched reports when the next one is due.
type pace struct {
	sub     *Submission
	only    []int // tasks whose records the caller needs; nil: all
	each    int   // polls between two queries, at least
	last    int   // poll with the last query
	changed <-chan struct{}
	end     context.CancelFunc // of the watch; nil: it has not begun
	stale   bool               // something has changed since the last query, or it was not complete
}

func (s *Submission) pace(only []int) *pace {
	p := &pace{sub: s, only: only, each: askEach}
	if s.keeper() != nil {
		p.each = keptEach
	}
	return p
}

// due reports whether poll n queries the scheduler.
func (p *pace) due(n int) bool {
	select {
	case _, watched := <-p.changed:
		if p.stale = true; !watched {
			p.changed = nil
		}
	default:
	}
	each := p.each
	if p.changed != nil && !p.stale {
		each = watchedEach
	}
	return n-p.last >= each
}

// asked notes that poll n has queried the scheduler.
func (p *pace) asked(ctx context.Context, n int, st *Status) {
	p.last, p.stale = n, !st.current || !st.Active()
	if k := p.sub.keeper(); k != nil && p.end == nil && !p.stale {
		ctx, p.end = context.WithCancel(p.sub.Within(ctx))
		kept := p.sub.kept("")
		kept.Only = p.only
		p.changed = k.Watch(ctx, kept)
	}
}

// stop ends the watch.
func (p *pace) stop() {
	if p.end == nil {
		return
	}
	if p.end(); p.changed != nil {
		for range p.changed { // until it is closed
		}
	}
}

// Follow calls each with the state of the job below dir, and again after changes, until each returns
// false. Warnings are those of [Statuses].
func (s *Submission) Follow(ctx context.Context, dir string, each func(st *Status, warnings []string) bool) error {
	p := s.pace(nil)
	defer p.stop()
	for n := p.each; ; n++ {
		if p.due(n) {
			list, warnings, err := Statuses(ctx, dir, []string{s.ID})
			if err != nil {
				return err
			}
			if !each(list[0], warnings) {
				return nil
			}
			p.asked(ctx, n, list[0])
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(batch.Poll):
		}
	}
}
