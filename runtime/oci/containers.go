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

	"hpcc/runtime/process"
	"hpcc/runtime/rawfile"
)

// Containers are those of one state directory, as engines such as Podman and
// Slurm have them made: the operations of the OCI runtime specification
// (runtime.md). Nothing of hpcc stays resident: a container is its process, and
// a directory Root/ID with a record of it and, until it is started, a FIFO on
// which that process waits. Errors name the state in runc's words, which
// engines look for.
type Containers struct {
	Root string
	// Note is told what of a configuration is left out; nil: nobody is.
	Note func(string)
}

// A record is what is kept of a container.
type record struct {
	specs.State
	// Born is when the process began, in clock ticks since the machine did: with
	// it a pid that was given to another process is not taken for this one.
	Born    uint64       `json:"processStartTime"`
	Created time.Time    `json:"created"`
	Hooks   *specs.Hooks `json:"hooks,omitempty"`
	// Run says that "run" made the container, so that nobody will delete it.
	Run bool `json:"run,omitempty"`
}

// Names of files in a container's directory. gateName is there until start.
const (
	recordName = "state.json"
	gateName   = "start"
	opened     = "started"
	seenEnded  = "ended"
)

// ErrNotExist says that a state directory has no such container.
var ErrNotExist = errors.New("container does not exist")

// ids are those that runc and crun take as well.
var ids = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_+.-]{1,255}$`) })

func (c *Containers) dir(id string) (string, error) {
	if !ids().MatchString(id) || id == "." || id == ".." {
		return "", fmt.Errorf("container id %q: 1 to 255 letters, digits and _ + . - make one", id)
	}
	return filepath.Join(c.Root, id), nil
}

// claim makes the container's directory; of several at once, one succeeds.
func (c *Containers) claim(id string) (string, error) {
	dir, err := c.dir(id)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(c.Root, 0o700); err != nil {
		return "", fmt.Errorf("making the state directory: %w", err)
	}
	c.sweep()
	if r, err := c.record(id); err == nil && r.Run && r.status(dir) == specs.StateStopped {
		os.RemoveAll(dir)
	}
	if err := os.Mkdir(dir, 0o700); errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("container with given ID already exists: %q in %s; \"delete\" it or take another", id, c.Root)
	} else if err != nil {
		return "", fmt.Errorf("making the container's directory: %w", err)
	}
	return dir, nil
}

// sweep removes what ended containers of "run" have left: they were replaced
// by their programs, which knew nothing of us. An engine may still ask about
// one that has just ended, so it goes when it was seen ended a while ago.
func (c *Containers) sweep() {
	entries, _ := os.ReadDir(c.Root)
	for _, e := range entries {
		dir := filepath.Join(c.Root, e.Name())
		r, err := c.record(e.Name())
		if err != nil || !r.Run || r.status(dir) != specs.StateStopped {
			continue
		}
		switch st, err := os.Stat(filepath.Join(dir, seenEnded)); {
		case err != nil:
			_ = os.WriteFile(filepath.Join(dir, seenEnded), nil, 0o600) // if not now, the next sweep does
		case time.Since(st.ModTime()) > lingering:
			os.RemoveAll(dir)
		}
	}
}

// lingering is how long an ended container of "run" can be asked about at least.
const lingering = 10 * time.Minute

// write keeps the record of a container by rename.
func (r *record) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("writing the container's record: %w", err)
	}
	return rawfile.Replace(filepath.Join(dir, recordName), b)
}

func (c *Containers) record(id string) (*record, error) {
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
		err = errors.New("it has no pid")
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of container %q: %w", id, err)
	}
	return &r, nil
}

// status is what the container is doing now.
func (r *record) status(dir string) specs.ContainerState {
	if born, err := process.Born(r.Pid); err != nil || born != r.Born {
		return specs.StateStopped
	}
	if _, err := os.Lstat(filepath.Join(dir, gateName)); err == nil {
		return specs.StateCreated
	}
	return specs.StateRunning
}

// State returns what the specification calls the state of a container.
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

// List returns the states of all containers, by id.
func (c *Containers) List() ([]specs.State, error) {
	entries, err := os.ReadDir(c.Root)
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

// Start lets the program of a created container begin, and returns when it has.
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
	// Of several starts at once, one renames the gate.
	gate := filepath.Join(dir, opened)
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
	// exec closes the other end.
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

// Kill sends a signal to the container's process; with all, to every process
// that sees its mounts.
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
	defer mounts.Close() // of nil an error
	_, err = r.signal(sig, mounts)
	return err
}

// signal sends sig to the container's process and to those others that see its
// mounts, and says how many of these there are.
func (r *record) signal(sig unix.Signal, mounts *os.File) (others int, err error) {
	pids := within(mounts, r.Pid)
	for _, pid := range append([]int{r.Pid}, pids...) {
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			// Only now is it sure that the pid cannot become another's.
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

// has says whether a process is the container's own, or sees its mounts.
func (r *record) has(pid int, mounts *os.File) bool {
	if pid != r.Pid {
		return inMounts(pid, mounts)
	}
	born, err := process.Born(pid)
	return err == nil && born == r.Born
}

// mounts opens the mount namespace, which each container has to itself; nil when its process has ended or
// is still in this process's own. The number of one that is open does not become another's.
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

// inMounts says whether a process is in a mount namespace.
func inMounts(pid int, mounts *os.File) bool {
	its, err := os.Stat(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return false
	}
	that, err := mounts.Stat()
	return err == nil && os.SameFile(its, that)
}

// within are the processes in a mount namespace, except one; none in nil.
func within(mounts *os.File, except int) (pids []int) {
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

// Delete removes what is kept of a container that has stopped or was never
// started; with force, a running one is killed first and a missing one is not an error.
func (c *Containers) Delete(id string, force bool) error {
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

// end kills the container's processes and waits until all are gone: one that is
// killed may have made another just before.
func (r *record) end(dir string) error {
	mounts := r.mounts()
	defer mounts.Close() // of nil an error
	for range 1000 {
		stopped := r.status(dir) == specs.StateStopped
		others, err := r.signal(unix.SIGKILL, mounts)
		if err != nil || (stopped && others == 0) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("process %d of container %q does not end although it was killed", r.Pid, r.ID)
}
