package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/node"
	"hpcc/job/pack"
	"hpcc/metrics"
	"hpcc/text"
)

// A Work is what "hpcc task" does on a node: it runs tasks of a job and keeps their records.
type Work struct {
	Job      string      // ID
	Jobs     string      // directory of all jobs
	Runner   node.Runner // Run sets its directory, its schedulers and all functions except Logf
	Array    job.Array   // tasks to run; zero: the batch system's variables have the task
	One      bool        // run only the task Index of Array
	Index    int
	Parallel int         // number of tasks that run at the same time
	Needs    []string    // native IDs of jobs that must have succeeded
	Request  job.Request // of each task
	Image    string      // as in the argv of the program, with its digest; "" for a program of the host

	// Pack has the Slots and Image of a packed job, which runs on all nodes; nil: the job is not packed. Run sets
	// the other fields. PackTo is the job's batch system.
	Pack   *pack.Plan
	PackTo job.Target

	// Header identifies hpcc and the image in the records of measured tasks; nil: do not measure.
	Header *metrics.Header

	// Lock keeps other processes from changing the job. It is set if tasks that lack memory or time are submitted
	// again.
	Lock func(ctx context.Context) (release func())
}

// Run runs the tasks, and returns the exit status for the batch system or, in an interactive job, for the user.
func (w *Work) Run(ctx context.Context) (status int, err error) {
	r := &w.Runner
	r.Dir, r.Schedulers = filepath.Join(w.Jobs, w.Job), OnNode()
	if _, err := os.Stat(r.Dir); submittedID().MatchString(w.Job) && errors.Is(err, fs.ErrNotExist) {
		return 0, text.Hint(fmt.Errorf("not starting the program: job %s has no directory (%s)", w.Job, r.Dir),
			"the scheduler refused the job, or its directory was removed: submit it again")
	}
	r.Warned = func() string {
		sub, err := ReadJob(r.Dir)
		if err != nil { // its script was submitted by hand
			return ""
		}
		return sub.Job.Warning.Signal
	}
	r.Ready = func(ctx context.Context) error { return Succeeded(ctx, w.Jobs, w.Needs) }
	if w.Pack != nil {
		return w.runPack(ctx)
	}
	if w.Header != nil {
		r.Measure = w.measure
	}
	if w.Lock == nil {
		return w.runTasks(ctx), nil
	}
	r.Grows = func(t *job.Task) bool {
		sub, err := ReadJob(r.Dir)
		return err == nil && sub.Grows(t)
	}
	if status = w.runTasks(ctx); status != 0 {
		w.growTasks(ctx)
	}
	return status, nil
}

// submittedID matches the ID of a submitted job; see [Submission.directory]. A script that was submitted by hand
// creates its own directory.
var submittedID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-\d{6}-\d{6}(-\d+)?$`) })

func (w *Work) runTasks(ctx context.Context) (status int) {
	r := &w.Runner
	k, err := strconv.Atoi(os.Getenv("HPCC_TASK_ID"))
	switch {
	case w.One:
		return w.status(r.Run(ctx, w.Index))
	case !w.Array.IsZero():
		if !r.RunArray(ctx, w.Array, w.Parallel) {
			return 1
		}
		return 0
	case err != nil: // not an array job
		return w.status(r.Run(ctx, 0))
	}
	if n, err := strconv.Atoi(os.Getenv("HPCC_TASK_COUNT")); err == nil {
		r.Count = n
	}
	return w.status(r.RunNative(ctx, k))
}

// status returns the exit status of hpcc after a program that ended with exit.
func (w *Work) status(exit int) int {
	if w.Runner.Interactive {
		return exit
	}
	return w.Runner.Schedulers.Status(exit, os.Getenv)
}

// runPack runs a packed job.
func (w *Work) runPack(ctx context.Context) (status int, err error) {
	r := &w.Runner
	if err := r.Ready(ctx); err != nil {
		return 0, err
	}
	if r.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Limit)
		defer cancel()
	}
	p := w.Pack
	p.Job, p.Array, p.Count, p.Nodes, p.Each = w.Job, w.Array, r.Count, max(r.Nodes, 1), w.Request
	p.Argv, p.Name, p.Output, p.Errors = r.Argv, r.Name, r.Output, r.Errors
	p.Retry, p.Params, p.Version, p.File = r.Retry, r.Params.Args(), r.Version, r.Image
	status, err = p.Run(ctx, r.Schedulers, w.PackTo, r.Dir, r.Logf)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r.Logf("the job has reached its time limit of %s; \"hpcc rerun %s\" runs the tasks that are left", r.Limit, w.Job)
	}
	if err != nil {
		return 0, err
	}
	if status != 0 {
		status = 1
	}
	return w.status(status), nil
}

// growTime is how long hpcc tries to submit tasks again when a task has ended. Schedulers kill a
// task some time after its limit.
const growTime = 25 * time.Second

// growTasks submits the tasks of the job again that lacked memory or time. Commands that wait for
// the job, and "hpcc rerun", do it if that fails here.
func (w *Work) growTasks(ctx context.Context) {
	interrupted, logf := ctx.Err() != nil, w.Runner.Logf
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), growTime)
	defer cancel()
	defer w.Lock(ctx)()
	sub, err := ReadJob(w.Runner.Dir)
	if err == nil {
		err = ctx.Err() // without the lock
	}
	var texts []string
	switch {
	case err != nil:
	case interrupted && sub.Target == job.Local:
		return // the user has ended the tasks; schedulers also interrupt them at the time limit
	default:
		texts, err = sub.Grow(ctx, w.Jobs, true)
	}
	for _, text := range texts {
		logf("%s", text)
	}
	if err != nil {
		logf("this node cannot submit tasks again: %v; \"hpcc wait %s\" and \"hpcc rerun %s\" do", err, w.Job, w.Job)
	}
}

// measure returns the options for measuring an attempt of a task.
func (w *Work) measure(t *job.Task, argv []string) metrics.Options {
	h, r := *w.Header, &w.Runner
	h.Command = w.program(argv)
	h.Asked = metrics.Asked{CPUs: w.Request.CPUs, Memory: w.Request.Memory, GPUs: w.Request.GPUs, Time: w.Request.Time.Seconds()}
	h.Job = &metrics.JobOf{ID: w.Job, Task: t.Index, Attempt: t.Attempt, Params: t.Params}
	ids, from := r.Schedulers.NativeIDs(os.Getenv)
	name, to, at := submissionOf(r.Dir, t)
	if to == "" {
		name, to = r.Name, from
	}
	h.Job.Name, h.Job.Target, h.Job.Native, h.Job.Submitted = name, string(to), ids, at
	o := metrics.Options{File: filepath.Join(r.Dir, t.Measured()), Header: h}
	o.Related = r.Schedulers.Launched(argv, os.Getenv)
	return o
}

// program returns the argv of the program without the arguments of "hpcc run" before it.
func (w *Work) program(argv []string) []string {
	for i := range argv {
		if w.Image != "" && i+2 < len(argv) && argv[i] == w.Image && argv[i+1] == "--" {
			return argv[i+2:]
		}
	}
	return argv
}
