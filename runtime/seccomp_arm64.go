package runtime

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// Calls that change an owner; this architecture has only the newer ones.
const (
	sysFchown   = unix.SYS_FCHOWN
	sysFchownat = unix.SYS_FCHOWNAT
	sysLchown   = ^uint32(0)
)

var owners = []uint32{sysFchown, sysFchownat}

var faked = []uint32{
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
	unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR,
}

var mknods = []mknod{{unix.SYS_MKNODAT, 2}}
