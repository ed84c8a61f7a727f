package dispatch

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/text"
)

// The state of a task follows from the record of its last attempt, which "hpcc task" writes next
// to the program, and from the scheduler's queue. The record says how an attempt ended. The
// queue says what runs, and what will run again.
//
//	record        queue              state of the task
//	success       any                done
//	failure       waiting, running   waiting, running: the scheduler has requeued the task
//	failure       ending             running, for at most endingTime: the scheduler may requeue it
//	failure       absent             failed; stopped, if it ended after the job was cancelled
//	none, open    waiting            waiting: a task with an open record lost its node
//	none, open    running, ending    running
//	any           absent             waiting, while hpcc submits the task again
//	none, open    absent             done, if the scheduler's accounting says so; else lost, or
//	                                 stopped, if the job was cancelled
//
// Rerun, Cancel, Wait and the commands that print states all use this table, so that:
//
//   - hpcc never causes two live attempts of a task. Rerun submits only tasks that are failed,
//     lost or stopped, and a second Rerun waits for the first one.
//   - A task that is done stays done: a scheduler that starts it again gets its success from
//     [node.Runner] without a run of the program.
//   - Cancel ends tasks that are queued again, and Wait waits for them.
//
// A task may end between the reading of the records and that of the queue, so countQueued reads the
// records again before it takes a task for failed or lost.

// endingTime is for how long a failed task counts as running while the scheduler cleans up. A
// node that has died can stay in this state for days.
const endingTime = time.Minute

// reconcile counts the tasks by the table above.
func (s *Status) reconcile(now time.Time) {
	records := s.records()
	s.Done, s.Failed, s.Running, s.Waiting, s.Stopped, s.Lost = 0, nil, 0, 0, 0, 0
	s.requeued, s.unfinished = map[int]bool{}, nil
	for _, k := range s.indices() {
		if s.survey.Succeeded.Has(k) {
			s.Done++
			continue
		}
		t, state := records[k], s.queue[k]
		ended := t != nil && t.Ended()
		if ended && state == batch.TaskEnding && now.Sub(t.End) > endingTime {
			state = 0
		}
		switch {
		case ended && t.OK():
			s.Done++
			continue
		case state == batch.TaskWaiting, state == 0 && s.submitting(k, now):
			s.Waiting++
		case state != 0:
			s.Running++
		case ended:
			s.countEnded(t)
		default:
			s.unfinished = append(s.unfinished, k)
		}
		if ended && state != 0 {
			s.requeued[k] = true
		}
	}
	if s.Cancelled.IsZero() {
		s.Lost = len(s.unfinished)
	} else {
		s.Stopped += len(s.unfinished)
	}
}

// records returns the records of the tasks by index.
func (s *Status) records() map[int]*job.Task {
	records := make(map[int]*job.Task, len(s.Tasks))
	for i := range s.Tasks {
		records[s.Tasks[i].Index] = &s.Tasks[i]
	}
	return records
}

// requeuedText describes the failed tasks that the scheduler has again.
func (s *Status) requeuedText() string {
	text := fmt.Sprintf("%s has %s of job %s in its queue again", descriptionOf(s.Target).Title,
		text.Count(len(s.requeued), "failed task", "failed tasks"), s.ID)
	if s.Reason != "" {
		text += " (" + s.Reason + ")"
	}
	return text
}

// countEnded counts a task that has ended and that the scheduler does not have again.
func (s *Status) countEnded(t *job.Task) {
	switch {
	case t.OK():
		s.Done++
	case !s.Cancelled.IsZero() && !t.End.Before(s.Cancelled): // Cancelled has a resolution of one second
		s.Stopped++
	default:
		s.Failed = append(s.Failed, t.Index)
	}
}

// mayReturn reports whether the scheduler could have requeued failed tasks, after preemption,
// the loss of a node, or on request. Only its queue shows that.
func (s *Status) mayReturn() bool {
	return len(s.Failed) > 0 && s.Cancelled.IsZero() && s.Target != job.Local && s.keeper() == nil && !s.Job.Interactive
}

// taken reports whether a failed task ended like one whose node was taken away.
func (s *Status) taken() bool {
	records := s.records()
	return slices.ContainsFunc(s.Failed, func(k int) bool { return records[k] != nil && records[k].Taken() })
}

// read reads the records of the job's tasks and counts them without the scheduler's queue.
func (s *Status) read(dir string) error {
	err := s.readTasks(dir)
	s.Total, s.Done, s.Failed, s.Running, s.Stopped = s.Job.Count(), 0, nil, 0, 0
	s.count()
	return err
}

// refresh queries the scheduler, if it may know more than the records, and counts the tasks. It
// returns an error if the scheduler does not answer within limit; the records decide then.
func (s *Status) refresh(ctx context.Context, dir string, limit time.Duration) error {
	if s.open() == 0 && !s.mayReturn() {
		return nil
	}
	return settle(ctx, dir, []*Status{s}, limit)
}

// account asks the scheduler's accounting about tasks whose records do not show how they ended, and
// completes the records. Lost tasks have none: the disk was full, the file system did not answer, or
// the scheduler killed hpcc, too. A scheduler without an accounting, or one that does not answer within
// limit, changes nothing.
func (s *Status) account(ctx context.Context, dir string, limit time.Duration) {
	to, ok := systemOf(s.Target).(batch.Accountant)
	open := s.unexplained()
	if !ok || len(open) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.Within(ctx), limit)
	defer cancel()
	records, found := s.records(), map[int]job.Task{}
	for _, n := range slices.Backward(s.submitted()) {
		ends := map[int]batch.Ending{}
		if slices.ContainsFunc(slices.Collect(maps.Keys(open)), n.has) {
			ends, _ = to.Endings(ctx, n.id)
		}
		for k, end := range ends {
			if k, ok = s.indexOf(n.array, k); !ok || !open[k] {
				continue
			}
			t := job.Task{Index: k, Native: n.id}
			if records[k] != nil {
				t = *records[k]
			}
			if explain(&t, end, descriptionOf(s.Target).Title) {
				_ = t.Write(filepath.Join(dir, s.ID)) // else the next status asks again
				found[k] = t
			}
		}
		maps.DeleteFunc(open, func(k int, _ bool) bool { return n.has(k) }) // earlier attempts do not count
	}
	s.Tasks = slices.DeleteFunc(s.Tasks, func(t job.Task) bool { return !found[t.Index].End.IsZero() })
	s.Tasks = slices.AppendSeq(s.Tasks, maps.Values(found))
	slices.SortFunc(s.Tasks, func(a, b job.Task) int { return a.Index - b.Index })
	s.reconcile(time.Now())
}

// unexplained returns the tasks whose records do not show how they ended: lost ones, and those that
// the scheduler may have killed because they used more memory than they requested.
func (s *Status) unexplained() map[int]bool {
	open := map[int]bool{}
	if s.Job.Packed() { // the accounting knows only the allocation
		return open
	}
	if s.Lost > 0 {
		for _, k := range s.unfinished {
			open[k] = true
		}
	}
	records := s.records()
	for _, k := range s.Failed {
		if s.Cancelled.IsZero() && records[k] != nil && records[k].Exceeded(s.request(k)) {
			open[k] = true
		}
	}
	return open
}

// explain completes the record of a task by the scheduler's accounting. It reports whether that adds
// something.
func explain(t *job.Task, end batch.Ending, scheduler string) bool {
	if end.Killed {
		t.SetKilled(scheduler)
	} else if t.Ended() {
		return false
	}
	if !t.Ended() {
		if t.End = end.At; t.End.IsZero() {
			t.End = time.Now()
		}
		if t.Start.IsZero() || t.End.Before(t.Start) { // the clocks of the nodes differ
			t.Start = t.End
		}
	}
	return true
}

// states returns the states of the job's tasks in the queue, by hpcc's index.
func (s *Submission) states(known map[string]batch.State) map[int]batch.TaskState {
	out := map[int]batch.TaskState{}
	for _, n := range s.submitted() {
		for k, state := range known[n.id].States {
			if k, ok := s.indexOf(n.array, k); ok {
				out[k] = max(out[k], state)
			}
		}
	}
	return out
}

// A native is a job of the scheduler with its tasks: the first submission, or a rerun.
type native struct {
	id    string
	array job.Array
}

// has reports whether a task is part of the job.
func (n native) has(index int) bool { return n.array.IsZero() || n.array.Has(index) }

// submitted returns the native jobs of the job, the latest last.
func (s *Submission) submitted() []native {
	list := []native{{s.Native, s.Job.Array}}
	for _, r := range s.Reruns {
		if r.Native != "" { // it has been submitted
			list = append(list, native{r.Native, r.Array})
		}
	}
	return list
}

// indexOf returns hpcc's index of a task by the scheduler's index in an array.
func (s *Submission) indexOf(a job.Array, k int) (index int, ok bool) {
	convert := descriptionOf(s.Target).Index
	switch {
	case a.IsZero():
		return 0, true
	case a.Count() == 1: // the job may not be an array for the scheduler
		return a.Nth(1)
	case convert == nil:
		return k, a.Has(k)
	}
	return convert(a, k)
}
