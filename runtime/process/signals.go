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

// relayed returns the signals that end or control programs, including real-time signals and
// those of schedulers. It omits signals that this process inherited as ignored, because
// handling them would reset them for its child as well.
func relayed() []os.Signal {
	list := []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGALRM, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGIO, syscall.SIGPWR}
	for n := firstRealTime; n <= lastRealTime; n++ {
		list = append(list, syscall.Signal(n))
	}
	return slices.DeleteFunc(list, signal.Ignored)
}

// The real-time signals available to programs: signal(7). glibc reserves the first two, and
// musl a third.
const (
	firstRealTime = 35
	lastRealTime  = 64
)

// RelaySignals forwards signals of this process to p until stop is called.
func RelaySignals(p *os.Process) (stop func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, append(relayed(), syscall.SIGCONT)...) // an empty list would mean all signals
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-c:
				if (s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH) && inForeground() {
					continue // from the terminal: the program received it as well
				}
				_ = p.Signal(s) // the child may have ended; Wait reports it
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(c); close(done) }
}

// inForeground reports whether this process's group is the terminal's foreground group. The
// program is in that group and receives ^C, ^\ and size changes directly.
func inForeground() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// EndBy ends this process with the signal s, which ended another process, without a core dump. It
// returns only if the signal does not end processes.
func EndBy(s syscall.Signal) {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	signal.Reset(s)
	// Go installs handlers for all signals, and some of them print.
	var defaultAction [4]uintptr
	syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&defaultAction)),
		0, 8, 0, 0) // 8 is the size of the kernel's signal sets
	_ = syscall.Kill(syscall.Getpid(), s)
	time.Sleep(time.Second)
}

// AsInit starts the program as a child of this process, the first of its pid namespace, in a
// binary without the early entry point. It ends with the program's status and returns only
// if the program cannot be started.
func AsInit(exe string, args, env []string) error {
	c := make(chan os.Signal, 16)
	signal.Notify(c, append(relayed(), syscall.SIGCONT, syscall.SIGCHLD)...)
	pid, err := syscall.ForkExec(exe, args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		signal.Stop(c)
		return err
	}
	// The program receives the terminal's signals directly. Signals that arrive here were
	// forwarded by the process outside the namespace.
	_ = syscall.Setpgid(0, 0)
	for s := range c {
		if s != syscall.SIGCHLD {
			_ = syscall.Kill(pid, s.(syscall.Signal)) // the program may have ended; the next wait reports it
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
