package job

import (
	"slices"
	"strings"
	"time"
)

// A State is what a task does, or how it ended.
type State uint8

// States of tasks.
const (
	Waiting State = iota // for the batch system, or for hpcc to submit it again
	Running
	Done
	Failed
	Stopped // asked to stop before it was done, or cancelled before it began
	Lost    // it has no end, and the batch system does not know it
)

func (s State) String() string {
	return [...]string{"waiting", "running", "done", "failed", "stopped", "lost"}[s]
}

// A Queue is what a batch system does with a task.
type Queue uint8

// The zero Queue is that of a task that the batch system does not know or that has ended.
const (
	QueueEnding Queue = iota + 1 // the batch system ends or cleans up the task; it may queue the task again
	QueueWaiting
	QueueRunning
)

// An Answer is how much a batch system has said of the tasks of a job.
type Answer uint8

// Answers of batch systems.
const (
	Silent Answer = iota // none: it was not asked, or it did not answer
	Alive                // the job goes on; its records show which tasks run
	Listed               // its tasks in the queue, one by one
)

// An End is how a task ended according to its batch system.
type End struct {
	State  State     // Done, Failed or Stopped
	At     time.Time // zero: unknown
	Why    string    // of a task that did not succeed, in one sentence
	Memory bool      // it was killed because it used more memory than it requested
}

// Facts are all that is known of a task at one moment.
type Facts struct {
	Record    *Task     // of the last attempt; nil: none
	Answer    Answer    // of the batch system
	Queue     Queue     // if Answer is Listed
	End       *End      // by the batch system; nil: unknown
	Sending   bool      // hpcc submits the task again at this moment
	Retrying  bool      // a packed job runs the task again, unless it has ended itself
	Cancelled time.Time // when the user cancelled the job; zero: never
}

// A Verdict is the state of a task by its [Facts].
type Verdict struct {
	State State
	Again bool // the task has ended, and the batch system has it again
	Ask   bool // the accounting of the batch system may know more
}

// endingTime is for how long a failed task counts as running while the batch system cleans up. A
// node that has died can stay in this state for days.
const endingTime = time.Minute

// Decide returns the state of a task. The record, which "hpcc task" writes next to the program, says how
// an attempt ended. The queue says what runs, and what will run again. A program that saves its state when
// it is asked to stop, and then ends with status 0, has not succeeded: its record is "stopped" below.
//
//	record            batch system             state
//	success           any                      done
//	stopped, failure  waiting, running         waiting, running: the batch system has requeued the task
//	stopped, failure  ending                   running, for at most endingTime: it may requeue the task
//	stopped, failure  any, the task is sent    waiting
//	failure           alive, the job retries   waiting
//	stopped           with an end              done if it is a success, and no limit of time was near; else stopped
//	stopped           absent, silent, alive    stopped
//	failure           absent, silent, alive    failed; stopped if the job or the task was cancelled before
//	none, open        waiting                  waiting: a task with an open record lost its node
//	none, open        running, ending          running
//	none, open        absent, the task is sent waiting
//	none, open        with an end              the end: done, failed or stopped
//	none, open        absent                   lost; stopped if the job was cancelled
//	none              silent, alive            waiting
//	open              silent, alive            running
func (f *Facts) Decide(now time.Time) Verdict {
	t := f.Record
	ended := t != nil && t.Ended()
	queue := f.Queue
	if f.Answer != Listed || (ended && queue == QueueEnding && now.Sub(t.End) > endingTime) {
		queue = 0
	}
	listed := f.Answer == Listed
	switch {
	case ended && t.OK():
		return Verdict{State: Done}
	case queue == QueueWaiting, queue == 0 && f.Sending:
		return Verdict{State: Waiting, Again: ended && queue != 0}
	case queue != 0:
		return Verdict{State: Running, Again: ended}
	case ended && f.Retrying && !listed:
		return Verdict{State: Waiting}
	case ended && t.stopped() && f.End != nil && f.End.State == Done && !t.AtLimit:
		return Verdict{State: Done}
	case ended && (t.stopped() || t.Stop == StopCancelled || f.cancelledBefore(t.End)):
		return Verdict{State: Stopped, Ask: listed && f.End == nil && t.stopped() && !t.AtLimit && f.Cancelled.IsZero()}
	case ended && f.End != nil && f.End.State == Stopped:
		return Verdict{State: Stopped}
	case ended:
		return Verdict{State: Failed, Ask: listed && f.End == nil}
	case f.End != nil:
		return Verdict{State: f.End.State}
	case !listed && t != nil:
		return Verdict{State: Running}
	case !listed:
		return Verdict{State: Waiting}
	case !f.Cancelled.IsZero():
		return Verdict{State: Stopped}
	}
	return Verdict{State: Lost, Ask: true}
}

// Words describe the facts for people, in the words of the table of [Facts.Decide].
type Words struct {
	Record, Queue string
	Accounting    string // "": it was not asked, or it knows nothing
	Asked         string // what the user or hpcc wants; "": nothing
}

// Words describes the facts.
func (f *Facts) Words() (w Words) {
	switch t := f.Record; {
	case t == nil:
		w.Record = "none"
	case !t.Ended():
		w.Record = "open"
	case t.OK():
		w.Record = "success"
	case t.stopped():
		w.Record = "stopped by " + t.Stop
	default:
		w.Record = "failure"
	}
	switch {
	case f.Answer == Silent && w.Record == "success":
		w.Queue = "not asked"
	case f.Answer == Silent:
		w.Queue = "silent"
	case f.Answer == Alive:
		w.Queue = "alive"
	default:
		w.Queue = [...]string{"absent", "ending", "waiting", "running"}[f.Queue]
	}
	if f.End != nil {
		w.Accounting = strings.TrimSuffix(f.End.State.String()+": "+f.End.Why, ": ")
	}
	switch {
	case !f.Cancelled.IsZero():
		w.Asked = "cancel"
	case f.Sending:
		w.Asked = "submit, without an answer yet"
	case f.Retrying:
		w.Asked = "retry"
	}
	return w
}

// cancelledBefore reports whether the user cancelled the job before a time. Cancelled has a resolution of one
// second.
func (f *Facts) cancelledBefore(t time.Time) bool {
	return !f.Cancelled.IsZero() && !t.Before(f.Cancelled)
}

// Counts are the numbers of tasks in each state. Total is their sum.
type Counts struct {
	Total   int   `json:"total"`
	Done    int   `json:"done"`
	Failed  []int `json:"failed,omitempty"` // indices, in order
	Running int   `json:"running"`
	Waiting int   `json:"waiting"`
	Stopped int   `json:"stopped"`
	Lost    int   `json:"lost"`
}

// Add counts a task.
func (c *Counts) Add(index int, s State) {
	c.Total++
	if s == Failed {
		i, _ := slices.BinarySearch(c.Failed, index)
		c.Failed = slices.Insert(c.Failed, i, index)
		return
	}
	*c.of(s)++
}

// of returns the number of tasks in a state other than Failed.
func (c *Counts) of(s State) *int {
	switch s {
	case Waiting:
		return &c.Waiting
	case Running:
		return &c.Running
	case Done:
		return &c.Done
	case Stopped:
		return &c.Stopped
	}
	return &c.Lost
}

// Active returns the number of tasks that run or wait.
func (c *Counts) Active() int { return c.Running + c.Waiting }

// Spread distributes the tasks that run or wait by the numbers of a batch system that does not say which
// tasks they are. The others become as.
func (c *Counts) Spread(running, waiting int, as State) {
	active := c.Active()
	c.Running = min(running, active)
	c.Waiting = min(waiting, active-c.Running)
	*c.of(as) += active - c.Active()
}
