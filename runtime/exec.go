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
	"slices"
	"strconv"
	"strings"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/envfile"
	"hpcc/runtime/caps"
	"hpcc/runtime/fakeroot"
	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/runtime/rootfs"
)

// NamespaceError reports that this host does not let the user create the namespaces that a
// run needs.
type NamespaceError struct{ Err error }

func (e *NamespaceError) Error() string {
	if errors.Is(e.Err, unix.EMFILE) {
		return fmt.Sprintf("setting up a user namespace: %v", e.Err)
	}
	return fmt.Sprintf("this host does not let users create user namespaces (%v)", e.Err)
}
func (e *NamespaceError) Unwrap() error { return e.Err }

// initName is argv[0] of the child process that becomes a program. See Init.
const initName = "hpcc-init"

// specFD is the file descriptor from which that child reads its spec.
const specFD = 3

// Init must be the first call in main. In a child started by [Command] it becomes the
// program and returns only on failure, with true and the error. It also resumes a run that
// was passed across an exec. If hpcc is installed setuid, Init returns true and an error. In
// any other process it returns false immediately.
//
// Each helper implements one more kind of hpcc child process. It receives the arguments of
// this process and returns false if the process is not such a child.
func Init(helpers ...func(args []string) (child bool, err error)) (child bool, err error) {
	auxv, _ := unix.Auxv()
	if _, _, err := hostIDs(auxv); err != nil {
		return true, &process.Error{Status: process.ExitFailed, Err: err}
	}
	for _, helper := range append(helpers, pidHelper, inherit.Child) {
		if child, err := helper(os.Args); child {
			return true, err
		}
	}
	if entered == staging {
		return true, setupError(passStage())
	}
	if os.Args[0] != initName {
		c, err := pickUp()
		if err != nil {
			return true, setupError(err)
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

// readSpec reads the spec that the parent process left at specFD.
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

// Exec runs the spec's program. If possible (see entry.go), this process becomes the
// program and Exec does not return. In a binary without the early entry point the program is
// a child: Exec forwards signals, waits, and ends this process with the program's status. An
// error is a [process.Error] or a [NamespaceError].
func Exec(s *specs.Spec) error {
	requested, err := earlyNamespaces()
	if err != nil {
		return &NamespaceError{err}
	}
	s = noteLowestRoot(s)
	if done, err := runIndirectly(s, requested); done {
		return setupError(err)
	}
	if !requested {
		return supervise(s)
	}
	return become(s)
}

// setupError gives err the exit status of a run that could not be set up, unless err is nil
// or already implies a status.
func setupError(err error) error {
	var e *process.Error
	var n *NamespaceError
	if err == nil || errors.As(err, &n) || errors.As(err, &e) {
		return err
	}
	return &process.Error{Status: process.ExitFailed, Err: err}
}

// EnterFakeRoot makes this process root of its own user and mount namespace, as builds need;
// outside, it keeps only the user's rights. In a binary with the early entry point, started
// as "hpcc build", it does so in place. Otherwise the process starts itself again in
// the new namespaces, waits, and ends with that process's status.
func EnterFakeRoot() error {
	requested, err := earlyNamespaces()
	if err != nil {
		return &NamespaceError{err}
	}
	if requested {
		return makeMountsPrivate()
	}
	if os.Getenv(insideMark) != "" {
		os.Unsetenv(insideMark)
		return makeMountsPrivate()
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideMark+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = procAttr(&specs.Spec{Process: &specs.Process{}, Linux: newNamespaces(0, 0)})
	return waitAndExit(cmd)
}

// insideMark marks a process that EnterFakeRoot has started inside the namespaces.
const insideMark = "HPCC_INSIDE"

// makeMountsPrivate stops mounts in this namespace from propagating to the host.
func makeMountsPrivate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("detaching from the host's mounts: %w", err)
	}
	return nil
}

// Command returns the run of s as a child of this process, not yet started. As with
// [exec.CommandContext], the caller owns its standard streams and cancellation. The child
// dies with this process. Under a fake root, notes records requests that the user's rights
// do not allow; notes may be nil.
func Command(ctx context.Context, s *specs.Spec, notes *fakeroot.Notes) (*exec.Cmd, error) {
	s = noteLowestRoot(s)
	if notes != nil {
		annotated := *s
		annotated.Annotations = maps.Clone(s.Annotations)
		annotated.Annotations[fakeRootMark] = listen + strconv.Itoa(int(notes.Reads()))
		s = &annotated
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
			return nil, fmt.Errorf("preparing to record privileged requests: %w", err)
		}
		err = unix.SetNonblock(fds[0], true)
		if err == nil {
			err = unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
		}
		if err != nil {
			return nil, fmt.Errorf("preparing to record privileged requests: %w", err)
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fds[1]), "notes"))
		go fakeroot.AnswerCalls(os.NewFile(uintptr(fds[0]), "notes"), notes)
	}
	return cmd, nil
}

// specFile returns a memory file that holds s, for a process that starts later.
func specFile(s *specs.Spec) (*os.File, error) {
	f, err := process.MemoryFile("hpcc-spec", s)
	if err != nil {
		return nil, fmt.Errorf("storing the run's specification in memory: %w", err)
	}
	return f, nil
}

// listen begins the value of fakeRootMark for a child whose parent records requests. The rest
// is a number, [fakeroot.Reads].
const listen = "listen "

// setupCaps are the capabilities in its namespaces that a child needs to assemble a root:
// mounts, the loopback interface, and overlay operations on files.
var setupCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_NET_ADMIN, unix.CAP_CHOWN,
	unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_MKNOD}

// keptCaps are the capabilities that a child keeps over exec: those with which it assembles a root,
// and those that it sets for the program.
func keptCaps(s *specs.Spec) []uintptr {
	if s.Process == nil || s.Process.Capabilities == nil {
		return setupCaps
	}
	c := s.Process.Capabilities
	kept := slices.Clone(setupCaps)
	set := caps.Bits(c.Permitted) | 1<<unix.CAP_SETPCAP
	for i := range caps.Names {
		_, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(i), 0, 0, 0)
		if err == nil && set&(1<<i) != 0 && !slices.Contains(kept, uintptr(i)) { // older kernels know fewer
			kept = append(kept, uintptr(i))
		}
	}
	return kept
}

// procAttr returns the process attributes that create the spec's namespaces and ID maps.
func procAttr(s *specs.Spec) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	for _, n := range s.Linux.Namespaces {
		switch n.Type {
		case specs.UserNamespace:
			a.Cloneflags |= syscall.CLONE_NEWUSER
			u, g := s.Linux.UIDMappings[0], s.Linux.GIDMappings[0]
			a.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(u.ContainerID), HostID: int(u.HostID), Size: 1}}
			a.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(g.ContainerID), HostID: int(g.HostID), Size: 1}}
			// A process that is not root in the namespace loses its capabilities on exec,
			// except ambient ones (capabilities(7)). become drops those.
			a.AmbientCaps = keptCaps(s)
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

// supervise runs s as a child and ends this process with the child's status.
func supervise(s *specs.Spec) error {
	cmd, err := Command(context.Background(), s, nil)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return waitAndExit(cmd)
}

// waitAndExit starts cmd, forwards signals, waits, and ends this process with the child's
// status or signal.
func waitAndExit(cmd *exec.Cmd) error {
	goruntime.LockOSThread() // Pdeathsig fires when the starting thread dies
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

// become replaces this process, which is already in its namespaces, with the program.
func become(s *specs.Spec) error {
	foreign, err := setUp(s)
	if err != nil {
		return setupError(err)
	}
	return launch(s, foreign, inherit.Exec)
}

// setUp sets up namespaces, emulators and root of this process as s describes. foreign is
// the reason why programs of another architecture cannot run.
func setUp(s *specs.Spec) (foreign, err error) {
	if s.Process == nil || s.Root == nil || len(s.Process.Args) == 0 {
		return nil, errors.New("the run's specification names no program")
	}
	if err := ownNamespaces(s); err != nil {
		return nil, err
	}
	foreign = emulate(s)
	return foreign, enterRoot(s)
}

// launch executes the program after setUp. It returns only on failure.
func launch(s *specs.Spec, foreign error, exec func(file string, args, env []string) error) error {
	if err := unix.Chdir(s.Process.Cwd); err != nil {
		return setupError(fmt.Errorf("changing to working directory %q inside the image: %w", s.Process.Cwd, err))
	}
	exe, err := process.LookPath(s.Process.Args[0], envfile.Lookup(s.Process.Env, "PATH"))
	if err != nil {
		return err
	}
	traced, err := dropPrivileges(s)
	if err != nil {
		return setupError(err)
	}
	for _, l := range s.Process.Rlimits {
		if err := process.SetLimit(l.Type, l.Soft, l.Hard); err != nil {
			return setupError(err)
		}
	}
	if u := s.Process.User.Umask; u != nil {
		unix.Umask(int(*u))
	}
	if traced {
		exec = fakeroot.Trace
	}
	args := s.Process.Args
	if name := s.Annotations[argv0Mark]; name != "" {
		args = append([]string{name}, args[1:]...)
	}
	err = exec(exe, args, s.Process.Env)
	if errors.Is(err, unix.ENOEXEC) && foreign != nil {
		return &process.Error{Status: process.ExitNotExecutable, Err: fmt.Errorf("running %q: %w", s.Process.Args[0], foreign)}
	}
	return process.ExecError(exe, s.Process.Args[0], err)
}

// Launch executes a program in the directory cwd. The namespaces and mounts were set up
// before Go started (cmd/start/bare). It returns only on failure, with a [process.Error].
func Launch(args, env []string, cwd string) error {
	return launch(&specs.Spec{Process: &specs.Process{Args: args, Env: env, Cwd: cwd, NoNewPrivileges: true}}, nil, inherit.Exec)
}

// dropPrivileges drops the namespace's capabilities and prevents the program from gaining new
// ones. traced reports that [fakeroot.Trace] has to start the program.
func dropPrivileges(s *specs.Spec) (traced bool, err error) {
	var without []uintptr
	if s.Annotations[lowestRootMark] != "" {
		without = rootfs.EscapeCapabilities
	}
	// These settings belong to a thread, and exec keeps them. A new namespace has no ambient
	// capabilities, and the entry point of "hpcc run" set no_new_privs while there was one thread.
	// Locking this thread now would start another.
	noNewPrivs, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	enteredEarly := entered == 1 || entered == mapped
	isReady := noNewPrivs == 1 && enteredEarly && s.Annotations[fakeRootMark] == ""
	capabilities := ^uint64(0)
	switch c := s.Process.Capabilities; {
	case c != nil:
		capabilities = caps.Bits(c.Effective)
		err = caps.Apply(c, without...)
	case !isReady || without != nil:
		err = caps.Drop(without...)
	}
	if err != nil || isReady {
		return false, err
	}
	if s.Process.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return false, fmt.Errorf("setting no_new_privs: %w", err)
		}
	}
	if f := s.Annotations[fakeRootMark]; f != "" {
		rest, report := strings.CutPrefix(f, listen)
		reads, _ := strconv.Atoi(rest)
		return fakeroot.Install(report, fakeroot.Reads(reads), capabilities)
	}
	return false, nil
}
