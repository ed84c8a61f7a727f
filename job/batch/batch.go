// Package batch defines what a batch system is to hpcc.
//
//	dispatch ─► System, and the abilities that it has ─► the package of each batch system
//
// A new batch system implements [System], and those of the other interfaces that it can,
// and is entered into the registry of dispatch. The package runs nothing itself.
package batch

import (
	"context"
	"io"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/dialect"
	"hpcc/job/node"
	"hpcc/job/tunnel"
)

// A System submits jobs to one batch system and reports on them. Each batch
// system has its own package; optional abilities are separate interfaces.
type System interface {
	// Describe returns what other packages need to know of the batch system, as values.
	Describe() *Description

	// Detect reports whether this is the batch system of this host. Several products
	// share command names, so it asks the server.
	Detect(ctx context.Context) bool

	// Render returns the script of a checked job, and notes on settings that the
	// batch system ignores. A setting that would change the meaning of the job is an
	// error.
	Render(j *job.Job) (script string, notes []string, err error)

	// Submit submits the script and fills in the native ID. It refuses a script that
	// the batch system would accept but never start.
	Submit(ctx context.Context, r *Request) error

	// Query returns the queue state of jobs, by native ID, with one request. Jobs that
	// the batch system no longer knows are missing from the result.
	Query(ctx context.Context, ids []string) (map[string]QueueState, error)

	// Cancel ends all tasks of a job, running or queued.
	Cancel(ctx context.Context, id string) error
}

// A Description is what hpcc knows of a batch system besides its methods.
type Description struct {
	*dialect.Dialect                 // its name, and how it has jobs written; never nil
	Node             *node.Scheduler // how tasks find it on a node; nil: they do not

	// Whether it is installed on this host, and answers: argv of commands.
	Product       string // name in lists; "" is the title
	Version, Ping []string
	Is            func(version string) bool // distinguishes products that share Command; nil: yes

	InJob    func(name string) bool // a variable makes its commands believe that they run within a job; nil: none does
	CutsTime bool                   // it shortens the time limit of a job to Job.TimeMin
	EndsExec bool                   // what ExecOn started ends with the task

	Adjust    func(x *capacity.Need, j *job.Job)         // counts the needs of a job as it does; nil: as stated
	Retry     func(ctx context.Context, id string) error // runs the failed tasks of a job again; nil: they are submitted again
	Succeeded func(ctx context.Context, id string) error // of a system that starts jobs also after failures: an error if a job failed
}

// A NodeLister knows what the nodes have and what of it is free. queue selects the
// nodes of one queue where queues share the slots of a node.
type NodeLister interface {
	Nodes(ctx context.Context, queue string) (*capacity.Snapshot, error)
}

// An Estimator predicts when and where the job of a script would start. The error is
// the batch system's refusal; a nil estimate means that it makes no prediction.
type Estimator interface {
	Estimate(ctx context.Context, j *job.Job, script string) (*capacity.Estimate, error)
}

// A UsageCounter counts what jobs used, by native ID.
type UsageCounter interface {
	Used(ctx context.Context, ids []string) (map[string]capacity.Usage, error)
}

// A Historian knows which jobs ran since a time, limited to those that this user may see. It
// returns a [capacity.NoHistory] error if nobody keeps accounts.
type Historian interface {
	History(ctx context.Context, from time.Time) (*capacity.History, error)
}

// An Execer runs commands on the node of a running task. hpcc attach and hpcc forward
// need it. slow reports that the command may have to wait for a free slot.
type Execer interface {
	ExecOn(t *job.Task, terminal bool) (wrap func(argv []string) []string, slow bool)
}

// A Keeper runs tasks without hpcc next to them. It keeps their records and logs for it, in
// the directory of the job.
type Keeper interface {
	// Pin returns the variables that select the cluster that is the default now.
	Pin(ctx context.Context) (env map[string]string, err error)

	// Learn keeps the records of tasks that Query returned. A complete record stays as it is.
	Learn(s *Submitted, known map[string]QueueState) error

	// Hear adds to the tasks of known what their programs measured. later reports that
	// another call may bring more.
	Hear(ctx context.Context, s *Submitted, known map[string]QueueState) (later bool, err error)

	// Collect fetches the output of tasks that have ended, or of all.
	Collect(ctx context.Context, s *Submitted, all bool) error

	// Unread reports whether the cluster still has the output of a task that has ended.
	Unread(s *Submitted, t *job.Task) bool

	// Follow copies the output of a task, with follow until its program ends. It returns
	// false if the task writes to a file.
	Follow(ctx context.Context, s *Submitted, t *job.Task, follow bool, w io.Writer) (bool, error)

	// Enter returns the argv that runs argv, or a shell, next to the program of a task.
	Enter(ctx context.Context, t *job.Task, argv []string, terminal bool) []string

	// Read runs argv next to the program of a task and returns its output, at most so many
	// bytes of it.
	Read(ctx context.Context, t *job.Task, most int64, argv ...string) ([]byte, error)

	// Forward opens a tunnel to a port of a task.
	Forward(ctx context.Context, t *job.Task, port int) (*tunnel.Tunnel, error)
}

// A Submitted is a submitted job for a [Keeper].
type Submitted struct {
	ID, Home  string // of hpcc; the directory of its records
	Job       *job.Job
	Natives   []string    // IDs of the job and of its reruns, in order
	Arrays    []job.Array // the tasks of each; empty: a job that is not an array
	Cancelled time.Time
	At        func(t *job.Task) time.Time // when a task was submitted
}

// A Request is a job to submit.
type Request struct {
	ID      string // of hpcc
	Job     *job.Job
	Script  string                  // path
	Rewrite func(text string) error // replaces the content of Script

	Native string          // the batch system's ID, set by Submit
	Ended  <-chan struct{} // set by Submit for a job that is a child of this process
}

// A QueueState is the batch system's view of a job. The zero value is a job that it does
// not know or that has ended.
type QueueState struct {
	Running, Waiting int       // number of tasks
	Reason           string    // why tasks wait, as the batch system puts it
	Alive            bool      // the job goes on, and which tasks run is unknown
	Tasks            []Attempt // records of the tasks, if the batch system keeps them
}

// Gone reports whether the batch system runs and queues nothing of the job.
func (s QueueState) Gone() bool { return !s.Alive && s.Running+s.Waiting == 0 }

// A NoAnswer is the error of a server that was not reached, or that does not know the
// user. It is not a refusal of the job.
type NoAnswer struct{ Err error }

func (e *NoAnswer) Error() string { return e.Err.Error() }

func (e *NoAnswer) Unwrap() error { return e.Err }

// An Attempt is the record of a task that the batch system keeps itself, because its
// tasks run without hpcc. Its index is the position in the array, from 0.
type Attempt struct {
	job.Task
	Last     bool          // no other attempt follows
	Message  string        // message that the program left, with its measurements
	Image    string        // by digest; "" if unknown
	Pulled   time.Duration // time to pull the image; 0 if unknown
	Template string        // of the step of a workflow
	All      bool          // the record stands for all tasks of the step
}

// Poll is the pause between two looks at records or at a batch system.
const Poll = time.Second
