// Package caps names capabilities and sets those of a program (capabilities(7)).
package caps

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Names holds the names of all capabilities in the order of their numbers,
// <linux/capability.h>.
var Names = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
	"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN",
	"CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// Bits returns the named capabilities as a bit set for capset(2). It ignores names
// that this kernel or hpcc does not know, as the specification allows.
func Bits(names []string) (set uint64) {
	for _, n := range names {
		if i := slices.Index(Names, n); i >= 0 {
			set |= 1 << i
		}
	}
	return set
}

// Parse returns the set that a list of changes gives to a program that has none. An item
// of the list adds NAME, without CAP_, or ALL; an item with a "-" removes it.
func Parse(list string) (set []string, err error) {
	for item := range strings.SplitSeq(list, ",") {
		name, drops := strings.CutPrefix(item, "-")
		named := []string{"CAP_" + name}
		switch {
		case item == "":
			continue
		case name == "ALL":
			named = Names
		case !slices.Contains(Names, named[0]):
			return nil, fmt.Errorf("%s is not a capability; capabilities(7) lists them", name)
		}
		set = slices.DeleteFunc(set, func(n string) bool { return slices.Contains(named, n) })
		if !drops {
			set = append(set, named...)
		}
	}
	return set, nil
}

// Drop takes all inheritable and ambient capabilities and those of the numbers in bounding from the
// programs that this thread executes, and locks the thread, which keeps them. Programs that are not
// root lose all capabilities on exec anyway.
func Drop(bounding ...uintptr) error {
	goruntime.LockOSThread()
	if os.Geteuid() == 0 {
		for _, c := range bounding {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return fmt.Errorf("dropping capability %d: %w", c, err)
			}
		}
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if err == nil {
		err = unix.Capget(&h, &d[0])
	}
	if err == nil {
		d[0].Inheritable, d[1].Inheritable = 0, 0 // Go makes ambient capabilities inheritable
		err = unix.Capset(&h, &d[0])
	}
	if err != nil {
		return fmt.Errorf("dropping the namespace's capabilities: %w", err)
	}
	return nil
}

// Apply gives the programs that this thread executes exactly the capabilities of c, or
// none if c is nil, but never those of the numbers in without. They apply to this process's user
// namespace only. Apply locks the thread, which must still be permitted the capabilities.
func Apply(c *specs.LinuxCapabilities, without ...uintptr) error {
	goruntime.LockOSThread()
	if c == nil {
		c = &specs.LinuxCapabilities{}
	}
	set := func(names []string) uint64 {
		s := Bits(names)
		for _, n := range without {
			s &^= 1 << n
		}
		return s
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping the namespace's capabilities: %w", err)
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	err := unix.Capget(&h, &d[0])
	if err == nil { // a change of the user ID clears the effective ones
		d[0].Effective, d[1].Effective = d[0].Permitted, d[1].Permitted
		err = unix.Capset(&h, &d[0])
	}
	bounding := set(c.Bounding)
	for i, name := range Names {
		if err != nil || bounding&(1<<i) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(i), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("dropping %s: %w", name, err)
		}
	}
	if err == nil {
		e, p, in := set(c.Effective), set(c.Permitted), set(c.Inheritable)
		d = [2]unix.CapUserData{
			{Effective: uint32(e), Permitted: uint32(p), Inheritable: uint32(in)},
			{Effective: uint32(e >> 32), Permitted: uint32(p >> 32), Inheritable: uint32(in >> 32)},
		}
		err = unix.Capset(&h, &d[0])
	}
	if err != nil {
		return fmt.Errorf("setting the program's capabilities: %w", err)
	}
	for i, name := range Names {
		if set(c.Ambient)&(1<<i) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(i), 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("raising ambient %s: %w", name, err)
		}
	}
	return nil
}
