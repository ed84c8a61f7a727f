package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/runtime/process"
	"hpcc/runtime/rootfs"
)

// ExecOptions are the options of exec.
type ExecOptions struct {
	Process       string // file with a specs.Process
	PidFile       string
	ConsoleSocket string
	PreserveFDs   int
	Detach        bool // return when the program has started
}

// Exec runs another program in a running container, as for "podman exec". The container must
// be in this process's own user namespace, as Podman's are: a multi-threaded program, such
// as any Go program, cannot enter another user namespace.
func (c *Containers) Exec(id string, o ExecOptions) error {
	r, err := c.record(id)
	if err != nil {
		return err
	}
	if s := r.status(filepath.Join(c.Root, id)); s == specs.StateStopped {
		return fmt.Errorf("container not running: %q", id)
	}
	process, err := readProcess(o.Process)
	if err != nil {
		return err
	}
	q := &initRequest{Spec: &specs.Spec{Process: process}, Gate: -1, Console: -1, Keep: o.PreserveFDs, Lowest: rootfs.IsLowest()}
	if process.Terminal && o.ConsoleSocket != "" {
		console, err := dialConsole(o.ConsoleSocket)
		if err != nil {
			return err
		}
		defer console.Close()
		q.Console = int(console.Fd())
	}
	if q.Join, err = unix.PidfdOpen(r.Pid, 0); err != nil {
		return fmt.Errorf("opening the process of container %q: %w", id, err)
	}
	defer unix.Close(q.Join)
	parentEnd, childEnd, err := q.connect()
	if err != nil {
		return err
	}
	defer parentEnd.Close()
	defer childEnd.Close()
	spec, err := q.file()
	if err != nil {
		return err
	}
	defer spec.Close()
	goruntime.LockOSThread() // namespaces belong to a thread and the processes that it starts
	if err := joinContainer(q.Join, r.Pid); err != nil {
		return fmt.Errorf("entering container %q: %w", id, err)
	}
	proc, err := q.spawn(spec, &syscall.SysProcAttr{Setsid: process.Terminal})
	childEnd.Close() // so that the end of the process closes the socket
	if err != nil {
		return err
	}
	return o.waitStarted(parentEnd, proc)
}

// waitStarted waits until the program has started and, unless detached, until it ends.
func (o *ExecOptions) waitStarted(sync *os.File, proc *os.Process) error {
	err := receive(sync, msgReady)
	if err == nil && o.PidFile != "" {
		err = files.Replace(o.PidFile, []byte(strconv.Itoa(proc.Pid)), 0o644)
	}
	if err == nil {
		err = send(sync, msgWait)
	}
	if err != nil {
		return abandon(proc, err)
	}
	if o.Detach {
		return nil
	}
	stop := process.RelaySignals(proc)
	state, err := proc.Wait()
	stop()
	if err != nil {
		return err
	}
	process.EndAs(state)
	return nil
}

// readProcess reads the file with the process to run.
func readProcess(name string) (*specs.Process, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening the process to run: %w", err)
	}
	defer f.Close()
	p := &specs.Process{}
	if err := json.NewDecoder(io.LimitReader(f, maxConfig)).Decode(p); err != nil {
		return nil, fmt.Errorf("reading %q: not a process description: %w", name, err)
	}
	if len(p.Args) == 0 || p.Args[0] == "" || !filepath.IsAbs(p.Cwd) {
		return nil, fmt.Errorf("reading %q: a process needs args and an absolute cwd", name)
	}
	return p, nil
}

// joinContainer moves this thread into the container's namespaces except its mount
// namespace, because the program to start must be found first.
func joinContainer(pidfd, pid int) error {
	flags := uintptr(0)
	for name, flag := range map[string]uintptr{"pid": unix.CLONE_NEWPID, "net": unix.CLONE_NEWNET, "ipc": unix.CLONE_NEWIPC,
		"uts": unix.CLONE_NEWUTS, "cgroup": unix.CLONE_NEWCGROUP, "user": unix.CLONE_NEWUSER} {
		own, err := os.Readlink("/proc/self/ns/" + name)
		target, terr := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
		if err := errors.Join(err, terr); err != nil {
			return fmt.Errorf("comparing its namespaces: %w", err)
		}
		if own != target {
			flags |= flag
		}
	}
	if flags&unix.CLONE_NEWUSER != 0 {
		return errors.New("it has its own user namespace, which hpcc cannot enter; use nsenter(1)")
	}
	if flags == 0 {
		return nil
	}
	return unix.Setns(pidfd, int(flags))
}

// enterMounts enters the container's mount namespace and opens a console in it.
func (q *initRequest) enterMounts() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("entering the container: %w", err)
	}
	if err := unix.Setns(q.Join, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("entering the container's mounts: %w", err)
	}
	if q.Console < 0 {
		return nil
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("entering the container: %w", err)
	}
	defer unix.Close(root)
	r := &newRoot{Root: rootfs.Root{FD: root}, spec: q.Spec}
	return r.console(q.Console, q.Spec.Process.ConsoleSize)
}
