package fakeroot

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

var olderCalls []fileCall // arm64 has only the calls with a directory descriptor

var mknods = []mknod{{unix.SYS_MKNODAT, 2}}
