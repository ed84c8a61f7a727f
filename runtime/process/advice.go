package process

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// An rlimit describes a resource limit and the error of a program that exceeds it.
type rlimit struct {
	errno    error
	resource int
	name     string // in messages
	flag     string // ulimit's flag for the limit
	unit     uint64 // bytes per unit of ulimit; 1 for a number
	unitName string // with a leading space; empty for a number
	raiseTo  string // suggested value for ulimit
}

var rlimits = []rlimit{
	{unix.EMFILE, unix.RLIMIT_NOFILE, "open files", "-n", 1, "", "1024"},
	{unix.EFBIG, unix.RLIMIT_FSIZE, "the size of a file", "-f", 1024, " KiB", "unlimited"},
	{unix.EAGAIN, unix.RLIMIT_NPROC, "the user's processes and threads", "-u", 1, "", "4096"},
	{unix.ENOMEM, unix.RLIMIT_AS, "address space", "-v", 1024, " KiB", "unlimited"},
	{unix.E2BIG, unix.RLIMIT_STACK, "the stack, of which arguments and environment may fill a quarter,", "-s", 1024, " KiB", "8192"},
}

// LimitAdvice returns advice about an error that a resource limit of this process caused, as
// one sentence without a period. It returns "" for other errors.
func LimitAdvice(err error) string {
	if errors.Is(err, unix.ENFILE) {
		return "too many files are open on this machine: try again later, or ask the administrator"
	}
	var pe *fs.PathError
	for _, l := range rlimits {
		if !errors.Is(err, l.errno) {
			continue
		}
		if l.errno == unix.EAGAIN && (!errors.As(err, &pe) || pe.Op != "fork/exec") {
			continue // the error of a descriptor, not of a new process
		}
		var r unix.Rlimit
		if unix.Getrlimit(l.resource, &r) != nil || r.Cur == unix.RLIM_INFINITY {
			continue
		}
		return fmt.Sprintf("the limit on %s is %d%s; raise it with %q", l.name, r.Cur/l.unit, l.unitName, "ulimit "+l.flag+" "+l.raiseTo)
	}
	return ""
}
