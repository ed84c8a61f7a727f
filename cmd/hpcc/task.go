package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hpcc/job"
	"hpcc/job/atomicfile"
	"hpcc/job/dispatch"
	"hpcc/job/node"
	"hpcc/metrics"
	"hpcc/store"
	"hpcc/store/wait"
)

// taskCommand is what job scripts call. It runs the words after "--", measures
// them and keeps the record of the task; signals are passed on, and its status
// is the program's.
func taskCommand() *cli.Command {
	return &cli.Command{
		Name: "task", Hidden: true, Usage: "run a task of a job and record it (job scripts call this)", ArgsUsage: "-- CMD [ARG...]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "job", Required: true, Usage: "write the record to the directory of job `ID`"},
			&cli.StringFlag{Name: "name", Usage: "the job's `NAME`, for names of files"},
			&cli.StringFlag{Name: "array", Usage: "run the tasks `1-8` one after the other"},
			&cli.IntFlag{Name: "nth", Usage: "run the `N`-th task of --array alone"},
			&cli.IntFlag{Name: "of", Usage: "the tasks are some of a job's `N`"},
			&cli.IntFlag{Name: "parallel", Value: 1, Usage: "run `N` of them at once"},
			&cli.IntFlag{Name: "nodes", Usage: "run only when the scheduler gave the job `N` nodes"},
			&cli.StringFlag{Name: "needs", Usage: "run only when the scheduler's jobs `ID,...` have succeeded"},
			&cli.StringSliceFlag{Name: "sweep", Usage: "fill {NAME} in by `NAME=VALUES`"},
			&cli.StringFlag{Name: "params", Usage: "fill {NAME} in from the rows of `FILE`"},
			&cli.StringFlag{Name: "params-sum", Usage: "which has this `SHA256`"},
			&cli.IntFlag{Name: "retry", Usage: "run a task that fails again, `N` times"},
			&cli.StringFlag{Name: "retry-on", Usage: "only after `ENDINGS`: exit=99,signal=SIGKILL"},
			&cli.BoolFlag{Name: "interactive", Usage: "leave the terminal to the task"},
			&cli.BoolFlag{Name: "stdin", Usage: "give each task what stands on standard input"},
			&cli.DurationFlag{Name: "limit", Usage: "end each task after `TIME`"},
			&cli.StringFlag{Name: "signal", Usage: "send `SIGNAL@TIME` so long before the limit"},
			&cli.BoolFlag{Name: "measure", Usage: "keep a record of what each task uses"},
			&cli.StringFlag{Name: "image", Usage: "whose program is that of `IMAGE`"},
			&cli.StringFlag{Name: "asked", Usage: "of a job that asked for `cpus=N,memory=BYTES,gpus=N,time=TIME`"},
			&cli.StringFlag{Name: "beside", Usage: "run `INDEX NAME WORDS` beside the task INDEX"},
			&cli.StringFlag{Name: "output", Usage: "write output to `FILE`"},
			&cli.StringFlag{Name: "error", Usage: "write standard error to `FILE`"},
			storeFlag(),
		},
		Action: runTask,
	}
}

func runTask(c *cli.Context) error {
	words := c.Args().Slice()
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("task needs the words of a command after --")
	}
	id := c.String("job")
	if !filepath.IsLocal(id) || filepath.Base(id) != id {
		return usagef("--job %q is no id of a job", id)
	}
	s, err := openStore(c)
	if err != nil {
		return err
	}
	array, err := job.ParseArray(c.String("array"))
	if err != nil {
		return err
	}
	r := &taskRunner{dir: filepath.Join(s.Jobs(), id), id: id, store: s, measure: c.Bool("measure"), image: c.String("image"), name: c.String("name"), words: words,
		nodes: c.Int("nodes"), interactive: c.Bool("interactive"), output: c.String("output"), errors: c.String("error"), limit: c.Duration("limit"), count: max(c.Int("of"), array.Count(), 1)}
	if r.params, err = job.ParseParams(c.StringSlice("sweep"), c.String("params"), c.String("params-sum")); err != nil {
		return err
	}
	r.retry.Times = c.Int("retry")
	if r.retry.Endings, err = job.ParseEndings(c.String("retry-on")); err != nil {
		return err
	}
	if r.asked, err = job.ParseAsked(c.String("asked")); err != nil {
		return usagef("--asked: %w", err)
	}
	if r.beside.index, r.beside.name, r.beside.words, err = job.ParseBeside(c.String("beside")); err != nil {
		return err
	}
	if ids := c.String("needs"); ids != "" {
		r.needs = strings.Split(ids, ",")
	}
	if r.warning, err = job.ParseWarning(c.String("signal")); err != nil {
		return usagef("--signal: %w", err)
	}
	if c.Bool("stdin") {
		if r.stdin, err = io.ReadAll(io.LimitReader(wait.Stdin(), maxStdin)); err != nil {
			return fmt.Errorf("reading the script of the task: %w", err)
		}
	}
	if c.IsSet("nth") {
		k, ok := array.Nth(c.Int("nth"))
		if !ok {
			return usagef("--nth %d: the array %s has %d tasks", c.Int("nth"), array, array.Count())
		}
		return exitStatus(r.one(c.Context, k, r.variables(k)))
	}
	if !array.IsZero() {
		return r.all(c.Context, array, c.Int("parallel"))
	}
	k, err := strconv.Atoi(os.Getenv("HPCC_TASK_ID"))
	if err != nil { // no array
		return exitStatus(r.one(c.Context, 0, r.variables(0)))
	}
	return exitStatus(r.one(c.Context, k, nil))
}

// A taskRunner runs tasks of one job.
type taskRunner struct {
	dir, id, name  string
	words          []string
	output, errors string
	limit          time.Duration
	warning        job.Warning // before the limit
	retry          job.Retry
	params         job.Params
	count          int      // tasks of the whole job
	interactive    bool     // tasks sit at a terminal
	nodes          int      // that the job asked for; 0: the scheduler keeps to them
	needs          []string // the scheduler's ids of jobs that must have succeeded
	stdin          []byte   // what each task reads; nil: what hpcc has
	beside         companion
	store          *store.Store
	measure        bool      // keep records of what tasks use
	image          string    // of the program; "" of one on the host
	asked          job.Asked // for each task
}

// maxStdin bounds what tasks are given to read: a script, in bytes.
const maxStdin = 16 << 20

// all runs the tasks of an array, some at once. When hpcc is told to end, those
// that run are told so too and no other begins.
func (r *taskRunner) all(ctx context.Context, a job.Array, parallel int) error {
	var g errgroup.Group
	g.SetLimit(max(1, parallel))
	failed := make(chan int, a.Count())
	for k := range a.All() {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			if ctx.Err() == nil && r.one(ctx, k, r.variables(k)) != 0 {
				failed <- k
			}
			return nil
		})
	}
	g.Wait()
	if len(failed) > 0 || ctx.Err() != nil {
		return exitStatus(exitFailure)
	}
	return nil
}

// variables are what a task of an array finds in its environment.
func (r *taskRunner) variables(k int) []string {
	return []string{"HPCC_TASK_ID=" + strconv.Itoa(k), "HPCC_TASK_COUNT=" + strconv.Itoa(r.count)}
}

// one runs one task, again where it is to be retried, and returns its status.
func (r *taskRunner) one(ctx context.Context, k int, env []string) int {
	limited, cancel := context.WithoutCancel(ctx), func() {}
	if r.limit > 0 {
		limited, cancel = context.WithTimeout(limited, r.limit)
	}
	defer cancel()
	defer r.accompany(k, env)()
	for n, pause := 0, firstPause; ; n, pause = n+1, min(2*pause, longestPause) {
		t := dispatch.OnNode().Begin(r.dir, k)
		tries := t.Tries(r.dir)
		if r.retry.Times > 0 && tries > r.retry.Times {
			return r.fail(t, fmt.Errorf("it was run %d times before, and the scheduler began it again", tries))
		}
		if err := dispatch.OnNode().Spread(r.nodes, os.Getenv); err != nil {
			return r.fail(t, err)
		}
		if err := dispatch.Succeeded(ctx, filepath.Dir(r.dir), r.needs); err != nil {
			return r.fail(t, err)
		}
		t.Params = r.params.Row(k)
		status := r.attempt(ctx, limited, t, env)
		if n >= r.retry.Times || !r.retry.Again(t) || ctx.Err() != nil || limited.Err() != nil {
			r.keep(t)
			return status
		}
		if err := t.WriteEarlier(r.dir); err != nil {
			say("warning: %v", err)
		}
		say("task %d: %s; trying again in %s", k, t.Ending(), pause)
		select {
		case <-ctx.Done(): // cancelled
			if err := t.Last(r.dir); err != nil {
				say("warning: %v", err)
			}
			t.End, t.Problem = time.Now(), "told to end when it was to be tried again, after "+t.Ending()
			r.keep(t)
			return status
		case <-limited.Done():
		case <-time.After(pause):
		}
	}
}

// How long a task waits before it is tried again.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// attempt runs the program once, unless ctx is done before it begins, until limited is done, and returns its
// status; its end is in t. That a record cannot be written is said and does not fail the task.
func (r *taskRunner) attempt(ctx, limited context.Context, t *job.Task, env []string) int {
	words := t.Fill(r.words)
	removeValues, err := t.FillValues(r.dir)
	if err != nil {
		return problem(t, err)
	}
	defer removeValues()
	cmd := exec.CommandContext(limited, words[0], words[1:]...)
	if r.interactive { // at a terminal only one process group reads and is interrupted
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	} else { // what the program starts, as scripts do, is told to end with it
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	}
	if r.limit > 0 {
		cmd.WaitDelay = node.Grace
	}
	cmd.Env = append(append(os.Environ(), env...), "HPCC_JOB_DIR="+r.dir)
	own, err := r.results(t)
	if err != nil {
		say("warning: %v", err)
	}
	defer os.Remove(own) // where it left nothing, as most of 100,000 tasks do
	cmd.Env = append(cmd.Env, "HPCC_TASK_DIR="+own)
	ended, over := context.WithCancel(context.Background())
	defer over()
	closeFiles, err := r.files(t, cmd)
	if err == nil {
		defer closeFiles()
		if r.stdin != nil {
			var remove func()
			if remove, err = r.script(cmd); err != nil {
				return problem(t, err)
			}
			defer remove()
		}
		var run metrics.Run
		begun := func(metrics.Run) {
			t.PID = cmd.Process.Pid
			r.keep(t)
			if end, ok := limited.Deadline(); ok && r.warning.Signal != "" {
				warn := time.AfterFunc(time.Until(end)-r.warning.Lead, func() { _ = cmd.Process.Signal(unix.SignalNum("SIG" + r.warning.Signal)) })
				context.AfterFunc(ended, func() { warn.Stop() })
			}
		}
		late := "" // as it was when the program ended: its record may take longer
		o := r.measureTask(t, words)
		o.Begun = begun
		o.Problem = func() string {
			if errors.Is(limited.Err(), context.DeadlineExceeded) {
				late = "ended after its time limit of " + r.limit.String()
			}
			return late
		}
		run, err = metrics.Measure(ctx, cmd, o)
		t.End, t.Exit, t.Signal = run.End, run.Exit, run.Signal
		if run.Unkept != nil {
			say("warning: task %d: %v", t.Index, run.Unkept)
		}
		if late != "" {
			if !r.interactive {
				endGroup(cmd)
			}
			err, t.End, t.Problem = nil, time.Now(), late
		}
		if t.Usage, _ = json.Marshal(run.Usage); err == nil {
			return run.Status()
		}
	}
	return problem(t, err)
}

// results makes the directory where the task may leave its results; "" where that cannot be.
func (r *taskRunner) results(t *job.Task) (string, error) {
	dir := t.Dir(r.dir)
	if err := atomicfile.MakeDir(dir); err != nil {
		return "", fmt.Errorf("making a directory for the results of task %d: %w", t.Index, err)
	}
	return dir, nil
}

// endGroup waits until nothing of a command's process group is left, and kills
// what does not end. The command has been waited for; orphans of its group may be children of
// this process, see [metrics.Measure], and are there until they are waited for, too.
func endGroup(cmd *exec.Cmd) {
	if cmd.Process == nil {
		return
	}
	group := -cmd.Process.Pid
	for end := time.Now().Add(node.Grace); time.Now().Before(end); time.Sleep(node.Grace / 300) {
		for pid := 1; pid > 0; {
			pid, _ = syscall.Wait4(group, nil, syscall.WNOHANG, nil)
		}
		if syscall.Kill(group, 0) != nil {
			return
		}
	}
	_ = syscall.Kill(group, syscall.SIGKILL)
}

// script gives the program what it is to read, and a directory of its own for
// the files that schedulers would have made for it.
func (r *taskRunner) script(cmd *exec.Cmd) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "hpcc-task-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the script of the task: %w", err)
	}
	cmd.Stdin = bytes.NewReader(r.stdin)
	cmd.Env = append(cmd.Env, "HPCC_TASK_TMP="+dir)
	return func() { os.RemoveAll(dir) }, nil
}

// fail ends a task whose program did not run, and keeps its record.
func (r *taskRunner) fail(t *job.Task, err error) int {
	defer r.keep(t)
	return problem(t, err)
}

// problem is the end of a task whose program did not run, or was not measured to
// its end.
func problem(t *job.Task, err error) int {
	say("task %d: %v", t.Index, err)
	t.End, t.Exit, t.Problem = time.Now(), 125, err.Error()
	return t.Exit
}

func (r *taskRunner) keep(t *job.Task) {
	if err := t.Write(r.dir); err != nil {
		say("warning: %v", err)
	}
}

// files gives the program its output: what hpcc itself has, unless a pattern
// names files.
func (r *taskRunner) files(t *job.Task, cmd *exec.Cmd) (func(), error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if r.output == "" {
		// What the scheduler opened, where those are files.
		t.Output = openFile(1)
		if t.Errors = openFile(2); t.Errors == t.Output {
			t.Errors = ""
		}
		return func() {}, nil
	}
	mode := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if t.Attempt > 0 { // what it wrote before is still of use
		mode = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	out, err := os.OpenFile(t.File(r.output, r.name, r.id), mode, 0o666)
	if err != nil {
		return nil, fmt.Errorf("opening the output file: %w", err)
	}
	if fi, err := out.Stat(); err == nil && fi.Mode().IsRegular() { // and not /dev/null
		t.Output, _ = filepath.Abs(out.Name())
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, out, out
	if r.errors == "" {
		return func() { out.Close() }, nil
	}
	words, err := os.OpenFile(t.File(r.errors, r.name, r.id), mode, 0o666)
	if err != nil {
		out.Close()
		return nil, fmt.Errorf("opening the file for standard error: %w", err)
	}
	cmd.Stderr = words
	if fi, err := words.Stat(); err == nil && fi.Mode().IsRegular() {
		t.Errors, _ = filepath.Abs(words.Name())
	}
	return func() { out.Close(); words.Close() }, nil
}

// openFile is the name of the regular file that a descriptor of this process is;
// "" where it is none.
func openFile(fd int) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !filepath.IsAbs(name) {
		return ""
	}
	if fi, err := os.Stat(name); err != nil || !fi.Mode().IsRegular() {
		return ""
	}
	return name
}
