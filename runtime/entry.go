package runtime

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"syscall"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// A process may create a user namespace only while it has a single thread
// (unshare(2), EINVAL), and a Go program has several before main begins. The
// binary is therefore linked with its ELF entry point at hpcc_entry
// (entry_*.s, linker flag -E): there, with one thread and nothing running yet,
// "hpcc run" and "hpcc build" call unshare, then jump to Go's own entry point.
// The process keeps its pid, has no parent of ours, and pays one system call.
//
// Measured against the other ways, same work, milliseconds: this 1.9, a cgo
// constructor 2.7 (and a C compiler for each target), re-execution of self in
// new namespaces 3.4 (and a parent that stays). Binaries linked without the
// flag, such as those of "go test", take that last way (see exec.go).

// entered is what begin left: 0 it was not called or not asked to, else 1 + errno
// of unshare or setns, or one of the following.
var entered int64

const (
	later   = -1 // namespaces are left to main (carry.go)
	mapped  = -2 // this process is in namespaces of its own and has its ids (cmd/start/bare)
	staging = -4 // the directory for copies of images is checked before there are namespaces (stage.go)
)

// Compiled code wants a goroutine, to see whether its stack suffices: one of
// zeros says that it does. Where that is found by way of the thread's register,
// that points behind thread.
var (
	goroutine [64]uintptr
	thread    [2]uintptr

	_, _ = &goroutine, &thread // entry_*.s use them
)

// begin is called by hpcc_entry, before the Go runtime begins: nothing in it may
// allocate (a test of cmd/start/bare reads the machine code). At sp lies what
// the kernel gives a program: argc, argv and so on.
func begin(sp unsafe.Pointer) {
	NoteStreams()
	argv := unsafe.Slice((**byte)(unsafe.Add(sp, unsafe.Sizeof(sp))), *(*uintptr)(sp))
	if len(argv) < 2 {
		return
	}
	if is(argv[0], pidInitName) {
		second(false)
		return
	}
	switch {
	case is(argv[1], "build"):
		unshare()
	case is(argv[1], "entry"):
		second(true)
	case !is(argv[1], "run"):
	case starts(argv[0], markJoin):
		carried := unsafe.Slice(argv[0], len(markJoin)+2)
		if setns(carried[len(markJoin)], unix.CLONE_NEWUSER) {
			setns(carried[len(markJoin)+1], unix.CLONE_NEWNS)
		}
	case !starts(argv[0], markEnter) && asksForLater(argv[2:]):
		entered = later
	case !starts(argv[0], markEnter) && !starts(argv[0], markStage) && asksForStage(argv[2:], unsafe.Add(sp, (len(argv)+2)*int(unsafe.Sizeof(sp)))):
		entered = staging
	default:
		syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
		unshare()
	}
}

// closedStreams has a bit for each standard stream that was closed when this
// process was executed. The Go runtime opens /dev/null in their place.
var closedStreams uint8

// NoteStreams notes which standard streams are closed, so that they are closed
// for the program of a run, too. It must be called before the Go runtime begins
// and before anything is opened. It does not allocate.
func NoteStreams() {
	closedStreams = 0
	for fd := range uintptr(3) {
		if _, _, errno := syscall.RawSyscall(unix.SYS_FCNTL, fd, unix.F_GETFD, 0); errno == unix.EBADF {
			closedStreams |= 1 << fd
		}
	}
}

// deathSignal is the signal that the kernel sends this process when its parent dies,
// or 0. The kernel keeps it for one thread, the first one (PR_SET_PDEATHSIG, prctl(2)).
// Package variables are initialised on that thread.
var deathSignal = func() (s int32) {
	_ = unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&s)), 0, 0, 0)
	return s
}()

// execute replaces this process by another program, which finds the standard
// streams closed that this one found closed, and dies with the parent if this one
// does. It returns only on failure.
func execute(file string, args, env []string) error {
	if deathSignal != 0 {
		goruntime.LockOSThread() // any thread may be the one that executes the program
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(deathSignal), 0, 0, 0)
	}
	for fd := range 3 {
		if closedStreams&(1<<fd) != 0 {
			unix.CloseOnExec(fd)
		}
	}
	return syscall.Exec(file, args, env)
}

// asksForLater says whether one of the words before "--" looks like --join or --measure: who has
// made namespaces of its own could not enter those of others any more, nor stay outside
// of the program's.
func asksForLater(words []*byte) bool {
	for _, w := range words {
		if is(w, "--") {
			return false
		}
		if is(w, "-j") || starts(w, "--join") || starts(w, "--measure") || starts(w, "-measure") {
			return true
		}
	}
	return false
}

// asksForStage reports whether an argument before "--", or HPCC_STAGE in the
// environment at env, looks as if the run needs the node's directory for copies.
func asksForStage(words []*byte, env unsafe.Pointer) bool {
	for _, w := range words {
		if is(w, "--") {
			break
		}
		if starts(w, "--stage") || starts(w, "-stage") || ends(w, ".sqfs") || ends(w, ".squashfs") || ends(w, ".sfs") {
			return true
		}
	}
	for ; *(**byte)(env) != nil; env = unsafe.Add(env, unsafe.Sizeof(env)) {
		if v := *(**byte)(env); starts(v, "HPCC_STAGE=") {
			return !is(v, "HPCC_STAGE=") && !is(v, "HPCC_STAGE=0")
		}
	}
	return false
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

// starts says whether the string at p, which ends with a zero byte, begins with head.
func starts(p *byte, head string) bool {
	for i := range len(head) {
		if *(*byte)(unsafe.Add(unsafe.Pointer(p), i)) != head[i] {
			return false
		}
	}
	return true
}

// is says whether the string at p, which ends with a zero byte, is word.
func is(p *byte, word string) bool {
	return starts(p, word) && *(*byte)(unsafe.Add(unsafe.Pointer(p), len(word))) == 0
}

// ends reports whether the string at p, which ends with a zero byte, ends with tail.
func ends(p *byte, tail string) bool {
	for ; *p != 0; p = (*byte)(unsafe.Add(unsafe.Pointer(p), 1)) {
		if is(p, tail) {
			return true
		}
	}
	return false
}

// early says whether the entry point was asked for namespaces, and with which
// error it was refused them (nil when the process is in them).
func early() (asked bool, err error) {
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

// mapEarly writes the one-line id maps of the user namespace that the entry
// point made (user_namespaces(7), "Defining user and group ID mappings"): a
// build is root in it, a run keeps the caller's ids, or has those that its
// specification carries. Until then the kernel shows the overflow ids; the
// auxiliary vector still has the true ones.
func mapEarly(carried *specs.Spec) {
	if asked, err := early(); !asked || err != nil || entered == mapped {
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
	// Some hosts (AppArmor's restriction of unprivileged user namespaces)
	// let the namespace be made, but give it no rights.
	switch err := writeIDMaps(fmt.Sprintf("%d %d 1", in[0], uid), fmt.Sprintf("%d %d 1", in[1], gid)); {
	case errors.Is(err, syscall.EMFILE):
		entered = 1 + int64(syscall.EMFILE)
	case err != nil:
		entered = 1 + int64(syscall.EPERM)
	}
}

// writeIDMaps gives this process's new user namespace its maps, after what a
// user without rights must give up for that.
func writeIDMaps(uids, gids string) error {
	for _, f := range [][2]string{{"setgroups", "deny"}, {"uid_map", uids}, {"gid_map", gids}} {
		if err := rawfile.Write("/proc/self/"+f[0], []byte(f[1]), 0); err != nil {
			return err
		}
	}
	return nil
}

// MapIDs writes the ID maps of the user namespace that the entry point made for this
// process, each a line of user_namespaces(7). It fails with a [NamespaceError] if the
// host refused the namespace or the maps, or if this binary has no entry point.
func MapIDs(uids, gids string) error {
	asked, err := early()
	if !asked {
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

// Entries of the auxiliary vector, getauxval(3): pairs of type and value, each
// a machine word (64 bits on all that we build for).
const (
	atUID = 11 + iota
	atEUID
	atGID
	atEGID
)

// hostIDs returns the effective ids that this process was executed with. It
// refuses those of a setuid or setgid file (execve(2)): hpcc needs no rights
// but the user's, and takes no care with others.
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
		err = errors.New("hpcc is installed setuid or setgid and refuses to run so: it needs no rights but the user's; chmod ug-s the file")
	}
	return effective[0], effective[1], err
}
