package bare

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call makes a system call. It is nosplit because arguments may point to the stack, which must not
// move.
//
//go:nosplit
func call(nr, a, b, c, d, e uintptr) (uintptr, syscall.Errno) {
	r, _, errno := syscall.RawSyscall6(nr, a, b, c, d, e, 0)
	return r, errno
}

// openAt opens path relative to the directory dir, or to the current directory for AT_FDCWD.
func openAt(dir int, path zstring, flags, mode uintptr) (int, syscall.Errno) {
	fd, e := call(unix.SYS_OPENAT, uintptr(dir), path.at(), flags|unix.O_CLOEXEC, mode, 0)
	return int(fd), e
}

// openBelow opens path inside the directory dir, which symbolic links cannot leave. resolve may
// add unix.RESOLVE_NO_SYMLINKS to refuse links (openat2(2)).
func openBelow(dir int, path zstring, flags, resolve uint64) (int, syscall.Errno) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | resolve}
	fd, e := call(unix.SYS_OPENAT2, uintptr(dir), path.at(), uintptr(unsafe.Pointer(&how)), unix.SizeofOpenHow, 0)
	return int(fd), e
}

func closeFD(fd int) { call(unix.SYS_CLOSE, uintptr(fd), 0, 0, 0, 0) }

// read reads fd to the end. It fails if the content does not fit into b with a byte to spare.
func read(fd int, b []byte) (data []byte, ok bool) {
	n := 0
	for n < len(b) {
		got, e := call(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[n])), uintptr(len(b)-n), 0, 0)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return nil, false
		}
		if got == 0 {
			return b[:n], true
		}
		n += int(got)
	}
	return nil, false
}

// write writes a small file with one system call.
func write(file zstring, data string, flags uintptr) bool {
	fd, e := openAt(unix.AT_FDCWD, file, unix.O_WRONLY|flags, 0o644)
	if e != 0 {
		return false
	}
	n, e := call(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.StringData(data))), uintptr(len(data)), 0, 0)
	closeFD(fd)
	return e == 0 && int(n) == len(data)
}

func access(path zstring, mode uintptr) bool {
	_, e := call(unix.SYS_FACCESSAT, uintptr(atCWD), path.at(), mode, 0, 0)
	return e == 0
}

// atCWD is unix.AT_FDCWD as a variable, because a negative constant does not convert to uintptr.
var atCWD = unix.AT_FDCWD

// kind returns the file type of path relative to dir (S_IFMT of its mode), or 0 on an error.
func kind(dir int, path zstring, flags uintptr) uint32 {
	mode, _ := modeOf(dir, path, flags)
	return mode & unix.S_IFMT
}

func modeOf(dir int, path zstring, flags uintptr) (uint32, syscall.Errno) {
	var st unix.Statx_t
	if _, e := call(unix.SYS_STATX, uintptr(dir), path.at(), flags, unix.STATX_TYPE|unix.STATX_MODE, uintptr(unsafe.Pointer(&st))); e != 0 {
		return 0, e
	}
	return uint32(st.Mode), 0
}

// device returns the number of the file system of fd, or 0 on an error.
func device(fd int) uint64 {
	var st unix.Statx_t
	if _, e := call(unix.SYS_STATX, uintptr(fd), emptyString.at(), unix.AT_EMPTY_PATH, unix.STATX_TYPE,
		uintptr(unsafe.Pointer(&st))); e != 0 {
		return 0
	}
	return uint64(st.Dev_major)<<32 | uint64(st.Dev_minor)
}

// mountAt mounts source at target, a directory or file.
func mountAt(source, target, fstype zstring, flags uintptr, data zstring) bool {
	_, e := call(unix.SYS_MOUNT, source.at(), target.at(), fstype.at(), flags, data.at())
	return e == 0
}

// setAttr changes the attributes of the mount of fd (mount_setattr(2)). flags may be
// unix.AT_RECURSIVE.
func setAttr(fd int, attr *unix.MountAttr, flags uintptr) bool {
	_, e := call(unix.SYS_MOUNT_SETATTR, uintptr(fd), emptyString.at(), unix.AT_EMPTY_PATH|flags,
		uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
	return e == 0
}

func unmount(target zstring) bool {
	_, e := call(unix.SYS_UMOUNT2, target.at(), unix.MNT_DETACH, 0, 0, 0)
	return e == 0
}
