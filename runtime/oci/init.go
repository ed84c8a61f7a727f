package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/runtime/rootfs"
)

// initName is argv[0] of the process that becomes a container's program. Its argv[1] is
// "run" if the early entry point is to create the namespaces, argv[2] the descriptor of its
// request. It begins with "hpcc-", so that this "run" is not taken for "hpcc run".
const initName = "hpcc-oci-init"

// Child becomes a container's program if [Containers.Create], Run or Exec started this
// process for that. In any other process it returns false immediately. It returns true only with
// the error that kept the program from running. It is a helper for [runtime.Init].
func Child(args []string) (child bool, err error) {
	if args[0] != initName {
		return false, nil
	}
	return true, become()
}

// become runs in that process. It returns only on failure.
func become() error {
	goruntime.LockOSThread() // namespaces and rights belong to a thread; exec keeps them
	q, err := readRequest()
	if err != nil {
		return &process.Error{Status: process.ExitFailed, Err: err}
	}
	sync := os.NewFile(uintptr(q.Sync), "creator") // keep it open until the error is sent: the garbage collector closes unreferenced files
	if err = q.become(sync); err == nil || q.Sync < 0 {
		return err
	}
	// The process at the other end of the socket prints the error.
	if _, werr := sync.Write([]byte(err.Error())); werr == nil {
		os.Exit(process.ExitFailed)
	}
	return err
}

func readRequest() (*initRequest, error) {
	fail := func(err error) (*initRequest, error) {
		return nil, fmt.Errorf("reading the container's specification: %w", err)
	}
	if len(os.Args) != 3 {
		return fail(errors.New("this name is reserved for hpcc"))
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
	if err := setInherited([]int{q.Sync, q.Gate, q.Console, q.Join}, false); err != nil {
		return fail(err)
	}
	return q, nil
}

// become sets up the container, waits at the gate and executes the program.
func (q *initRequest) become(sync *os.File) error {
	fail := func(err error) error { return &process.Error{Status: process.ExitFailed, Err: err} }
	if err := inherit.CloseFrom(3 + q.Keep); err != nil {
		return fail(err)
	}
	if q.Join >= 0 {
		if err := q.enterMounts(); err != nil {
			return fail(err)
		}
	} else if err := q.setUp(sync); err != nil {
		return fail(err)
	}
	s := q.Spec
	if err := enterDir(s.Process.Cwd); err != nil {
		return fail(err)
	}
	exe, err := lookPath(s.Process.Args[0], envfile.Lookup(s.Process.Env, "PATH"))
	if err != nil {
		return err
	}
	if q.Sync >= 0 {
		if err := ask(sync, msgReady, msgWait); err != nil {
			return fail(err)
		}
		sync.Close()
		q.Sync = -1 // from here on errors go to the container's own standard error
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
	var without []uintptr
	if q.Lowest {
		without = rootfs.EscapeCapabilities
	}
	if err := setRights(s.Process, without); err != nil {
		return fail(err)
	}
	return process.ExecError(exe, s.Process.Args[0], inherit.Exec(exe, s.Process.Args, s.Process.Env))
}

// ask reports the progress of this process to the creator and waits for permission to
// continue.
func ask(creator *os.File, message, answer string) error {
	err := send(creator, message)
	if err == nil {
		err = receive(creator, answer)
	}
	if errors.Is(err, errEnded) {
		return errors.New("the creating process ended before the container was ready")
	}
	return err
}

// setUp creates the container's namespaces and root.
func (q *initRequest) setUp(sync *os.File) error {
	if err := q.enter(); err != nil {
		return err
	}
	if q.Sync >= 0 {
		if err := ask(sync, msgNamespaces, msgMount); err != nil {
			return err
		}
	}
	return q.build()
}

// enter creates the missing namespaces and sets the host name.
func (q *initRequest) enter() error {
	s := q.Spec
	if q.Entered {
		if err := runtime.MapIDs(oneID(s.Linux.UIDMappings), oneID(s.Linux.GIDMappings)); err != nil { // see mapEarly
			return err
		}
	}
	if q.Unshare != 0 {
		if err := unix.Unshare(int(q.Unshare)); err != nil {
			return fmt.Errorf("creating the container's namespaces: %w", err)
		}
	}
	if s.Hostname != "" {
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("setting host name %q: %w", s.Hostname, err)
		}
	}
	if s.Domainname != "" {
		if err := unix.Setdomainname([]byte(s.Domainname)); err != nil {
			return fmt.Errorf("setting domain name %q: %w", s.Domainname, err)
		}
	}
	if err := runtime.Loopback(s); err != nil {
		return err
	}
	return setSysctl(s.Linux.Sysctl)
}

func oneID(m []specs.LinuxIDMapping) string {
	if len(m) == 0 {
		return ""
	}
	return fmt.Sprintf("%d %d %d", m[0].ContainerID, m[0].HostID, m[0].Size)
}

// build creates the container's root and enters it.
func (q *initRequest) build() error {
	s := q.Spec
	r, err := assemble(s)
	if err != nil {
		return err
	}
	r.Lowest = q.Lowest
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
	return r.Pivot()
}

// enterDir changes to the working directory and creates it if possible.
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

// lookPath is [process.LookPath] with the messages by which engines distinguish statuses 126
// and 127.
func lookPath(name, path string) (string, error) {
	exe, err := process.LookPath(name, path)
	if err == nil {
		if unix.Access(exe, unix.F_OK) != nil {
			return "", &process.Error{Status: process.ExitNotFound,
				Err: fmt.Errorf("exec: %q: no such file or directory in the container", name)}
		}
		if st, serr := os.Stat(exe); (serr == nil && st.IsDir()) || unix.Access(exe, unix.X_OK) != nil {
			return "", &process.Error{Status: process.ExitNotExecutable, Err: fmt.Errorf("exec: %q: permission denied", name)}
		}
		return exe, nil
	}
	var e *process.Error
	if errors.As(err, &e) && e.Status == process.ExitNotFound {
		return "", &process.Error{Status: process.ExitNotFound,
			Err: fmt.Errorf("exec: %q: executable file not found in $PATH (%s)", name, path)}
	}
	return "", err
}

// wait reads the byte that start writes to the gate.
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
