//go:build !start

package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"strconv"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// ociInitName is argv[0] of the process that becomes a container's program.
// Its argv[1] is "run" when the early entry point is to make the namespaces,
// argv[2] the descriptor of its request. It begins with "hpcc-", so that this
// "run" is not taken for "hpcc run".
const ociInitName = "hpcc-oci-init"

// ociInit is that process. It returns only on failure.
func ociInit() error {
	goruntime.LockOSThread() // namespaces and rights are of a thread; exec keeps them
	q, err := readRequest()
	if err != nil {
		return &Error{ExitFailed, err}
	}
	sync := os.NewFile(uintptr(q.Sync), "creator") // it lives until the error is told: what nobody holds is closed
	if err = q.become(sync); err == nil || q.Sync < 0 {
		return err
	}
	// Whoever waits at the socket tells the error.
	if _, werr := sync.Write([]byte(err.Error())); werr == nil {
		os.Exit(ExitFailed)
	}
	return err
}

func readRequest() (*initRequest, error) {
	fail := func(err error) (*initRequest, error) {
		return nil, fmt.Errorf("reading the container's specification: %w", err)
	}
	if len(os.Args) != 3 {
		return fail(errors.New("this name is for hpcc's own use"))
	}
	fd, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return fail(err)
	}
	f := os.NewFile(uintptr(fd), "spec")
	if f == nil {
		return fail(os.ErrInvalid)
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 2*maxConfig))
	if err != nil {
		return fail(err)
	}
	q := &initRequest{}
	if err := json.Unmarshal(b, q); err != nil {
		return fail(err)
	}
	if err := inherit([]int{q.Sync, q.Gate, q.Console, q.Join}, false); err != nil {
		return fail(err)
	}
	return q, nil
}

// become puts the container together, waits at the gate and executes the program.
func (q *initRequest) become(sync *os.File) error {
	fail := func(err error) error { return &Error{ExitFailed, err} }
	if err := q.closeOthers(); err != nil {
		return fail(err)
	}
	if q.Join >= 0 {
		if err := q.visit(); err != nil {
			return fail(err)
		}
	} else if err := q.setUp(sync); err != nil {
		return fail(err)
	}
	s := q.Spec
	if err := enterDir(s.Process.Cwd); err != nil {
		return fail(err)
	}
	exe, err := ociLookPath(s.Process.Args[0], envValue(s.Process.Env, "PATH"))
	if err != nil {
		return err
	}
	if q.Sync >= 0 {
		if err := ask(sync, saidReady, saidWait); err != nil {
			return fail(err)
		}
		sync.Close()
		q.Sync = -1 // from here on the container's own standard error tells
		if q.Gate >= 0 {
			if err := q.wait(); err != nil {
				return fail(err)
			}
		}
	}
	if h := s.Hooks; h != nil {
		q.State.Pid = os.Getpid()
		if err := runHooks("startContainer", h.StartContainer, &q.State); err != nil {
			return fail(err)
		}
	}
	if q.Lowest {
		leaveOut(s.Process.Capabilities, uncovering)
	}
	if err := takeRights(s.Process); err != nil {
		return fail(err)
	}
	return execError(exe, s.Process.Args[0], syscall.Exec(exe, s.Process.Args, s.Process.Env))
}

// ask tells the creator how far this process is, and waits until it may go on.
func ask(creator *os.File, said, answer string) error {
	err := say(creator, said)
	if err == nil {
		err = hear(creator, answer)
	}
	if errors.Is(err, errEnded) {
		return errors.New("what was creating the container ended before it was ready")
	}
	return err
}

// setUp makes the container's namespaces and root.
func (q *initRequest) setUp(sync *os.File) error {
	if err := q.enter(); err != nil {
		return err
	}
	if q.Sync >= 0 {
		if err := ask(sync, saidSpaces, saidMount); err != nil {
			return err
		}
	}
	return q.build()
}

// closeOthers has exec close descriptors that are nobody's business inside.
func (q *initRequest) closeOthers() error {
	if q.Keep < 0 {
		return nil
	}
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("listing open files: %w", err)
	}
	for _, e := range d {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= 3+q.Keep {
			unix.CloseOnExec(fd) // that of the listing is closed already
		}
	}
	return nil
}

// enter makes the namespaces that are missing and names the machine.
func (q *initRequest) enter() error {
	s := q.Spec
	if q.Entered {
		if err := q.mapIDs(); err != nil {
			return err
		}
	}
	if q.Unshare != 0 {
		if err := unix.Unshare(int(q.Unshare)); err != nil {
			return fmt.Errorf("making the container's namespaces: %w", err)
		}
	}
	if s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("naming the container %q: %w", s.Hostname, err)
		}
	}
	if s.Domainname != "" {
		if err := unix.Setdomainname([]byte(s.Domainname)); err != nil {
			return fmt.Errorf("setting domain name %q: %w", s.Domainname, err)
		}
	}
	if err := loopback(s); err != nil {
		return err
	}
	return setSysctl(s.Linux.Sysctl)
}

// mapIDs writes the maps of the user namespace that the entry point made.
func (q *initRequest) mapIDs() error {
	asked, err := early()
	if !asked {
		return errors.New(`this hpcc was linked without its entry point; "make build" links it`)
	}
	if err != nil {
		return &NamespaceError{err}
	}
	if err := writeIDMaps(oneID(q.Spec.Linux.UIDMappings), oneID(q.Spec.Linux.GIDMappings)); err != nil {
		return &NamespaceError{err} // see mapEarly
	}
	return nil
}

func oneID(m []specs.LinuxIDMapping) string {
	if len(m) == 0 {
		return ""
	}
	return fmt.Sprintf("%d %d %d", m[0].ContainerID, m[0].HostID, m[0].Size)
}

// build makes the container's root and enters it.
func (q *initRequest) build() error {
	s := q.Spec
	r, err := assemble(s)
	if err != nil {
		return err
	}
	r.lowest = q.Lowest
	if q.Console >= 0 {
		if err := r.console(q.Console, s.Process.ConsoleSize); err != nil {
			return err
		}
	}
	if s.Hooks != nil {
		q.State.Pid = os.Getpid()
		if err := runHooks("createContainer", s.Hooks.CreateContainer, &q.State); err != nil {
			return err
		}
	}
	if err := r.seal(); err != nil {
		return err
	}
	return r.pivot()
}

// enterDir changes to the working directory, which is made where it can be.
func enterDir(cwd string) error {
	err := unix.Chdir(cwd)
	if errors.Is(err, unix.ENOENT) {
		if os.MkdirAll(cwd, 0o755) == nil {
			err = unix.Chdir(cwd)
		}
	}
	if err != nil {
		return fmt.Errorf("changing to working directory %q inside the container: %w", cwd, err)
	}
	return nil
}

// ociLookPath is lookPath in words by which engines tell statuses 126 and 127.
func ociLookPath(name, path string) (string, error) {
	exe, err := lookPath(name, path)
	if err == nil {
		if unix.Access(exe, unix.F_OK) != nil {
			return "", &Error{ExitNotFound, fmt.Errorf("exec: %q: no such file or directory in the container", name)}
		}
		if isDir(exe) || unix.Access(exe, unix.X_OK) != nil {
			return "", &Error{ExitNotExecutable, fmt.Errorf("exec: %q: permission denied", name)}
		}
		return exe, nil
	}
	var e *Error
	if errors.As(err, &e) && e.Status == ExitNotFound {
		return "", &Error{ExitNotFound, fmt.Errorf("exec: %q: executable file not found in $PATH (%s)", name, path)}
	}
	return "", err
}

// wait reads the byte that start writes.
func (q *initRequest) wait() error {
	b := []byte{0}
	for {
		n, err := unix.Read(q.Gate, b)
		if n == 1 {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("waiting for start: %w", err)
		}
	}
}
