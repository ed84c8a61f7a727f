package runtime

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_PPC64LE

// Calls that change an owner.
const (
	sysFchown   = unix.SYS_FCHOWN
	sysFchownat = unix.SYS_FCHOWNAT
	sysLchown   = unix.SYS_LCHOWN
)

var owners = []uint32{unix.SYS_CHOWN, sysFchown, sysLchown, sysFchownat}

var faked = []uint32{
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
	unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET,
	unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR,
}

var mknods = []mknod{{unix.SYS_MKNOD, 1}, {unix.SYS_MKNODAT, 2}}
