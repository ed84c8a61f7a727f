package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/runtime"
	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/runtime/rootfs"
)

// CreateOptions are the options of create and run.
type CreateOptions struct {
	Bundle        string // directory of the bundle
	PidFile       string // file to which the pid of the container's process is written
	ConsoleSocket string // socket that receives the console if the configuration requests a terminal
	PreserveFDs   int    // number of descriptors from 3 on that the program inherits
}

// An initRequest is passed to the process that becomes the program. Descriptors are -1 if
// absent.
type initRequest struct {
	Spec    *specs.Spec
	State   specs.State
	Unshare uintptr // namespaces still to be created
	Entered bool    // the early entry point creates the user and mount namespaces
	Sync    int     // socket to the creator
	Gate    int     // FIFO on which the process waits for start
	Console int
	Keep    int  // number of descriptors from 3 on to leave open
	Join    int  // pidfd of the container that an exec enters
	Lowest  bool // the host's root is the lowest mount: see rootfs.IsLowest
}

// Create creates a container whose program waits for [Containers.Start].
func (c *Containers) Create(id string, o CreateOptions) error {
	_, err := c.create(id, o, 0)
	return err
}

// create starts the container's process and returns it when the container is ready. deathsig
// is the signal that the process gets when this one ends.
func (c *Containers) create(id string, o CreateOptions, deathsig syscall.Signal) (proc *os.Process, err error) {
	q, p, err := c.prepare(id, o)
	if err != nil {
		return nil, err
	}
	dir, err := c.claim(id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	console, err := o.console(p.spec)
	if err != nil {
		return nil, err
	}
	if console != nil {
		defer console.Close()
		q.Console = int(console.Fd())
	}
	gate := filepath.Join(dir, gateName)
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		return nil, fmt.Errorf("creating the container's gate: %w", err)
	}
	if q.Gate, err = unix.Open(gate, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("opening the container's gate: %w", err)
	}
	defer unix.Close(q.Gate)
	parentEnd, childEnd, err := q.connect()
	if err != nil {
		return nil, err
	}
	defer parentEnd.Close()
	defer childEnd.Close()
	goruntime.LockOSThread() // joined namespaces and the death signal belong to a thread
	if err := joinNamespaces(p.joins); err != nil {
		return nil, err
	}
	proc, err = q.start(p, deathsig)
	childEnd.Close() // so that the end of the process closes the socket
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = abandon(proc, err)
		}
	}()
	r := &record{State: q.State, Created: time.Now(), Hooks: p.spec.Hooks, Run: deathsig != 0}
	r.Pid = proc.Pid
	return proc, c.waitReady(parentEnd, r, dir, o)
}

// prepare reads the bundle and decides how to run it.
func (c *Containers) prepare(id string, o CreateOptions) (*initRequest, *plan, error) {
	if _, err := c.dir(id); err != nil {
		return nil, nil, err
	}
	bundle, err := filepath.Abs(o.Bundle)
	if err != nil {
		return nil, nil, fmt.Errorf("finding the bundle: %w", err)
	}
	s, err := readBundle(bundle)
	if err != nil {
		return nil, nil, err
	}
	p, err := newPlan(s)
	if err != nil {
		return nil, nil, fmt.Errorf("reading %q: %w", filepath.Join(bundle, runtime.ConfigName), err)
	}
	for _, n := range p.notes {
		if c.Note != nil {
			c.Note(n)
		}
	}
	return &initRequest{
		Spec: s, Sync: -1, Gate: -1, Console: -1, Join: -1, Keep: o.PreserveFDs, Lowest: rootfs.IsLowest(),
		State: specs.State{Version: specs.Version, ID: id, Status: specs.StateCreating, Bundle: bundle, Annotations: s.Annotations},
	}, p, nil
}

// console connects to the engine if the configuration requests a terminal.
func (o *CreateOptions) console(s *specs.Spec) (*os.File, error) {
	switch {
	case s.Process.Terminal && o.ConsoleSocket == "":
		return nil, errors.New("process.terminal requests a terminal but no --console-socket receives it: use --console-socket, or set process.terminal to false to keep the current terminal")
	case !s.Process.Terminal && o.ConsoleSocket != "":
		return nil, errors.New("--console-socket is set but process.terminal does not request a terminal: remove --console-socket")
	case !s.Process.Terminal:
		return nil, nil
	}
	return dialConsole(o.ConsoleSocket)
}

// joinNamespaces moves this thread, and the processes that it starts, into existing
// namespaces.
func joinNamespaces(list []specs.LinuxNamespace) error {
	for _, n := range list {
		fd, err := unix.Open(n.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, int(namespaceFlags[n.Type]))
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("joining %s namespace %q: %w; a user may join only namespaces below the user's own user namespace", n.Type, n.Path, err)
		}
	}
	return nil
}

// connect creates the socket between the creator and the container's process.
func (q *initRequest) connect() (parentEnd, childEnd *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("creating a socket for the container's process: %w", err)
	}
	q.Sync = fds[1]
	return os.NewFile(uintptr(fds[0]), "container"), os.NewFile(uintptr(fds[1]), "creator"), nil
}

// start starts this program again as the container's first process, in its namespaces.
func (q *initRequest) start(p *plan, deathsig syscall.Signal) (*os.Process, error) {
	spec, err := q.file()
	if err != nil {
		return nil, err
	}
	defer spec.Close()
	a := &syscall.SysProcAttr{Cloneflags: p.flags, Pdeathsig: deathsig, Setsid: true}
	if p.flags&unix.CLONE_NEWUSER != 0 {
		a.UidMappings, a.GidMappings = idMap(p.spec.Linux.UIDMappings), idMap(p.spec.Linux.GIDMappings)
		a.GidMappingsEnableSetgroups = hasSysAdmin() && setgroupsAllowed()
		if p.spec.Process.User.UID != 0 {
			a.AmbientCaps = setupCaps // see procAttr
		}
	}
	return q.spawn(spec, a)
}

// spawn starts this program again with the request in the file spec.
func (q *initRequest) spawn(spec *os.File, a *syscall.SysProcAttr) (*os.Process, error) {
	fds := []int{int(spec.Fd()), q.Sync, q.Gate, q.Console, q.Join}
	if err := setInherited(fds, true); err != nil {
		return nil, err
	}
	exe, args := inherit.Command("/proc/self/exe", []string{initName, "init", strconv.Itoa(int(spec.Fd()))})
	proc, err := os.StartProcess(exe, args,
		&os.ProcAttr{Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: a})
	if ierr := setInherited(fds, false); err == nil {
		err = ierr
	}
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EINVAL) {
		return nil, &runtime.NamespaceError{Err: err}
	}
	return proc, err
}

// setgroupsAllowed reports whether a namespace below this one can let programs change their
// groups, user_namespaces(7).
func setgroupsAllowed() bool {
	b, err := os.ReadFile("/proc/self/setgroups")
	return err == nil && strings.TrimSpace(string(b)) == "allow"
}

func idMap(m []specs.LinuxIDMapping) []syscall.SysProcIDMap {
	out := make([]syscall.SysProcIDMap, len(m))
	for i, x := range m {
		out[i] = syscall.SysProcIDMap{ContainerID: int(x.ContainerID), HostID: int(x.HostID), Size: int(x.Size)}
	}
	return out
}

// file returns a memory file that holds the request.
func (q *initRequest) file() (*os.File, error) {
	f, err := process.MemoryFile("hpcc-container", q)
	if err != nil {
		return nil, fmt.Errorf("storing the container's specification in memory: %w", err)
	}
	return f, nil
}

// setInherited sets whether descriptors stay open across exec, under their own numbers.
func setInherited(fds []int, keepOpen bool) error {
	flag := unix.FD_CLOEXEC
	if keepOpen {
		flag = 0
	}
	for _, fd := range fds {
		if fd < 0 {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flag); err != nil {
			return fmt.Errorf("setting whether exec closes descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// Messages between the creator and the container's process, one per packet. Any other
// message from the process is the error that ended it.
const (
	msgNamespaces = "namespaces" // process: namespaces are created
	msgMount      = "mount"      // creator: hooks have run, continue
	msgReady      = "ready"      // process: waiting only for start
	msgWait       = "wait"       // creator: the record is written
)

// waitReady communicates with the container's process until it waits at its gate.
func (c *Containers) waitReady(sync *os.File, r *record, dir string, o CreateOptions) error {
	if err := receive(sync, msgNamespaces); err != nil {
		return err
	}
	var err error
	if r.StartTime, err = process.StartTime(r.Pid); err != nil {
		return fmt.Errorf("reading the container's process: %w", err)
	}
	if h := r.Hooks; h != nil {
		//lint:ignore SA1019 engines still write prestart hooks
		if err := runHooks("prestart", h.Prestart, &r.State); err != nil {
			return err
		}
		if err := runHooks("createRuntime", h.CreateRuntime, &r.State); err != nil {
			return err
		}
	}
	if err := send(sync, msgMount); err != nil {
		return err
	}
	if err := receive(sync, msgReady); err != nil {
		return err
	}
	if err := r.store(dir, o.PidFile); err != nil {
		return err
	}
	return send(sync, msgWait)
}

// store writes the record, and writes the pid to the engine's file.
func (r *record) store(dir, pidFile string) error {
	r.Status = specs.StateCreated
	if err := r.write(dir); err != nil {
		return err
	}
	if pidFile == "" {
		return nil
	}
	return files.Replace(pidFile, []byte(strconv.Itoa(r.Pid)), 0o644)
}

func send(f *os.File, message string) error {
	_, err := f.Write([]byte(message))
	if errors.Is(err, unix.EPIPE) {
		return errEnded
	}
	if err != nil {
		return fmt.Errorf("writing to the container's process: %w", err)
	}
	return nil
}

var errEnded = errors.New("the container's process ended before it was ready")

// abandon ends a process that did not become ready. It adds the process's exit state if the
// process sent no error.
func abandon(proc *os.Process, err error) error {
	_ = proc.Kill() // the process may have ended already
	if state, werr := proc.Wait(); werr == nil && errors.Is(err, errEnded) {
		return fmt.Errorf("%w: %s", err, state)
	}
	return err
}

// receive waits for the given message. Any other message is the other side's error.
func receive(f *os.File, message string) error {
	b := make([]byte, 64<<10)
	n, err := f.Read(b)
	if (n == 0 && (err == nil || errors.Is(err, io.EOF))) ||
		errors.Is(err, unix.ECONNRESET) { // ECONNRESET: the other side ended with unread messages
		return errEnded
	}
	if err != nil {
		return fmt.Errorf("reading from the container's process: %w", err)
	}
	if s := string(b[:n]); s != message {
		return errors.New(s)
	}
	return nil
}

// runHooks runs hooks one after the other, with the container's state on their standard
// input.
func runHooks(kind string, hooks []specs.Hook, state *specs.State) error {
	if len(hooks) == 0 {
		return nil
	}
	in, err := json.Marshal(state)
	if err != nil {
		return err
	}
	for _, h := range hooks {
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if h.Timeout != nil {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(*h.Timeout)*time.Second)
		}
		cmd := exec.CommandContext(ctx, h.Path)
		if len(h.Args) > 0 {
			cmd.Args = h.Args
		}
		cmd.Env = append([]string{}, h.Env...) // hooks get only their own environment
		cmd.Stdin = bytes.NewReader(in)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		cancel()
		if err != nil {
			return fmt.Errorf("running %s hook %q: %w: %s", kind, h.Path, err, bytes.TrimSpace(out))
		}
	}
	return nil
}

// Run creates and starts a container and ends with its program's status. If the container has
// no pid namespace, hooks or console socket, this process becomes the program and Run does not
// return. Otherwise it waits for the program, forwards signals and removes the record.
func (c *Containers) Run(id string, o CreateOptions) error {
	q, p, err := c.prepare(id, o)
	if err != nil {
		return err
	}
	mustWait := p.flags&unix.CLONE_NEWPID != 0 || p.spec.Hooks != nil || o.ConsoleSocket != ""
	for _, n := range p.joins {
		mustWait = mustWait || n.Type == specs.PIDNamespace
	}
	if mustWait {
		return c.supervise(id, o)
	}
	dir, err := c.claim(id)
	if err != nil {
		return err
	}
	r := &record{State: q.State, Created: time.Now(), Run: true}
	r.Pid = os.Getpid()
	if r.StartTime, err = process.StartTime(r.Pid); err == nil {
		err = r.store(dir, o.PidFile)
	}
	if err == nil {
		err = q.execInit(p)
	}
	os.RemoveAll(dir)
	return err
}

// execInit replaces this process with the container's. It returns only on failure.
func (q *initRequest) execInit(p *plan) error {
	goruntime.LockOSThread()
	if err := joinNamespaces(p.joins); err != nil {
		return err
	}
	mode := "init"
	q.Unshare = p.flags
	if p.flags&unix.CLONE_NEWUSER != 0 {
		mode, q.Entered = "run", true // see runtime/entry.go
		q.Unshare &^= unix.CLONE_NEWUSER | unix.CLONE_NEWNS
	}
	f, err := q.file()
	if err != nil {
		return err
	}
	if err := setInherited([]int{int(f.Fd())}, true); err != nil {
		return err
	}
	return fmt.Errorf("executing hpcc again: %w",
		inherit.Exec("/proc/self/exe", []string{initName, mode, strconv.Itoa(int(f.Fd()))}, os.Environ()))
}

// supervise runs a container as a child and ends with its status.
func (c *Containers) supervise(id string, o CreateOptions) error {
	proc, err := c.create(id, o, syscall.SIGKILL)
	if err != nil {
		return err
	}
	stop := process.RelaySignals(proc)
	if err := c.Start(id); err != nil {
		return errors.Join(err, c.Delete(id, true))
	}
	state, err := proc.Wait()
	stop()
	if derr := c.Delete(id, true); err == nil {
		err = derr
	}
	if err != nil {
		return err
	}
	process.EndAs(state)
	return nil
}
