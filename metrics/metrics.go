// Package metrics measures runs of a program and keeps what was measured.
//
// A [Run] is one execution: when, where, how long, how much processor time and
// memory, and how it ended. The figures are the kernel's own, from wait4(2), so
// measuring costs nothing while the program runs and needs no rights. Where more is
// wanted, [Measure] also looks at the program and its descendants while they run,
// in /proc, in their cgroup and at the GPUs, and keeps a [Record].
package metrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// A Run is one measured execution.
type Run struct {
	Command []string  `json:"command"`
	Host    string    `json:"host"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	// Exit is the program's status; -1 when a signal ended it.
	Exit int `json:"exit"`
	// Signal is the name of the signal that ended the program, such as SIGKILL or SIGRTMIN+1; "" for none.
	Signal string `json:"signal,omitempty"`
	Usage  Usage  `json:"usage"`

	// Footer is the end of the record, where one was made; Unkept says why not all of
	// it is in its file.
	Footer *Footer `json:"-"`
	Unkept error   `json:"-"`
}

// Options say what [Measure] does besides running the program. The zero value
// takes what the kernel counts anyway.
type Options struct {
	// File gets the record of the run; "" for none. A record that is there is written over, and nothing else. That
	// it cannot be written does not keep the program from running: see [Run].
	File string
	// Header is what the caller knows: Hpcc, Image, Digest, Config, Job, Asked, and the Command
	// where that is not the one of the process. The rest is filled in.
	Header Header
	// Kin are variables of an environment, NAME=VALUE: processes of this user that have all of
	// them are the run's, too, as those that Slurm starts for srun. They are sampled only.
	Kin []string
	// Deaf says that signals are not passed on: who sends one here sends it to the program, too.
	Deaf bool
	// Begun, when not nil, is called with the run as it is known at the start: Unkept says then why there
	// will be no record.
	Begun func(Run)
	// Told, when not nil, is called with the header and the footer as it would be if the
	// run ended now: when it has begun, whenever samples are written, and at the end, with the footer
	// itself. Neither may be changed.
	Told func(*Header, *Footer)
	// Problem, when not nil, is asked as soon as the program has ended, or did not start, why hpcc
	// ended it; "" when it did not. It is for the Footer.
	Problem func() string
}

func (o *Options) records() bool { return o.File != "" || o.Told != nil }

func (o *Options) problem() string {
	if o.Problem == nil {
		return ""
	}
	return o.Problem()
}

// Usage is what a program used, with all children that it waited for.
type Usage struct {
	// User and System are processor time, in seconds.
	User   float64 `json:"user_s"`
	System float64 `json:"system_s"`
	// MaxRSS is the largest resident set of any one of these processes, in bytes.
	MaxRSS int64 `json:"max_rss_bytes"`
	// ReadBlocks and WrittenBlocks are block device operations of 512 bytes.
	ReadBlocks    int64 `json:"read_blocks"`
	WrittenBlocks int64 `json:"written_blocks"`
	// Switches are context switches that the program did not ask for: a sign of
	// processors shared with others.
	Switches int64 `json:"involuntary_switches"`
}

// Wall is how long the run took.
func (r *Run) Wall() time.Duration { return r.End.Sub(r.Start) }

// OK says whether the program ended by itself with status 0.
func (r *Run) OK() bool { return r.Exit == 0 && r.Signal == "" }

// Status is what a shell would give as $?.
func (r *Run) Status() int {
	if r.Signal == "" {
		return r.Exit
	}
	return 128 + int(signalNumber(r.Signal))
}

// Measure runs a prepared command to its end and measures it. Signals that
// arrive meanwhile are passed on, to all of its process group where it has one of its own. An
// error means that the program did not run, also because ctx was done before; how it ended is not an error.
//
// Where a record is made, this process becomes the parent of what the program
// leaves behind (PR_SET_CHILD_SUBREAPER), and waits for those when they end. Whatever else it starts
// meanwhile it starts by [Start], or in its own process group while programs have others.
func Measure(ctx context.Context, cmd *exec.Cmd, o Options) (Run, error) {
	signals := catch()
	defer signals.drop()
	r := Run{Command: cmd.Args, Start: time.Now()}
	r.Host, _ = os.Hostname()
	var rec *recorder
	if o.records() {
		rec = newRecorder(cmd, &r, o)
	}
	err := context.Cause(ctx)
	if err == nil {
		err = children.start(cmd, false)
	}
	if err != nil {
		err = fmt.Errorf("starting %s: %w", cmd.Args[0], err)
		r.End, r.Exit = time.Now(), -1
		rec.end(&r, o.problem(), err)
		return r, err
	}
	go signals.pass(cmd, o.Deaf)
	if o.Begun != nil {
		r.Unkept = rec.unkept()
		o.Begun(r)
	}
	rec.watch(cmd)
	err = cmd.Wait()
	r.End = time.Now()
	signals.rest()
	if cmd.ProcessState != nil {
		r.take(cmd.ProcessState)
	}
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = nil
	}
	problem := o.problem()
	if err != nil {
		err = fmt.Errorf("waiting for %s: %w", cmd.Args[0], err)
	}
	rec.end(&r, problem, err)
	return r, err
}

// take reads what the kernel counted.
func (r *Run) take(s *os.ProcessState) {
	r.Exit = s.ExitCode()
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		r.Signal = signalName(w.Signal())
	}
	if u, ok := s.SysUsage().(*syscall.Rusage); ok {
		r.Usage = usageOf(u)
	}
}

// usageOf reads what the kernel counted of a process: getrusage(2).
func usageOf(u *syscall.Rusage) Usage {
	return Usage{User: float64(u.Utime.Nano()) / 1e9, System: float64(u.Stime.Nano()) / 1e9, MaxRSS: u.Maxrss * 1024, // Linux counts in KiB
		ReadBlocks: u.Inblock, WrittenBlocks: u.Oublock, Switches: u.Nivcsw}
}

// add adds what another process used.
func (u *Usage) add(o Usage) {
	u.User, u.System, u.MaxRSS = u.User+o.User, u.System+o.System, max(u.MaxRSS, o.MaxRSS)
	u.ReadBlocks, u.WrittenBlocks, u.Switches = u.ReadBlocks+o.ReadBlocks, u.WrittenBlocks+o.WrittenBlocks, u.Switches+o.Switches
}
