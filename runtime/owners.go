package runtime

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A program that is to think itself root changes what of a file only root may:
// its owner, its capabilities. The filter hands these calls to hpcc
// (seccomp_unotify(2), Linux 5.0), which has them noted, so that the layer says
// what the program asked for, and lets them succeed. Where that cannot be had
// they succeed and are forgotten.

// Notes is told what programs under a fake root ask for. Each function gets the
// path of a file, to be followed to its end; of a symbolic link it gets the
// directory and the link's name in it, else link is "". It returns what the
// program gets: a unix.Errno, or nil for success.
type Notes struct {
	// Owner is told of chown(2) and its kin; -1 keeps a half.
	Owner func(file, link string, uid, gid int) error
	// Mode is told of a mode that chmod(2) and its kin are about to set.
	Mode func(file string)
	// SetAttr and RemoveAttr are told of extended attributes, but for those of
	// links, which can have none that matter here.
	SetAttr    func(file, name string, value []byte) error
	RemoveAttr func(file, name string) error
}

// An action is what a call does to a file.
type action int

const (
	changeOwner action = iota
	changeMode
	setAttr
	removeAttr
)

// A fileCall is a system call that changes what of a file only root may: where
// among its arguments the file stands, and from where on the rest. none says
// that it has no such argument.
type fileCall struct {
	nr              uint32
	does            action
	dir, file, rest int
	flags           int
	link            bool // it follows no link
}

const none = -1

// fileCalls are those of every architecture that we build for; olderCalls are
// those that only some have.
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
}, olderCalls...)

// carryOut does what a call asks for, as far as it can be done.
func (n *notification) carryOut(listener int, notes *Notes) error {
	for _, c := range fileCalls {
		if c.nr == uint32(n.nr) {
			t, err := n.target(c)
			if err != nil {
				return err
			}
			defer unix.Close(t.fd)
			if !n.waits(listener) {
				return nil
			}
			return n.act(c, t, notes)
		}
	}
	return unix.ENOSYS
}

// A target is the file of a call.
type target struct {
	fd   int    // the file (O_PATH), or the directory of a link
	link string // the name of a link in it
}

// target opens the file that the call names.
func (n *notification) target(c fileCall) (target, error) {
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
	dir, file = descriptor(dir, file)
	fd, err := n.open(dir, file, follow)
	if err != nil {
		return target{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return target{fd: fd}, err
	}
	defer unix.Close(fd)
	if file == "" { // the descriptor is of a link
		if file, err = os.Readlink(fdPath(fd)); err != nil {
			return target{}, err
		}
	}
	parent, err := n.open(dir, path.Dir(file), true)
	return target{parent, path.Base(file)}, err
}

// descriptor turns a name below a descriptor of the program's own into the
// descriptor and what is below it. The C library says so what fchmodat(2) has no
// flag for, and proc's links cannot be followed for another process.
func descriptor(dir int, file string) (int, string) {
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

// act does what the call asks of its file.
func (n *notification) act(c fileCall, t target, notes *Notes) error {
	file, rest := fdPath(t.fd), n.args[c.rest:]
	switch c.does {
	case changeOwner:
		uid, gid := int(int32(rest[0])), int(int32(rest[1]))
		keepUID, keepGID := n.halves()
		if keepUID {
			uid = -1
		}
		if keepGID {
			gid = -1
		}
		return notes.Owner(file, t.link, uid, gid)
	case changeMode:
		if t.link != "" {
			return unix.EOPNOTSUPP // links have no mode of their own, chmod(2)
		}
		notes.Mode(file)
		return unix.Fchmodat(unix.AT_FDCWD, file, uint32(rest[0])&0o7777, 0)
	}
	name, err := n.text(rest[0])
	if err != nil || t.link != "" {
		return err
	}
	if c.does == removeAttr {
		return notes.RemoveAttr(file, name)
	}
	size := rest[2]
	if size > maxAttr {
		return unix.E2BIG
	}
	value := make([]byte, size)
	if k, err := n.read(rest[1], value); err != nil || k < len(value) {
		return unix.EFAULT
	}
	return notes.SetAttr(file, name, value)
}

// maxAttr is the largest value that an extended attribute has, xattr(7).
const maxAttr = 64 << 10

// halves says which half of an owner a chown program does not mean to change,
// by its command line. GNU's passes -1 for it; busybox's passes what it was
// shown before, which is root. (A busybox shell that runs its chown without
// executing it has another command line: there root is taken as asked for.)
func (n *notification) halves() (keepUID, keepGID bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.pid))
	if err != nil {
		return false, false
	}
	return halves(strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"))
}

func halves(args []string) (keepUID, keepGID bool) {
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
		user, _, grouped := strings.Cut(a, ":")
		return user == "", !grouped
	}
	return false, false
}
