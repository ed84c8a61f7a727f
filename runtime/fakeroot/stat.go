package fakeroot

import (
	"path"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// Programs see the owner and mode that a file has in the image. The filter cannot read paths,
// so it reports every call of a kind, and a report costs ten times as much as stat(2) itself.
// It therefore always reports lstat(2) and its like, by which most programs that show owners
// read them, but stat(2) and fstat(2), which Python's imports, the dynamic linker and dpkg call
// for other reasons, only with [readAllStat].
//
// The kernel answers for files without notes, for errors, and for procfs.

// lowDescriptors is the number of descriptors for which the kernel always answers fstat(2): the
// standard streams, and the one that the dynamic linker uses for each library.
const lowDescriptors = 4

// shownByStatx are the fields of statx(2) in which an image differs from the disk.
const shownByStatx = unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID

// syncType is AT_STATX_SYNC_TYPE, the flags of statx(2) for network file systems.
const syncType = unix.AT_STATX_FORCE_SYNC | unix.AT_STATX_DONT_SYNC

// statFilter returns the comparisons for calls that read a file's status. The call's number is
// loaded; each comparison that does not match keeps it.
func statFilter(reads Reads) []unix.SockFilter {
	const (
		load    = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal   = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		atLeast = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		anyOf   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret     = unix.BPF_RET | unix.BPF_K
		allow   = unix.SECCOMP_RET_ALLOW
		notify  = unix.SECCOMP_RET_USER_NOTIF
	)
	const (
		statFlags  = offArg + 8*3 // of newfstatat
		statxFlags = offArg + 8*2
		statxMask  = offArg + 8*3
	)
	links := []unix.SockFilter{
		{Code: equal, K: unix.SYS_NEWFSTATAT, Jf: 4},
		{Code: load, K: statFlags},
		{Code: anyOf, K: unix.AT_SYMLINK_NOFOLLOW, Jf: 1},
		{Code: ret, K: notify},
		{Code: ret, K: allow},

		{Code: equal, K: unix.SYS_STATX, Jf: 6},
		{Code: load, K: statxFlags},
		{Code: anyOf, K: unix.AT_SYMLINK_NOFOLLOW, Jf: 3},
		{Code: load, K: statxMask},
		{Code: anyOf, K: shownByStatx, Jf: 1},
		{Code: ret, K: notify},
		{Code: ret, K: allow},
	}
	everything := []unix.SockFilter{
		{Code: equal, K: unix.SYS_NEWFSTATAT, Jf: 6},
		{Code: load, K: statFlags},
		{Code: anyOf, K: unix.AT_EMPTY_PATH, Jf: 2},
		{Code: load, K: offArg},
		{Code: atLeast, K: lowDescriptors, Jf: 1},
		{Code: ret, K: notify},
		{Code: ret, K: allow},

		{Code: equal, K: unix.SYS_FSTAT, Jf: 4},
		{Code: load, K: offArg},
		{Code: atLeast, K: lowDescriptors, Jf: 1},
		{Code: ret, K: notify},
		{Code: ret, K: allow},

		{Code: equal, K: unix.SYS_STATX, Jf: 4},
		{Code: load, K: statxMask},
		{Code: anyOf, K: shownByStatx, Jf: 1},
		{Code: ret, K: notify},
		{Code: ret, K: allow},
	}
	p := links
	if reads&readAllStat != 0 {
		p = everything
	}
	for _, c := range olderCalls {
		if c.action == statFile && (c.link || reads&readAllStat != 0) {
			p = append(p, unix.SockFilter{Code: equal, K: c.nr, Jf: 1}, unix.SockFilter{Code: ret, K: notify})
		}
	}
	return p
}

// overflowID is the ID by which the kernel shows owners that the namespace lacks. In the image
// such files, which come from the host, belong to root.
const overflowID = 65534

// stat answers a call that reads a file's status, unless the kernel's answer is right.
func (n *request) stat(c fileCall, stillWaits func() bool, notes *Notes) (int, error) {
	var flags uint64
	if c.flags != none {
		flags = n.args[c.flags]
	}
	dir, file, follow := unix.AT_FDCWD, "", !c.link && flags&unix.AT_SYMLINK_NOFOLLOW == 0
	if c.dir != none {
		dir = int(int32(n.args[c.dir]))
	}
	if c.file != none {
		var err error
		if file, err = n.text(n.args[c.file]); err != nil || (file == "" && flags&unix.AT_EMPTY_PATH == 0) {
			return 0, errKernel
		}
	}
	dir, file = belowDescriptor(dir, file)
	if strings.HasPrefix(file, "/proc/") {
		return 0, errKernel // its links depend on the process that follows them
	}
	var st unix.Stat_t
	if file == "" { // the kernel follows the descriptor's link without opening the file
		if unix.Stat(n.directory(dir), &st) != nil || n.seen.plain(&st) {
			return 0, errKernel
		}
	}
	fd, err := n.openQuickly(dir, file, follow)
	if err != nil {
		return 0, errKernel
	}
	defer unix.Close(fd)
	if unix.Fstat(fd, &st) != nil || n.seen.plain(&st) {
		return 0, errKernel
	}
	before := st
	if st.Uid == overflowID {
		st.Uid = 0
	}
	if st.Gid == overflowID {
		st.Gid = 0
	}
	if err := n.corrected(fd, notes, &st); err != nil {
		return 0, errKernel
	}
	if st == before {
		n.seen.remember(&st)
		return 0, errKernel
	}
	if !stillWaits() {
		return 0, errKernel
	}
	rest := n.args[c.rest:]
	if c.action == statFile {
		_, err := n.writeResult(unsafe.Slice((*byte)(unsafe.Pointer(&st)), unsafe.Sizeof(st)), rest[0], uint64(unsafe.Sizeof(st)))
		return 0, err
	}
	var stx unix.Statx_t
	if err := unix.Statx(fd, "", int(flags&syncType)|unix.AT_EMPTY_PATH, int(uint32(rest[0])), &stx); err != nil {
		return 0, errKernel
	}
	stx.Uid, stx.Gid, stx.Mode = st.Uid, st.Gid, uint16(st.Mode)
	_, err = n.writeResult(unsafe.Slice((*byte)(unsafe.Pointer(&stx)), unsafe.Sizeof(stx)), rest[1], uint64(unsafe.Sizeof(stx)))
	return 0, err
}

// corrected applies the notes to the status of an open file.
func (n *request) corrected(fd int, notes *Notes, st *unix.Stat_t) error {
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFLNK && kind != unix.S_IFIFO {
		notes.Stat(rawfile.Path(fd), "", st)
		return nil
	}
	file, err := n.nameOf(fd)
	if err != nil || !path.IsAbs(file) {
		return nil // a pipe
	}
	dir, err := n.open(unix.AT_FDCWD, path.Dir(file), true)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	notes.Stat(rawfile.Path(dir), path.Base(file), st)
	return nil
}

// openQuickly opens a file like open. A path that does not leave its directory needs neither
// the program's root nor the directory's name.
func (n *request) openQuickly(dir int, file string, follow bool) (int, error) {
	if file == "" || path.IsAbs(file) {
		return n.open(dir, file, follow)
	}
	at, err := unix.Open(n.directory(dir), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	if !follow {
		how.Flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Openat2(at, file, &how)
	if err == unix.EXDEV || err == unix.EAGAIN || err == unix.ENOSYS {
		return n.open(dir, file, follow)
	}
	return fd, err
}

// seen is what the parent knows of the files and processes of a program. One goroutine uses it.
type seen struct {
	root   int                      // the program's root (O_PATH); -1: unknown or not the only one
	moved  bool                     // a process has changed its root
	all    bool                     // the program also sees owners by stat(2) and fstat(2)
	files  map[fileID]unix.Timespec // files for which the kernel's answer is right, with their ctime
	raised map[string]bool          // processes that are root by a set-user-ID bit
}

type fileID struct{ dev, ino uint64 }

// maxSeen limits the number of files in seen.
const maxSeen = 1 << 16

func newSeen(all bool) *seen {
	return &seen{root: -1, all: all, files: map[fileID]unix.Timespec{}, raised: map[string]bool{}}
}

func (s *seen) close() {
	if s.root >= 0 {
		unix.Close(s.root)
	}
}

// forgetRoot notes that processes no longer have the same root.
func (s *seen) forgetRoot() {
	s.close()
	s.root, s.moved = -1, true
}

// root returns a descriptor (O_PATH) of the program's root.
func (n *request) root() (fd int, done func(), err error) {
	s := n.seen
	if s != nil && s.root >= 0 {
		return s.root, func() {}, nil
	}
	fd, err = unix.Open(n.proc("root"), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, nil, err
	}
	if s != nil && !s.moved {
		s.root = fd
		return fd, func() {}, nil
	}
	return fd, func() { unix.Close(fd) }, nil
}

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), st.Ino} }

// plain reports whether the kernel's answer about a file was right before, and the file has not
// changed since. Notes change through requests only, which call forget.
func (s *seen) plain(st *unix.Stat_t) bool {
	ctime, ok := s.files[idOf(st)]
	return ok && ctime == st.Ctim
}

func (s *seen) remember(st *unix.Stat_t) {
	kind := st.Mode & unix.S_IFMT
	if kind == unix.S_IFLNK || kind == unix.S_IFIFO {
		return // their directory has the notes
	}
	if len(s.files) >= maxSeen {
		clear(s.files)
	}
	s.files[idOf(st)] = st.Ctim
}

// forget forgets a file of which a request is carried out.
func (s *seen) forget(t target) {
	var st unix.Stat_t
	if s != nil && unix.Fstat(t.fd, &st) == nil {
		delete(s.files, idOf(&st))
	}
}
