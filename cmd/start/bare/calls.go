package bare

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call makes a system call. The stack must not move under what it points to.
//
//go:nosplit
func call(nr, a, b, c, d, e uintptr) (uintptr, syscall.Errno) {
	r, _, errno := syscall.RawSyscall6(nr, a, b, c, d, e, 0)
	return r, errno
}

// openAt opens what lies at path below dir, AT_FDCWD being the current directory.
func openAt(dir int, path zstring, flags, mode uintptr) (int, syscall.Errno) {
	fd, e := call(unix.SYS_OPENAT, uintptr(dir), path.at(), flags|unix.O_CLOEXEC, mode, 0)
	return int(fd), e
}

// openBelow opens (O_PATH, or flags) path inside the directory dir, which no
// link leads out of; with unix.RESOLVE_NO_SYMLINKS it has none (openat2(2)).
func openBelow(dir int, path zstring, flags, resolve uint64) (int, syscall.Errno) {
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | resolve}
	fd, e := call(unix.SYS_OPENAT2, uintptr(dir), path.at(), uintptr(unsafe.Pointer(&how)), unix.SizeofOpenHow, 0)
	return int(fd), e
}

func closeFD(fd int) { call(unix.SYS_CLOSE, uintptr(fd), 0, 0, 0, 0) }

// read fills b from fd. It fails where there is more.
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

// write writes a small file in one call.
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

// atCWD is unix.AT_FDCWD as a variable: a negative constant does not convert.
var atCWD = unix.AT_FDCWD

// kind is what lies at path below dir (S_IFMT of its mode); 0: nothing that
// could be looked at.
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

// mountAt mounts source at the directory or file target.
func mountAt(source, target, fstype zstring, flags uintptr, data zstring) bool {
	_, e := call(unix.SYS_MOUNT, source.at(), target.at(), fstype.at(), flags, data.at())
	return e == 0
}

func unmount(target zstring) bool {
	_, e := call(unix.SYS_UMOUNT2, target.at(), unix.MNT_DETACH, 0, 0, 0)
	return e == 0
}
