package bare

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime/runconf"
)

// unwrap replaces the command line "hpcc wrapped FILE ARG..." by the command line of "hpcc run" that
// the wrapper FILE contains. Inside the wrapper's container, it executes the program. It returns
// false if it could do neither.
func (r *run) unwrap() bool {
	if r.argc < 2 || r.argv[1] != runconf.WrappedCommand+"\x00" {
		return true
	}
	if r.argc < 3 {
		return false
	}
	file, e := r.readFile(r.argv[2], maxFile)
	if e != 0 {
		return false
	}
	for file != "" {
		var line string
		line, file = cut(file, '\n')
		if hasPrefix(line, runconf.NoArguments) {
			continue
		}
		if !r.split(line) {
			return false
		}
	}
	args := r.lineArgs[:r.nlineArgs]
	if len(args) < 4 {
		return false
	}
	inside, argv0, args := args[0], args[1], args[2:]
	switch argv0 {
	case runconf.OwnName + "\x00":
	case runconf.WrapperName + "\x00":
		r.argv0 = r.argv[2]
	default:
		r.argv0 = argv0
	}
	if !r.replaceArgs(args) {
		return false
	}
	return !access(inside, unix.F_OK) || r.executeHere(args)
}

// replaceArgs replaces "wrapped FILE" in argv by "run" and the arguments of the wrapper.
func (r *run) replaceArgs(args []zstring) bool {
	more := len(args) - 1
	if r.argc+more > len(r.argv) {
		return false
	}
	for i := r.argc - 1; i >= 3; i-- {
		r.argv[i+more] = r.argv[i]
	}
	r.argv[1] = "run\x00"
	for i := range args {
		r.argv[2+i] = args[i]
	}
	r.argc += more
	return true
}

// executeHere executes the program of a wrapper without a container. It returns false on failure.
func (r *run) executeHere(args []zstring) bool {
	first := 0
	for first < len(args) && args[first] != "--\x00" {
		first++
	}
	for i := first + 3; i < r.argc; i++ { // argv begins with "hpcc run"
		r.arg(r.argv[i])
	}
	if r.nargs == 0 || r.nargs == len(r.args) {
		return false
	}
	file := cString(r.args[0])
	if r.argv0 != "" {
		r.args[0] = unsafe.StringData(string(r.argv0))
	}
	call(unix.SYS_EXECVE, file.at(), uintptr(unsafe.Pointer(&r.args)), uintptr(r.environ), 0, 0)
	return false
}
