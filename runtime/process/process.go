// Package process finds and executes programs and ends with their status. It provides exit
// statuses, signals, and user-readable errors for a failed start.
package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hpcc/text"
)

// Exit statuses of a run that ended before the program started, as for env(1), nohup(1) and
// docker-run(1).
const (
	ExitFailed        = 125 // hpcc could not set up the run
	ExitNotExecutable = 126 // the program exists but cannot be executed
	ExitNotFound      = 127 // the program does not exist in the image
)

// Error reports a run that ended before the program started.
type Error struct {
	Status int // one of the Exit constants
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// DefaultPath is the PATH of execvp(3) for a program without one.
const DefaultPath = "/bin:/usr/bin"

// LookPath finds the program as execvp(3) does, with the run's own PATH.
func LookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	if path == "" {
		path = DefaultPath
	}
	var denied error
	for _, dir := range strings.Split(path, ":") {
		if dir == "" {
			dir = "."
		}
		p := dir + "/" + name
		st, err := os.Stat(p)
		if err != nil || st.IsDir() {
			continue
		}
		if unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
		denied = fmt.Errorf("running %q: %s: %w", name, p, noExec(p, unix.EACCES))
	}
	if denied != nil {
		return "", &Error{ExitNotExecutable, denied}
	}
	if strings.HasPrefix(name, "-") {
		return "", &Error{ExitNotFound, fmt.Errorf("running %q: no such program in the image; flags of hpcc come before IMAGE", name)}
	}
	err := fmt.Errorf("running %q: no such program in the image's PATH (%s)", name, path)
	if like := text.NearestEntry(name, strings.Split(path, ":")...); like != "" {
		err = fmt.Errorf("%w; did you mean %q?", err, like)
	}
	return "", &Error{ExitNotFound, err}
}

// ExecError explains, as an [Error], why the kernel did not execute name, whose path is exe.
func ExecError(exe, name string, err error) error {
	if errors.Is(err, unix.ENOENT) {
		if _, serr := os.Stat(name); serr == nil || !strings.Contains(name, "/") {
			return &Error{ExitNotFound, fmt.Errorf("running %q: its interpreter or dynamic loader is not in the image", name)}
		}
		return &Error{ExitNotFound, fmt.Errorf("running %q: no such file in the image", name)}
	}
	if errors.Is(err, unix.ENOEXEC) {
		return &Error{ExitNotExecutable, fmt.Errorf("running %q: not a program that this machine (%s) can execute", name, goruntime.GOARCH)}
	}
	return &Error{ExitNotExecutable, fmt.Errorf("running %q: %w", name, noExec(exe, err))}
}

// noExec explains err if a noexec mount, and not the program's mode, is the cause.
func noExec(exe string, err error) error {
	var st unix.Statfs_t
	if errors.Is(err, unix.EACCES) && unix.Statfs(exe, &st) == nil && st.Flags&unix.ST_NOEXEC != 0 {
		return errors.New("its file system is mounted noexec; store the image on another file system")
	}
	return err
}

// EndAs ends this process with the exit status of another one: 128 + N for signal N.
func EndAs(state *os.ProcessState) {
	ws := state.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		os.Exit(128 + int(ws.Signal()))
	}
	os.Exit(ws.ExitStatus())
}

// MemoryFile writes v as JSON to a file that exists only in memory.
func MemoryFile(name string, v any) (*os.File, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(b, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// StartTime returns when a living process started, in clock ticks since boot (field 22 of
// /proc/PID/stat, proc_pid_stat(5)). It distinguishes processes that had the same pid.
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, field 2, is in parentheses and may contain blanks and parentheses.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat is cut short", pid)
	}
	if f[0] == "Z" || f[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(f[19], 10, 64)
}
