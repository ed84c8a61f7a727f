package fakeroot

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A user namespace without setuid helpers has a single ID, so every change of ownership or identity
// would fail, and package managers with it. The filter makes such calls succeed without
// effect. mknod is faked only for devices; FIFOs, sockets and files are created. A filter
// cannot read the name of an extended attribute, which is a pointer. It therefore fakes
// setting any attribute: file capabilities and ACLs have no meaning with one ID. Requests on
// files are recorded if the kernel can report them (owners.go).

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

// waitKillable is SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (Linux 5.19): a call that was received
// is not interrupted by signals, so that it is not made twice.
const waitKillable = 1 << 5

// kernelContinues reports whether an answer can leave a call to the kernel (Linux 5.5).
func kernelContinues() bool {
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return false
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || (major == 5 && minor >= 5)
}

// installListener installs a filter whose notifications arrive at fd. The process that holds
// fd answers them.
func installListener(p []unix.SockFilter) (fd int, err error) {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	install := func(flags uintptr) (uintptr, unix.Errno) {
		r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
			unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|flags, uintptr(unsafe.Pointer(&prog)))
		return r, errno
	}
	r, errno := install(waitKillable)
	if errno == unix.EINVAL {
		r, errno = install(0)
	}
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}

// Actions of a filter for calls on files.
const (
	forgetCalls = unix.SECCOMP_RET_ERRNO      // they succeed and are forgotten
	notifyCalls = unix.SECCOMP_RET_USER_NOTIF // the parent answers them
	traceCalls  = unix.SECCOMP_RET_TRACE      // a tracer answers them
)

// Reads are the calls which read metadata that the parent answers instead of the kernel.
type Reads int

const (
	readAttrs   Reads = 1 << iota // extended attributes
	readStat                      // lstat(2) and its variants; never by tracing
	readAllStat                   // stat(2) and fstat(2) as well
	readGroups                    // getgroups(2); never by tracing
	readIDs                       // getuid(2) and its variants; never by tracing
)

// Reads returns the calls that n answers.
func (n *Notes) Reads() Reads {
	var r Reads
	if n.GetAttr != nil {
		r |= readAttrs
	}
	if n.Stat != nil {
		r |= readStat
		if n.AllStat {
			r |= readAllStat
		}
	}
	if n.User != nil {
		r |= readGroups
		if !n.User.isRoot() {
			r |= readIDs
		}
	}
	return r
}

// faked are calls that succeed without effect, each with the capability that root needs for it.
var faked = []struct{ nr, capability uint32 }{
	{unix.SYS_SETUID, unix.CAP_SETUID}, {unix.SYS_SETREUID, unix.CAP_SETUID}, {unix.SYS_SETRESUID, unix.CAP_SETUID},
	{unix.SYS_SETFSUID, unix.CAP_SETUID},
	{unix.SYS_SETGID, unix.CAP_SETGID}, {unix.SYS_SETREGID, unix.CAP_SETGID}, {unix.SYS_SETRESGID, unix.CAP_SETGID},
	{unix.SYS_SETFSGID, unix.CAP_SETGID},
	{unix.SYS_SETGROUPS, unix.CAP_SETGID}, {unix.SYS_CAPSET, unix.CAP_SETPCAP},
}

// buildFilter builds the filter: a list of comparisons, each followed by its verdict. Calls
// that match none are allowed, and so are those that need a capability which is not in capabilities.
// verdict is the action for calls on files. Calls that read metadata are allowed, except those in
// reads.
func buildFilter(verdict uint32, reads Reads, capabilities uint64) []unix.SockFilter {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		and   = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		allow = unix.SECCOMP_RET_ALLOW
		fake  = unix.SECCOMP_RET_ERRNO // errno 0: success, value 0
	)
	has := func(capability uint32) bool { return capabilities&(1<<capability) != 0 }
	p := []unix.SockFilter{
		{Code: load, K: offArch},
		{Code: equal, K: auditArch, Jt: 1},
		{Code: ret, K: allow},
		{Code: load, K: offNr},
	}
	if verdict == notifyCalls && reads&readStat != 0 {
		p = append(p, statFilter(reads)...) // first, because they are frequent
	}
	for _, c := range fileCalls {
		if (c.action == changeOwner && !has(unix.CAP_CHOWN)) || (c.action == setAttr && !has(unix.CAP_SETFCAP)) {
			continue
		}
		isStat := c.action == statFile || c.action == statxFile
		if c.action == moveRoot && (verdict != notifyCalls || reads&readStat == 0) {
			continue
		}
		isAttr := c.action == getAttr || c.action == listAttr
		if isStat || (isAttr && reads&readAttrs == 0) || (verdict == forgetCalls && (c.action == changeMode || c.action == removeAttr)) {
			continue // the kernel itself can perform these calls, which are not recorded
		}
		p = append(p, unix.SockFilter{Code: equal, K: c.nr, Jf: 1}, unix.SockFilter{Code: ret, K: verdict})
	}
	if verdict == notifyCalls {
		var ids []uint32
		if reads&readGroups != 0 {
			ids = append(ids, unix.SYS_GETGROUPS)
		}
		if reads&readIDs != 0 {
			ids = append(ids, idCalls...)
		}
		for _, nr := range ids {
			p = append(p, unix.SockFilter{Code: equal, K: nr, Jf: 1}, unix.SockFilter{Code: ret, K: verdict})
		}
	}
	for _, c := range faked {
		if has(c.capability) {
			p = append(p, unix.SockFilter{Code: equal, K: c.nr, Jf: 1}, unix.SockFilter{Code: ret, K: fake})
		}
	}
	for _, m := range mknods {
		if !has(unix.CAP_MKNOD) {
			break
		}
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

// mknod is a call that creates files of all kinds. mode is the index of the argument that
// contains the kind.
type mknod struct{ nr, mode uint32 }

// Try installs the filter on this thread, without and with a listener, to find out what the
// host allows. step is the step that failed: "tracing" if only listeners fail, so that
// programs must be traced, or "listening" if tracing does not work either.
func Try() (step string, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "setting no_new_privs", err
	}
	if err := load(buildFilter(forgetCalls, 0, ^uint64(0))); err != nil {
		return "installing a filter", err
	}
	if _, err := installListener(buildFilter(forgetCalls, 0, ^uint64(0))); err != nil {
		if canTrace() {
			return "tracing", err
		}
		return "listening", err
	}
	return "", nil
}
