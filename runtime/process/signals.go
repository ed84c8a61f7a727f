package process

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// relayed are the signals that end or steer programs, those of schedulers and real-time ones among them, but for
// those that this process was started to ignore: to ask for one would end that for its child, too.
func relayed() []os.Signal {
	list := []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGALRM, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGIO, syscall.SIGPWR}
	for n := firstRealTime; n <= lastRealTime; n++ {
		list = append(list, syscall.Signal(n))
	}
	return slices.DeleteFunc(list, signal.Ignored)
}

// The real-time signals that the C libraries leave to programs: signal(7). The first two are glibc's own,
// and musl has a third.
const (
	firstRealTime = 35
	lastRealTime  = 64
)

// RelaySignals passes what is sent to this process on to p until stop is called.
func RelaySignals(p *os.Process) (stop func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, append(relayed(), syscall.SIGCONT)...) // none would mean all
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-c:
				if (s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH) && inForeground() {
					continue // from the terminal: the program had it, too
				}
				_ = p.Signal(s) // the child may be gone already; Wait will tell
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(c); close(done) }
}

// inForeground says whether this process's group is what its terminal sends
// ^C, ^\ and changes of its size to, the program's among them.
func inForeground() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// EndBy ends this process by a signal, as one ended another process, and without
// a core. It returns only of a signal that does not end processes.
func EndBy(s syscall.Signal) {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	signal.Reset(s)
	// Go has handlers of its own for all signals, and some print.
	var usual [4]uintptr
	syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&usual)), 0, 8, 0, 0) // the size of the kernel's sets of signals
	_ = syscall.Kill(syscall.Getpid(), s)
	time.Sleep(time.Second)
}

// AsInit starts the program as a child of this process, the first of its pid
// namespace, in a binary without the early entry point. It ends as the program ends. It returns only when it cannot be started.
func AsInit(exe string, args, env []string) error {
	c := make(chan os.Signal, 16)
	signal.Notify(c, append(relayed(), syscall.SIGCONT, syscall.SIGCHLD)...)
	pid, err := syscall.ForkExec(exe, args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		signal.Stop(c)
		return err
	}
	// What the terminal sends reaches the program by itself; what comes here
	// was passed on by the process outside.
	_ = syscall.Setpgid(0, 0)
	for s := range c {
		if s != syscall.SIGCHLD {
			_ = syscall.Kill(pid, s.(syscall.Signal)) // it may be gone; the next wait tells
			continue
		}
		for {
			var ws syscall.WaitStatus
			got, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
			if got <= 0 || (err != nil && err != syscall.EINTR) {
				break
			}
			if got != pid {
				continue
			}
			if ws.Signaled() {
				os.Exit(128 + int(ws.Signal()))
			}
			os.Exit(ws.ExitStatus())
		}
	}
	return nil
}
