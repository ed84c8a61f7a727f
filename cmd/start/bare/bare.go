// Package bare makes the usual run, "hpcc run IMAGE [--] CMD" with no flags,
// before the Go runtime begins: that takes as long as all the rest of a start,
// for threads, a heap and signal handlers that the program soon loses.
//
// hpcc_start, the entry point of cmd/start, calls begin on the process's one
// thread. It has a stack and static memory, and no heap, goroutines or panics:
// nothing here may allocate (a test reads the machine code), and everything is
// bounded. What a run means is decided in package runtime, in Spec and Exec. Here
// stands what they come to in the usual case. From anything else, mistakes among
// it, this package keeps away: it takes back what it did, and the Go program
// begins as if nothing had been. A test compares the two.
package bare

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// What begin tells the entry point, which leaves it to package runtime as
// its "entered": 1 + errno where the kernel refused namespaces, or one of these.
const (
	declined = 0  // nothing was done
	mapped   = -2 // this process is in its namespaces and has its ids
	settled  = -3 // and in its root; the program could not be executed
)

// Bounds of what is kept in static memory; who needs more waits for Go.
const (
	maxWords  = 4096
	maxMounts = 16
	maxMemory = 1 << 20
)

// A run is all that is known of the one that this process is to be.
type run struct {
	image zstring // IMAGE as it was written
	home  zstring // $HOME
	cwd   zstring // the current directory by its physical path
	start zstring // where the program starts
	root  zstring // the image's directory
	words [maxWords]zstring
	argc  int
	vars  variables
	conf  config
	args  [maxWords + 1]*byte
	nargs int
	env   [maxVariables + 1]*byte

	uid, gid      uintptr
	passwd, group string // generated; "": the image's will do

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

// begin makes the run for which the kernel put words and variables at sp. It
// returns only when there is something left to do for Go.
func begin(sp unsafe.Pointer) int {
	r := &static
	if !r.read(sp) || !r.usual() {
		return declined
	}
	if state := r.namespaces(); state != 1 {
		return state
	}
	if !r.plan() || !r.enter() {
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

// Failed says whether this process has become a run whose program could not be
// executed, and which: cwd is where it was to start.
func Failed() (image string, args, env []string, cwd string, failed bool) {
	r := &static
	if !r.within {
		return "", nil, nil, "", false
	}
	for _, p := range r.args[:r.nargs] {
		args = append(args, pointed(p).text())
	}
	for i := range r.vars.n {
		env = append(env, r.vars.list[i].text())
	}
	return r.image.text(), args, env, r.start.text(), true
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
