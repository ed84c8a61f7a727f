package metrics

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Real-time signals are named by their distance from the first, as in bash and systemd:
// signal(7). The C library reserves those below the first.
const (
	firstRealTime = 34
	lastRealTime  = 64
	realTime      = "SIGRTMIN"
)

// signalName returns a name such as SIGKILL or SIGRTMIN+1.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	if s == firstRealTime {
		return realTime
	}
	return fmt.Sprintf("%s%+d", realTime, int(s)-firstRealTime)
}

// signalNumber parses a name. It returns 0 if it is invalid.
func signalNumber(name string) syscall.Signal {
	after, ok := strings.CutPrefix(name, realTime)
	if !ok {
		return unix.SignalNum(name)
	}
	n, err := strconv.Atoi(after)
	if n += firstRealTime; (err != nil && after != "") || n < 1 || n > lastRealTime {
		return 0
	}
	return syscall.Signal(n)
}

// Passed returns the signals that [Measure] forwards.
func Passed() []os.Signal { return slices.Clone(passed) }

// passed lists the signals that are forwarded to a measured program: those that schedulers
// send and that people type, and others that a program may wait for. Typed signals reach a
// program in the terminal's process group directly. SIGTSTP is missing because it stops its
// receiver.
var passed = withRealTime(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGXCPU,
	syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR)

func withRealTime(list ...os.Signal) []os.Signal {
	for n := firstRealTime + 1; n <= lastRealTime; n++ { // the first is reserved by musl
		list = append(list, syscall.Signal(n))
	}
	return list
}

// typed lists the signals that a terminal sends to its whole process group.
var typed = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH}

// caught holds the signals received for a program, including those before its start.
type caught struct {
	signals chan os.Signal
	ended   chan struct{}
	done    chan struct{} // closed when pass has returned

	stops []string // the first signal of each kind that may ask the program to stop, in order
}

// stops lists the signals by which people and schedulers ask programs to stop, or to save their state.
var stops = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGXCPU,
	syscall.SIGUSR1, syscall.SIGUSR2}

// catch starts receiving signals. Signals that this process inherited as ignored, as under
// nohup, stay ignored: handling them would reset them for the program as well.
func catch() *caught {
	c := &caught{signals: make(chan os.Signal, 16), ended: make(chan struct{}), done: make(chan struct{})}
	signal.Notify(c.signals, append(slices.DeleteFunc(Passed(), signal.Ignored),
		syscall.SIGCONT)...) // an empty list would mean all signals
	return c
}

// pass forwards received signals until stop.
func (c *caught) pass(cmd *exec.Cmd, deaf bool) {
	defer close(c.done)
	to, apart := cmd.Process.Pid, cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid
	if apart {
		to = -to
	}
	for {
		select {
		case s := <-c.signals:
			c.note(s)
			select {
			case <-c.ended:
				return
			default:
			}
			if deaf || (!apart && slices.Contains(typed, s) && inForeground()) {
				continue
			}
			_ = syscall.Kill(to, s.(syscall.Signal))
		case <-c.ended:
			return
		}
	}
}

func (c *caught) note(s os.Signal) {
	if name := signalName(s.(syscall.Signal)); slices.Contains(stops, s) && !slices.Contains(c.stops, name) {
		c.stops = append(c.stops, name)
	}
}

// stop ends forwarding, because the program was waited for and its pid may be reused. It returns the signals
// that may have asked the program to stop. Schedulers send these to the program and then to this process, so the
// first may come within a time after the end. Later signals are discarded until close.
func (c *caught) stop(within time.Duration) (stops []string) {
	close(c.ended)
	<-c.done
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		select {
		case s := <-c.signals:
			c.note(s)
			continue
		default:
		}
		if within == 0 || len(c.stops) > 0 {
			return c.stops
		}
		select {
		case s := <-c.signals:
			c.note(s)
		case <-late.C:
			return c.stops
		}
	}
}

func (c *caught) close() { signal.Stop(c.signals) }

// inForeground reports whether typed signals go to this process's group, and so to the
// program in it.
func inForeground() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
