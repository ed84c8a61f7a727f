package runtime

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// A process may create a user namespace only while it has a single thread
// (unshare(2), EINVAL), and a Go program has several before main begins. The
// binary is therefore linked with its ELF entry point at hpcc_entry
// (entry_*.s, linker flag -E): there, with one thread and nothing running yet,
// "hpcc run" and "hpcc build" call unshare, then jump to Go's own entry point.
// The process keeps its pid, has no parent of ours, and pays one system call.
//
// Measured against the other ways, same work, milliseconds: this 1.9, a cgo
// constructor 2.7 (and a C compiler for each target), re-execution of self in
// new namespaces 3.4 (and a parent that stays). Binaries linked without the
// flag, such as those of "go test", take that last way (see exec.go).

// The words after "run" may ask to share the namespaces of other processes, and
// who has made its own cannot leave them: at a word that looks like --join the
// entry point leaves the decision to main (carry.go).

// entered is what hpcc_entry left: 0 it was not called or not asked to, -1 it
// leaves namespaces to later, else 1 + errno of unshare or setns. The entry point
// of cmd/start may have gone further: mapped.
var entered int64

// mapped, in entered, says that this process is in its namespaces and has its ids.
const mapped = -2

// early says whether the entry point was asked for namespaces, and with which
// error it was refused them (nil when the process is in them).
func early() (asked bool, err error) {
	if entered == mapped {
		return true, nil
	}
	if entered <= 0 {
		return false, nil
	}
	if entered != 1 {
		return true, syscall.Errno(entered - 1)
	}
	return true, nil
}

// Full, as argv[0], makes the entry point of a file that holds two programs
// (cmd/weld) not leave "hpcc run" to the lean one.
const Full = "hpcc-full"

// mapEarly writes the one-line id maps of the user namespace that the entry
// point made (user_namespaces(7), "Defining user and group ID mappings"): a
// build is root in it, a run keeps the caller's ids, or has those that its
// specification carries. Until then the kernel shows the overflow ids; the
// auxiliary vector still has the true ones.
func mapEarly(carried *specs.Spec) {
	if asked, err := early(); !asked || err != nil || entered == mapped {
		return
	}
	auxv, _ := unix.Auxv() // the runtime's copy: no error since Go 1.21
	uid, gid, _ := hostIDs(auxv)
	in := [2]int{uid, gid}
	if carried != nil {
		in[0], in[1] = visibleIDs(carried)
	}
	if _, _, root := ladder("register"); root || os.Args[1] == "build" {
		in = [2]int{}
	}
	if u, g, ok := ladder("run"); ok {
		in = [2]int{u, g}
	}
	for _, f := range []struct{ name, text string }{
		{"setgroups", "deny"},
		{"uid_map", fmt.Sprintf("%d %d 1", in[0], uid)},
		{"gid_map", fmt.Sprintf("%d %d 1", in[1], gid)},
	} {
		// Some hosts (AppArmor's restriction of unprivileged user namespaces)
		// let the namespace be made, but give it no rights.
		if err := writeSmall("/proc/self/"+f.name, []byte(f.text), 0); err != nil {
			entered = 1 + int64(syscall.EPERM)
			return
		}
	}
}

// Entries of the auxiliary vector, getauxval(3): pairs of type and value, each
// a machine word (64 bits on all that we build for).
const (
	atUID = 11 + iota
	atEUID
	atGID
	atEGID
)

// hostIDs returns the effective ids that this process was executed with. It
// refuses those of a setuid or setgid file (execve(2)): hpcc needs no rights
// but the user's, and takes no care with others.
func hostIDs(auxv [][2]uintptr) (uid, gid int, err error) {
	var real, effective [2]int
	for _, entry := range auxv {
		switch v := int(entry[1]); entry[0] {
		case atUID:
			real[0] = v
		case atEUID:
			effective[0] = v
		case atGID:
			real[1] = v
		case atEGID:
			effective[1] = v
		}
	}
	if real != effective {
		err = errors.New("hpcc is installed setuid or setgid and refuses to run so: it needs no rights but the user's; chmod ug-s the file")
	}
	return effective[0], effective[1], err
}
