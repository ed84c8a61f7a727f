package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	"hpcc/job/pack"
	"hpcc/text"
)

// A Status is the state of a job.
type Status struct {
	*Submission
	job.Counts
	Reason string     `json:"reason,omitempty"` // why tasks wait, or why lost ones never started, in the scheduler's words
	Tasks  []job.Task `json:"-"`                // without the successful ones of a packed job

	User    string    `json:"user,omitempty"`   // the owner of the job's directory; a number if the name is unknown
	Started time.Time `json:"started,omitzero"` // when the first task began
	Ended   time.Time `json:"ended,omitzero"`   // when the last task ended, if none runs or waits

	Grown []grown `json:"grown,omitempty"` // tasks with larger requests than the job

	AsOf time.Time `json:"as_of,omitzero"` // when the site, which does not answer, did last

	survey     job.Records       // Succeeded has the successful tasks of a packed job
	unkept     error             // why records of the target's tasks could not be written
	later      bool              // no record was written, because the measured usage is not available yet
	answer     job.Answer        // of the scheduler
	queue      map[int]job.Queue // what the scheduler does with the tasks
	ends       map[int]job.End   // of tasks that have ended and have no record of it
	requeued   map[int]bool      // failed tasks that are in the scheduler's queue
	only       []int             // tasks whose records the caller needs; nil: all
	unrecorded int               // tasks that have ended and whose records a later query reads
	current    bool              // the scheduler has answered, and no record waits for a later query
	ask        []int             // tasks about which the accounting may know more
	active     []int             // tasks that run or wait
	over       []int             // tasks that neither run nor wait, and did not succeed
	changed    time.Time         // last change of the job's directory before the records were read; for an [Overview]
	brief      bool              // without tasks and requests
	damaged    bool              // there are unreadable records; for an [Overview]
}

// Active reports whether a task runs or waits.
func (s *Status) Active() bool { return s.Counts.Active() > 0 }

// Unsuccessful returns the tasks that have ended without success, in order. It leaves out those that end when a job is
// cancelled.
func (s *Status) Unsuccessful() []int {
	if !s.Cancelled.IsZero() || s.over == nil {
		return s.Failed
	}
	records := s.records()
	return slices.DeleteFunc(slices.Clone(s.over), func(k int) bool { return records[k] == nil || !records[k].Ended() })
}

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
	case s.Stopped > 0:
		return "stopped"
	}
	return "done"
}

// Statuses reads the jobs below dir that ids name by ID, prefix or native ID, newest first; without
// ids all jobs. It queries schedulers only for jobs with incomplete records. A scheduler that
// does not answer is a warning; so is an unreadable job, unless ids name it.
func Statuses(ctx context.Context, dir string, ids []string) (list []*Status, warnings []string, err error) {
	if len(ids) == 0 {
		list, warnings, err = Overview(ctx, dir, func(int, int) {})
		inParallel(len(list), func(i int) { list[i].complete(dir) })
		return list, warnings, err
	}
	subs, err := findAll(dir, ids)
	if err != nil {
		return nil, nil, err
	}
	open := map[string][]*Status{} // by cluster
	for _, s := range subs {
		st := &Status{Submission: s}
		warning, err := job.Readable(st.read(dir))
		if err != nil {
			return nil, nil, err
		}
		if warning != "" {
			warnings = append(warnings, fmt.Sprintf("job %s: %s", s.ID, warning))
		}
		if st.unsettled(true) {
			open[s.key()] = append(open[s.key()], st)
		}
		list = append(list, st)
	}
	warnings = append(warnings, settleAll(ctx, dir, open)...)
	accountAll(ctx, dir, list, invoke.ShortTimeout)
	users := owners{}
	for _, st := range list {
		if fi, err := os.Stat(filepath.Join(dir, st.ID)); err == nil {
			st.User = users.of(fi)
		}
		st.span()
		st.readGrown()
	}
	return list, warnings, nil
}

// requeueTime is how long after its end the scheduler is queried about a job with failed tasks,
// unless the caller names the job.
const requeueTime = 7 * 24 * time.Hour

// endedWithin reports whether a task ended in the last d.
func (s *Status) endedWithin(d time.Duration) bool {
	return slices.ContainsFunc(s.Tasks, func(t job.Task) bool { return t.Ended() && time.Since(t.End) < d })
}

// unsettled reports whether the scheduler may know more than the records; named: the caller names
// the job.
func (s *Status) unsettled(named bool) bool {
	requeued := s.mayReturn() && (named || s.endedWithin(requeueTime))
	return s.open() > 0 || requeued || slices.ContainsFunc(s.Tasks, s.unread)
}

// owners are user names by their IDs.
type owners map[uint32]string

// of returns the user name of a file's owner.
func (o owners) of(fi fs.FileInfo) string {
	id := fi.Sys().(*syscall.Stat_t).Uid
	if _, known := o[id]; !known {
		o[id] = strconv.FormatUint(uint64(id), 10)
		if u, err := user.LookupId(o[id]); err == nil {
			o[id] = u.Username
		}
	}
	return o[id]
}

// span sets Started and Ended from the tasks' records.
func (s *Status) span() {
	if s.Started = s.survey.Succeeded.Start; !s.Active() {
		s.Ended = s.survey.Succeeded.End
	}
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
		g.Go(func() { answers[i] = settle(ctx, dir, open[key], invoke.ShortTimeout) })
	}
	g.Wait()
	for i, err := range answers {
		// Without an answer, the records decide about jobs whose tasks have all ended.
		undecided := func(st *Status) bool { return st.open() > 0 || st.keeper() != nil }
		if err != nil && slices.ContainsFunc(open[clusters[i]], undecided) {
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

// settle queries a cluster once about the open tasks of its jobs. If it does not answer, the records
// decide.
func settle(ctx context.Context, dir string, list []*Status, limit time.Duration) error {
	unknown := map[*Status]error{} // jobs whose native IDs the scheduler could not be asked for
	for _, st := range list {
		finding, cancel := context.WithTimeout(ctx, limit)
		if err := st.adopt(finding, dir); err != nil {
			unknown[st] = err
		}
		cancel()
	}
	known, err := query(ctx, dir, list, limit)
	if err != nil {
		return err
	}
	var again error // of the jobs that are not known yet, and of the queries about those submitted again meanwhile
	for _, st := range list {
		if err := unknown[st]; err != nil {
			again = errors.Join(again, err)
			continue
		}
		if st.keeper() != nil {
			st.unkept = st.renew(ctx, filepath.Join(dir, st.ID), known)
			st.judgeKept(st.queueState(known))
			if st.current = st.unkept == nil && !st.later && st.unrecorded == 0; st.unrecorded > 0 {
				st.unkept = errors.Join(st.unkept,
					fmt.Errorf("%s ended, and their records are not read yet; the next \"hpcc status\" goes on",
						text.Count(st.unrecorded, "task", "tasks")))
			}
			continue
		}
		st.judgeQueued(dir, known)
		if len(st.over) > 0 && st.resubmitted(dir) {
			st.answer = job.Silent
			st.judge(time.Now())
			again = errors.Join(again, settle(ctx, dir, []*Status{st}, limit))
		}
	}
	return again
}

// query asks a cluster about jobs.
func query(ctx context.Context, dir string, list []*Status, limit time.Duration) (map[string]batch.State, error) {
	c := list[0].Cluster
	var ids []string
	var kept []*batch.Submitted
	for _, st := range list {
		ids = append(ids, st.natives()...)
		s := st.kept(filepath.Join(dir, st.ID))
		s.Only = st.only
		kept = append(kept, s)
	}
	if k := c.keeper(); k != nil {
		return c.within(ctx, limit, func(ctx context.Context) (map[string]batch.State, error) { return k.QueryKept(ctx, kept) })
	}
	return c.Query(ctx, ids, limit)
}

// judgeQueued counts the tasks by the scheduler's queue and the records.
func (s *Status) judgeQueued(dir string, known map[string]batch.State) {
	n := s.queueState(known)
	packed := s.Job.Packed() && !n.Gone() // the queue has only the allocation
	s.Reason = n.Reason
	if n.Alive || packed {
		s.answer = job.Alive
		s.judge(time.Now())
		if at, ok := pack.Read(filepath.Join(dir, s.ID)); packed && ok {
			s.Spread(max(s.Running, at.Running), s.Waiting, job.Waiting)
		}
		return
	}
	s.answer, s.queue = job.Listed, s.states(known)
	s.judge(time.Now())
	if len(s.over) == 0 {
		return
	}
	// A task may have ended between the first reading of the records and the query.
	if _, err := job.Readable(s.readTasks(dir)); err == nil {
		s.judge(time.Now())
	}
}

// Recorded returns the number of tasks that have a record.
func (s *Status) Recorded() int { return len(s.Tasks) + s.survey.Succeeded.Count }

// readTasks reads the records of the tasks. In a packed job, it leaves out the records that a rerun
// has superseded.
func (s *Status) readTasks(dir string) error {
	var r job.Records
	err := r.Survey(filepath.Join(dir, s.ID))
	s.Tasks, s.survey = r.Last, r
	if n := len(s.Reruns); n > 0 && s.Job.Packed() {
		s.Tasks = slices.DeleteFunc(s.Tasks, func(t job.Task) bool { return t.Attempt < s.Reruns[n-1].First })
	}
	return cmp.Or(err, r.Err())
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
func (s *Status) renew(ctx context.Context, home string, known map[string]batch.State) error {
	var unmeasured error
	k, kept := s.keeper(), s.kept(home)
	kept.Only = s.only
	if s.Job.Measured() {
		if s.later, unmeasured = k.AddMeasurements(s.Within(ctx), kept, known); s.later {
			return unmeasured
		}
	}
	err := k.Record(kept, known)
	if s.Job.Workflow != nil && err == nil && !s.Over && s.queueState(known).Gone() {
		s.Over = true
		err = s.write(home)
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, collecting)
		defer cancel()
		err = k.Collect(s.Within(ctx), kept, false)
	}
	_, rerr := job.Readable(s.read(filepath.Dir(home)))
	return errors.Join(unmeasured, err, rerr)
}

// open returns the number of tasks without an end.
func (s *Status) open() int { return s.Total - s.Done - len(s.Failed) - s.Stopped }

// judgeKept counts the tasks of a cluster that keeps the records of tasks itself.
func (s *Status) judgeKept(n batch.State) {
	s.answer, s.Reason = job.Alive, ""
	if s.later { // the scheduler knows more than the records
		s.judge(time.Now())
		return
	}
	s.Reason = n.Reason
	if n.Alive {
		s.judge(time.Now())
		if s.Job.Workflow != nil && s.Running+n.Waiting > 0 { // steps that the records lack
			s.Total, s.Waiting = s.Total+n.Waiting-1, s.Waiting+n.Waiting-1
		}
		return
	}
	s.ends = map[int]job.End{}
	for _, k := range n.Done {
		s.ends[k] = job.End{State: job.Done}
	}
	for _, k := range n.Failed {
		s.ends[k] = job.End{State: job.Failed}
	}
	s.judge(time.Now())
	lost := job.Lost
	if !s.Cancelled.IsZero() {
		lost = job.Stopped
	}
	if s.Spread(n.Running, n.Waiting, lost); !s.Active() {
		s.over = append(s.over, s.active...)
		slices.Sort(s.over)
	}
}
