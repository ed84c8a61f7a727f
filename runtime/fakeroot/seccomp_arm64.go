package fakeroot

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

var olderCalls []fileCall // arm64 has only the calls with a directory descriptor

// faked are calls that succeed without effect.
var faked = []uint32{
	unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETREUID, unix.SYS_SETREGID, unix.SYS_SETRESUID, unix.SYS_SETRESGID,
	unix.SYS_SETFSUID, unix.SYS_SETFSGID, unix.SYS_SETGROUPS, unix.SYS_CAPSET,
}

var mknods = []mknod{{unix.SYS_MKNODAT, 2}}
