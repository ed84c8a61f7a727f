package fakeroot

import (
	"encoding/binary"
	"errors"
	"os"
	goruntime "runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"hpcc/runtime/caps"
	"hpcc/runtime/process"
)

// If the kernel lacks seccomp notification (before Linux 5.0), a child of runtime.Command traces
// its program instead. The filter stops the program at the same calls (SECCOMP_RET_TRACE,
// ptrace(2)). The child sends each call to the parent, which answers it like a notification.
// All processes that the program starts are traced from their first instruction. The child
// is the first process of the program's pid namespace, so a traced process cannot outlive
// it.
//
// A process has at most one tracer: strace and gdb do not work in such a run.

// Sizes of the messages about a call and of their answers, in bytes.
const (
	callSize   = 8 + 6*8 // number and arguments
	answerSize = 8       // what the call returns, -errno for an error
)

// traceOptions report every new process and thread, and kill them when the tracer ends.
const traceOptions = unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACECLONE |
	unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL

// Requests of ptrace(2) for which package unix lacks a constant on some architecture.
const (
	ptraceSeize  = 0x4206
	ptraceListen = 0x4208
)

func ptrace(request, pid int, addr, data uintptr) error {
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), addr, data, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// canTrace reports whether this host lets a parent trace its child. The trial's child
// requests tracing and then fails to execute a file with an empty name.
func canTrace() bool {
	_, err := syscall.ForkExec("", nil, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Ptrace: true}})
	return errors.Is(err, syscall.ENOENT)
}

// A tracer traces one program and all processes that it starts.
type tracer struct {
	socket int // to the parent, which answers calls
	main   int // the program
	begun  bool
}

// Trace starts the program as a child of this thread, on which the filter is installed, and
// ends this process with the program's status. It returns only if the program cannot be
// started.
func Trace(exe string, args, env []string) error {
	unix.CloseOnExec(listenerFD)
	if err := unix.Sendmsg(listenerFD, []byte{byTracer}, nil, nil, 0); err != nil {
		return err
	}
	// The program is root of this process's namespace as well. It must not trace its tracer,
	// whose socket leads to the build. Tracing a process that is not dumpable takes
	// CAP_SYS_PTRACE.
	if err := caps.Drop(unix.CAP_SYS_PTRACE); err != nil {
		return err
	}
	pid, err := syscall.ForkExec(exe, args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	t := &tracer{socket: listenerFD, main: pid}
	// Only a seized process can stay stopped by SIGSTOP. It is stopped now, by its exec,
	// until it is seized.
	var ws syscall.WaitStatus
	if _, err := wait4(pid, &ws); err != nil {
		return err
	}
	if err := ptrace(unix.PTRACE_DETACH, pid, 0, uintptr(unix.SIGSTOP)); err != nil {
		return err
	}
	if err := ptrace(ptraceSeize, pid, 0, traceOptions); err != nil {
		return err
	}
	os.Exit(t.run())
	return nil
}

func wait4(pid int, ws *syscall.WaitStatus) (int, error) {
	for {
		got, err := syscall.Wait4(pid, ws, unix.WALL, nil)
		if !errors.Is(err, syscall.EINTR) {
			return got, err
		}
	}
}

// run traces until the program ends and returns its status as shells do. Requests for a
// process that was killed meanwhile fail, and its end is reported next. Such errors are
// therefore ignored.
func (t *tracer) run() int {
	for {
		var ws syscall.WaitStatus
		pid, err := wait4(-1, &ws)
		switch {
		case err != nil:
			return process.ExitFailed
		case ws.Exited() && pid == t.main:
			return ws.ExitStatus()
		case ws.Signaled() && pid == t.main:
			return 128 + int(ws.Signal())
		case ws.Stopped():
			t.stopped(pid, int(ws)>>16, ws.StopSignal())
		}
	}
}

// stopped continues a thread that stopped for an event or a signal.
func (t *tracer) stopped(tid, event int, signal syscall.Signal) {
	deliver := uintptr(0)
	switch event {
	case 0: // a signal is about to be delivered
		deliver = uintptr(signal)
	case unix.PTRACE_EVENT_SECCOMP:
		t.answer(tid)
	case unix.PTRACE_EVENT_STOP:
		switch signal {
		case syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
			_ = ptrace(ptraceListen, tid, 0, 0) // it stays stopped until SIGCONT
			if tid == t.main && !t.begun {
				t.begun = true
				_ = syscall.Kill(tid, syscall.SIGCONT)
			}
			return
		}
	}
	_ = ptrace(unix.PTRACE_CONT, tid, 0, deliver)
}

// answer makes the parent carry out the call at which a thread stopped, and gives the thread
// the result instead of the kernel's.
func (t *tracer) answer(tid int) {
	var r traceRegs
	if r.read(tid) != nil {
		return
	}
	nr, args := r.call()
	m := binary.NativeEndian.AppendUint64(make([]byte, 0, callSize), nr)
	for _, a := range args {
		m = binary.NativeEndian.AppendUint64(m, a)
	}
	// The kernel translates the thread's ID into the parent's pid namespace.
	about := unix.UnixCredentials(&unix.Ucred{Pid: int32(tid)})
	result := -int64(unix.ENOSYS)
	if unix.Sendmsg(t.socket, m, about, nil, 0) == nil {
		b := make([]byte, answerSize)
		n, err := unix.Read(t.socket, b)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Read(t.socket, b)
		}
		if err == nil && n == answerSize {
			result = int64(binary.NativeEndian.Uint64(b))
		}
	}
	_ = r.finish(tid, result)
}

// answerTracer answers the calls that a child's tracer sends, until it ends.
func answerTracer(socket *os.File, notes *Notes) {
	for {
		m, ok := receive(socket, callSize)
		if !ok {
			return
		}
		c := request{pid: m.pid, nr: int32(binary.NativeEndian.Uint64(m.data))}
		for i := range c.args {
			c.args[i] = binary.NativeEndian.Uint64(m.data[8+8*i:])
		}
		value, err := c.perform(func() bool { return true }, notes) // a stopped thread always waits
		result := int64(value)
		var errno unix.Errno
		if errors.As(err, &errno) {
			result = -int64(errno)
		}
		if _, err := socket.Write(binary.NativeEndian.AppendUint64(nil, uint64(result))); err != nil {
			return
		}
	}
}

// Install installs the filter that fakes ownership on the calling thread, which must be
// locked. With report, the parent receives the requests on files by the best method that this
// host allows, and also answers reads. traced reports that [Trace] must start the program.
// capabilities is the bit set of those that the program has: calls that need others fail.
func Install(report bool, reads Reads, capabilities uint64) (traced bool, err error) {
	if !report {
		return false, fakeOwnership(buildFilter(forgetCalls, 0, capabilities))
	}
	if !kernelContinues() {
		reads &^= readStat | readAllStat
	}
	if fd, err := installListener(buildFilter(notifyCalls, reads, capabilities)); err == nil {
		method := byte(byListener)
		switch {
		case reads&readAllStat != 0:
			method = byAllStat
		case reads&readStat != 0:
			method = byStat
		}
		return false, sendListener(fd, method)
	}
	if canTrace() {
		goruntime.LockOSThread()
		return true, fakeOwnership(buildFilter(traceCalls, reads, capabilities))
	}
	_ = unix.Sendmsg(listenerFD, []byte{byNobody}, nil, nil, 0)
	unix.Close(listenerFD)
	return false, fakeOwnership(buildFilter(forgetCalls, 0, capabilities))
}
