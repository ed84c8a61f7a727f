// Package bare makes a run of hpcc, "hpcc run [FLAG...] IMAGE [--] CMD", before
// the Go runtime begins: that takes as long as all the rest of a start, for
// threads, a heap and signal handlers that the program soon loses.
//
// hpcc_start, the entry point of hpcc, calls begin on the process's one thread.
// It has a stack and static memory, but no heap, goroutines or panics: nothing
// here may allocate (a test reads the machine code), and everything is bounded.
// Package runtime decides what a run means, in Spec and Exec; this package
// repeats it for the flags and situations that jobs use. It declines everything
// else, mistakes included: it takes back what it did, and the Go program begins
// as if nothing had happened. A test of cmd/hpcc compares the two.
package bare

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime"
	"hpcc/runtime/runconf"
)

// Results of begin. The entry point leaves them to package runtime as its
// "entered"; another value is 1 + errno where the kernel refused namespaces.
const (
	declined = 0  // nothing was done
	mapped   = -2 // this process is in its namespaces and has its ids
	settled  = -3 // and in its root; the program could not be executed
)

// Bounds of what is kept in static memory. A run that needs more is declined.
const (
	maxWords  = 4096
	maxMounts = 32
	maxMemory = 2 << 20
)

// A run is all that is known of the one that this process is to be.
type run struct {
	words [maxWords]zstring // argv
	argc  int
	first int // index in words of the program's first argument
	vars  variables

	file, line settings // of the files of defaults, and of the command line
	defaults   [maxFlags]defaultLine
	ndefaults  int
	lineWords  [maxFlags]zstring
	nlineWords int

	image    zstring // IMAGE as it was written
	user     string  // $USER
	userHome string  // the user's home directory; "" if unknown
	home     string  // the same, "" if it is not shown
	cwd      zstring // the current directory by its physical path
	start    zstring // where the program starts
	root     zstring // the image's directory
	conf     config
	args     [maxWords + 1]*byte
	nargs    int
	env      [maxVariables + 1]*byte

	uid, gid      uintptr
	passwd, group string // generated; "": the image's will do
	fake          string // how much memory changes of the root may take; "": it is read-only

	mounts  [maxMounts]mount
	nmounts int
	scratch int // a tmpfs without a name, or -1
	top     int // the new root
	stacked int // mounts on base, to be taken back
	covers  [maxMounts]int
	ncovers int

	memory [maxMemory]byte
	used   int
	full   bool // memory did not suffice: what was made of it is wrong
	within bool // the root was changed
	table  [2 * maxVariables]uint16
	buffer [64 << 10]byte
}

// static is the run of this process: there is no heap that could hold it.
var static run

var _ = begin // start_*.s call it

// begin makes the run for which the kernel put argv and the environment at sp.
// It returns only when there is something left to do for Go.
func begin(sp unsafe.Pointer) int {
	r := &static
	if !r.read(sp) || !r.isRun() {
		return declined
	}
	runtime.NoteStreams()
	if !r.plan() {
		return declined
	}
	if state := r.namespaces(); state != 1 {
		return state
	}
	if !r.enter() {
		for ; r.stacked > 0; r.stacked-- {
			unmount(base)
		}
		r.closeMounts()
		return mapped // what else was opened stays so until the next execution
	}
	r.within = true
	r.execute()
	return settled
}

// A Failure is a run whose program could not be executed.
type Failure struct {
	Image     string
	Args, Env []string
	Dir       string // where the program was to start
	Defaults  []runconf.Line
}

// Failed returns the run that this process has become, if its program could not
// be executed; otherwise nil.
func Failed() *Failure {
	r := &static
	if !r.within {
		return nil
	}
	f := &Failure{Image: r.image.text(), Dir: r.start.text()}
	for _, p := range r.args[:r.nargs] {
		f.Args = append(f.Args, pointed(p).text())
	}
	for i := range r.vars.n {
		f.Env = append(f.Env, r.vars.list[i].text())
	}
	for _, d := range r.defaults[:r.ndefaults] {
		l := runconf.Line{File: d.file.text(), Number: d.number}
		for _, w := range r.lineWords[d.first:d.end] {
			l.Argv = append(l.Argv, w.text())
		}
		f.Defaults = append(f.Defaults, l)
	}
	return f
}

// namespaces makes a user namespace with the caller's ids, and a mount namespace.
// It returns 1, or 1 + errno.
func (r *run) namespaces() int {
	call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if _, e := call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS, 0, 0, 0, 0); e != 0 {
		return 1 + int(e)
	}
	uid, gid := r.decimal(r.uid), r.decimal(r.gid)
	// As for mapEarly of package runtime: some hosts give the namespace no rights.
	if !write("/proc/self/setgroups\x00", "deny", 0) ||
		!write("/proc/self/uid_map\x00", r.join(uid, " ", uid, " 1").text(), 0) ||
		!write("/proc/self/gid_map\x00", r.join(gid, " ", gid, " 1").text(), 0) {
		return 1 + int(unix.EPERM)
	}
	return 1
}

// execute begins the program. It returns when that failed.
func (r *run) execute() {
	if _, e := call(unix.SYS_CHDIR, r.start.at(), 0, 0, 0, 0); e != 0 {
		return
	}
	program := pointed(r.args[0])
	if contains(program.text(), '/') {
		r.exec(program)
		return
	}
	for rest := r.vars.value("PATH"); rest != ""; {
		var dir string
		dir, rest = cut(rest, ':')
		if dir == "" {
			dir = "."
		}
		file := r.join(dir, "/", program.text())
		if r.full {
			return
		}
		if k := kind(unix.AT_FDCWD, file, 0); k != 0 && k != unix.S_IFDIR && access(file, unix.X_OK) {
			r.exec(file)
			return
		}
	}
}

func (r *run) exec(file zstring) {
	call(unix.SYS_EXECVE, file.at(), uintptr(unsafe.Pointer(&r.args)), uintptr(unsafe.Pointer(&r.env)), 0, 0)
}
