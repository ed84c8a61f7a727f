package dispatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
)

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
	Reason  string     `json:"reason,omitempty"` // why tasks wait, or why lost ones never started, in the scheduler's words
	Tasks   []job.Task `json:"-"`

	User    string    `json:"user,omitempty"`   // the owner of the job's directory; a number if the name is unknown
	Started time.Time `json:"started,omitzero"` // when the first task began
	Ended   time.Time `json:"ended,omitzero"`   // when the last task ended, if none runs or waits

	AsOf time.Time `json:"as_of,omitzero"` // when the site, which does not answer, did last

	unkept error // why records of the target's tasks could not be written
	later  bool  // no record was written, because the measured usage is not available yet
}

// Active reports whether a task runs or waits.
func (s *Status) Active() bool { return s.Running+s.Waiting > 0 }

// Elapsed returns the time from the start of the first task to now, or to the end of the last
// task. It is 0 if no task has started.
func (s *Status) Elapsed(now time.Time) time.Duration {
	if s.Started.IsZero() {
		return 0
	}
	if !s.Active() {
		now = s.Ended
	}
	return max(0, now.Sub(s.Started))
}

// State returns the state of the job in one word.
func (s *Status) State() string {
	switch {
	case s.Running > 0:
		return "running"
	case s.Waiting > 0:
		return "waiting"
	case !s.Cancelled.IsZero() && s.Done < s.Total:
		return "cancelled"
	case s.Lost > 0 && s.Reason == "":
		return "lost"
	case len(s.Failed)+s.Lost > 0:
		return "failed"
	}
	return "done"
}

// Statuses reads the jobs below dir, newest first, or those that ids name by ID, prefix or
// native ID. It queries schedulers only for jobs with incomplete records. A scheduler that
// does not answer is a warning; so is an unreadable job, unless ids name it.
func Statuses(ctx context.Context, dir string, ids []string) (list []*Status, warnings []string, err error) {
	subs, bad, err := submissions(dir, ids)
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
	warnings = append(warnings, settleAll(ctx, dir, open)...)
	for _, st := range list {
		st.User = owner(filepath.Join(dir, st.ID))
		st.span()
	}
	return list, warnings, nil
}

// owner returns the user name of a file's owner.
func owner(file string) string {
	fi, err := os.Stat(file)
	if err != nil {
		return ""
	}
	uid := strconv.FormatUint(uint64(fi.Sys().(*syscall.Stat_t).Uid), 10)
	if u, err := user.LookupId(uid); err == nil {
		return u.Username
	}
	return uid
}

// span sets Started and Ended from the tasks' records.
func (s *Status) span() {
	for _, t := range s.Tasks {
		if !t.Start.IsZero() && (s.Started.IsZero() || t.Start.Before(s.Started)) {
			s.Started = t.Start
		}
		if !s.Active() && t.End.After(s.Ended) {
			s.Ended = t.End
		}
	}
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
		st.settle(st.queueState(known))
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
	if s.Job.Workflow != nil && err == nil && !s.Over && s.queueState(known).Gone() {
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
