package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/node"
	"hpcc/job/pack"
	"hpcc/metrics"
	"hpcc/store"
	"hpcc/text"
)

// taskCommand returns the command that job scripts call. It runs the program after "--",
// measures it and keeps the record of the task. The exit status is the program's.
func taskCommand() *cli.Command {
	return &cli.Command{
		Name: "task", Hidden: true, Usage: "run a task of a job and record it (started by job scripts)", ArgsUsage: "-- CMD [ARG...]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "job", Required: true, Usage: "write the record to the directory of job `ID`"},
			&cli.StringFlag{Name: "name", Usage: "use job name `NAME` in file names"},
			&cli.StringFlag{Name: "array", Usage: "run the tasks `RANGE` one after the other"},
			&cli.IntFlag{Name: "nth", Usage: "run only the `N`th task of --array"},
			&cli.IntFlag{Name: "of", Usage: "set the size of the full array to `N` tasks"},
			&cli.IntFlag{Name: "pack", Usage: "run --array on all nodes of the job, `N` tasks at once on each"},
			&cli.IntFlag{Name: "image-words", Usage: "with --pack: the first `N` arguments start the image, once on each node"},
			&cli.StringFlag{Name: "dir", Usage: "join the packed job in `DIR`"},
			&cli.StringFlag{Name: "to", Usage: "with --pack: run under scheduler `TARGET`"},
			&cli.StringFlag{Name: "run", Usage: "join run `ID` of a packed job"},
			&cli.StringFlag{Name: "role", Usage: "act as `ROLE` of it: coordinator, node or worker"},
			&cli.IntFlag{Name: "rank", Value: -1, Usage: "act as node `N` of it"},
			&cli.StringFlag{Name: "peer", Usage: "take another `HOST` of it, which is not used"},
			&cli.IntFlag{Name: "parallel", Value: 1, Usage: "run `N` tasks at the same time"},
			&cli.IntFlag{Name: "nodes", Usage: "run only if the job has `N` nodes"},
			&cli.StringFlag{Name: "needs", Usage: "run only if the native jobs `IDS` have succeeded"},
			&cli.StringSliceFlag{Name: "sweep", Usage: "expand {NAME} from `NAME=VALUES`"},
			&cli.StringFlag{Name: "params", Usage: "expand {NAME} from the rows of `FILE`"},
			&cli.StringFlag{Name: "params-sum", Usage: "require this `SHA256` of --params"},
			&cli.IntFlag{Name: "retry", Usage: "run a failed task again up to `N` times"},
			&cli.StringFlag{Name: "retry-on", Usage: "retry only after `ENDINGS`: exit=99,signal=SIGKILL"},
			&cli.BoolFlag{Name: "grow", Usage: "submit tasks that lack memory or time again"},
			&cli.BoolFlag{Name: "interactive", Usage: "leave the terminal to the task"},
			&cli.BoolFlag{Name: "stdin", Usage: "give each task a copy of standard input"},
			&cli.DurationFlag{Name: "limit", Usage: "end each task after `TIME`"},
			&cli.StringFlag{Name: "signal", Usage: "send `SIGNAL@TIME` before the limit"},
			&cli.BoolFlag{Name: "measure", Usage: "record the resource usage of each task"},
			&cli.StringFlag{Name: "image", Usage: "record that the program runs in image `IMAGE`"},
			&cli.StringFlag{Name: "image-file", Usage: "fail if the image file is no longer `VERSION`"},
			&cli.StringFlag{Name: "asked", Usage: "record the request `cpus=N,memory=BYTES,gpus=N,time=TIME`"},
			&cli.StringFlag{Name: "beside", Usage: "run a companion of a task: `INDEX NAME ARGV`"},
			&cli.StringFlag{Name: "output", Usage: "write output to `FILE`"},
			&cli.StringFlag{Name: "error", Usage: "write standard error to `FILE`"},
			storeFlag(),
		},
		Action: action(parseTask),
	}
}

type taskArgs struct {
	job      string // ID of the job
	store    string
	runner   node.Runner
	array    job.Array
	index    int  // index of the task to run, if one is true
	one      bool // run a single task of the array
	parallel int
	needs    []string // native IDs of jobs that must have succeeded
	measure  bool
	grow     bool        // submit tasks that lack memory or time again
	image    string      // of the program; "" for a program of the host
	asked    job.Request // the request for each task
	pack     *pack.Plan  // a packed job to run; nil: none
	packTo   job.Target
	role     string // of this process in a packed job; "": none
	packRun  string // of it
	dir      string // of it
	rank     int
}

func parseTask(c *cli.Context) (*taskArgs, error) {
	a := &taskArgs{job: c.String("job"), store: c.String("store"), parallel: c.Int("parallel"), measure: c.Bool("measure"), grow: c.Bool("grow"), image: c.String("image")}
	r := &a.runner
	if !filepath.IsLocal(a.job) || filepath.Base(a.job) != a.job {
		return nil, text.Usagef("--job %q is not a job ID", a.job)
	}
	if a.role = c.String("role"); a.role != "" {
		a.packRun, a.rank, a.dir = c.String("run"), c.Int("rank"), c.String("dir")
		if !filepath.IsLocal(a.packRun) || filepath.Base(a.packRun) != a.packRun {
			return nil, text.Usagef("--run %q is not a run", a.packRun)
		}
		return a, nil
	}
	if r.Argv = trimDashes(c.Args().Slice()); len(r.Argv) == 0 {
		return nil, errors.New("task needs a command after --")
	}
	var err error
	if a.array, err = job.ParseArray(c.String("array")); err != nil {
		return nil, err
	}
	r.Name, r.Nodes, r.Interactive, r.Limit = c.String("name"), c.Int("nodes"), c.Bool("interactive"), c.Duration("limit")
	r.Output, r.Errors, r.Count = c.String("output"), c.String("error"), max(c.Int("of"), a.array.Count(), 1)
	if r.Params, err = job.ParseParams(c.StringSlice("sweep"), c.String("params"), c.String("params-sum")); err != nil {
		return nil, err
	}
	r.Retry.Times = c.Int("retry")
	if r.Retry.Endings, err = job.ParseEndings(c.String("retry-on")); err != nil {
		return nil, err
	}
	if a.asked, err = job.ParseRequest(c.String("asked")); err != nil {
		return nil, text.Usagef("--asked: %w", err)
	}
	if r.Companion.Task, r.Companion.Name, r.Companion.Argv, err = job.ParseCompanion(c.String("beside")); err != nil {
		return nil, err
	}
	if ids := c.String("needs"); ids != "" {
		a.needs = strings.Split(ids, ",")
	}
	if r.Warning, err = job.ParseWarning(c.String("signal")); err != nil {
		return nil, text.Usagef("--signal: %w", err)
	}
	if c.Bool("stdin") {
		if r.Stdin, err = io.ReadAll(io.LimitReader(files.Stdin(), maxInput)); err != nil {
			return nil, fmt.Errorf("reading the script of the task: %w", err)
		}
	}
	r.Image, r.Version.ImageFile = r.Version.ReadName(a.image), c.String("image-file")
	if c.IsSet("pack") {
		a.packTo = job.Target(c.String("to"))
		a.pack = &pack.Plan{Job: a.job, Array: a.array, Count: r.Count, Nodes: max(r.Nodes, 1), Slots: c.Int("pack"), Each: a.asked, Image: c.Int("image-words"),
			Argv: r.Argv, Name: r.Name, Output: r.Output, Errors: r.Errors, Retry: r.Retry, Params: r.Params.Args()}
	}
	if a.one = c.IsSet("nth"); a.one {
		var ok bool
		if a.index, ok = a.array.Nth(c.Int("nth")); !ok {
			return nil, text.Usagef("--nth %d: the array %s has %d tasks", c.Int("nth"), a.array, a.array.Count())
		}
	}
	return a, nil
}

func (a *taskArgs) run(ctx context.Context) error {
	if a.role != "" {
		return a.act(ctx)
	}
	s, err := store.Open(a.store)
	if err != nil {
		return err
	}
	r := &a.runner
	r.Dir, r.Logf, r.Schedulers = filepath.Join(s.Jobs(), a.job), say, dispatch.OnNode()
	r.Ready = func(ctx context.Context) error { return dispatch.Succeeded(ctx, s.Jobs(), a.needs) }
	if a.pack != nil {
		return a.runPack(ctx)
	}
	if a.measure {
		r.Measure = func(t *job.Task, argv []string) metrics.Options { return a.measureOptions(s, t, argv) }
	}
	if a.grow {
		r.Grows = func(t *job.Task) bool {
			sub, err := dispatch.ReadJob(r.Dir)
			return err == nil && sub.Grows(t)
		}
	}
	ended := a.runTasks(ctx)
	if a.grow && ended != exitStatus(0) {
		a.growTasks(ctx, s)
	}
	return ended
}

// runTasks runs the tasks, and returns the exit status as an error.
func (a *taskArgs) runTasks(ctx context.Context) error {
	r := &a.runner
	if a.one {
		return a.ended(r.Run(ctx, a.index))
	}
	if !a.array.IsZero() {
		if !r.RunArray(ctx, a.array, a.parallel) {
			return exitStatus(exitFailure)
		}
		return exitStatus(0)
	}
	k, err := strconv.Atoi(os.Getenv("HPCC_TASK_ID"))
	if err != nil { // not an array job
		return a.ended(r.Run(ctx, 0))
	}
	if n, err := strconv.Atoi(os.Getenv("HPCC_TASK_COUNT")); err == nil {
		r.Count = n
	}
	return a.ended(r.RunNative(ctx, k))
}

// runPack runs a packed job.
func (a *taskArgs) runPack(ctx context.Context) error {
	r := &a.runner
	if err := r.Ready(ctx); err != nil {
		return err
	}
	if r.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Limit)
		defer cancel()
	}
	self, err := a.program()
	if err != nil {
		return err
	}
	a.pack.Version, a.pack.File = r.Version, r.Image
	status, err := a.pack.Run(ctx, r.Schedulers, a.packTo, r.Dir, self, say)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		say("the job has reached its time limit of %s; \"hpcc rerun %s\" runs the tasks that are left", r.Limit, a.job)
	}
	if err != nil {
		return err
	}
	if status != 0 {
		status = exitFailure
	}
	return a.ended(status)
}

// program returns the argv of "hpcc task" for the other processes of a packed job.
func (a *taskArgs) program() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding hpcc itself: %w", err)
	}
	return []string{self, "task", "--job=" + a.job, "--dir=" + cmp.Or(a.dir, a.runner.Dir)}, nil
}

// act acts as one of the processes of a packed job.
func (a *taskArgs) act(ctx context.Context) error {
	status := exitStatus(0)
	var err error
	switch a.role {
	case "coordinator":
		var ok bool
		if ok, err = pack.Coordinate(ctx, a.dir, a.packRun, say); err == nil && !ok {
			status = exitFailure
		}
	case "node":
		var self []string
		if self, err = a.program(); err == nil {
			var n int
			n, err = pack.Node(ctx, dispatch.OnNode(), a.dir, a.packRun, a.rank, self, say)
			status = exitStatus(n)
		}
	case "worker":
		err = pack.Work(ctx, a.dir, a.packRun, a.rank, say)
	default:
		return text.Usagef("--role %q is not coordinator, node or worker", a.role)
	}
	if err != nil {
		if status = exitStatus(pack.Status(err)); ctx.Err() == nil {
			say("%v", err)
		}
	}
	return status
}

// growTime is how long hpcc tries to submit tasks again when a task has ended. Schedulers kill a
// task some time after its limit.
const growTime = 25 * time.Second

// growTasks submits the tasks of the job again that lacked memory or time. Commands that wait for
// the job, and "hpcc rerun", do it if that fails here.
func (a *taskArgs) growTasks(ctx context.Context, s *store.Store) {
	interrupted := ctx.Err() != nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), growTime)
	defer cancel()
	defer lockJob(ctx, s, a.job)()
	sub, err := dispatch.ReadJob(a.runner.Dir)
	if err == nil {
		err = ctx.Err() // without the lock
	}
	var texts []string
	if err == nil && interrupted && sub.Target == job.Local {
		return // the user has ended the tasks; schedulers also interrupt them at the time limit
	}
	if err == nil {
		texts, err = sub.Grow(ctx, s.Jobs(), true)
	}
	for _, text := range texts {
		say("%s", text)
	}
	if err != nil {
		say("this node cannot submit tasks again: %v; \"hpcc wait %s\" and \"hpcc rerun %s\" do", err, a.job, a.job)
	}
}

// ended ends hpcc after a program that ended with exit: with a status for the scheduler or, in an
// interactive job, for the user.
func (a *taskArgs) ended(exit int) error {
	if a.runner.Interactive {
		return exitStatus(exit)
	}
	return exitStatus(a.runner.Schedulers.Status(exit, os.Getenv))
}

// measureOptions returns the options for measuring an attempt of a task.
func (a *taskArgs) measureOptions(s *store.Store, t *job.Task, argv []string) metrics.Options {
	h := metrics.Header{Hpcc: version, Command: programOf(argv, a.image), Asked: metrics.Asked{
		CPUs: a.asked.CPUs, Memory: a.asked.Memory, GPUs: a.asked.GPUs, Time: a.asked.Time.Seconds()}}
	if a.image != "" {
		nameImage(&h, s, a.image)
	}
	h.Job = &metrics.JobOf{ID: a.job, Task: t.Index, Attempt: t.Attempt, Params: t.Params}
	ids, from := dispatch.OnNode().NativeIDs(os.Getenv)
	name, to, at := dispatch.SubmissionOf(a.runner.Dir, t)
	h.Job.Name, h.Job.Target, h.Job.Native, h.Job.Submitted = name, string(to), ids, at
	if to == "" {
		h.Job.Name, h.Job.Target = a.runner.Name, string(from)
	}
	o := metrics.Options{File: filepath.Join(a.runner.Dir, t.Measured()), Header: h}
	o.Related = dispatch.OnNode().Launched(argv, os.Getenv)
	return o
}

// programOf returns the argv of the program without the arguments of "hpcc run" before it.
func programOf(argv []string, image string) []string {
	for i := range argv {
		if image != "" && i+2 < len(argv) && argv[i] == image && argv[i+1] == "--" {
			return argv[i+2:]
		}
	}
	return argv
}
