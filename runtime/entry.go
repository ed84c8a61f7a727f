package runtime

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/inherit"
	"hpcc/runtime/rawfile"
	"hpcc/store/ready"
)

// A process may create a user namespace only while it has a single thread
// (unshare(2), EINVAL), and a Go program has several before main begins. The
// binary is therefore linked with its ELF entry point at hpcc_entry
// (entry_*.s, linker flag -E): there, with one thread and nothing running yet,
// "hpcc run" and "hpcc build" call unshare, then jump to Go's own entry point.
// The process keeps its pid, has no parent of ours, and pays one system call.
//
// Milliseconds for the same work, measured: this 1.9; a cgo constructor 2.7 (and it needs a
// C compiler for each target); executing itself in new namespaces 3.4 (and a parent process
// remains). Binaries linked without the flag, such as those of "go test", use the last
// method (see exec.go).

// entered is the result of begin: 0 if it was not called or did nothing, 1 + errno of
// unshare or setns, or one of the following constants.
var entered int64

const (
	later   = -1 // main creates or enters the namespaces (carry.go)
	mapped  = -2 // this process is in new namespaces with mapped IDs (cmd/start/bare)
	staging = -4 // the directory for image copies must be checked before namespaces exist (stage.go)
)

// Compiled code reads the current goroutine to check whether the stack suffices; a goroutine
// of zeros always passes. On machines that find it through the thread register, that
// register points behind thread.
var (
	goroutine [64]uintptr
	thread    [2]uintptr

	_, _ = &goroutine, &thread // entry_*.s use them
)

// begin is called by hpcc_entry, before the Go runtime starts. Nothing in it may allocate (a
// test of cmd/start/bare checks the machine code). sp points at the kernel's data for a new
// program: argc, argv and so on.
func begin(sp unsafe.Pointer) {
	inherit.NoteStreams()
	inherit.NoteSignals()
	argv := unsafe.Slice((**byte)(unsafe.Add(sp, unsafe.Sizeof(sp))), *(*uintptr)(sp))
	if len(argv) < 2 {
		return
	}
	if is(argv[0], pidInitName) {
		forkFromInit(false)
		return
	}
	switch {
	case IsFront(argv[0]): // main executes hpcc again under its own name
	case is(argv[1], "build"):
		unshare()
	case is(argv[1], "entry"):
		forkFromInit(true)
	case !is(argv[1], "run"):
	case starts(argv[0], markJoin):
		carried := unsafe.Slice(argv[0], len(markJoin)+2)
		if setns(carried[len(markJoin)], unix.CLONE_NEWUSER) {
			setns(carried[len(markJoin)+1], unix.CLONE_NEWNS)
		}
	case !starts(argv[0], markEnter) && asksForLater(argv[2:]):
		entered = later
	case !starts(argv[0], markEnter) && !starts(argv[0], markStage) &&
		asksForStage(argv[2:], unsafe.Add(sp, (len(argv)+2)*int(unsafe.Sizeof(sp)))):
		entered = staging
	default:
		syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
		unshare()
	}
}

// Again replaces this process with hpcc, run with other arguments. It returns only on failure.
func Again(argv []string) error {
	return fmt.Errorf("executing hpcc again: %w", inherit.Exec("/proc/self/exe", argv, os.Environ()))
}

// asksForLater reports whether an argument before "--" looks like --join or --measure. A
// process in its own namespaces could no longer join those of other tasks, or stay outside
// the program's.
func asksForLater(argv []*byte) bool {
	for _, w := range argv {
		if is(w, "--") {
			return false
		}
		if is(w, "--join=false") { // of a job that mounts a SquashFS file in each process
			continue
		}
		if is(w, "-j") || starts(w, "--join") || starts(w, "--measure") || starts(w, "-measure") {
			return true
		}
	}
	return false
}

// asksForStage reports whether an argument before "--", or HPCC_STAGE in the environment at
// env, suggests that the run needs the node's directory for image copies.
func asksForStage(argv []*byte, env unsafe.Pointer) bool {
	for _, w := range argv {
		if is(w, "--") {
			break
		}
		if starts(w, "--stage") || starts(w, "-stage") || ready.IsImageFile(text(w)) {
			return true
		}
	}
	for ; *(**byte)(env) != nil; env = unsafe.Add(env, unsafe.Sizeof(env)) {
		if v := *(**byte)(env); starts(v, "HPCC_STAGE=") {
			for _, off := range [...]string{"", "0", "f", "F", "false", "False", "FALSE"} { // strconv.ParseBool
				if text(v)[len("HPCC_STAGE="):] == off {
					return false
				}
			}
			return true
		}
	}
	return false
}

// IsFront reports whether hpcc was called by the name of another program (package front). It
// does not allocate.
func IsFront(argv0 *byte) bool {
	for p := argv0; *p != 0; p = (*byte)(unsafe.Add(unsafe.Pointer(p), 1)) {
		if *p == '/' {
			argv0 = (*byte)(unsafe.Add(unsafe.Pointer(p), 1))
		}
	}
	return is(argv0, "docker") || is(argv0, "apptainer") || is(argv0, "singularity") || is(argv0, "ch-run") ||
		is(argv0, "ch-image") || is(argv0, "ch-convert")
}

func unshare() {
	_, _, errno := syscall.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_NEWNS, 0, 0)
	entered = 1 + int64(errno)
}

func setns(fd byte, kind uintptr) bool {
	_, _, errno := syscall.RawSyscall(unix.SYS_SETNS, uintptr(fd), kind, 0)
	entered = 1 + int64(errno)
	return errno == 0
}

// starts reports whether the zero-terminated string at p begins with head.
func starts(p *byte, head string) bool {
	for i := range len(head) {
		if *(*byte)(unsafe.Add(unsafe.Pointer(p), i)) != head[i] {
			return false
		}
	}
	return true
}

// is reports whether the zero-terminated string at p equals word.
func is(p *byte, word string) bool {
	return starts(p, word) && *(*byte)(unsafe.Add(unsafe.Pointer(p), len(word))) == 0
}

// text returns the zero-terminated string at p, which it shares.
func text(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return unsafe.String(p, n)
}

// earlyNamespaces reports whether the entry point requested namespaces. err is the reason why
// the kernel refused them, or nil if this process is in them.
func earlyNamespaces() (requested bool, err error) {
	if entered == mapped {
		return true, nil
	}
	if entered <= 0 {
		return false, nil
	}
	if entered != 1 {
		return true, syscall.Errno(entered - 1)
	}
	return true, nil
}

// mapEarly writes the one-line ID maps of the user namespace that the entry point created
// (user_namespaces(7), "Defining user and group ID mappings"). A build is root in it; a run
// keeps the caller's IDs or takes those of its specification. Before that the kernel reports
// the overflow IDs, so the true IDs come from the auxiliary vector.
func mapEarly(carried *specs.Spec) {
	if requested, err := earlyNamespaces(); !requested || err != nil || entered == mapped {
		return
	}
	auxv, _ := unix.Auxv() // the runtime's copy: no error since Go 1.21
	uid, gid, _ := hostIDs(auxv)
	in := [2]int{uid, gid}
	if carried != nil {
		in[0], in[1] = visibleIDs(carried)
	}
	if _, _, root := ladder("register"); root || os.Args[1] == "build" {
		in = [2]int{}
	}
	if u, g, ok := ladder("run"); ok {
		in = [2]int{u, g}
	}
	// Some hosts (AppArmor's restriction of unprivileged user namespaces) create the
	// namespace but grant no rights in it.
	switch err := writeIDMaps(fmt.Sprintf("%d %d 1", in[0], uid), fmt.Sprintf("%d %d 1", in[1], gid)); {
	case errors.Is(err, syscall.EMFILE):
		entered = 1 + int64(syscall.EMFILE)
	case err != nil:
		entered = 1 + int64(syscall.EPERM)
	}
}

// writeIDMaps writes the maps of this process's new user namespace. An unprivileged user
// must deny setgroups first.
func writeIDMaps(uids, gids string) error {
	for _, f := range [][2]string{{"setgroups", "deny"}, {"uid_map", uids}, {"gid_map", gids}} {
		if err := rawfile.Write("/proc/self/"+f[0], []byte(f[1]), 0); err != nil {
			return err
		}
	}
	return nil
}

// MapIDs writes the ID maps of the user namespace that the entry point created for this
// process; each map is a line as in user_namespaces(7). It returns a [NamespaceError] if the
// host refused the namespace or the maps, or if this binary has no entry point.
func MapIDs(uids, gids string) error {
	requested, err := earlyNamespaces()
	if !requested {
		return errors.New(`this hpcc was linked without its entry point; "make build" links it`)
	}
	if err == nil {
		err = writeIDMaps(uids, gids)
	}
	if err != nil {
		return &NamespaceError{err}
	}
	return nil
}

// Types of auxiliary vector entries, getauxval(3). The vector holds pairs of type and value,
// each one machine word (64 bits on every supported architecture).
const (
	atUID = 11 + iota
	atEUID
	atGID
	atEGID
)

// hostIDs returns the effective IDs of this process. It refuses the IDs of a setuid or
// setgid file (execve(2)): hpcc needs only the user's rights and does not protect any
// others.
func hostIDs(auxv [][2]uintptr) (uid, gid int, err error) {
	var real, effective [2]int
	for _, entry := range auxv {
		switch v := int(entry[1]); entry[0] {
		case atUID:
			real[0] = v
		case atEUID:
			effective[0] = v
		case atGID:
			real[1] = v
		case atEGID:
			effective[1] = v
		}
	}
	if real != effective {
		err = errors.New("hpcc is installed setuid or setgid, which it does not need and refuses; remove the bits with chmod ug-s")
	}
	return effective[0], effective[1], err
}
