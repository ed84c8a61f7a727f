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

	"golang.org/x/sys/unix"
)

// Real-time signals have no names but by their distance from the first, as bash and systemd have
// it: signal(7). The C library keeps those below the first for itself.
const (
	firstRealTime = 34
	lastRealTime  = 64
	realTime      = "SIGRTMIN"
)

// signalName is SIGKILL, or SIGRTMIN+1.
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	if s == firstRealTime {
		return realTime
	}
	return fmt.Sprintf("%s%+d", realTime, int(s)-firstRealTime)
}

// signalNumber reads a name; 0 of what is none.
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

// Passed are the signals that [Measure] passes on.
func Passed() []os.Signal { return slices.Clone(passed) }

// passed are the signals that a measured program gets when the one who measures
// gets them: those that schedulers send and that people type, and what else one may wait for. What is typed
// reaches by itself a program that is in the terminal's process group. SIGTSTP is not among them: it
// stops who gets it.
var passed = withRealTime(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGCONT, syscall.SIGXCPU,
	syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGWINCH, syscall.SIGIO, syscall.SIGPWR)

func withRealTime(list ...os.Signal) []os.Signal {
	for n := firstRealTime + 1; n <= lastRealTime; n++ { // the first is musl's
		list = append(list, syscall.Signal(n))
	}
	return list
}

// typed are the signals that a terminal sends to all of its process group.
var typed = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGWINCH}

// caught are the signals that came for a program, also those that came before it began.
type caught struct {
	signals chan os.Signal
	ended   chan struct{}
}

// catch begins to catch. Signals that this process was started to ignore, as under
// nohup, stay ignored: to ask for one would end that for the program, too.
func catch() *caught {
	c := &caught{make(chan os.Signal, 16), make(chan struct{})}
	signal.Notify(c.signals, append(slices.DeleteFunc(Passed(), signal.Ignored), syscall.SIGCONT)...) // none would mean all
	return c
}

// pass passes what is caught on, until rest.
func (c *caught) pass(cmd *exec.Cmd, deaf bool) {
	to, apart := cmd.Process.Pid, cmd.SysProcAttr != nil && cmd.SysProcAttr.Setpgid
	if apart {
		to = -to
	}
	for {
		select {
		case s := <-c.signals:
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

// rest ends passing on: the program was waited for, and its number may be another's. What comes until drop is for
// nobody: schedulers send their signals to the program and to this process, which only ends its record.
func (c *caught) rest() { close(c.ended) }

func (c *caught) drop() { signal.Stop(c.signals) }

// inForeground says whether the terminal sends what is typed to this process's group, and so
// to the program in it.
func inForeground() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
