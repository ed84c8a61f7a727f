package bare

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// limitsFiles reports whether the size of files is limited (ulimit -f). A write beyond the limit
// would end the process with SIGXFSZ, which the Go runtime turns into an error.
func limitsFiles() bool {
	var l unix.Rlimit
	_, e := call(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_FSIZE, 0, uintptr(unsafe.Pointer(&l)), 0)
	return e != 0 || l.Cur != unix.RLIM_INFINITY
}

// closeMounts closes the sources of mounts. The Go program opens them again, and the limit of open
// files may be small.
func (r *run) closeMounts() {
	for _, m := range r.mounts[:r.nmounts] {
		closeFD(m.from)
	}
}
