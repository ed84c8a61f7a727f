// Package bare executes "hpcc run [FLAG...] IMAGE [--] CMD" before the Go runtime starts. The Go
// runtime takes as long as the rest of a start, for threads, a heap and signal handlers that the
// program soon loses.
//
// hpcc_start, the ELF entry point of hpcc, calls begin on the only thread of the process. There is
// a stack and static memory, but no heap, no goroutines and no panics. So no function of this
// package may allocate, which a test checks in the machine code, and all data has fixed bounds.
//
// Package runtime defines what a run does, in Spec and Exec. This package implements the same for
// the flags and situations that jobs use. It declines everything else, including invalid command
// lines: it undoes its changes, and the Go program starts as usual. A test of cmd/hpcc compares
// both implementations.
package bare

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime/inherit"
	"hpcc/runtime/process"
	"hpcc/runtime/runconf"
)

// Results of begin, which the entry point passes to package runtime as "entered". Any other value
// is 1 + errno if the kernel refused namespaces.
const (
	declined = 0  // nothing has changed
	mapped   = -2 // this process is in its namespaces and has its IDs
	settled  = -3 // this process is also in its root, but could not execute the program
)

// Bounds of the static memory. A run that needs more is declined.
const (
	maxArgs   = 4096
	maxMounts = 32
	maxMemory = 2 << 20
)

// A run holds all data of the run that this process executes.
type run struct {
	argv    [maxArgs]zstring // argv
	argc    int
	first   int // index in argv of the program's first argument
	vars    variables
	environ unsafe.Pointer // the environment as the kernel passed it

	file, line settings // flags of the run.conf files, and of the command line
	defaults   [maxFlags]defaultLine
	ndefaults  int
	lineArgs   [maxFlags]zstring
	nlineArgs  int

	image    zstring // IMAGE as given
	argv0    zstring // argv[0] of the program; "" for its name in args
	user     string  // $USER
	userHome string  // the user's home directory; "" if unknown
	home     string  // the same, or "" if it is not bound
	cwd      zstring // physical path of the current directory
	start    zstring // directory in which the program starts
	root     zstring // directory of the image
	conf     config
	args     [maxArgs + 1]*byte
	nargs    int
	env      [maxVariables + 1]*byte

	uid, gid      uintptr
	passwd, group string // generated files; "" to keep the image's
	fake          string // limit of memory for changes of the root; "" for a read-only root

	mounts  [maxMounts]mount
	nmounts int
	device  uint64 // that of the image's directory
	scratch int    // descriptor of a tmpfs without a path, or -1
	top     int    // descriptor of the new root
	stacked int    // number of mounts on base, which begin undoes on failure
	covers  [maxMounts]int
	ncovers int

	memory  [maxMemory]byte
	used    int
	full    bool // memory was too small, so strings in it may be incomplete
	entered bool // this process is in the new root
	table   [2 * maxVariables]uint16
	buffer  [64 << 10]byte
}

// static is the run of this process. It is static because there is no heap.
var static run

var _ = begin // called by start_*.s

// begin executes the run whose argv and environment the kernel put at sp. It returns only if the
// Go program has to continue.
func begin(sp unsafe.Pointer) int {
	state := static.begin(sp)
	if state != declined {
		inherit.NoteSignals() // else runtime does
	}
	return state
}

func (r *run) begin(sp unsafe.Pointer) int {
	if !r.read(sp) {
		return declined
	}
	inherit.NoteStreams()
	if !r.unwrap() || !r.isRun() {
		return declined
	}
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
		return mapped // other descriptors stay open until execve
	}
	r.entered = true
	r.execute()
	return settled
}

// A Failure is a run whose program could not be executed.
type Failure struct {
	Image     string
	Args, Env []string
	Dir       string // directory in which the program should start
	Defaults  []runconf.Line
	ChRun     bool // the exit status is that of ch-run
}

// Failed returns the run of this process if its program could not be executed, or else nil.
func Failed() *Failure {
	r := &static
	if !r.entered {
		return nil
	}
	f := &Failure{Image: r.image.text(), Dir: r.start.text(), ChRun: r.line.has(chRun)}
	for _, p := range r.args[:r.nargs] {
		f.Args = append(f.Args, cString(p).text())
	}
	for i := range r.vars.n {
		f.Env = append(f.Env, r.vars.list[i].text())
	}
	for _, d := range r.defaults[:r.ndefaults] {
		l := runconf.Line{File: d.file.text(), Number: d.number}
		for _, w := range r.lineArgs[d.first:d.end] {
			l.Argv = append(l.Argv, w.text())
		}
		f.Defaults = append(f.Defaults, l)
	}
	return f
}

// namespaces creates a user namespace with the caller's IDs and a mount namespace. It returns 1 on
// success, or else 1 + errno.
func (r *run) namespaces() int {
	call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if _, e := call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS, 0, 0, 0, 0); e != 0 {
		return 1 + int(e)
	}
	uid, gid := r.decimal(r.uid), r.decimal(r.gid)
	// Some hosts give the namespace no capabilities; see mapEarly of package runtime.
	if !write("/proc/self/setgroups\x00", "deny", 0) ||
		!write("/proc/self/uid_map\x00", r.join(uid, " ", uid, " 1").text(), 0) ||
		!write("/proc/self/gid_map\x00", r.join(gid, " ", gid, " 1").text(), 0) {
		return 1 + int(unix.EPERM)
	}
	return 1
}

// execute executes the program. It returns only on failure.
func (r *run) execute() {
	if _, e := call(unix.SYS_CHDIR, r.start.at(), 0, 0, 0, 0); e != 0 {
		return
	}
	program := cString(r.args[0])
	if contains(program.text(), '/') {
		r.exec(program)
		return
	}
	rest := r.vars.value("PATH")
	if rest == "" {
		rest = process.DefaultPath
	}
	for rest != "" {
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
	own := r.args[0]
	if r.argv0 != "" {
		r.args[0] = unsafe.StringData(string(r.argv0))
	}
	call(unix.SYS_EXECVE, file.at(), uintptr(unsafe.Pointer(&r.args)), uintptr(unsafe.Pointer(&r.env)), 0, 0)
	r.args[0] = own
}
