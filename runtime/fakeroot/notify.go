package fakeroot

import (
	"bytes"
	"errors"
	"os"
	"path"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

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

// Requests of seccomp_unotify(2): _IOWR('!', 0, …), _IOWR('!', 1, …) and
// _IOW('!', 2, …).
const (
	notifRecv    = 0xc0502100
	notifSend    = 0xc0182101
	notifIDValid = 0x40082102
)

// listenerFD is the descriptor of the socket over which a child of Command sends the
// filter's descriptor.
const listenerFD = 4

// sendListener sends the filter's descriptor to the parent. method is how the calls are reported.
func sendListener(fd int, method byte) error {
	defer unix.Close(fd)
	defer unix.Close(listenerFD)
	return unix.Sendmsg(listenerFD, []byte{method}, unix.UnixRights(fd), nil, 0)
}

// First byte of the message in which a child reports its method. byListener, byStat and
// byAllStat come with the filter's descriptor.
const (
	byListener = 'l' // seccomp_unotify(2) reports the calls
	byStat     = 's' // as byListener; also lstat(2)
	byAllStat  = 'a' // as byStat; also stat(2) and fstat(2)
	byTracer   = 't' // the child traces the program and sends its calls
	byNobody   = 'n' // the host does not allow either; the calls are forgotten
)

// AnswerCalls answers a program's calls until the program has ended.
func AnswerCalls(socket *os.File, notes *Notes) {
	defer socket.Close()
	m, ok := receive(socket, 1)
	switch {
	case !ok:
		return // the child ended before the program started
	case m.data[0] == byTracer:
		answerTracer(socket, notes)
		return
	case m.data[0] == byNobody || m.fd < 0:
		if notes.Lost != nil {
			notes.Lost()
		}
		return
	}
	listener := m.fd
	defer unix.Close(listener)
	c := &request{}
	if m.data[0] != byListener {
		c.seen = newSeen(m.data[0] == byAllStat)
		defer c.seen.close()
	}
	for {
		p := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); (err != nil && !errors.Is(err, unix.EINTR)) || (p[0].Revents&unix.POLLIN == 0 && p[0].Revents != 0) {
			return
		}
		if p[0].Revents&unix.POLLIN != 0 {
			answerOne(listener, c, notes)
		}
	}
}

// A childMessage is a message from a child.
type childMessage struct {
	data []byte
	fd   int    // descriptor passed with the message; -1 if absent
	pid  uint32 // the process that made the call, as a pid of this namespace
}

// receive waits for a message of size bytes. ok is false if the child ended.
func receive(socket *os.File, size int) (childMessage, bool) {
	m := childMessage{data: make([]byte, size), fd: -1}
	raw, err := socket.SyscallConn()
	if err != nil {
		return m, false
	}
	oob := make([]byte, unix.CmsgSpace(4)+unix.CmsgSpace(unix.SizeofUcred))
	got := 0
	_ = raw.Read(func(s uintptr) bool {
		n, k, _, _, err := unix.Recvmsg(int(s), m.data, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EAGAIN) {
			return false
		}
		if got = n; err != nil {
			got = 0
		}
		msgs, _ := unix.ParseSocketControlMessage(oob[:max(k, 0)])
		for _, c := range msgs {
			if fds, err := unix.ParseUnixRights(&c); err == nil && len(fds) == 1 {
				m.fd = fds[0]
			}
			if cred, err := unix.ParseUnixCredentials(&c); err == nil {
				m.pid = uint32(cred.Pid)
			}
		}
		return true
	})
	return m, got == size
}

// letKernel is SECCOMP_USER_NOTIF_FLAG_CONTINUE (Linux 5.5): the kernel carries out the call.
const letKernel = 1

// answerOne receives one call, performs it and answers it. c is scratch memory.
func answerOne(listener int, c *request, notes *Notes) {
	n := notification{}
	if _, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(listener), notifRecv, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return // the program was killed meanwhile
	}
	a := answer{id: n.id}
	c.pid, c.nr, c.args = n.pid, n.nr, n.args
	var errno unix.Errno
	value, err := c.perform(func() bool { return n.stillWaits(listener) }, notes)
	switch a.val = int64(value); {
	case err == errKernel:
		a.val, a.flags = 0, letKernel
	case errors.As(err, &errno):
		a.val, a.errno = 0, -int32(errno)
	}
	unix.RawSyscall(unix.SYS_IOCTL, uintptr(listener), notifSend, uintptr(unsafe.Pointer(&a)))
}

// stillWaits reports whether the program still waits for its answer. Call it after opening a
// file in /proc/PID, to make sure that the pid still belongs to the program.
func (n *notification) stillWaits(listener int) bool {
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(listener), notifIDValid, uintptr(unsafe.Pointer(&n.id)))
	return errno == 0
}

// read reads the program's memory.
func (n *request) read(at uint64, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return unix.ProcessVMReadv(int(n.pid), []unix.Iovec{v}, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
}

// text reads a zero-terminated string from the program's memory.
func (n *request) text(at uint64) (string, error) {
	b := n.scratch[:]
	for got := 0; got < len(b); { // page by page, because the next page may not be mapped
		want := min(len(b)-got, 4096-int((at+uint64(got))%4096))
		if got == 0 {
			want = min(want, 256) // most paths are short
		}
		k, err := n.read(at+uint64(got), b[got:got+want])
		if err != nil {
			return "", unix.EFAULT
		}
		if i := bytes.IndexByte(b[got:got+k], 0); i >= 0 {
			return string(b[:got+i]), nil
		}
		got += k
	}
	return "", unix.ENAMETOOLONG
}

// directory returns a path to a descriptor of the program, or to its working directory for
// AT_FDCWD.
func (n *request) directory(dir int) string {
	if dir == unix.AT_FDCWD {
		return n.proc("cwd")
	}
	return n.proc("fd/" + strconv.Itoa(dir))
}

// open opens (O_PATH) the file that the program refers to by a path, which is resolved in the
// program's root. dir is a descriptor of the program or AT_FDCWD.
func (n *request) open(dir int, file string, follow bool) (int, error) {
	from := n.directory(dir)
	if file == "" {
		fd, err := unix.Open(from, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			err = unix.EBADF
		}
		return fd, err
	}
	if !path.IsAbs(file) {
		at, err := os.Readlink(from)
		if err != nil || !strings.HasPrefix(at, "/") {
			return -1, unix.EBADF
		}
		// Both links start at this process's root. The program may be in a chroot(2) below it.
		top, err := os.Readlink(n.proc("root"))
		if err != nil {
			return -1, err
		}
		file = strings.TrimPrefix(at, strings.TrimSuffix(top, "/")) + "/" + file
	}
	root, closeRoot, err := n.root()
	if err != nil {
		return -1, err
	}
	defer closeRoot()
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if !follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Openat2(root, file, &how)
	if errors.Is(err, unix.ENOSYS) { // before Linux 5.6
		return openInRoot(root, file, follow)
	}
	return fd, err
}

// openInRoot opens (O_PATH) a file below an open directory, like openat2(2) with
// RESOLVE_IN_ROOT. It opens one path element at a time, so that no link leads out.
func openInRoot(root int, file string, follow bool) (int, error) {
	open := []int{} // the directories from the root down to the current one
	defer func() { closeAll(open) }()
	top := func() int {
		if len(open) == 0 {
			return root
		}
		return open[len(open)-1]
	}
	todo, links := rawfile.Split(file), 0
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if name == ".." {
			if len(open) > 0 {
				unix.Close(top())
				open = open[:len(open)-1]
			}
			continue
		}
		fd, err := unix.Openat(top(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		open = append(open, fd)
		target, isLink, err := rawfile.ReadLink(fd)
		if err != nil {
			return -1, err
		}
		if !isLink || (len(todo) == 0 && !follow) {
			continue
		}
		if links++; links > rawfile.MaxLinks {
			return -1, unix.ELOOP
		}
		unix.Close(fd)
		open = open[:len(open)-1]
		if path.IsAbs(target) {
			closeAll(open)
			open = open[:0]
		}
		todo = append(rawfile.Split(target), todo...)
	}
	return rawfile.Dup(top())
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
