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

// Running waits until a task runs and returns its record. With [AnyTask] it takes the only
// task that runs. It calls report once with what it waits for. A task that has ended or can
// never start is an error.
func (s *Submission) Running(ctx context.Context, dir string, index int, report func(string)) (*job.Task, error) {
	if n := s.indices(); index == AnyTask && len(n) == 1 {
		index = n[0]
	}
	last, each := "", askEach
	var only []int
	if s.keeper() != nil {
		each = keptEach
		if index != AnyTask {
			only = []int{index}
		}
	}
	for n := 0; ; n++ {
		st, err := s.look(ctx, dir, n%each == 0, only)
		if err != nil {
			return nil, err
		}
		t, err := st.running(index)
		if t != nil || err != nil {
			return t, err
		}
		if word := st.waits(index); n%askEach == 0 && word != last {
			report(word)
			last = word
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(batch.Poll):
		}
	}
}

// Look reads the records below dir and, if ask is set, queries the scheduler. If that does
// not answer, the records decide.
func (s *Submission) Look(ctx context.Context, dir string, ask bool) (*Status, error) {
	return s.look(ctx, dir, ask, nil)
}

// look is Look for a caller that needs the records of some tasks only; of all for nil.
func (s *Submission) look(ctx context.Context, dir string, ask bool, only []int) (*Status, error) {
	st := &Status{Submission: s, only: only}
	if _, err := job.Readable(st.read(dir)); err != nil {
		return nil, err
	}
	if ask {
		_ = st.refresh(ctx, dir, invoke.Glance)
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
