package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/tunnel"
	"hpcc/metrics"
)

// A Runner runs tasks of one job on this node, measures them and keeps their records. It
// passes signals on to the programs.
type Runner struct {
	Dir         string        // the job's directory; its last element is the job's ID
	Name        string        // the job's name, for names of files
	Argv        []string      // argv of the program; {task} and parameters are replaced
	Output      string        // pattern for the output file; "" for hpcc's own streams
	Errors      string        // pattern for the file of standard error; "" for the output file
	Stdin       []byte        // standard input of each task; nil for hpcc's own
	Limit       time.Duration // 0: no limit
	Warning     job.Warning   // signal before the limit
	Retry       job.Retry
	Params      job.Params
	Count       int  // number of tasks of the full job
	Interactive bool // tasks use the terminal
	Nodes       int  // required number of nodes; 0: the scheduler guarantees it
	Companion   Companion
	Image       string           // name or file; "": unknown
	Version     job.ImageVersion // of the image when the job was submitted
	Schedulers  Schedulers
	several     bool // it runs tasks simultaneously

	// Ready returns an error if a task must not start, for example because a dependency has failed.
	Ready func(ctx context.Context) error

	// Grows reports whether the task with this record will be submitted again with a larger request,
	// so that it is not retried here. Nil: no task is.
	Grows func(t *job.Task) bool

	// Warned returns the signal that warns the program of its time limit: USR1, or "". Nil: that of Warning.
	Warned func() string

	// Measure returns how to measure an attempt of a task; nil for no record of its usage.
	Measure func(t *job.Task, argv []string) metrics.Options

	// Logf prints a message for people.
	Logf func(format string, args ...any)
}

// RunArray runs the tasks of an array, at most parallel of them simultaneously, and reports whether
// all succeeded. When ctx is done, running tasks get SIGTERM and no other task starts.
func (r *Runner) RunArray(ctx context.Context, a job.Array, parallel int) bool {
	r.several = true
	var g errgroup.Group
	g.SetLimit(max(1, parallel))
	failed := make(chan int, a.Count())
	for k := range a.All() {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			if ctx.Err() == nil && r.Run(ctx, k) != 0 {
				failed <- k
			}
			return nil
		})
	}
	g.Wait()
	return len(failed) == 0 && ctx.Err() == nil
}

// Run runs task k, with retries, and returns its exit status: 125 if the program did not run.
func (r *Runner) Run(ctx context.Context, k int) int {
	return r.retry(ctx, k, []string{"HPCC_TASK_ID=" + strconv.Itoa(k), "HPCC_TASK_COUNT=" + strconv.Itoa(r.Count)})
}

// RunNative is Run for a task whose environment already has its index and the number of tasks.
func (r *Runner) RunNative(ctx context.Context, k int) int { return r.retry(ctx, k, nil) }

// retry runs a task until it succeeds or must not be retried.
func (r *Runner) retry(ctx context.Context, k int, env []string) int {
	limited, cancel := context.WithoutCancel(ctx), func() {}
	if r.Limit > 0 {
		limited, cancel = context.WithTimeout(limited, r.Limit)
	}
	defer cancel()
	r.awaitEarlier(ctx, k)
	if r.succeeded(k) {
		return 0
	}
	defer r.startCompanion(k, env)()
	for n, pause := 0, firstPause; ; n, pause = n+1, min(2*pause, longestPause) {
		t := r.Schedulers.Begin(r.Dir, k)
		t.ImageVersion = r.Version
		tries := t.Tries(r.Dir)
		if r.Retry.Times > 0 && tries > r.Retry.Times {
			return r.fail(t, fmt.Errorf("the scheduler started the task again after %d attempts", tries))
		}
		if err := r.Version.CheckStart(r.Image); err != nil {
			return r.fail(t, err)
		}
		if err := r.Schedulers.CheckNodes(r.Nodes, os.Getenv); err != nil {
			return r.fail(t, err)
		}
		if err := r.Ready(ctx); err != nil {
			return r.fail(t, err)
		}
		t.Params = r.Params.Row(k)
		status := r.attempt(ctx, limited, t, env)
		if n >= r.Retry.Times || !r.Retry.Again(t) || (r.Grows != nil && r.Grows(t)) || ctx.Err() != nil || limited.Err() != nil {
			r.keep(t)
			return status
		}
		if err := t.WriteEarlier(r.Dir); err != nil {
			r.Logf("warning: %v", err)
		}
		r.Logf("task %d: %s; trying again in %s", k, t.Ending(), pause)
		select {
		case <-ctx.Done(): // cancelled
			if err := t.Last(r.Dir); err != nil {
				r.Logf("warning: %v", err)
			}
			t.End, t.Problem = time.Now(), "cancelled before its retry, after "+t.Ending()
			r.keep(t)
			return status
		case <-limited.Done():
		case <-time.After(pause):
		}
	}
}

// overlapTime is how long a task waits for the end of its earlier attempt, if its scheduler may start the next attempt
// before it has killed that one.
const overlapTime = 10 * time.Second

// awaitEarlier waits until an earlier attempt of task k has ended, at most overlapTime. An attempt that was killed on
// another host has no record of its end.
func (r *Runner) awaitEarlier(ctx context.Context, k int) {
	if !r.Schedulers.overlap(os.Getenv) {
		return
	}
	for end := time.Now().Add(overlapTime); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(overlapTime / 50) {
		t := &job.Task{Index: k}
		if !job.ReadRecord(r.Dir, t.FileName(), t) || t.Ended() ||
			(t.Host == tunnel.Host() && (t.PID <= 0 || syscall.Kill(t.PID, 0) != nil)) {
			break
		}
	}
	// On one host, both attempts have the same TMPDIR, and the scheduler removes it after the first one.
	_ = os.MkdirAll(os.TempDir(), 0o700)
}

// collectFrom is the number of tasks from which a job's records of successful tasks are collected in one file for each
// host: a file for each task would take long to read, and count against the user's quota of files.
const collectFrom = 500

// succeeded reports whether an earlier attempt of task k has succeeded. A scheduler starts such a task again if it
// requeues the whole job, or if it lost its own record of the end.
func (r *Runner) succeeded(k int) bool {
	t := &job.Task{Index: k}
	there := job.ReadRecord(r.Dir, t.FileName(), t)
	if !there && r.Schedulers.restarts(os.Getenv) > 0 {
		there = t.Collected(r.Dir)
	}
	if !there || !t.OK() {
		return false
	}
	r.Logf("task %d succeeded at %s, so it does not run again", k, t.End.Local().Format(time.DateTime))
	return true
}

// Delays before a retry.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// attempt runs the program once, until limited is done. It does not start the program if ctx is done. It returns the
// program's exit status, and sets its end in t. A record that cannot be written does not fail the task.
func (r *Runner) attempt(ctx, limited context.Context, t *job.Task, env []string) int {
	argv := t.Fill(r.Argv)
	removeValues, err := t.FillValues(r.Dir)
	if err != nil {
		return r.problem(t, err)
	}
	defer removeValues()
	cmd := exec.CommandContext(limited, argv[0], argv[1:]...)
	if r.Interactive { // only the foreground process group can read the terminal
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	} else { // signals also reach the program's children
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	}
	if r.Limit > 0 {
		cmd.WaitDelay = Grace
	}
	cmd.Env = append(append(os.Environ(), env...), "HPCC_JOB_DIR="+r.Dir)
	own, err := r.results(t)
	if err != nil {
		r.Logf("warning: %v", err)
	}
	if own != "" {
		defer os.Remove(own) // if empty, as for most tasks of large arrays
		cmd.Env = append(cmd.Env, "HPCC_TASK_DIR="+own)
	}
	closeFiles, err := r.files(t, cmd)
	if err != nil {
		return r.problem(t, err)
	}
	defer closeFiles()
	if r.Stdin != nil {
		remove, err := r.script(cmd)
		if err != nil {
			return r.problem(t, err)
		}
		defer remove()
	}
	return r.measure(ctx, limited, t, cmd, argv)
}

// lateStop is [metrics.Options.LateStop] of a scheduler's task.
const lateStop = 200 * time.Millisecond

// measure runs and measures the program of an attempt, and sends it the warning before its time limit.
func (r *Runner) measure(ctx, limited context.Context, t *job.Task, cmd *exec.Cmd, argv []string) int {
	var o metrics.Options
	if r.Measure != nil {
		o = r.Measure(t, argv)
	}
	o.CountOOM = r.Grows != nil
	if t.Native != "" && !r.Interactive {
		o.LateStop = lateStop
	}
	stopWarning := func() bool { return false }
	defer func() { stopWarning() }()
	var warned atomic.Bool
	o.Started = func(metrics.Run) {
		t.PID = cmd.Process.Pid
		r.keep(t)
		if end, ok := limited.Deadline(); ok && r.Warning.Signal != "" {
			stopWarning = time.AfterFunc(time.Until(end)-r.Warning.Lead, func() {
				warned.Store(cmd.Process.Signal(unix.SignalNum("SIG"+r.Warning.Signal)) == nil)
			}).Stop
		}
	}
	late := "" // set when the program ends, because writing the record may take longer
	o.Problem = func() string {
		if errors.Is(limited.Err(), context.DeadlineExceeded) {
			late = "ended after its time limit of " + r.Limit.String()
		}
		return late
	}
	run, err := metrics.Measure(ctx, cmd, o)
	t.End, t.Exit, t.Signal, t.OOMKills = run.End, run.Exit, run.Signal, run.OOMKills
	if warned.Load() {
		run.Stops = append(run.Stops, "SIG"+r.Warning.Signal)
	}
	t.Stop, t.AtLimit = r.stop(run.Stops)
	if run.RecordErr != nil {
		r.Logf("warning: task %d: %v", t.Index, run.RecordErr)
	}
	if late != "" {
		if !r.Interactive {
			endGroup(cmd)
		}
		err, t.End, t.Problem = nil, time.Now(), late
	}
	if t.Usage, _ = json.Marshal(run.Usage); err != nil {
		return r.problem(t, err)
	}
	return run.Status()
}

// stop returns the signal that asked the program to stop, and whether that warned of its time limit. A program
// takes SIGUSR1 and SIGUSR2 as such a request only if they are that warning. At a terminal, SIGINT is one of the
// keys that the user may type.
func (r *Runner) stop(signals []string) (stop string, atLimit bool) {
	if r.Interactive {
		return "", false
	}
	warning := r.Warning.Signal
	if r.Warned != nil && len(signals) > 0 {
		warning = cmp.Or(warning, r.Warned())
	}
	for _, s := range signals {
		if s == "SIG"+warning {
			return s, true
		}
		if !strings.HasPrefix(s, "SIGUSR") {
			stop = cmp.Or(stop, s)
		}
	}
	return stop, false
}

// results creates the task's directory for results, and returns its path.
func (r *Runner) results(t *job.Task) (string, error) {
	dir := t.Dir(r.Dir)
	if err := files.MakeDir(dir); err != nil {
		return "", fmt.Errorf("creating the results directory of task %d: %w", t.Index, err)
	}
	return dir, nil
}

// endGroup waits until the process group of a command is empty, and kills it after Grace. The command itself must have
// been waited for. Orphans of the group may be children of this process (see [metrics.Measure]), so it reaps them.
func endGroup(cmd *exec.Cmd) {
	if cmd.Process == nil {
		return
	}
	group := -cmd.Process.Pid
	for end := time.Now().Add(Grace); time.Now().Before(end); time.Sleep(Grace / 300) {
		for pid := 1; pid > 0; {
			pid, _ = syscall.Wait4(group, nil, syscall.WNOHANG, nil)
		}
		if syscall.Kill(group, 0) != nil {
			return
		}
	}
	_ = syscall.Kill(group, syscall.SIGKILL)
}

// script sets the program's standard input, and creates a directory for the files that schedulers provide to scripts.
func (r *Runner) script(cmd *exec.Cmd) (remove func(), err error) {
	dir, err := os.MkdirTemp("", "hpcc-task-")
	if err != nil {
		return nil, fmt.Errorf("creating a directory for the script of the task: %w", err)
	}
	cmd.Stdin = bytes.NewReader(r.Stdin)
	cmd.Env = append(cmd.Env, "HPCC_TASK_TMP="+dir)
	return func() { os.RemoveAll(dir) }, nil
}

// notRun is the exit status of a task whose program did not run.
const notRun = 125

// fail ends a task whose program did not run, and writes its record.
func (r *Runner) fail(t *job.Task, err error) int {
	defer r.keep(t)
	return r.problem(t, err)
}

// problem sets in t why the program did not run, or was not measured to its end, and returns notRun.
func (r *Runner) problem(t *job.Task, err error) int {
	r.Logf("task %d: %v", t.Index, err)
	t.End, t.Exit, t.Problem = time.Now(), notRun, err.Error()
	return t.Exit
}

// keep writes the record of a task. A failure is only a warning. If the scheduler has started the task
// again before it ended this attempt, keep leaves the record of the newer attempt.
func (r *Runner) keep(t *job.Task) {
	now, write := &job.Task{Index: t.Index}, t.Write
	if job.ReadRecord(r.Dir, now.FileName(), now) && now.Attempt > t.Attempt {
		write = t.WriteSuperseded
	} else if t.OK() && r.Count >= collectFrom && !r.Interactive && r.Schedulers.countsRestarts(os.Getenv) {
		write = t.Collect
	}
	if err := write(r.Dir); err != nil {
		r.Logf("warning: %v", err)
	}
}

// files sets the program's standard streams to hpcc's own, or opens the files that the patterns name. The caller must
// call the returned function, which closes them.
func (r *Runner) files(t *job.Task, cmd *exec.Cmd) (func(), error) {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if r.Output == "" {
		// The scheduler may have opened files.
		t.Output = regularFile(1)
		if t.Errors = regularFile(2); t.Errors == t.Output {
			t.Errors = ""
		}
		return func() {}, nil
	}
	mode := os.O_CREATE | os.O_WRONLY | os.O_APPEND // hpcc adds its messages
	if t.Attempt == 0 {
		mode |= os.O_TRUNC // later attempts keep the output of earlier ones
	}
	open := func(pattern string) (f *os.File, name string, err error) {
		if f, err = os.OpenFile(t.File(pattern, r.Name, filepath.Base(r.Dir)), mode, 0o666); err != nil {
			return nil, "", err
		}
		if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() { // not /dev/null
			name, _ = filepath.Abs(f.Name())
		}
		return f, name, nil
	}
	var out, stderr *os.File
	var err error
	if out, t.Output, err = open(r.Output); err != nil {
		return nil, fmt.Errorf("opening the output file: %w", err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, out, out
	if r.Errors == "" {
		r.adoptErrors(t, out)
		return func() { out.Close() }, nil
	}
	if stderr, t.Errors, err = open(r.Errors); err != nil {
		out.Close()
		return nil, fmt.Errorf("opening the file for standard error: %w", err)
	}
	cmd.Stderr = stderr
	r.adoptErrors(t, stderr)
	return func() { out.Close(); stderr.Close() }, nil
}

// adoptErrors makes the file for standard error of a scheduler's task also that of hpcc. The
// scheduler cannot name this file and discards what its own file gets, also hpcc's messages.
func (r *Runner) adoptErrors(t *job.Task, f *os.File) {
	if t.Native != "" && !r.several {
		_ = unix.Dup3(int(f.Fd()), 2, 0)
	}
}

// regularFile returns the path of the regular file behind a descriptor of this process, or "".
func regularFile(fd int) string {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || !filepath.IsAbs(name) {
		return ""
	}
	if fi, err := os.Stat(name); err != nil || !fi.Mode().IsRegular() {
		return ""
	}
	return name
}
