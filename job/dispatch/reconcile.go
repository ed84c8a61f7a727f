package dispatch

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/text"
)

// A task's state follows from its facts: see [job.Facts.Decide]. Rerun, Cancel, Wait and the commands that
// print states all use it, so that:
//
//   - hpcc never causes two live attempts of a task. Rerun submits only tasks that are failed,
//     lost or stopped, and a second Rerun waits for the first one.
//   - A task that is done stays done: a scheduler that starts it again gets its success from
//     [node.Runner] without a run of the program.
//   - Cancel ends tasks that are queued again, and Wait waits for them.
//
// A task may end between the reading of the records and that of the queue, so judgeQueued reads the
// records again before it takes a task for failed or lost.

// judge counts the tasks by the facts that are known now.
func (s *Status) judge(now time.Time) {
	records := s.records()
	s.Counts, s.requeued, s.active, s.over, s.ask, s.unrecorded = job.Counts{}, map[int]bool{}, nil, nil, nil, 0
	indices := s.indices()
	if s.Job.Workflow != nil { // its steps appear as they start, until it is over
		if indices = slices.Sorted(maps.Keys(records)); !s.Over || len(indices) == 0 {
			s.Add(0, job.Waiting)
		}
	}
	for _, k := range indices {
		if s.survey.Succeeded.Has(k) {
			s.Add(k, job.Done)
			continue
		}
		f := s.facts(k, records[k], now)
		v := f.Decide(now)
		s.Add(k, v.State)
		if v.Again {
			s.requeued[k] = true
		}
		switch v.State {
		case job.Waiting, job.Running:
			s.active = append(s.active, k)
		case job.Failed, job.Stopped, job.Lost:
			s.over = append(s.over, k)
		}
		if v.Ask {
			s.ask = append(s.ask, k)
		}
		unrecorded := f.End != nil && (f.Record == nil || !f.Record.Ended())
		if unrecorded && s.keeper() != nil && (s.only == nil || slices.Contains(s.only, k)) {
			s.unrecorded++
		}
	}
}

// facts returns what is known of a task.
func (s *Status) facts(k int, record *job.Task, now time.Time) *job.Facts {
	f := &job.Facts{Record: record, Answer: s.answer, Queue: s.queue[k], Sending: s.submitting(k, now),
		Cancelled: s.Cancelled, Retrying: s.triesAgain(record)}
	if end, ok := s.ends[k]; ok {
		f.End = &end
	}
	return f
}

// Explained is the state of tasks about which the same is known.
type Explained struct {
	Tasks []int
	State job.State
	job.Words
}

// Explain returns why the tasks have their states.
func (s *Status) Explain() (list []Explained) {
	records, now := s.records(), time.Now()
	for _, k := range s.indices() {
		record := records[k]
		if s.survey.Succeeded.Has(k) {
			record = &job.Task{Index: k, End: now}
		}
		f := s.facts(k, record, now)
		state, words := f.Decide(now).State, f.Words()
		n := slices.IndexFunc(list, func(e Explained) bool { return e.State == state && e.Words == words })
		if n < 0 {
			n, list = len(list), append(list, Explained{State: state, Words: words})
		}
		list[n].Tasks = append(list[n].Tasks, k)
	}
	return list
}

// triesAgain reports whether a packed job, unless it has ended itself, runs a failed task again.
// Other jobs move the records of attempts that are not the last ones aside.
func (s *Status) triesAgain(t *job.Task) bool {
	first := 0
	if n := len(s.Reruns); n > 0 {
		first = s.Reruns[n-1].First
	}
	return t != nil && s.Job.Packed() && s.Job.Retry.Again(t) && t.Attempt-first < s.Job.Retry.Times
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

// mayReturn reports whether the scheduler could have requeued failed tasks, after preemption,
// the loss of a node, or on request. Only its queue shows that.
func (s *Status) mayReturn() bool {
	return len(s.Failed)+s.Stopped > 0 && s.Cancelled.IsZero() && s.Target != job.Local && s.keeper() == nil && !s.Job.Interactive
}

// taken reports whether a task that did not succeed ended like one whose node was taken away.
func (s *Status) taken() bool {
	records := s.records()
	return slices.ContainsFunc(s.over, func(k int) bool { return records[k] != nil && records[k].Taken() })
}

// read reads the records of the job's tasks and counts them without the scheduler.
func (s *Status) read(dir string) error {
	err := s.readTasks(dir)
	s.judge(time.Now())
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

// accountAll asks the accounting of schedulers, once each, about tasks whose records do not show how they
// ended, and completes the records. Lost tasks have none: the disk was full, the file system did not answer,
// or the scheduler killed hpcc, too. A scheduler without an accounting, or one that does not answer within
// limit, changes nothing.
func accountAll(ctx context.Context, dir string, list []*Status, limit time.Duration) {
	open := map[string][]*Status{} // by cluster
	for _, st := range list {
		if _, ok := systemOf(st.Target).(batch.Accountant); ok && !st.brief && len(st.unexplained()) > 0 {
			open[st.key()] = append(open[st.key()], st)
		}
	}
	var g sync.WaitGroup
	for _, list := range open {
		g.Go(func() {
			ctx, cancel := context.WithTimeout(list[0].Within(ctx), limit)
			defer cancel()
			var ids []string
			for _, st := range list {
				ids = append(ids, st.natives()...)
			}
			ends, _ := systemOf(list[0].Target).(batch.Accountant).Endings(ctx, ids)
			for _, st := range list {
				st.account(dir, ends)
			}
		})
	}
	g.Wait()
}

// account completes the records of tasks by the ends of their native jobs.
func (s *Status) account(dir string, known map[string]map[int]job.End) {
	if s.ends == nil {
		s.ends = map[int]job.End{}
	}
	open, records, title := s.unexplained(), s.records(), descriptionOf(s.Target).Title
	var found []job.Task // that had no record
	for _, n := range slices.Backward(s.submitted()) {
		for k, end := range known[n.id] {
			k, ok := s.indexOf(n.array, k)
			if !ok || !open[k] {
				continue
			}
			s.ends[k] = end
			t := records[k]
			if t == nil {
				t = &job.Task{Index: k, Native: n.id}
			}
			if !t.Explain(end, title) {
				continue
			}
			_ = t.Write(filepath.Join(dir, s.ID)) // else the next status asks again
			if records[k] == nil {
				found = append(found, *t)
			}
		}
		maps.DeleteFunc(open, func(k int, _ bool) bool { return n.has(k) }) // earlier attempts do not count
	}
	s.Tasks = append(s.Tasks, found...)
	slices.SortFunc(s.Tasks, func(a, b job.Task) int { return a.Index - b.Index })
	s.judge(time.Now())
}

// unexplained returns the tasks whose records do not show how they ended: lost ones, those that were
// asked to stop, and those that the scheduler may have killed because they used more memory than they
// requested.
func (s *Status) unexplained() map[int]bool {
	open := map[int]bool{}
	if s.Job.Packed() || s.Job.Interactive { // the accounting knows only the allocation
		return open
	}
	records := s.records()
	for _, k := range s.ask {
		if t := records[k]; t == nil || !t.Ended() || t.Stop != "" || t.Exceeded(s.request(k)) {
			open[k] = true
		}
	}
	return open
}

// states returns the states of the job's tasks in the queue, by hpcc's index.
func (s *Submission) states(known map[string]batch.State) map[int]job.Queue {
	out := map[int]job.Queue{}
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
