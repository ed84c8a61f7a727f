package oci

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/process"
)

// capabilityNames holds the names in the order of their numbers, <linux/capability.h>.
var capabilityNames = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
	"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN",
	"CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// setupCaps are the capabilities that an init with a nonzero ID in a new user namespace
// keeps over exec to set up the container.
var setupCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP, unix.CAP_NET_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE}

// capabilitySet returns the named capabilities as a bit set for capset(2). It ignores names
// that this kernel or hpcc does not know, as the specification allows.
func capabilitySet(names []string) (set uint64) {
	for _, n := range names {
		if i := slices.Index(capabilityNames, n); i >= 0 {
			set |= 1 << i
		}
	}
	return set
}

// hasSysAdmin reports whether this process has CAP_SYS_ADMIN, so that it may mount and create
// namespaces without a new user namespace.
func hasSysAdmin() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	return unix.Capget(&h, &d[0]) == nil && d[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// setRights sets the IDs, capabilities and limits in p for this thread; exec keeps them.
// Capabilities apply only to the user namespace.
func setRights(p *specs.Process) error {
	for _, l := range p.Rlimits {
		if err := process.SetLimit(l.Type, l.Soft, l.Hard); err != nil {
			return err
		}
	}
	if p.OOMScoreAdj != nil {
		// Lowering the score needs privileges; a failure is harmless.
		_ = os.WriteFile("/proc/self/oom_score_adj", fmt.Appendf(nil, "%d", *p.OOMScoreAdj), 0)
	}
	c := p.Capabilities
	if c == nil {
		c = &specs.LinuxCapabilities{}
	}
	bounding := capabilitySet(c.Bounding)
	for i := range capabilityNames {
		if bounding&(1<<i) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(i), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("dropping %s: %w", capabilityNames[i], err)
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keeping capabilities: %w", err)
	}
	if err := setIDs(p.User); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping the namespace's capabilities: %w", err)
	}
	e, pm, in := capabilitySet(c.Effective), capabilitySet(c.Permitted), capabilitySet(c.Inheritable)
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	d := [2]unix.CapUserData{
		{Effective: uint32(e), Permitted: uint32(pm), Inheritable: uint32(in)},
		{Effective: uint32(e >> 32), Permitted: uint32(pm >> 32), Inheritable: uint32(in >> 32)},
	}
	if err := unix.Capset(&h, &d[0]); err != nil {
		return fmt.Errorf("setting the capabilities in process.capabilities: %w", err)
	}
	for i, n := range capabilityNames {
		if capabilitySet(c.Ambient)&(1<<i) != 0 {
			if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(i), 0, 0); err != nil {
				return fmt.Errorf("raising ambient %s: %w", n, err)
			}
		}
	}
	if p.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("setting no_new_privs: %w", err)
		}
	}
	return nil
}

// removeCapabilities removes caps from all sets of c.
func removeCapabilities(c *specs.LinuxCapabilities, caps []uintptr) {
	if c == nil {
		return
	}
	for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Inheritable, &c.Permitted, &c.Ambient} {
		*set = slices.DeleteFunc(*set, func(name string) bool {
			return slices.Contains(caps, uintptr(slices.Index(capabilityNames, name)))
		})
	}
}

// setIDs switches to the IDs of u if necessary.
func setIDs(u specs.User) error {
	if len(u.AdditionalGids) > 0 {
		groups := make([]int, len(u.AdditionalGids))
		for i, g := range u.AdditionalGids {
			groups[i] = int(g)
		}
		// The kernel refuses this if setgroups is denied, as for every user without subordinate
		// IDs. The caller's groups then remain.
		if err := syscall.Setgroups(groups); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("setting the groups %v: %w", groups, err)
		}
	}
	if os.Getgid() != int(u.GID) || os.Getegid() != int(u.GID) {
		if err := syscall.Setresgid(int(u.GID), int(u.GID), int(u.GID)); err != nil {
			return fmt.Errorf("setting group %d: %w", u.GID, err)
		}
	}
	if os.Getuid() != int(u.UID) || os.Geteuid() != int(u.UID) {
		if err := syscall.Setresuid(int(u.UID), int(u.UID), int(u.UID)); err != nil {
			return fmt.Errorf("setting user %d: %w", u.UID, err)
		}
	}
	if u.Umask != nil {
		unix.Umask(int(*u.Umask))
	}
	return nil
}
