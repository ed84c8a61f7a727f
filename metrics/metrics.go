// Package metrics measures runs of a program and records the results.
//
// A [Run] is one execution: when, where, how long, how much processor time and memory, and
// how it ended. The numbers come from the kernel's wait4(2), so measuring costs nothing
// during the run and needs no privileges. On request, [Measure] also samples the program and
// its descendants in /proc, their cgroup and the GPUs, and writes a [Record].
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
	// Exit is the program's exit status, or -1 if a signal ended it.
	Exit int `json:"exit"`
	// Signal is the name of the signal that ended the program, such as SIGKILL or SIGRTMIN+1,
	// or "".
	Signal string `json:"signal,omitempty"`
	Usage  Usage  `json:"usage"`
	// Stops names the signals that this process received before the program's end and that may
	// have asked it to stop, such as SIGTERM or SIGUSR1, in the order of their arrival.
	Stops []string `json:"-"`

	// OOMKills is the number of processes in the program's cgroup that the kernel killed for lack
	// of memory, if [Options] requests it. It is 0 if other programs share the cgroup.
	OOMKills int64 `json:"oom_kills,omitempty"`

	// Footer is the end of the record, if one was made. RecordErr is the reason why its file
	// is incomplete.
	Footer    *Footer `json:"-"`
	RecordErr error   `json:"-"`
}

// Options control what [Measure] does besides running the program. The zero value only uses
// the kernel's own counters.
type Options struct {
	// File is the file to write the record to, or empty. An existing file is overwritten only
	// if it is a record. The program runs even if the file cannot be written: see [Run].
	File string
	// Header holds the caller's part: Hpcc, Image, Digest, Config, Job, Asked, and Command if
	// it is not the process's own. Measure fills in the rest.
	Header Header
	// Related holds environment variables, NAME=VALUE. Processes of this user with all of them
	// also belong to the run, such as those that Slurm starts for srun. They are only sampled.
	Related []string
	// NoForward disables the forwarding of signals that their sender also sends to the program.
	NoForward bool
	// CountOOM sets OOMKills of the run.
	CountOOM bool
	// LateStop is how long, and at most for a twentieth of the run time, Measure waits after a success for a
	// signal that asked the program to stop: a scheduler may send it to this process after the program.
	LateStop time.Duration
	// Started, unless nil, is called with the started run. Its RecordErr is set if there will
	// be no record.
	Started func(Run)
	// Progress, unless nil, is called with the header and the current footer: at the start,
	// whenever samples are written, and at the end with the final footer. It must not modify
	// them.
	Progress func(*Header, *Footer)
	// Problem, unless nil, is called when the program has ended or could not start. It
	// returns why hpcc ended it, for the footer, or "".
	Problem func() string
}

func (o *Options) records() bool { return o.File != "" || o.Progress != nil }

func (o *Options) problem() string {
	if o.Problem == nil {
		return ""
	}
	return o.Problem()
}

// Usage is the resource usage of a program and all children that it waited for.
type Usage struct {
	// User and System are processor time, in seconds.
	User   float64 `json:"user_s"`
	System float64 `json:"system_s"`
	// MaxRSS is the largest resident set of any of these processes, in bytes.
	MaxRSS int64 `json:"max_rss_bytes"`
	// ReadBlocks and WrittenBlocks are block device operations of 512 bytes.
	ReadBlocks    int64 `json:"read_blocks"`
	WrittenBlocks int64 `json:"written_blocks"`
	// Switches are involuntary context switches: a sign of shared processors.
	Switches int64 `json:"involuntary_switches"`
}

// Wall returns the duration of the run.
func (r *Run) Wall() time.Duration { return r.End.Sub(r.Start) }

// Status returns the exit status as a shell reports it in $?.
func (r *Run) Status() int {
	if r.Signal == "" {
		return r.Exit
	}
	return 128 + int(signalNumber(r.Signal))
}

// Measure runs a prepared command to its end and measures it. It forwards signals, to the
// whole process group if the command has its own. An error means that the program did not
// run, including when ctx was done before; an unsuccessful exit is not an error.
//
// If a record is made, this process becomes the parent of the program's orphans
// (PR_SET_CHILD_SUBREAPER) and waits for them. Other children must be started with [Start]
// meanwhile, or in this process's own group while programs have others.
func Measure(ctx context.Context, cmd *exec.Cmd, o Options) (Run, error) {
	signals := catch()
	defer signals.close()
	r := Run{Command: cmd.Args, Start: time.Now()}
	r.Host, _ = os.Hostname()
	var rec *recorder
	if o.records() {
		rec = newRecorder(cmd, &r, o)
	}
	countOOM := func() int64 { return 0 }
	if o.CountOOM {
		countOOM = findCgroups("/").oomKills()
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
	go signals.pass(cmd, o.NoForward)
	if o.Started != nil {
		r.RecordErr = rec.recordErr()
		o.Started(r)
	}
	rec.watch(cmd)
	err = cmd.Wait()
	r.End = time.Now()
	late := time.Duration(0)
	if cmd.ProcessState != nil {
		r.take(cmd.ProcessState)
		if cmd.ProcessState.Success() {
			late = min(o.LateStop, r.End.Sub(r.Start)/20)
		}
	}
	r.Stops = signals.stop(late)
	r.OOMKills = countOOM()
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

// take records the kernel's counters.
func (r *Run) take(s *os.ProcessState) {
	r.Exit = s.ExitCode()
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		r.Signal = signalName(w.Signal())
	}
	if u, ok := s.SysUsage().(*syscall.Rusage); ok {
		r.Usage = usageOf(u)
	}
}

// usageOf converts the kernel's counters of a process: getrusage(2).
func usageOf(u *syscall.Rusage) Usage {
	return Usage{User: float64(u.Utime.Nano()) / 1e9, System: float64(u.Stime.Nano()) / 1e9, MaxRSS: u.Maxrss * 1024, // Linux counts in KiB
		ReadBlocks: u.Inblock, WrittenBlocks: u.Oublock, Switches: u.Nivcsw}
}

// add adds another process's usage.
func (u *Usage) add(o Usage) {
	u.User, u.System, u.MaxRSS = u.User+o.User, u.System+o.System, max(u.MaxRSS, o.MaxRSS)
	u.ReadBlocks, u.WrittenBlocks, u.Switches = u.ReadBlocks+o.ReadBlocks, u.WrittenBlocks+o.WrittenBlocks, u.Switches+o.Switches
}
