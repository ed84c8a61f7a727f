// Package oci runs OCI bundles for engines such as Podman and Slurm: the operations of
// the OCI runtime specification (runtime.md), as runc has them, for an ordinary user.
//
//	create ─► process in its namespaces, waits at a FIFO ─► start ─► program ─► delete
//
// Nothing of hpcc stays resident: a container is its process and a directory with its
// record. A program has the rights of the user who started it. Control groups, seccomp
// filters and labels of a configuration are not applied; each is reported.
package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/runtime/process"
)

// Containers operates on the containers of one state directory, with the operations of the
// OCI runtime specification (runtime.md). The directory Root/ID holds a container's record
// and, until it is started, a FIFO on which its process waits. Errors contain runc's
// messages, which engines look for.
type Containers struct {
	Root string // "" for a state directory that does not exist
	// Note, if set, receives the parts of a configuration that are not applied.
	Note func(string)
}

// A record is the stored state of a container.
type record struct {
	specs.State
	// StartTime is the start time of the process, in clock ticks since boot. It detects a pid
	// that now belongs to another process.
	StartTime uint64       `json:"processStartTime"`
	Created   time.Time    `json:"created"`
	Hooks     *specs.Hooks `json:"hooks,omitempty"`
	// Run reports that "run" created the container. No engine deletes such a container.
	Run bool `json:"run,omitempty"`
}

// File names in a container's directory. Start renames gateName to startedName. sweep creates
// endedName.
const (
	recordName  = "state.json"
	gateName    = "start"
	startedName = "started"
	endedName   = "ended"
)

// ErrNotExist reports that the state directory does not contain the container.
var ErrNotExist = errors.New("container does not exist")

// ids matches the container IDs that runc and crun accept.
var ids = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_+.-]{1,255}$`) })

func (c *Containers) dir(id string) (string, error) {
	if !ids().MatchString(id) || id == "." || id == ".." {
		return "", fmt.Errorf("container id %q: must be 1 to 255 letters, digits or _ + . -", id)
	}
	return filepath.Join(c.Root, id), nil
}

// claim creates the container's directory. If several calls run concurrently, one succeeds.
func (c *Containers) claim(id string) (string, error) {
	dir, err := c.dir(id)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(c.Root, 0o700); err != nil {
		return "", fmt.Errorf("creating the state directory: %w", err)
	}
	c.sweep()
	if r, err := c.record(id); err == nil && r.Run && r.status(dir) == specs.StateStopped {
		os.RemoveAll(dir)
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("container with given ID already exists: %q in %s; \"delete\" it or use another ID", id, c.Root)
	} else if err != nil {
		return "", fmt.Errorf("creating the container's directory: %w", err)
	}
	return dir, nil
}

// sweep removes the directories of ended containers of "run", whose processes were replaced
// by their programs. An engine may still query a container that has just ended, so sweep
// removes its directory only endedRetention after it first found it ended.
func (c *Containers) sweep() {
	entries, _ := os.ReadDir(c.Root)
	for _, e := range entries {
		dir := filepath.Join(c.Root, e.Name())
		r, err := c.record(e.Name())
		if err != nil || !r.Run || r.status(dir) != specs.StateStopped {
			continue
		}
		switch st, err := os.Stat(filepath.Join(dir, endedName)); {
		case err != nil:
			_ = os.WriteFile(filepath.Join(dir, endedName), nil, 0o600) // a failed write is repeated by the next sweep
		case time.Since(st.ModTime()) > endedRetention:
			os.RemoveAll(dir)
		}
	}
}

// endedRetention is the minimum time for which an ended container of "run" stays listed.
const endedRetention = 10 * time.Minute

// write stores a container's record atomically.
func (r *record) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("writing the container's record: %w", err)
	}
	return files.Replace(filepath.Join(dir, recordName), b, 0o644)
}

func (c *Containers) record(id string) (*record, error) {
	if c.Root == "" {
		return nil, fmt.Errorf("%w: %q", ErrNotExist, id)
	}
	dir, err := c.dir(id)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q in %s", ErrNotExist, id, c.Root)
	}
	var r record
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err == nil && r.Pid <= 0 {
		err = errors.New("the pid is missing")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of container %q: %w", id, err)
	}
	return &r, nil
}

// status returns the container's current status.
func (r *record) status(dir string) specs.ContainerState {
	if started, err := process.StartTime(r.Pid); err != nil || started != r.StartTime {
		return specs.StateStopped
	}
	if _, err := os.Lstat(filepath.Join(dir, gateName)); err == nil {
		return specs.StateCreated
	}
	return specs.StateRunning
}

// State returns the state of a container as the specification defines it.
func (c *Containers) State(id string) (*specs.State, error) {
	r, err := c.record(id)
	if err != nil {
		return nil, err
	}
	r.Status = r.status(filepath.Join(c.Root, id))
	if r.Status == specs.StateStopped {
		r.Pid = 0
	}
	return &r.State, nil
}

// List returns the states of all containers, sorted by ID.
func (c *Containers) List() ([]specs.State, error) {
	entries, err := os.ReadDir(c.Root) // "" does not exist
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing the state directory: %w", err)
	}
	list := []specs.State{}
	for _, e := range entries {
		if s, err := c.State(e.Name()); err == nil {
			list = append(list, *s)
		}
	}
	return list, nil
}

// Start starts the program of a created container and returns once it runs.
func (c *Containers) Start(id string) error {
	r, err := c.record(id)
	if err != nil {
		return err
	}
	dir := filepath.Join(c.Root, id)
	switch r.status(dir) {
	case specs.StateStopped:
		return fmt.Errorf("cannot start a container that has stopped: %q", id)
	case specs.StateRunning:
		return fmt.Errorf("cannot start an already running container: %q", id)
	}
	// If several starts run concurrently, only one renames the gate.
	gate := filepath.Join(dir, startedName)
	if err := os.Rename(filepath.Join(dir, gateName), gate); err != nil {
		return fmt.Errorf("cannot start an already running container: %q", id)
	}
	fd, err := unix.Open(gate, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(fd)
		_, err = unix.Write(fd, []byte{1})
	}
	if err != nil {
		return fmt.Errorf("cannot start a container that has stopped: %q: %w", id, err)
	}
	// The program's exec closes the other end.
	p := []unix.PollFd{{Fd: int32(fd)}}
	for p[0].Revents&unix.POLLERR == 0 {
		if _, err := unix.Poll(p, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for the program of container %q: %w", id, err)
		}
	}
	if r.Hooks == nil {
		return nil
	}
	r.Status = specs.StateRunning
	return runHooks("poststart", r.Hooks.Poststart, &r.State)
}

// Kill sends a signal to the container's process, or with all to every process in its mount
// namespace.
func (c *Containers) Kill(id string, sig unix.Signal, all bool) error {
	r, err := c.record(id)
	if err != nil {
		return err
	}
	if r.status(filepath.Join(c.Root, id)) == specs.StateStopped {
		return fmt.Errorf("container not running: %q", id)
	}
	var mounts *os.File
	if all {
		mounts = r.mounts()
	}
	defer mounts.Close() // Close of nil only returns an error
	_, err = r.signal(sig, mounts)
	return err
}

// signal sends sig to the container's process and to the other processes in the mount
// namespace mounts. It returns the number of these others.
func (r *record) signal(sig unix.Signal, mounts *os.File) (others int, err error) {
	pids := processesIn(mounts, r.Pid)
	for _, pid := range append([]int{r.Pid}, pids...) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			// Check again: only the open pidfd guarantees that the pid is not reused.
			if r.has(pid, mounts) {
				err = unix.PidfdSendSignal(fd, sig, nil, 0)
			}
			unix.Close(fd)
		} else if errors.Is(err, unix.ENOSYS) {
			err = unix.Kill(pid, sig)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return 0, fmt.Errorf("sending signal %d to process %d of container %q: %w", sig, pid, r.ID, err)
		}
	}
	return len(pids), nil
}

// has reports whether pid is the container's own process or is in its mount namespace.
func (r *record) has(pid int, mounts *os.File) bool {
	if pid != r.Pid {
		return inMounts(pid, mounts)
	}
	started, err := process.StartTime(pid)
	return err == nil && started == r.StartTime
}

// mounts opens the container's mount namespace, which no other container shares. It returns
// nil if the process has ended or is still in this process's namespace. The number of an
// open namespace is not reused.
func (r *record) mounts() *os.File {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", r.Pid))
	if err != nil {
		return nil
	}
	if !r.has(r.Pid, nil) || inMounts(os.Getpid(), f) {
		f.Close()
		return nil
	}
	return f
}

// inMounts reports whether a process is in a mount namespace.
func inMounts(pid int, mounts *os.File) bool {
	namespace, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return false
	}
	want, err := mounts.Stat()
	return err == nil && os.SameFile(namespace, want)
}

// processesIn returns the processes in a mount namespace, without except. If mounts is nil, it
// returns no processes.
func processesIn(mounts *os.File, except int) (pids []int) {
	if mounts == nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if p, err := strconv.Atoi(e.Name()); err == nil && p != except && inMounts(p, mounts) {
			pids = append(pids, p)
		}
	}
	return pids
}

// Delete removes the record of a container that has stopped or was never started. With
// force, it first kills a running container, and a missing one is not an error.
func (c *Containers) Delete(id string, force bool) error {
	if c.Root == "" && force {
		return nil
	}
	r, err := c.record(id)
	dir := filepath.Join(c.Root, id)
	if err != nil {
		if force && ids().MatchString(id) && id != "." && id != ".." {
			return os.RemoveAll(dir)
		}
		return err
	}
	switch status := r.status(dir); {
	case status == specs.StateStopped:
	case status == specs.StateCreated || force:
		if err := r.end(dir); err != nil {
			return err
		}
	default:
		return fmt.Errorf("cannot delete container %q that is not stopped: %s", id, status)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing the container's record: %w", err)
	}
	if r.Hooks == nil {
		return nil
	}
	r.Status, r.Pid = specs.StateStopped, 0
	return runHooks("poststop", r.Hooks.Poststop, &r.State)
}

// end kills the container's processes and waits until all are gone. It kills repeatedly,
// because a process may fork just before it is killed.
func (r *record) end(dir string) error {
	mounts := r.mounts()
	defer mounts.Close() // Close of nil only returns an error
	for range 1000 {
		stopped := r.status(dir) == specs.StateStopped
		others, err := r.signal(unix.SIGKILL, mounts)
		if err != nil || (stopped && others == 0) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("process %d of container %q does not end after SIGKILL", r.Pid, r.ID)
}
