package rootfs

import (
	"fmt"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// On many diskless nodes "/" is the initramfs itself, the lowest mount of the
// namespace. pivot_root(2) cannot replace it (EINVAL). A run moves its root over
// it instead, as switch_root(8) does, and the initramfs stays below.
//
// A program could try these routes back to the initramfs. None of them works:
//
//   - "..", chroot(2) and setns(2) to the same mount namespace end at the topmost
//     mount of "/", which is the run's root.
//   - A new user and mount namespace has locked mounts, so the topmost one cannot be
//     unmounted or moved (mount_namespaces(7)).
//   - umount2("/", MNT_DETACH) in the run's own namespaces needs CAP_SYS_ADMIN. Only
//     programs that are root inside could have it, so hpcc drops it from their
//     bounding set.
//   - /proc/PID/root and ptrace(2) of an hpcc process outside the root need all
//     capabilities of that process, or CAP_SYS_PTRACE, which hpcc drops as well.
//   - A second /proc or /sys without the masks of a container cannot be mounted,
//     because those of the host are covered.

// IsLowest reports whether this process's root directory is the lowest mount of its
// namespace. Only a ramfs or tmpfs can be that mount.
func IsLowest() bool {
	var st unix.Statfs_t
	if unix.Statfs("/", &st) != nil || (st.Type != unix.RAMFS_MAGIC && st.Type != unix.TMPFS_MAGIC) {
		return false
	}
	info, err := rawfile.Read("/proc/self/mountinfo")
	return err == nil && lowestRoot(string(info))
}

// lowestRoot reports whether a mountinfo file (proc(5)) lists a root that is its
// own parent.
func lowestRoot(info string) bool {
	root, err := mountinfo.GetMountsFromReader(strings.NewReader(info), func(m *mountinfo.Info) (skip, stop bool) {
		isLowest := m.ID == m.Parent && m.Mountpoint == "/"
		return !isLowest, isLowest
	})
	return err == nil && len(root) > 0
}

// moveOver covers the lowest root with r and makes r the root directory.
func (r *Root) moveOver() error {
	if err := coverKernelFiles(); err != nil {
		return fmt.Errorf("covering the host's kernel files: %w", err)
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the new root over the initramfs: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	return unix.Chdir("/")
}

// coverKernelFiles covers each proc and sysfs mount of the host with an empty directory. The
// kernel then refuses new ones in namespaces where none is fully visible
// (mount_too_revealing). After this, paths below /proc/self/fd no longer work.
func coverKernelFiles() error {
	info, err := rawfile.Read("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	dirs, err := kernelMounts(string(info))
	if err != nil {
		return err
	}
	for _, p := range dirs {
		if err := unix.Mount("tmpfs", p, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "size=4k"); err != nil {
			return fmt.Errorf("mounting an empty directory at %q: %w", p, err)
		}
	}
	return nil
}

// kernelMounts returns the mount points of proc and sysfs outside of Base that a
// mountinfo file lists.
func kernelMounts(info string) (dirs []string, err error) {
	mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(info), mountinfo.FSTypeFilter("proc", "sysfs"))
	for _, m := range mounts {
		if !Inside(m.Mountpoint, Base) {
			dirs = append(dirs, m.Mountpoint)
		}
	}
	return dirs, err
}

// EscapeCapabilities lists the capabilities with which a program that is root inside could
// return to a lowest root.
var EscapeCapabilities = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE}
