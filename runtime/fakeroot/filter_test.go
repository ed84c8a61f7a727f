package fakeroot

import (
	"errors"
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/testdata/helpers/testenv"
)

// call makes a system call on this thread.
func call(nr uint32, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, e := unix.RawSyscall6(uintptr(nr), a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return r, e
	}
	return r, nil
}

// TestFilter checks that each call that the filter covers succeeds and does nothing, whatever
// its arguments.
func TestFilter(t *testing.T) {
	if !testenv.Alone(t, nil) {
		return
	}
	goruntime.LockOSThread() // permanently: the filter stays on this thread
	testenv.Check(t, unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	ids := func() (id [6]uint32) {
		unix.RawSyscall(unix.SYS_GETRESUID, uintptr(unsafe.Pointer(&id[0])), uintptr(unsafe.Pointer(&id[1])), uintptr(unsafe.Pointer(&id[2])))
		unix.RawSyscall(unix.SYS_GETRESGID, uintptr(unsafe.Pointer(&id[3])), uintptr(unsafe.Pointer(&id[4])), uintptr(unsafe.Pointer(&id[5])))
		return id
	}
	before := ids()
	if _, err := call(unix.SYS_FCHOWN, ^uintptr(0)); !errors.Is(err, unix.EBADF) {
		t.Fatalf("fchown(-1) before the filter is installed: %v; want EBADF", err)
	}
	testenv.Check(t, fakeOwnership(buildFilter(forgetCalls, 0, ^uint64(0))))
	const invalid = 0x7ffffff0
	nrs := []uint32{unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
		unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET, unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR}
	for _, c := range fileCalls {
		if c.action == changeOwner {
			nrs = append(nrs, c.nr)
		}
	}
	for _, nr := range nrs {
		if r, err := call(nr, invalid, invalid, invalid, invalid, invalid); r != 0 || err != nil {
			t.Errorf("call %d returns %d, %v; want 0", nr, r, err)
		}
	}
	if after := ids(); after != before {
		t.Errorf("the IDs have changed to %v; want %v", after, before)
	}
	dir := t.TempDir()
	for _, m := range mknods {
		for _, k := range []struct {
			kind    uintptr
			created bool
		}{{unix.S_IFCHR, false}, {unix.S_IFBLK, false}, {unix.S_IFIFO, true}, {unix.S_IFREG, true}, {0, true}, {unix.S_IFSOCK, true}} {
			p := filepath.Join(dir, "node")
			name, err := unix.BytePtrFromString(p)
			testenv.Check(t, err)
			args := []uintptr{^uintptr(99), uintptr(unsafe.Pointer(name)), k.kind | 0o644, 1<<8 | 3}
			if _, err := call(m.nr, args[2-m.mode:]...); err != nil {
				t.Errorf("call %d of kind %o: %v", m.nr, k.kind, err)
			}
			if _, err := os.Lstat(p); (err == nil) != k.created {
				t.Errorf("call %d of kind %o created a file: %v; want %v", m.nr, k.kind, err == nil, k.created)
			}
			os.Remove(p)
		}
	}
	// All other calls go to the kernel.
	if _, err := call(unix.SYS_FCHMOD, ^uintptr(0)); !errors.Is(err, unix.EBADF) {
		t.Errorf("fchmod(-1): %v; want EBADF", err)
	}
	if r, err := call(unix.SYS_GETPID); int(r) != os.Getpid() || err != nil {
		t.Errorf("getpid returns %d, %v; want %d", r, err, os.Getpid())
	}
}
