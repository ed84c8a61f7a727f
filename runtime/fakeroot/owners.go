// Package fakeroot makes a program believe that it is root: calls that change owners or IDs,
// or create devices, succeed, and their effects on files are reported.
//
//	program ─► seccomp filter ─► notification, or ptrace before Linux 5.0 ─► Notes
//
// The child installs the filter ([Install]) and its parent answers ([AnswerCalls]). If the
// host allows neither notification nor tracing, calls succeed and are forgotten. Programs of
// another word size or architecture are not filtered. A fake root is not a security
// boundary: the program has its user's rights.
package fakeroot

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// A program that believes it is root changes file metadata that only root may change, such
// as owners and capabilities. The filter passes these calls to hpcc (seccomp_unotify(2),
// Linux 5.0; earlier ptrace(2), see trace.go), which records them for the image layer and
// lets them succeed.

// Notes receives the requests of programs under a fake root. Each function receives the path
// of a file, and must follow it if it is a link. The error that it returns is the result of
// the call: a unix.Errno, or nil for success.
type Notes struct {
	// Owner receives chown(2) and its variants. -1 keeps the user or group. For a symbolic
	// link or a FIFO, file is the directory and link the name in it; otherwise link is "".
	Owner func(file, link string, uid, gid int) error
	// Mode is called before chmod(2) or a variant sets a mode.
	Mode func(file string)
	// SetAttr and RemoveAttr receive changes of extended attributes, except on links, whose
	// attributes do not matter here.
	SetAttr    func(file, name string, value []byte) error
	RemoveAttr func(file, name string) error
	// GetAttr and ListAttr, unless nil, replace the kernel's answers about the files'
	// extended attributes, except for links, which have none.
	GetAttr  func(file, name string) ([]byte, error)
	ListAttr func(file string) []string
	// Stat, unless nil, corrects the kernel's answer about a file: its owner and mode in the
	// image. For a symbolic link or a FIFO, file and link are as in Owner.
	Stat func(file, link string, st *unix.Stat_t)
	// AllStat asks for Stat also where it slows down programs that do not ask for owners.
	AllStat bool
	// User, unless nil, is the user that programs believe to be; never by tracing.
	User *Identity
	// Lost, unless nil, is called before the program starts if this host cannot report the
	// program's requests.
	Lost func()
}

// An action is the effect of a call on a file.
type action int

const (
	changeOwner action = iota
	changeMode
	setAttr
	removeAttr
	getAttr
	listAttr
	statFile  // stat(2) and its variants
	statxFile // statx(2)
	moveRoot  // chroot(2) and pivot_root(2)
)

// A fileCall describes a system call on metadata that only root may change. dir, file, rest
// and flags are the indexes of its arguments, or none. rest is the first one after the file.
type fileCall struct {
	nr              uint32
	action          action
	dir, file, rest int
	flags           int
	link            bool // does not follow links
}

const none = -1

// fileCalls are available on every supported architecture; olderCalls only on some.
var fileCalls = append([]fileCall{
	{unix.SYS_FCHOWN, changeOwner, 0, none, 1, none, false},
	{unix.SYS_FCHOWNAT, changeOwner, 0, 1, 2, 4, false},
	{unix.SYS_FCHMOD, changeMode, 0, none, 1, none, false},
	{unix.SYS_FCHMODAT, changeMode, 0, 1, 2, none, false},
	{unix.SYS_FCHMODAT2, changeMode, 0, 1, 2, 3, false},
	{unix.SYS_SETXATTR, setAttr, none, 0, 1, none, false},
	{unix.SYS_LSETXATTR, setAttr, none, 0, 1, none, true},
	{unix.SYS_FSETXATTR, setAttr, 0, none, 1, none, false},
	{unix.SYS_REMOVEXATTR, removeAttr, none, 0, 1, none, false},
	{unix.SYS_LREMOVEXATTR, removeAttr, none, 0, 1, none, true},
	{unix.SYS_FREMOVEXATTR, removeAttr, 0, none, 1, none, false},
	{unix.SYS_GETXATTR, getAttr, none, 0, 1, none, false},
	{unix.SYS_LGETXATTR, getAttr, none, 0, 1, none, true},
	{unix.SYS_FGETXATTR, getAttr, 0, none, 1, none, false},
	{unix.SYS_LISTXATTR, listAttr, none, 0, 1, none, false},
	{unix.SYS_LLISTXATTR, listAttr, none, 0, 1, none, true},
	{unix.SYS_FLISTXATTR, listAttr, 0, none, 1, none, false},
	{unix.SYS_NEWFSTATAT, statFile, 0, 1, 2, 3, false},
	{unix.SYS_FSTAT, statFile, 0, none, 1, none, false},
	{unix.SYS_STATX, statxFile, 0, 1, 3, 2, false},
	{unix.SYS_CHROOT, moveRoot, none, none, none, none, false},
	{unix.SYS_PIVOT_ROOT, moveRoot, none, none, none, none, false},
}, olderCalls...)

// A request is a system call whose result the program waits for.
type request struct {
	pid  uint32 // of the thread, as a pid of this namespace
	nr   int32
	args [6]uint64

	seen    *seen              // what is known of the program's files; nil: the kernel answers stat(2)
	scratch [unix.PathMax]byte // for a path of the program
}

// proc returns the path of a file in the program's directory of procfs.
func (n *request) proc(file string) string {
	return "/proc/" + strconv.FormatUint(uint64(n.pid), 10) + "/" + file
}

// errKernel is the result of a request that the kernel must carry out itself.
var errKernel = errors.New("the kernel carries out the call")

// perform carries out the request. stillWaits reports whether the program still waits for the
// answer. value is the call's result, unless err is a unix.Errno or errKernel.
func (n *request) perform(stillWaits func() bool, notes *Notes) (value int, err error) {
	for _, c := range fileCalls {
		if c.nr == uint32(n.nr) {
			switch c.action {
			case statFile, statxFile:
				return n.stat(c, stillWaits, notes)
			case moveRoot:
				n.seen.forgetRoot()
				return 0, errKernel
			}
			t, err := n.target(c)
			if err != nil {
				return 0, err
			}
			defer t.close()
			if !stillWaits() {
				return 0, nil
			}
			n.seen.forget(t)
			return n.act(c, t, notes)
		}
	}
	if value, ok, err := n.identity(stillWaits, notes); ok {
		return value, err
	}
	return 0, unix.ENOSYS
}

// A target is the file that a call names.
type target struct {
	fd   int    // the file (O_PATH)
	kind uint32 // of the file, S_IFMT
	dir  int    // directory of a link or FIFO (O_PATH); -1 for others
	name string // name in that directory
}

func (t target) close() {
	unix.Close(t.fd)
	if t.dir >= 0 {
		unix.Close(t.dir)
	}
}

// target opens the file that the call names.
func (n *request) target(c fileCall) (target, error) {
	dir, file, follow := unix.AT_FDCWD, "", !c.link
	if c.dir != none {
		dir = int(int32(n.args[c.dir]))
	}
	var flags uint64
	if c.flags != none {
		flags = n.args[c.flags]
		follow = flags&unix.AT_SYMLINK_NOFOLLOW == 0
	}
	if c.file != none {
		var err error
		if file, err = n.text(n.args[c.file]); err != nil {
			return target{}, err
		}
		if file == "" && flags&unix.AT_EMPTY_PATH == 0 {
			return target{}, unix.ENOENT
		}
	}
	dir, file = belowDescriptor(dir, file)
	fd, err := n.open(dir, file, follow)
	if err != nil {
		return target{}, err
	}
	t := target{fd: fd, dir: -1}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.close()
		return target{}, err
	}
	t.kind = st.Mode & unix.S_IFMT
	if (t.kind != unix.S_IFLNK && t.kind != unix.S_IFIFO) || c.action != changeOwner {
		return t, nil
	}
	if file == "" || follow { // the name may have changed meanwhile
		if file, err = n.nameOf(fd); err != nil {
			t.close()
			return target{}, err
		}
	}
	t.name = path.Base(file)
	if t.dir, err = n.open(dir, path.Dir(file), true); err != nil {
		t.dir = -1
		t.close()
		return target{}, err
	}
	return t, nil
}

// nameOf returns the path of an open file in the program's root.
func (n *request) nameOf(fd int) (string, error) {
	file, err := os.Readlink(rawfile.Path(fd))
	if err != nil {
		return "", err
	}
	top, err := os.Readlink(n.proc("root"))
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(file, strings.TrimSuffix(top, "/")), nil
}

// belowDescriptor splits a path below one of the program's own descriptors into the
// descriptor and the rest, because these /proc links lead elsewhere in another process. The
// C library uses such paths if fchmodat(2) lacks a flag.
func belowDescriptor(dir int, file string) (int, string) {
	for _, p := range []string{"/proc/self/fd/", "/proc/thread-self/fd/", "/dev/fd/"} {
		if rest, ok := strings.CutPrefix(file, p); ok {
			number, below, _ := strings.Cut(rest, "/")
			if fd, err := strconv.ParseUint(number, 10, 31); err == nil {
				return int(fd), strings.TrimLeft(below, "/")
			}
		}
	}
	return dir, file
}

// act applies the call to its target.
func (n *request) act(c fileCall, t target, notes *Notes) (int, error) {
	file, rest := rawfile.Path(t.fd), n.args[c.rest:]
	switch c.action {
	case changeOwner:
		uid, gid := int(int32(rest[0])), int(int32(rest[1]))
		if n.seen == nil || !n.seen.all {
			keepUID, keepGID := n.keptIDs()
			if keepUID {
				uid = -1
			}
			if keepGID {
				gid = -1
			}
		}
		if t.dir >= 0 {
			file = rawfile.Path(t.dir)
		}
		return 0, notes.Owner(file, t.name, uid, gid)
	case changeMode:
		if t.kind == unix.S_IFLNK {
			return 0, unix.EOPNOTSUPP // links do not have a mode of their own, chmod(2)
		}
		notes.Mode(file)
		if n.seen != nil {
			return 0, errKernel
		}
		return 0, unix.Fchmodat(unix.AT_FDCWD, file, uint32(rest[0])&0o7777, 0)
	case listAttr:
		var names []byte
		if t.kind != unix.S_IFLNK {
			for _, name := range notes.ListAttr(file) {
				names = append(append(names, name...), 0)
			}
		}
		return n.writeResult(names, rest[0], rest[1])
	}
	name, err := n.text(rest[0])
	if err != nil {
		return 0, err
	}
	switch {
	case c.action == getAttr && t.kind == unix.S_IFLNK:
		return 0, unix.ENODATA
	case c.action == getAttr:
		value, err := notes.GetAttr(file, name)
		if err != nil {
			return 0, err
		}
		return n.writeResult(value, rest[1], rest[2])
	case t.kind == unix.S_IFLNK:
		return 0, nil
	case c.action == removeAttr:
		return 0, notes.RemoveAttr(file, name)
	}
	size := rest[2]
	if size > maxAttr {
		return 0, unix.E2BIG
	}
	value := make([]byte, size)
	if k, err := n.read(rest[1], value); err != nil || k < len(value) {
		return 0, unix.EFAULT
	}
	return 0, notes.SetAttr(file, name, value)
}

// writeResult writes a value to the program's buffer, as getxattr(2) does, and returns its
// length. For a buffer of size 0 it writes nothing.
func (n *request) writeResult(value []byte, at, size uint64) (int, error) {
	if size > 0 && uint64(len(value)) > size {
		return 0, unix.ERANGE
	}
	if size == 0 || len(value) == 0 {
		return len(value), nil
	}
	v := unix.Iovec{Base: &value[0]}
	v.SetLen(len(value))
	k, err := unix.ProcessVMWritev(int(n.pid), []unix.Iovec{v}, []unix.RemoteIovec{{Base: uintptr(at), Len: len(value)}}, 0)
	if err != nil || k < len(value) {
		return 0, unix.EFAULT
	}
	return len(value), nil
}

// maxAttr is the largest size of an extended attribute's value, xattr(7).
const maxAttr = 64 << 10

// keptIDs reports which IDs of an owner a chown or chgrp program leaves unchanged, judging by
// its command line, if the kernel answered its stat(2). GNU's programs pass -1 for such an ID; BusyBox's pass the ID that they
// read before, which is root's. (A BusyBox shell that runs its built-in chown has another
// command line; there root is recorded as requested.)
func (n *request) keptIDs() (keepUID, keepGID bool) {
	b, err := os.ReadFile(n.proc("cmdline"))
	if err != nil {
		return false, false
	}
	return keptIDs(strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"))
}

func keptIDs(args []string) (keepUID, keepGID bool) {
	if path.Base(args[0]) == "busybox" {
		args = args[1:]
	}
	if len(args) == 0 {
		return false, false
	}
	name := path.Base(args[0])
	if name == "chgrp" {
		return true, false
	}
	if name != "chown" {
		return false, false
	}
	for _, a := range args[1:] {
		if strings.HasPrefix(a, "-") {
			continue
		}
		user, _, hasGroup := strings.Cut(a, ":")
		return user == "", !hasGroup
	}
	return false, false
}
