package pack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/node"
	"hpcc/runtime/inherit"
)

// A child is a process that is started again when it is killed or fails.
type child struct {
	argv   []string
	env    []string
	last   func(status int) bool // reports whether an exit status is the last one
	orphan func()                // called before it is started again; nil: nothing to do
}

// How children are started again.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 30 * time.Second
	soon         = 20 * time.Second // a child that exits in this time, and is not killed, has failed at its start
	maxFailures  = 6                // such ends in a row after which it is given up
)

// errGivenUp means that a process has failed at its start again and again.
var errGivenUp = errors.New("has failed too often at its start")

// keep runs a child until it ends with a last status, and returns that. When ctx ends, the child gets
// SIGTERM, and SIGKILL some time later.
func (c *child) keep(ctx context.Context) (status int, err error) {
	goruntime.LockOSThread() // the child gets SIGTERM when this thread ends: with the process
	failures, pause := 0, firstPause
	for {
		cmd := exec.CommandContext(ctx, c.argv[0], c.argv[1:]...)
		cmd.Path, cmd.Args = inherit.Command(cmd.Path, cmd.Args)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), c.env...)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = node.Grace
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		begun := time.Now()
		err := cmd.Run()
		if cmd.ProcessState != nil {
			status = cmd.ProcessState.ExitCode()
		} else {
			status = notRun
		}
		if ctx.Err() != nil {
			return status, nil
		}
		if cmd.ProcessState != nil && cmd.ProcessState.Exited() && c.last(status) {
			return status, nil
		}
		if c.orphan != nil {
			c.orphan()
		}
		killed := cmd.ProcessState != nil && !cmd.ProcessState.Exited()
		if failures++; killed || time.Since(begun) > soon {
			failures = 0
		}
		if failures == 0 {
			pause = min(pause, longestPause/10)
		}
		if failures == maxFailures {
			return status, fmt.Errorf("%s %w: %w", c.argv[0], errGivenUp, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// Run runs the tasks of the plan on the nodes of this job, and returns the exit status: 1 if a task
// has failed. dir is the directory of the job.
func (p *Plan) Run(ctx context.Context, known node.Schedulers, to job.Target, dir string,
	logf func(format string, args ...any)) (int, error) {
	program, err := taskArgv(p.Job, dir)
	if err != nil {
		return 0, err
	}
	p.Native = known.NativeID(os.Getenv)
	p.Env, p.Lease = os.Environ(), leaseFrom(os.Getenv)
	if p.Dir, err = os.Getwd(); err != nil {
		return 0, err
	}
	if err := logTo(filepath.Join(dir, "log")); err != nil {
		logf("warning: %v", err)
	}
	if err := p.begin(dir); err != nil {
		return 0, fmt.Errorf("beginning packed job %s: %w", p.Job, err)
	}
	defer p.clean(p.run)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	role := func(name string) []string {
		return append(slices.Clone(program), "--run="+p.run, "--role="+name)
	}
	steps, err := known.PerNode(to, p.Nodes, p.Slots*max(1, p.Each.CPUs), role("node"), os.Getenv)
	if err != nil {
		return 0, err
	}
	workers, endWorkers := context.WithCancel(ctx)
	defer endWorkers()
	coordinator, endCoordinator := context.WithCancelCause(ctx)
	defer endCoordinator(nil)
	var g sync.WaitGroup
	var lock sync.Mutex
	left := len(steps)
	for _, argv := range steps {
		g.Go(func() {
			c := &child{argv: argv, last: func(status int) bool { return status == 0 || status == statusUnfit }}
			status, err := c.keep(workers)
			if err != nil {
				logf("a node is given up: %v", err)
			}
			if err != nil || status == statusUnfit {
				lock.Lock()
				defer lock.Unlock()
				if left--; left == 0 {
					endCoordinator(errors.New("no node of the job can run its tasks"))
				}
			}
		})
	}
	c := &child{argv: role("coordinator"), last: func(status int) bool { return status >= 0 && status != statusFailed }}
	status, err := c.keep(coordinator)
	if err == nil && ctx.Err() == nil {
		err = context.Cause(coordinator)
	}
	if ctx.Err() == nil {
		time.AfterFunc(releaseTime, endWorkers)
	}
	g.Wait()
	return status, err
}

// logTo appends the messages of this process and its children to a file. Without it, they would be lost:
// hpcc opens the files of the tasks, so the script has no output file.
func logTo(file string) error {
	f, err := files.Create(file, os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return fmt.Errorf("opening the log of the job: %w", err)
	}
	defer f.Close()
	return errors.Join(unix.Dup3(int(f.Fd()), 1, 0), unix.Dup3(int(f.Fd()), 2, 0))
}

// releaseTime is how long workers have to end after the last task.
const releaseTime = 20 * time.Second

// supervisorVariable has an ID of the process that keeps a worker, its supervisor, and its start, as
// ID@MILLISECONDS. A worker that joins shows that the earlier workers of its supervisor have ended, with
// their tasks. Those of an earlier supervisor end with it, within the expiry of the plan.
const supervisorVariable = "HPCC_PACK_SUPERVISOR"

// newSupervisor returns the variable for this process.
func newSupervisor() string {
	return fmt.Sprintf("%s=%s@%d", supervisorVariable, random(8), uptime().Milliseconds())
}

// supervisor returns the ID of the process that keeps this worker, or "none", and its age.
func supervisor() (id string, age time.Duration) {
	id, start, _ := strings.Cut(os.Getenv(supervisorVariable), "@")
	ms, err := strconv.ParseInt(start, 10, 64)
	if err != nil {
		return "none", 0
	}
	return id, uptime() - time.Duration(ms)*time.Millisecond
}

// uptime returns the time of a clock that all processes of this machine share, and that cannot be set.
func uptime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // never fails
	return time.Duration(t.Nano())
}

// maxOutage is how long a node looks for a coordinator while its batch system may still notice that the
// first node has failed.
const maxOutage = 30 * time.Minute

// A Role is what one process of a packed job does.
type Role struct {
	Name string // coordinator, node or worker
	Job  string // ID
	Dir  string // directory of the job
	Run  string // ID of the run
	Rank int    // number of the node; if negative, a variable of the launcher has it
}

// Act acts in the role until the run ends, and returns the exit status of the process.
func (r Role) Act(ctx context.Context, known node.Schedulers, logf func(format string, args ...any)) (status int) {
	var err error
	switch r.Name {
	case "coordinator":
		var ok bool
		if ok, err = assignTasks(ctx, r.Dir, r.Run, logf); err == nil && !ok {
			status = 1
		}
	case "node":
		status, err = r.node(ctx, known, logf)
	default:
		err = work(ctx, r.Dir, r.Run, r.Rank, logf)
	}
	if err == nil {
		return status
	}
	if ctx.Err() == nil {
		logf("%v", err)
	}
	switch {
	case errors.Is(err, errNoCoordinator):
		return statusNoCoordinator
	case errors.Is(err, errUnfit):
		return statusUnfit
	}
	return statusFailed
}

// taskArgv returns the argv of "hpcc task" for a process of a packed job, without the flags of its role.
func taskArgv(id, dir string) ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding hpcc itself: %w", err)
	}
	return []string{self, "task", "--job=" + id, "--dir=" + dir}, nil
}

// node keeps the worker of this node alive.
func (r Role) node(ctx context.Context, known node.Schedulers, logf func(format string, args ...any)) (int, error) {
	program, err := taskArgv(r.Job, r.Dir)
	if err != nil {
		return 0, err
	}
	p, _, err := join(r.Dir, r.Run)
	if err != nil {
		return 0, err
	}
	rank := r.Rank
	switch name, value := known.Rank(os.Getenv); {
	case rank < 0:
		if rank, err = strconv.Atoi(value); err != nil {
			return 0, fmt.Errorf("joining packed job %s: neither --rank nor %s has the number of this node", p.Job, name)
		}
	case rank > 0 && value == "": // the launcher does not pass on the environment
		known.TakeEnvironment(p.Env)
	}
	if err := os.Chdir(p.Dir); err != nil {
		return 0, err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	defer node.EndChildren()
	c := &child{
		argv:   p.inImage(append(program, "--run="+r.Run, "--role=worker", "--rank="+strconv.Itoa(rank))),
		env:    []string{newSupervisor()},
		orphan: node.EndChildren,
	}
	var outage time.Duration // without a coordinator
	c.last = func(status int) bool {
		if status != statusNoCoordinator {
			outage = 0
			return status == 0 || status == statusUnfit
		}
		wait, err := known.Restart(ctx, p.getenv)
		if err != nil {
			logf("warning: starting the job again, whose first node does not answer: %v", err)
		}
		outage += p.Lease
		return !wait || outage > maxOutage
	}
	return c.keep(ctx)
}

// getenv returns a variable of the job's script.
func (p *Plan) getenv(name string) (value string) {
	for _, e := range p.Env {
		if k, v, _ := strings.Cut(e, "="); k == name {
			value = v
		}
	}
	return value
}

// inImage returns the argv that runs a worker in the image, if one start of the image is for all tasks.
// The worker needs its program and the directory of the job. A worker outside an image that has changed
// fails the tasks.
func (p *Plan) inImage(worker []string) []string {
	if p.Image == 0 || p.Version.Changed(p.File) != nil {
		return worker
	}
	w := append(slices.Clone(p.Argv[:2]), "--bind="+p.dir, "--bind="+worker[0]) // hpcc run
	return slices.Concat(w, p.Argv[2:p.Image], worker)
}

// Exit statuses of the roles.
const (
	statusNoCoordinator = 3 // no coordinator answers a worker
	statusFailed        = 4 // a process could not go on
	statusUnfit         = 5 // a node cannot run the tasks
)
