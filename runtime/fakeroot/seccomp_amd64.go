package fakeroot

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// olderCalls take a path without a directory descriptor.
var olderCalls = []fileCall{
	{unix.SYS_CHOWN, changeOwner, none, 0, 1, none, false},
	{unix.SYS_LCHOWN, changeOwner, none, 0, 1, none, true},
	{unix.SYS_CHMOD, changeMode, none, 0, 1, none, false},
	{unix.SYS_STAT, statFile, none, 0, 1, none, false},
	{unix.SYS_LSTAT, statFile, none, 0, 1, none, true},
}

var mknods = []mknod{{unix.SYS_MKNOD, 1}, {unix.SYS_MKNODAT, 2}}
