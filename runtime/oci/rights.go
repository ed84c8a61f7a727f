package oci

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/caps"
	"hpcc/runtime/process"
)

// setupCaps are the capabilities that an init with a nonzero ID in a new user namespace
// keeps over exec to set up the container.
var setupCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP, unix.CAP_NET_ADMIN, unix.CAP_SETUID,
	unix.CAP_SETGID, unix.CAP_SYS_CHROOT, unix.CAP_DAC_OVERRIDE}

// hasSysAdmin reports whether this process has CAP_SYS_ADMIN, so that it may mount and create
// namespaces without a new user namespace.
func hasSysAdmin() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	return unix.Capget(&h, &d[0]) == nil && d[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// setRights sets the IDs, capabilities and limits in p for this thread; exec keeps them. The program
// gets none of the capabilities in without.
func setRights(p *specs.Process, without []uintptr) error {
	for _, l := range p.Rlimits {
		if err := process.SetLimit(l.Type, l.Soft, l.Hard); err != nil {
			return err
		}
	}
	if p.OOMScoreAdj != nil {
		// Lowering the score needs privileges; a failure is harmless.
		_ = os.WriteFile("/proc/self/oom_score_adj", fmt.Appendf(nil, "%d", *p.OOMScoreAdj), 0)
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keeping capabilities: %w", err)
	}
	if err := setIDs(p.User); err != nil {
		return err
	}
	if err := caps.Apply(p.Capabilities, without...); err != nil {
		return err
	}
	if p.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("setting no_new_privs: %w", err)
		}
	}
	return nil
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
