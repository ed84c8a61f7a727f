package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A program that is to think itself root changes owners. The filter hands these
// calls to hpcc (seccomp_unotify(2), Linux 5.0), which notes the owner in an
// extended attribute of the file, so that the layer has it, and lets the call
// succeed. Where that cannot be had the call succeeds and is forgotten.

// A notification is struct seccomp_notif, <linux/seccomp.h>.
type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	nr    int32
	arch  uint32
	ip    uint64
	args  [6]uint64
}

// An answer is struct seccomp_notif_resp.
type answer struct {
	id    uint64
	val   int64
	errno int32
	flags uint32
}

// Requests of seccomp_unotify(2): _IOWR('!', 0, …) and _IOWR('!', 1, …).
const (
	notifRecv = 0xc0502100
	notifSend = 0xc0182101
)

// listenerFD is where the child of Command finds the socket to send the
// filter's descriptor over.
const listenerFD = 4

// sendListener gives the filter's descriptor to the parent.
func sendListener(fd int) error {
	defer unix.Close(fd)
	defer unix.Close(listenerFD)
	return unix.Sendmsg(listenerFD, []byte{0}, unix.UnixRights(fd), nil, 0)
}

// noteOwners receives a filter's descriptor from the socket and answers its
// calls until the last program under it has ended.
func noteOwners(socket *os.File, attr string) {
	defer socket.Close()
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	listener := -1
	oob := make([]byte, unix.CmsgSpace(4))
	err = raw.Read(func(s uintptr) bool {
		_, n, _, _, err := unix.Recvmsg(int(s), make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if msgs, perr := unix.ParseSocketControlMessage(oob[:max(n, 0)]); err == nil && perr == nil && len(msgs) == 1 {
			if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
				listener = fds[0]
			}
		}
		return true
	})
	if err != nil || listener < 0 {
		return
	}
	defer unix.Close(listener)
	for {
		p := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err != nil && !errors.Is(err, unix.EINTR) || p[0].Revents&unix.POLLIN == 0 && p[0].Revents != 0 {
			return
		}
		if p[0].Revents&unix.POLLIN != 0 {
			answerOne(listener, attr)
		}
	}
}

// answerOne takes one call, notes what it asks for, and lets it succeed.
func answerOne(listener int, attr string) {
	var n notification
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), notifRecv, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return // the program was killed meanwhile
	}
	a := answer{id: n.id}
	if err := n.note(attr); errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EBADF) {
		var errno unix.Errno
		errors.As(err, &errno)
		a.errno = -int32(errno)
	}
	unix.Syscall(unix.SYS_IOCTL, uintptr(listener), notifSend, uintptr(unsafe.Pointer(&a)))
}

// note carries a call out: which file, which owner.
func (n *notification) note(attr string) error {
	dir, file, follow := atCwd, "", true
	ids := n.args[1:3]
	switch uint32(n.nr) {
	case sysFchown:
		dir = int(int32(n.args[0]))
	case sysFchownat:
		dir, ids = int(int32(n.args[0])), n.args[2:4]
		follow = n.args[4]&unix.AT_SYMLINK_NOFOLLOW == 0
		text, err := n.text(n.args[1])
		if err != nil {
			return nil
		}
		if file = text; file == "" && n.args[4]&unix.AT_EMPTY_PATH == 0 {
			return unix.ENOENT
		}
	default: // chown and lchown
		follow = uint32(n.nr) != sysLchown
		text, err := n.text(n.args[0])
		if err != nil {
			return nil
		}
		if file = text; file == "" {
			return unix.ENOENT
		}
	}
	fd, err := n.open(dir, file, follow)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	setOwner(fdPath(fd), attr, int32(ids[0]), int32(ids[1]))
	return nil
}

const atCwd = unix.AT_FDCWD

// text reads a string of the program.
func (n *notification) text(at uint64) (string, error) {
	b := make([]byte, unix.PathMax)
	var got int
	for got < len(b) { // page by page: the next one may not be there
		want := min(len(b)-got, 4096-int((at+uint64(got))%4096))
		k, err := unix.ProcessVMReadv(int(n.pid), []unix.Iovec{iovec(b[got : got+want])},
			[]unix.RemoteIovec{{Base: uintptr(at) + uintptr(got), Len: want}}, 0)
		if err != nil {
			return "", err
		}
		if i := bytes.IndexByte(b[got:got+k], 0); i >= 0 {
			return string(b[:got+i]), nil
		}
		got += k
	}
	return "", unix.ENAMETOOLONG
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

// open opens the file as the program would: below its root, from its directory.
func (n *notification) open(dir int, file string, follow bool) (int, error) {
	proc := fmt.Sprintf("/proc/%d/", n.pid)
	from := proc + "cwd"
	if dir != atCwd {
		from = fmt.Sprintf("%sfd/%d", proc, dir)
	}
	if file == "" {
		return unix.Open(from, unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if !path.IsAbs(file) {
		at, err := os.Readlink(from)
		if err != nil || !strings.HasPrefix(at, "/") {
			return -1, unix.EBADF
		}
		file = at + "/" + file
	}
	root, err := unix.Open(proc+"root", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if !follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	return unix.Openat2(root, file, &how)
}

// setOwner notes an owner; -1 keeps the half that is there (chown(2)).
func setOwner(file, attr string, uid, gid int32) {
	var oldUID, oldGID int32
	b := make([]byte, 32)
	if k, err := unix.Getxattr(file, attr, b); err == nil {
		fmt.Sscanf(string(b[:k]), "%d:%d", &oldUID, &oldGID)
	}
	if uid == -1 {
		uid = oldUID
	}
	if gid == -1 {
		gid = oldGID
	}
	if uid == oldUID && gid == oldGID {
		return
	}
	if uid == 0 && gid == 0 {
		_ = unix.Removexattr(file, attr)
		return
	}
	_ = unix.Setxattr(file, attr, fmt.Appendf(nil, "%d:%d", uid, gid), 0)
}
