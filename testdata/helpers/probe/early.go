//go:build probe

package main

import (
	"sync/atomic"
	"syscall"
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
)

// The Go runtime keeps the signal dispositions, the signal mask and the limit of open files that it
// found, and then changes them. The linker allows these references with -checklinkname=0 only.

//go:linkname fwdSig runtime.fwdSig
var fwdSig [65]uintptr

//go:linkname initSigmask runtime.initSigmask
var initSigmask [2]uint32

//go:linkname origRlimitNofile syscall.origRlimitNofile
var origRlimitNofile atomic.Pointer[syscall.Rlimit]

func init() {
	inherited = func() (ignored, blocked uint64, files unix.Rlimit) {
		for n, handler := range fwdSig {
			if n > 0 && handler == 1 { // SIG_IGN
				ignored |= 1 << (n - 1)
			}
		}
		if l := origRlimitNofile.Load(); l != nil {
			files = unix.Rlimit(*l)
		}
		return ignored, uint64(initSigmask[1])<<32 | uint64(initSigmask[0]), files
	}
}
