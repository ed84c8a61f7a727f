package runtime

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime/process"
)

// The Go runtime ends a process that cannot continue: it prints a reason and a trace, and
// exits with status 2. Under a small limit (ulimit -v, -u, -n) this happens before main. The
// entry point therefore sets the runtime's print hook (runtime.overrideWrite, hpcc_thread in
// entry_*.s) to runtimeWrite, which costs no system call at startup. The hook turns the
// reason into one message and one of hpcc's exit statuses. A bug leaves its trace in a file.
//
// All functions in this file may run without a heap, on a signal stack, and while other
// threads run. They must not allocate: they use static memory and raw system calls. The
// runtime prints from one thread at a time.

// onRuntimeWrite is the value that entry_*.s store in runtime.overrideWrite.
var onRuntimeWrite = runtimeWrite

// kernelStack points at argc, as the kernel left it; entry_*.s set it.
var kernelStack unsafe.Pointer

var _, _ = &onRuntimeWrite, &kernelStack

// crashState is the failure text that the runtime has printed so far and the message built
// from it.
type crashState struct {
	line    [512]byte // the runtime's current line
	n       int
	noFiles bool // a line reported a descriptor that could not be opened
	tracing bool // this process only writes the trace, to the descriptor trace
	trace   uintptr
	text    [1024]byte // hpcc's own message
	m       int
}

var crash crashState

// runtimeWrite replaces write(2) in the print functions of the Go runtime.
//
//go:nosplit
//go:norace
func runtimeWrite(fd uintptr, p unsafe.Pointer, n int32) int32 {
	c := &crash
	if fd != 2 || c.tracing {
		if fd == 2 {
			fd = c.trace
		}
		r, _, errno := syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(p), uintptr(n))
		if errno != 0 {
			return -int32(errno)
		}
		return int32(r)
	}
	for i := range int(n) {
		b := *(*byte)(unsafe.Add(p, i))
		if c.n < len(c.line) {
			c.line[c.n] = b
			c.n++
		}
		if b == '\n' {
			crashLine()
			c.n = 0
		}
	}
	return n
}

// crashLine handles one complete line from the runtime. Lines that are not part of a
// failure, such as GODEBUG output, are printed unchanged.
//
//go:nosplit
//go:norace
func crashLine() {
	c := &crash
	switch {
	case c.starts("fatal error: "), c.starts("panic: "), c.starts("SIG"):
		crashReport()
	case c.starts("runtime: "):
		c.noFiles = c.noFiles || c.has("failed with 23") || c.has("failed with 24") || c.has("errno=24") // ENFILE, EMFILE
	case c.starts("unexpected fault address"), c.n == 1:
	default:
		syscall.RawSyscall(unix.SYS_WRITE, 2, uintptr(unsafe.Pointer(&c.line)), uintptr(c.n))
	}
}

// crashReport prints the message for the failure in the current line and ends the process.
// It returns only in a forked copy, which writes the trace of a bug.
//
//go:nosplit
//go:norace
func crashReport() {
	c := &crash
	c.m = 0
	switch {
	case c.noFiles:
		c.add("hpcc: error: too many open files\n")
		c.hint("open files", unix.RLIMIT_NOFILE, 1, "", `"ulimit -n 1024"`)
	case c.has("newosproc"):
		c.add("hpcc: error: cannot create another thread\n")
		if !c.hint("the user's processes and threads", unix.RLIMIT_NPROC, 1, "", `"ulimit -u 4096"`) {
			c.add("hpcc: hint: the job or the login session has too many processes and threads: end some\n")
		}
	case c.starts("fatal error: ") && (c.has("memory") || c.has("arena")): // not "panic: … invalid memory address"
		c.add("hpcc: error: out of memory\n")
		if !c.hint("address space", unix.RLIMIT_AS, 1024, " KiB", `"ulimit -v unlimited", or request more memory for the job`) &&
			!c.hint("data", unix.RLIMIT_DATA, 1024, " KiB", `"ulimit -d unlimited", or request more memory for the job`) {
			c.add("hpcc: hint: request more memory for the job, or use a machine that has more\n")
		}
	default:
		crashBug()
		return
	}
	c.print()
	crashExit()
}

// crashBug reports a failure that no limit explains. A forked copy writes the trace, because
// the runtime exits with its own status afterwards.
//
//go:nosplit
//go:norace
func crashBug() {
	c := &crash
	quit := c.starts("SIGQUIT")
	if quit {
		c.add("hpcc: error: ended by ")
	} else {
		c.add("hpcc: error: internal error: ")
	}
	for i := 0; i < c.n && c.line[i] != '\n'; i++ {
		b := c.line[i]
		if b < ' ' || b > '~' {
			b = '?'
		}
		c.addByte(b)
	}
	c.add("\n")
	file := c.m
	c.add("/tmp/hpcc-crash-")
	var now unix.Timespec
	syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_REALTIME, uintptr(unsafe.Pointer(&now)), 0)
	pid, _, _ := syscall.RawSyscall(unix.SYS_GETPID, 0, 0, 0)
	c.number(uint64(now.Nano()))
	c.add("-")
	c.number(uint64(pid))
	c.add("\x00")
	at := unix.AT_FDCWD
	fd, _, errno := syscall.RawSyscall6(unix.SYS_OPENAT, uintptr(at), uintptr(unsafe.Pointer(&c.text[file])),
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600, 0, 0)
	var child uintptr
	if errno == 0 {
		child, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
		if errno == 0 && child == 0 {
			c.trace, c.tracing = fd, true
			syscall.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&c.line)), uintptr(c.n))
			return
		}
	}
	switch {
	case errno != 0:
		c.m = file
		c.add("hpcc: hint: this is a bug: please report it\n")
	case quit:
		c.insert(file, "hpcc: hint: the trace is in ")
	default:
		c.insert(file, "hpcc: hint: this is a bug: please report it and attach the trace, ")
	}
	c.text[c.m-1] = '\n'
	c.print()
	for range 500 { // at most 5 s: the forked copy may wait for a thread that it does not have
		if gone, _, _ := syscall.RawSyscall6(unix.SYS_WAIT4, child, 0, unix.WNOHANG, 0, 0, 0); gone != 0 {
			break
		}
		wait := unix.Timespec{Nsec: 10_000_000}
		syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&wait)), 0, 0)
	}
	crashExit()
}

// crashExit ends the process with the exit status for an hpcc failure.
//
//go:nosplit
//go:norace
func crashExit() {
	status := uintptr(1)
	if kernelStack != nil && *(*uintptr)(kernelStack) > 1 {
		command := *(**byte)(unsafe.Add(kernelStack, 2*unsafe.Sizeof(kernelStack)))
		if is(command, "run") || is(command, "entry") {
			status = process.ExitFailed
		}
	}
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, status, 0, 0)
	}
}

// hint adds a hint with the value of a limit, in units of the given number of bytes, and the
// command that raises it. It reports whether the limit is set.
//
//go:nosplit
//go:norace
func (c *crashState) hint(name string, resource, bytes uintptr, unit, remedy string) bool {
	var limit unix.Rlimit
	_, _, errno := syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, resource, 0, uintptr(unsafe.Pointer(&limit)), 0, 0)
	if errno != 0 || limit.Cur == unix.RLIM_INFINITY {
		return false
	}
	c.add("hpcc: hint: the limit on ")
	c.add(name)
	c.add(" is ")
	c.number(limit.Cur / uint64(bytes))
	c.add(unit)
	c.add("; raise it with ")
	c.add(remedy)
	c.add("\n")
	return true
}

//go:nosplit
//go:norace
func (c *crashState) add(s string) {
	for i := range len(s) {
		c.addByte(s[i])
	}
}

//go:nosplit
//go:norace
func (c *crashState) addByte(b byte) {
	if c.m < len(c.text) {
		c.text[c.m] = b
		c.m++
	}
}

//go:nosplit
//go:norace
func (c *crashState) number(n uint64) {
	var digits [20]byte
	i := len(digits)
	for {
		i--
		digits[i] = '0' + byte(n%10)
		if n /= 10; n == 0 {
			break
		}
	}
	for ; i < len(digits); i++ {
		c.addByte(digits[i])
	}
}

// insert puts s before the text at offset at.
//
//go:nosplit
//go:norace
func (c *crashState) insert(at int, s string) {
	if c.m+len(s) > len(c.text) {
		return
	}
	for i := c.m - 1; i >= at; i-- {
		c.text[i+len(s)] = c.text[i]
	}
	for i := range len(s) {
		c.text[at+i] = s[i]
	}
	c.m += len(s)
}

//go:nosplit
//go:norace
func (c *crashState) print() {
	syscall.RawSyscall(unix.SYS_WRITE, 2, uintptr(unsafe.Pointer(&c.text)), uintptr(c.m))
}

// starts reports whether the current line begins with s.
//
//go:nosplit
//go:norace
func (c *crashState) starts(s string) bool { return c.at(0, s) }

// has reports whether the current line contains s.
//
//go:nosplit
//go:norace
func (c *crashState) has(s string) bool {
	for i := range c.n {
		if c.at(i, s) {
			return true
		}
	}
	return false
}

//go:nosplit
//go:norace
func (c *crashState) at(from int, s string) bool {
	if from+len(s) > c.n {
		return false
	}
	for i := range len(s) {
		if c.line[from+i] != s[i] {
			return false
		}
	}
	return true
}
