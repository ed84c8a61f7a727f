// Package metrics measures runs of a program and keeps what was measured.
//
// A [Run] is one execution: when, where, how long, how much processor time and
// memory, and how it ended. The figures are the kernel's own, from wait4(2), so
// measuring costs nothing while the program runs and needs no rights.
package metrics

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Run is one measured execution.
type Run struct {
	Command []string  `json:"command"`
	Host    string    `json:"host"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	// Exit is the program's status; -1 when a signal ended it.
	Exit int `json:"exit"`
	// Signal is the name of the signal that ended the program, such as SIGKILL; "" for none.
	Signal string `json:"signal,omitempty"`
	Usage  Usage  `json:"usage"`
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
	return 128 + int(unix.SignalNum(r.Signal))
}

// Passed are the signals that [Measure] passes on.
func Passed() []os.Signal { return slices.Clone(passed) }

// passed are the signals that a measured program gets when the one who measures
// gets them: those that schedulers send and that people type. What is typed
// reaches a program by itself that sits at the terminal, in the same process group, and is sent otherwise.
var passed = []os.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGXCPU}

// Measure runs a prepared command to its end and measures it. Signals that
// arrive meanwhile are passed on, to all of its process group where it has one of its own. begun, when not nil, is called with the run as
// it is known at the start. An error means that the program did not run; how it
// ended is no error.
func Measure(cmd *exec.Cmd, begun func(Run)) (Run, error) {
	r := Run{Command: cmd.Args, Start: time.Now()}
	r.Host, _ = os.Hostname()
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passed...)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return r, fmt.Errorf("starting %s: %w", cmd.Args[0], err)
	}
	to, typed := cmd.Process.Pid, false
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid {
		to = -to
	} else {
		typed = atTerminal(cmd)
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				if typed && (s == syscall.SIGINT || s == syscall.SIGQUIT) {
					continue
				}
				_ = syscall.Kill(to, s.(syscall.Signal))
			case <-ended:
				return
			}
		}
	}()
	if begun != nil {
		begun(r)
	}
	err := cmd.Wait()
	close(ended)
	r.End = time.Now()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return r, fmt.Errorf("waiting for %s: %w", cmd.Args[0], err)
	}
	r.take(cmd.ProcessState)
	return r, nil
}

// atTerminal says whether a command reads from a terminal.
func atTerminal(cmd *exec.Cmd) bool {
	f, ok := cmd.Stdin.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// take reads what the kernel counted.
func (r *Run) take(s *os.ProcessState) {
	r.Exit = s.ExitCode()
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		r.Signal = unix.SignalName(w.Signal())
	}
	r.Usage.User, r.Usage.System = s.UserTime().Seconds(), s.SystemTime().Seconds()
	if u, ok := s.SysUsage().(*syscall.Rusage); ok {
		r.Usage.MaxRSS = u.Maxrss * 1024 // Linux counts in KiB: getrusage(2)
		r.Usage.ReadBlocks, r.Usage.WrittenBlocks, r.Usage.Switches = u.Inblock, u.Oublock, u.Nivcsw
	}
}
