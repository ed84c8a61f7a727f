// Package batch defines the interface between hpcc and a batch system.
//
//	dispatch ─► System and the optional interfaces ─► the package of each batch system
//
// A new batch system implements [System] and the optional interfaces that it supports, and
// is added to the registry of dispatch. Package batch itself runs no commands.
package batch

import (
	"context"
	"crypto/rand"
	"encoding/hex"
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
	// Describe returns the properties of the batch system that other packages need.
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
	Query(ctx context.Context, ids []string) (map[string]State, error)

	// Cancel ends all tasks of a job, running or queued.
	Cancel(ctx context.Context, id string) error
}

// A Description holds the properties of a batch system.
type Description struct {
	*dialect.Dialect                 // its name, options and directives; never nil
	Node             *node.Scheduler // how tasks recognise it on a node; nil: they cannot

	// Version and Ping are the argv that show whether it is installed on this host and answers.
	Product       string // name in lists; "": the title
	Version, Ping []string
	Is            func(version string) bool // distinguishes products that share Command; nil: all are this one

	InJob    func(name string) bool // reports whether the variable makes its commands act as part of a running job; nil: no variable does
	CutsTime bool                   // it may shorten the time limit of a job, at most to Job.TimeMin
	EndsExec bool                   // it ends a command of ExecOn together with the task

	Adjust func(x *capacity.Need, j *job.Job)            // converts the needs of a job to its way of counting; nil: no conversion
	Index  func(a job.Array, n int) (index int, ok bool) // converts its own index in an array to hpcc's; nil: they are equal
	Retry  func(ctx context.Context, id string) error    // runs the failed tasks of a job again; nil: they are submitted again
	// the most tasks of an array on this site, 0: unknown; nil: no limit, or an unknown one
	MaxArray  func(ctx context.Context) int
	Succeeded func(ctx context.Context, id string) error // returns an error if a dependency failed; nil: it checks dependencies itself

	// Never returns why the site never grants a job, whatever its load, although the batch system
	// accepts it; "" if it may. sure is false if settings that hpcc cannot see may allow the job. Every
	// submission calls Never, so it makes few queries. nil: the batch system refuses such jobs.
	Never func(ctx context.Context, j *job.Job) (why string, sure bool)
}

// A Finder finds a submission whose answer was lost, by hpcc's ID: it returns the native IDs of its jobs that
// the batch system has or has just had. Jobs of other users, and of another store of this user, may have the same
// ID, so it compares the owner and the script, too. tasks are the native IDs in the records of tasks that have started.
type Finder interface {
	Find(ctx context.Context, r *Request, tasks []string) (natives []string, err error)
}

// A NodeLister lists the nodes with their total and free resources. Where queues share the
// slots of a node, it counts only those of queue.
type NodeLister interface {
	Nodes(ctx context.Context, queue string) (*capacity.Snapshot, error)
}

// An Estimator predicts when and where the job of a script would start. The error is
// the batch system's refusal; a nil estimate means that it makes no prediction.
type Estimator interface {
	Estimate(ctx context.Context, j *job.Job, script string) (*capacity.Estimate, error)
}

// A UsageCounter returns the resource usage of jobs, by native ID.
type UsageCounter interface {
	Used(ctx context.Context, ids []string) (map[string]capacity.Usage, error)
}

// An Accountant returns how tasks of jobs ended according to its accounting, by native ID and by the batch
// system's own index. Tasks of which that does not tell are missing. The result counts besides an error.
type Accountant interface {
	Endings(ctx context.Context, ids []string) (map[string]map[int]job.End, error)
}

// An Execer runs commands on the node of a running task. hpcc attach and hpcc forward
// need it. slow reports that the command may have to wait for a free slot.
type Execer interface {
	ExecOn(t *job.Task, terminal bool) (wrap func(argv []string) []string, slow bool)
}

// A Keeper runs tasks without hpcc next to them. It keeps their states and logs itself, and
// its methods copy them to the directory of the job.
type Keeper interface {
	// Pin returns the environment variables that select the current default cluster.
	Pin(ctx context.Context) (env map[string]string, err error)

	// QueryKept is Query for jobs with their records. It may write records itself, and requests only
	// what these do not answer. At the deadline of its context it returns what it knows, and the
	// next call goes on.
	QueryKept(ctx context.Context, list []*Submitted) (map[string]State, error)

	// Watch returns a channel that gets a value when QueryKept may have something new about s.Only, or
	// about the job for nil. It closes when ctx has ended, and when the cluster cannot be watched. It is
	// nil if it never can.
	Watch(ctx context.Context, s *Submitted) <-chan struct{}

	// Record stores the records of tasks that QueryKept returned. It does not change a complete record.
	Record(s *Submitted, known map[string]State) error

	// AddMeasurements adds the measurements of the programs to the tasks of known. later reports
	// whether another call may find more.
	AddMeasurements(ctx context.Context, s *Submitted, known map[string]State) (later bool, err error)

	// Collect saves the output of tasks that have ended. Without all, it saves the output of some
	// tasks, and other calls that of the others; with all, also that of tasks that run.
	Collect(ctx context.Context, s *Submitted, all bool) error

	// Unread reports whether the cluster still has the output of a task that has ended.
	Unread(s *Submitted, t *job.Task) bool

	// Logs returns the output of the job's tasks. The caller must close it.
	Logs(s *Submitted) Logs

	// Enter returns the argv that runs argv, or a shell, next to the program of a task.
	Enter(ctx context.Context, t *job.Task, argv []string, terminal bool) []string

	// Read runs argv next to the program of a task and returns at most limit bytes of its
	// output.
	Read(ctx context.Context, t *job.Task, limit int64, argv ...string) ([]byte, error)

	// Forward opens a tunnel to a port of a task.
	Forward(ctx context.Context, t *job.Task, port int) (*tunnel.Tunnel, error)

	// Fetch calls each for every result that f names, with a tar stream of one file or
	// directory. An error of Close means that the stream is incomplete.
	Fetch(ctx context.Context, f *Fetch, each func(name string, tar io.ReadCloser) error) error
}

// A Fetch names results of a job for a [Keeper].
type Fetch struct {
	*Submitted
	Path    string            // path in the pods or name of an artifact; "": all results
	Image   string            // image with tar for a pod that reads a volume; "": the job's
	Running *job.Task         // a task that runs, or nil
	Temp    string            // directory for a result that must be copied first; "": the default
	Max     int64             // bytes of such a result; 0: the default
	Report  func(text string) // called while the fetch waits
}

// NewName returns a name for an object of the cluster that reads the results. Each call returns another
// one.
func (f *Fetch) NewName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return job.Label(f.ID) + "-fetch-" + hex.EncodeToString(b[:])
}

// Logs is the output of a job's tasks that a [Keeper] keeps.
type Logs interface {
	// Follow copies the output of a task to w. If follow is set, it goes on until the
	// program ends. It returns false if the task writes to a file.
	Follow(ctx context.Context, t *job.Task, follow bool, w io.Writer) (bool, error)
	Close()
}

// A Submitted is a submitted job for a [Keeper].
type Submitted struct {
	ID, Home  string // hpcc's job ID; the directory of the job's records
	Job       *job.Job
	Natives   []string    // IDs of the job and of its reruns, in order
	Arrays    []job.Array // tasks of each of Natives; the zero Array: not an array
	Cancelled time.Time
	At        func(t *job.Task) time.Time // when a task was submitted
	Only      []int                       // tasks whose records and output are needed, by index; nil: all
}

// A Request is a job to submit.
type Request struct {
	ID      string // hpcc's job ID
	Job     *job.Job
	Script  string                  // path
	Rewrite func(text string) error // replaces the content of Script

	// Submit sets Sent before the command that queues the job. An error after that may hide that the batch
	// system has the job.
	Sent   bool
	Native string          // the batch system's ID, set by Submit
	Ended  <-chan struct{} // set by Submit for a job that is a child of this process
}

// A NoAnswer is the error of a server that cannot be reached or does not know the user. It
// does not mean that the server refused the job.
type NoAnswer struct{ Err error }

func (e *NoAnswer) Error() string { return e.Err.Error() }

func (e *NoAnswer) Unwrap() error { return e.Err }

// Poll is the interval between two queries of records or of a batch system.
const Poll = time.Second

// Wait waits for the next query. It returns the error of a context that has ended.
func Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(Poll):
		return nil
	}
}
