// Command lacks runs a program as if the kernel or the file system lacked some features:
//
//	lacks xattr,notify,ptrace hpcc build .
//
// xattr: no file system has extended attributes (NFS before 4.2, tmpfs before
// Linux 6.6). notify: the kernel lacks seccomp user notification, openat2(2),
// mount_setattr(2) or clone3(2), as on Linux 4.18. ptrace: ptrace(2) is forbidden. It needs no privileges.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

// Numbers of system calls, by architecture: those of extended attributes (set,
// get, list and remove, each for files, links and descriptors), seccomp, ptrace.
var (
	xattrs  = map[string][]uint32{"amd64": upTo(188, 12), "arm64": upTo(5, 12), "ppc64le": upTo(209, 12)}
	seccomp = map[string]uint32{"amd64": 317, "arm64": 277, "ppc64le": 358}
	ptrace  = map[string]uint32{"amd64": 101, "arm64": 117, "ppc64le": 26}
)

// Numbers of system calls that are the same everywhere.
var newer = []uint32{435 /* clone3 */, 437 /* openat2 */, 442 /* mount_setattr */, 463, 464, 465, 466 /* setxattrat and the like */}

func upTo(first uint32, n int) (all []uint32) {
	for i := range n {
		all = append(all, first+uint32(i))
	}
	return all
}

// An instruction of a filter, <linux/filter.h>.
type instruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

const (
	load  = 0x20 // a word of struct seccomp_data
	equal = 0x15
	bits  = 0x45
	ret   = 0x06

	allow = 0x7fff0000
	fail  = 0x00050000 // with an errno

	newListener = 8 // SECCOMP_FILTER_FLAG_NEW_LISTENER
)

func filter(lacks []string) ([]instruction, error) {
	p := []instruction{{load, 0, 0, 0}}
	refuse := func(err syscall.Errno, numbers ...uint32) {
		for _, nr := range numbers {
			p = append(p, instruction{equal, 0, 1, nr}, instruction{ret, 0, 0, fail | uint32(err)})
		}
	}
	for _, l := range lacks {
		switch l {
		case "xattr":
			refuse(syscall.EOPNOTSUPP, xattrs[runtime.GOARCH]...)
			refuse(syscall.ENOSYS, newer[2:]...)
		case "ptrace":
			refuse(syscall.EPERM, ptrace[runtime.GOARCH])
		case "notify":
			refuse(syscall.ENOSYS, newer...)
			p = append(p, instruction{equal, 0, 4, seccomp[runtime.GOARCH]}, instruction{load, 0, 0, 24}, instruction{bits, 0, 1, newListener},
				instruction{ret, 0, 0, fail | uint32(syscall.EINVAL)}, instruction{load, 0, 0, 0})
		default:
			return nil, fmt.Errorf("unknown facility %q", l)
		}
	}
	return append(p, instruction{ret, 0, 0, allow}), nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "lacks:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) < 3 {
		return fmt.Errorf("usage: lacks xattr,notify,ptrace PROGRAM [ARG...]")
	}
	p, err := filter(strings.Split(os.Args[1], ","))
	if err != nil {
		return err
	}
	exe, err := exec.LookPath(os.Args[2])
	if err != nil {
		return err
	}
	program := struct {
		n uint16
		p *instruction
	}{uint16(len(p)), &p[0]}
	runtime.LockOSThread()
	const noNewPrivs, setSeccomp, filterMode = 38, 22, 2
	for _, args := range [][3]uintptr{{noNewPrivs, 1}, {setSeccomp, filterMode, uintptr(unsafe.Pointer(&program))}} {
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, args[0], args[1], args[2], 0, 0, 0); errno != 0 {
			return errno
		}
	}
	return syscall.Exec(exe, os.Args[2:], os.Environ())
}
