package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	goruntime "runtime"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/envfile"
	"hpcc/runtime/fakeroot"
	"hpcc/runtime/process"
	"hpcc/runtime/rootfs"
)

// A NamespaceError says that this host does not let the user create the
// namespaces that a run needs.
type NamespaceError struct{ Err error }

func (e *NamespaceError) Error() string {
	if errors.Is(e.Err, unix.EMFILE) {
		return fmt.Sprintf("setting up a user namespace: %v", e.Err)
	}
	return fmt.Sprintf("this host does not let users create user namespaces (%v)", e.Err)
}
func (e *NamespaceError) Unwrap() error { return e.Err }

// initName is argv[0] of a child that becomes a program: see Init.
const initName = "hpcc-init"

// specFD is where such a child reads its spec.
const specFD = 3

// Init must be the first thing main does. In a child started by [Command] it
// becomes the program and returns only on failure, with true and the error; a
// run that was carried over an execution of hpcc goes on likewise. An hpcc that is
// installed setuid is refused with true and the error. In any other process Init
// returns false at once.
//
// Each of helpers does the work of other children of hpcc: it gets the arguments of this
// process and returns false if the process is not such a child.
func Init(helpers ...func(args []string) (child bool, err error)) (child bool, err error) {
	auxv, _ := unix.Auxv()
	if _, _, err := hostIDs(auxv); err != nil {
		return true, &process.Error{Status: process.ExitFailed, Err: err}
	}
	for _, helper := range append(helpers, pidHelper) {
		if child, err := helper(os.Args); child {
			return true, err
		}
	}
	if entered == staging {
		return true, failed(passStage())
	}
	if os.Args[0] != initName {
		c, err := pickUp()
		if err != nil {
			return true, failed(err)
		}
		if c != nil {
			return true, c.resume()
		}
		mapEarly(nil)
		return false, nil
	}
	s, err := readSpec()
	if err != nil {
		return true, err
	}
	return true, become(s)
}

// readSpec reads the spec that the parent of this process has left to it.
func readSpec() (*specs.Spec, error) {
	f := os.NewFile(specFD, "spec")
	b, err := io.ReadAll(f)
	f.Close()
	if err != nil {
		return nil, &process.Error{Status: process.ExitFailed, Err: fmt.Errorf("reading the run's specification: %w", err)}
	}
	var s specs.Spec
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, &process.Error{Status: process.ExitFailed, Err: fmt.Errorf("reading the run's specification: %w", err)}
	}
	return &s, nil
}

// Exec runs the spec's program. When it can (see entry.go) this process turns
// into the program and Exec does not return. In a binary without the early
// entry point the program is a child instead: Exec passes signals on, waits,
// and ends this process as the program ended. An error is an [process.Error] or a
// [NamespaceError].
func Exec(s *specs.Spec) error {
	asked, err := early()
	if err != nil {
		return &NamespaceError{err}
	}
	s = noteLowestRoot(s)
	if done, err := otherwise(s, asked); done {
		return failed(err)
	}
	if !asked {
		return supervise(s)
	}
	return become(s)
}

// failed gives an error the status of a run that could not be set up, unless it
// has one.
func failed(err error) error {
	var e *process.Error
	var n *NamespaceError
	if err == nil || errors.As(err, &n) || errors.As(err, &e) {
		return err
	}
	return &process.Error{Status: process.ExitFailed, Err: err}
}

// EnterFakeRoot makes this process root of its own user and mount namespace,
// with only the user's own rights outside, as builds need. It does so in place
// in a binary with the early entry point started as "hpcc build"; otherwise
// the process starts itself again inside, waits, and ends as that one ends.
func EnterFakeRoot() error {
	asked, err := early()
	if err != nil {
		return &NamespaceError{err}
	}
	if asked {
		return private()
	}
	if os.Getenv(insideMark) != "" {
		os.Unsetenv(insideMark)
		return private()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideMark+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = procAttr(&specs.Spec{Linux: newNamespaces(0, 0)})
	return waitAndExit(cmd)
}

// insideMark tells a process that EnterFakeRoot started itself again.
const insideMark = "HPCC_INSIDE"

// private keeps mounts made here from the host, where they could reach it.
func private() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("detaching from the host's mounts: %w", err)
	}
	return nil
}

// Command returns the run of s as a child of this process, not yet started.
// Its standard streams, cancellation and end are the caller's, as with
// [exec.CommandContext]; the child dies with this process. Under a fake root,
// notes are told what the program asks for and its user may not have; nil: nobody is.
func Command(ctx context.Context, s *specs.Spec, notes *fakeroot.Notes) (*exec.Cmd, error) {
	s = noteLowestRoot(s)
	if notes != nil {
		told := *s
		told.Annotations = maps.Clone(s.Annotations)
		told.Annotations[fakeRootMark] = listen
		if notes.GetAttr != nil {
			told.Annotations[fakeRootMark] = listenAttrs
		}
		s = &told
	}
	f, err := specFile(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{initName}
	cmd.ExtraFiles = []*os.File{f}
	cmd.SysProcAttr = procAttr(s)
	if notes != nil {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("preparing to note what the program asks for: %w", err)
		}
		err = unix.SetNonblock(fds[0], true)
		if err == nil {
			err = unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		}
		if err != nil {
			return nil, fmt.Errorf("preparing to note what the program asks for: %w", err)
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fds[1]), "notes"))
		go fakeroot.AnswerCalls(os.NewFile(uintptr(fds[0]), "notes"), notes)
	}
	return cmd, nil
}

// specFile holds s in memory, for a process to come.
func specFile(s *specs.Spec) (*os.File, error) {
	f, err := process.MemoryFile("hpcc-spec", s)
	if err != nil {
		return nil, fmt.Errorf("keeping the run's specification: %w", err)
	}
	return f, nil
}

// Values of fakeRootMark for a child whose parent takes notes; listenAttrs, one that
// also knows what extended attributes files have.
const (
	listen      = "listen"
	listenAttrs = "listen-attributes"
)

// setupCaps are the rights in its namespaces that a child needs to put a root
// together: mounts, the loopback interface, and what an overlay does to files.
var setupCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_NET_ADMIN, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD}

// procAttr asks for the spec's namespaces and id maps.
func procAttr(s *specs.Spec) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, n := range s.Linux.Namespaces {
		switch n.Type {
		case specs.UserNamespace:
			a.Cloneflags |= syscall.CLONE_NEWUSER
			u, g := s.Linux.UIDMappings[0], s.Linux.GIDMappings[0]
			a.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(u.ContainerID), HostID: int(u.HostID), Size: 1}}
			a.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(g.ContainerID), HostID: int(g.HostID), Size: 1}}
			// Who is not root in the namespace loses its rights there on exec,
			// but for ambient ones (capabilities(7)); become gives them up.
			a.AmbientCaps = setupCaps
		case specs.MountNamespace:
			a.Cloneflags |= syscall.CLONE_NEWNS
		case specs.NetworkNamespace:
			a.Cloneflags |= syscall.CLONE_NEWNET
		case specs.PIDNamespace:
			a.Cloneflags |= syscall.CLONE_NEWPID
		case specs.IPCNamespace:
			a.Cloneflags |= syscall.CLONE_NEWIPC
		case specs.UTSNamespace:
			a.Cloneflags |= syscall.CLONE_NEWUTS
		}
	}
	return a
}

// supervise runs s as a child and ends as it ends.
func supervise(s *specs.Spec) error {
	cmd, err := Command(context.Background(), s, nil)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return waitAndExit(cmd)
}

// waitAndExit starts cmd, passes on the signals that end or steer programs,
// waits, and ends this process with the child's status or by its signal.
func waitAndExit(cmd *exec.Cmd) error {
	goruntime.LockOSThread() // Pdeathsig is the death of the starting thread
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
			return &NamespaceError{err}
		}
		return err
	}
	stop := process.RelaySignals(cmd.Process)
	err := cmd.Wait()
	stop()
	if cmd.ProcessState == nil {
		return err
	}
	process.EndAs(cmd.ProcessState)
	return nil
}

// become replaces this process, already in its namespaces, by the program.
func become(s *specs.Spec) error {
	foreign, err := settle(s)
	if err != nil {
		return failed(err)
	}
	return launch(s, foreign, execute)
}

// settle makes what s describes the surroundings of this process. foreign says
// why programs of another architecture would not run in them.
func settle(s *specs.Spec) (foreign, err error) {
	if s.Process == nil || s.Root == nil || len(s.Process.Args) == 0 {
		return nil, errors.New("the run's specification names no program")
	}
	if err := ownNamespaces(s); err != nil {
		return nil, err
	}
	foreign = emulate(s)
	return foreign, enterRoot(s)
}

// launch begins the program by exec, in surroundings that are settled. It
// returns only on failure.
func launch(s *specs.Spec, foreign error, exec func(file string, args, env []string) error) error {
	if err := unix.Chdir(s.Process.Cwd); err != nil {
		return failed(fmt.Errorf("changing to working directory %q inside the image: %w", s.Process.Cwd, err))
	}
	exe, err := process.LookPath(s.Process.Args[0], envfile.Lookup(s.Process.Env, "PATH"))
	if err != nil {
		return err
	}
	traced, err := giveUp(s)
	if err != nil {
		return failed(err)
	}
	if u := s.Process.User.Umask; u != nil {
		unix.Umask(int(*u))
	}
	if traced {
		exec = fakeroot.Trace
	}
	err = exec(exe, s.Process.Args, s.Process.Env)
	if errors.Is(err, unix.ENOEXEC) && foreign != nil {
		return &process.Error{Status: process.ExitNotExecutable, Err: fmt.Errorf("running %q: %w", s.Process.Args[0], foreign)}
	}
	return process.ExecError(exe, s.Process.Args[0], err)
}

// Launch executes a program in the directory cwd of this process's surroundings,
// which were settled before Go began (cmd/start/bare). It returns only on
// failure, with an [process.Error].
func Launch(args, env []string, cwd string) error {
	return launch(&specs.Spec{Process: &specs.Process{Args: args, Env: env, Cwd: cwd, NoNewPrivileges: true}}, nil, execute)
}

// giveUp gives up the namespace's rights and the ways to new ones. traced says
// that the program has to be started by [fakeroot.Trace].
func giveUp(s *specs.Spec) (traced bool, err error) {
	if s.Annotations[lowestRootMark] != "" {
		if err := rootfs.KeepCovered(); err != nil {
			return false, err
		}
	}
	// A new namespace has no ambient rights, and the entry point of "hpcc run" saw
	// to the rest while there was one thread. To lock one now would start another.
	if bound, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); bound == 1 && (entered == 1 || entered == mapped) && s.Annotations[fakeRootMark] == "" {
		return false, nil
	}
	goruntime.LockOSThread() // the next three are of a thread; exec keeps them
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return false, fmt.Errorf("giving up the namespace's rights: %w", err)
	}
	if s.Process.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return false, fmt.Errorf("giving up new privileges: %w", err)
		}
	}
	if f := s.Annotations[fakeRootMark]; f != "" {
		return fakeroot.Install(f != "1", f == listenAttrs)
	}
	return false, nil
}
