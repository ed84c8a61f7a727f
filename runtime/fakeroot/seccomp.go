package fakeroot

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// One id is all that a user namespace without helpers has, so every change of
// ownership or identity would fail and package managers with it. The filter
// answers such calls with success and does nothing. mknod is answered only for
// devices; FIFOs, sockets and files are made. Extended attributes cannot be
// told apart by a filter (the name is a pointer), so setting any is answered:
// file capabilities and ACLs have no meaning under one id. What is asked of
// files is noted where the kernel can tell us of it (owners.go).
//
// Programs of another word size or architecture are let through unfiltered.

// Offsets in struct seccomp_data, <linux/seccomp.h>.
const (
	offNr   = 0
	offArch = 4
	offArg  = 16 // args[0]; 8 bytes each, low word first on little-endian machines
)

// fakeOwnership installs a filter on the calling thread.
func fakeOwnership(filter []unix.SockFilter) error {
	if err := load(filter); err != nil {
		return fmt.Errorf("installing the filter that fakes ownership: %w", err)
	}
	return nil
}

func load(p []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

// installListener installs a filter that asks; who has fd answers.
func installListener(p []unix.SockFilter) (fd int, err error) {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// What a filter does with calls that ask something of files.
const (
	forgetCalls = unix.SECCOMP_RET_ERRNO      // they succeed, and are forgotten
	notifyCalls = unix.SECCOMP_RET_USER_NOTIF // the parent answers them
	traceCalls  = unix.SECCOMP_RET_TRACE      // a tracer does
)

// program writes the filter: a list of comparisons, each of which falls
// through to the next, with both answers at the end. verdict is what it does with
// calls that ask something of files; those that read extended attributes are let
// through without attrs.
func program(verdict uint32, attrs bool) []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		and   = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		allow = unix.SECCOMP_RET_ALLOW
		fake  = unix.SECCOMP_RET_ERRNO // errno 0: success, value 0
	)
	p := []unix.SockFilter{
		{Code: load, K: offArch},
		{Code: equal, K: auditArch, Jt: 1},
		{Code: ret, K: allow},
		{Code: load, K: offNr},
	}
	for _, c := range fileCalls {
		reads := c.does == getAttr || c.does == listAttr
		if (reads && !attrs) || (verdict == forgetCalls && (c.does == changeMode || c.does == removeAttr)) {
			continue // the kernel can do what is not noted
		}
		p = append(p, unix.SockFilter{Code: equal, K: c.nr, Jf: 1}, unix.SockFilter{Code: ret, K: verdict})
	}
	for _, nr := range faked {
		p = append(p, unix.SockFilter{Code: equal, K: nr, Jf: 1}, unix.SockFilter{Code: ret, K: fake})
	}
	for _, m := range mknods {
		p = append(p,
			unix.SockFilter{Code: equal, K: m.nr, Jf: 6},
			unix.SockFilter{Code: load, K: offArg + 8*m.mode},
			unix.SockFilter{Code: and, K: unix.S_IFMT},
			unix.SockFilter{Code: equal, K: unix.S_IFCHR, Jt: 2},
			unix.SockFilter{Code: equal, K: unix.S_IFBLK, Jt: 1},
			unix.SockFilter{Code: ret, K: allow},
			unix.SockFilter{Code: ret, K: fake},
		)
	}
	return append(p, unix.SockFilter{Code: ret, K: allow})
}

// mknod is a call that makes files of all kinds; mode is the index of the
// argument that holds the kind.
type mknod struct{ nr, mode uint32 }

// Try installs the filter on this thread, without and with a listener, to find out what the
// host allows. It returns the step that failed: "tracing" if a program can only be traced
// instead of listening to it, "listening" if it can be neither.
func Try() (in string, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "giving up privileges", err
	}
	if err := load(program(forgetCalls, false)); err != nil {
		return "installing a filter", err
	}
	if _, err := installListener(program(forgetCalls, false)); err != nil {
		if canTrace() {
			return "tracing", err
		}
		return "listening", err
	}
	return "", nil
}
