// Command linux418 runs a program as if the kernel were Linux 4.18, which RHEL 8 has: system
// calls of newer kernels do not exist, and seccomp has no notification. It cannot
// hide that users can mount overlays (Linux 5.11).
//
//	linux418 COMMAND [ARG...]
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// since418 is the number of the first system call that was added after Linux 4.18. All
// architectures share the numbers from there on; those of Linux 4.18 are below 400.
const since418 = 403

// filter returns a filter that fails newer calls with ENOSYS, and a seccomp listener with EINVAL.
func filter() []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		ret  = unix.BPF_RET | unix.BPF_K
		// Offsets in struct seccomp_data: the number, and the low half of args[1].
		offNr, offFlags = 0, 24
	)
	return []unix.SockFilter{
		{Code: load, K: offNr},
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: since418, Jt: 4},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SECCOMP, Jf: 2},
		{Code: load, K: offFlags},
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, Jt: 2},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EINVAL)},
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: linux418 COMMAND [ARG...]")
	}
	exe, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	f := filter()
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	runtime.LockOSThread() // the filter applies to this thread, and exec keeps it
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return err
	}
	return syscall.Exec(exe, args, os.Environ())
}

func main() {
	err := run(os.Args[1:])
	fmt.Fprintf(os.Stderr, "linux418: %v\n", err)
	os.Exit(125)
}
