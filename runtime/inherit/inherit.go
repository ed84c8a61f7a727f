// Package inherit gives programs the attributes of this process that the Go runtime changes when it
// starts: it opens closed standard streams, and it handles almost all signals, whose handlers
// become the default action on exec. The entry points note these attributes before Go starts.
// [Exec] and [Command] restore them. Go itself restores the limit of open files.
package inherit

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime/process"
)

// noted holds the attributes with which this process was executed.
var noted struct {
	closed  uint8  // one bit for each standard stream that was closed
	ignored uint64 // ignored signals: bit N-1 for signal N
	blocked uint64 // blocked signals
}

// The kernel's signals are 1 to signals. Its sets of signals have sigsetSize bytes.
const signals, sigsetSize = 64, 8

// kernelAction is the kernel's struct sigaction. The handlers SIG_DFL and SIG_IGN are 0 and 1.
type kernelAction struct{ handler, flags, restorer, mask uintptr }

const ignore = 1

// NoteStreams notes which standard streams are closed. Call it before the Go runtime starts and
// before anything is opened. It does not allocate.
func NoteStreams() {
	noted.closed = 0
	for fd := range uintptr(3) {
		if _, _, errno := syscall.RawSyscall(unix.SYS_FCNTL, fd, unix.F_GETFD, 0); errno == unix.EBADF {
			noted.closed |= 1 << fd
		}
	}
}

// NoteSignals notes which signals are ignored and blocked. Call it before the Go runtime starts. It
// does not allocate.
func NoteSignals() {
	noted.ignored = 0
	for s := uintptr(1); s <= signals; s++ {
		var a kernelAction
		if sigaction(s, nil, &a); a.handler == ignore {
			noted.ignored |= 1 << (s - 1)
		}
	}
	sigmask(nil, &noted.blocked)
}

// Signals returns the noted sets of signals, as an argument for [SetSignals] in a child process.
func Signals() string { return fmt.Sprintf("%x,%x", noted.ignored, noted.blocked) }

// SetSignals makes [Exec] start programs with the ignored and blocked signals of the parent process.
func SetSignals(sets string) error {
	_, err := fmt.Sscanf(sets, "%x,%x", &noted.ignored, &noted.blocked)
	return err
}

// Exec replaces this process with a program, which inherits the noted attributes and the
// parent-death signal. It returns only on failure.
func Exec(file string, args, env []string) error {
	if deathSignal != 0 || noted.blocked != 0 {
		goruntime.LockOSThread() // any thread may execute the program
	}
	if deathSignal != 0 {
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(deathSignal), 0, 0, 0)
	}
	for fd := range 3 {
		if noted.closed&(1<<fd) != 0 {
			unix.CloseOnExec(fd)
		}
	}
	for s := uintptr(1); s <= signals; s++ {
		if noted.ignored&(1<<(s-1)) != 0 {
			sigaction(s, &kernelAction{handler: ignore}, nil)
		}
	}
	if noted.blocked != 0 {
		sigmask(&noted.blocked, nil)
	}
	return syscall.Exec(file, args, env)
}

// deathSignal is the signal that the kernel sends this process when its parent dies,
// or 0. The kernel keeps it for one thread, the first one (PR_SET_PDEATHSIG, prctl(2)).
// Package variables are initialised on that thread.
var deathSignal = func() (s int32) {
	_ = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&s)), 0, 0, 0)
	return s
}()

// childName is argv[0] of a child process that executes a program: see [Command].
const childName = "hpcc-inherit"

// Command returns the file and arguments with which a child process becomes the program file. Go
// starts children with the default action of the signals that it handles, and may unblock signals.
// If this process ignored or blocked signals, the child is hpcc again and executes the program with
// [Exec].
func Command(file string, args []string) (string, []string) {
	const kept = 1<<(unix.SIGHUP-1) | 1<<(unix.SIGINT-1) // Go leaves these ignored
	if noted.ignored&^kept == 0 && noted.blocked == 0 {
		return file, args
	}
	return "/proc/self/exe", append([]string{childName, Signals(), file}, args...)
}

// Child becomes the program of a child process of [Command]. In any other process it
// returns false.
func Child(args []string) (child bool, err error) {
	if args[0] != childName {
		return false, nil
	}
	if len(args) < 4 || SetSignals(args[1]) != nil {
		return true, errors.New("this name is reserved for hpcc")
	}
	return true, process.ExecError(args[2], args[2], Exec(args[2], args[3:], os.Environ()))
}

// CloseFrom marks the descriptors from first on as close-on-exec.
func CloseFrom(first int) error {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("listing open files: %w", err)
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd) // the listing's own descriptor is closed already
		}
	}
	return nil
}

// sigaction replaces and returns the action of a signal. action and previous may be nil.
func sigaction(signal uintptr, action, previous *kernelAction) {
	syscall.RawSyscall6(unix.SYS_RT_SIGACTION, signal, uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(previous)), sigsetSize, 0, 0)
}

// sigmask replaces and returns the set of blocked signals. set and previous may be nil.
func sigmask(set, previous *uint64) {
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)),
		uintptr(unsafe.Pointer(previous)), sigsetSize, 0, 0)
}
