package rootfs

import (
	"slices"
	"testing"
)

// disklessMounts is the mountinfo of a diskless node in its own mount namespace.
// pivotedMounts is that of a host that has left its initramfs: its root has a parent that is
// not listed.
const (
	disklessMounts = `80 80 0:2 / / rw - rootfs rootfs rw,size=1003524k
81 80 0:21 / /proc rw,relatime - proc p rw
82 80 0:22 / /sys rw,relatime - sysfs s rw
83 82 0:27 / /sys/fs/cgroup rw,relatime - cgroup2 c rw
84 80 0:21 / /my\040proc rw,relatime - proc p rw
90 80 0:30 / /usr rw,relatime - ext4 /dev/vda rw
91 90 0:21 / /usr/proc rw,relatime - proc p rw
`
	pivotedMounts = `24 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
25 24 0:21 / /proc rw - proc proc rw
`
)

func TestLowestRoot(t *testing.T) {
	if !lowestRoot(disklessMounts) {
		t.Error("an initramfs is not recognised as the lowest mount")
	}
	for _, info := range []string{pivotedMounts, "", "1\n", "1 1 0:2 / /x rw - tmpfs t rw\n"} {
		if lowestRoot(info) {
			t.Errorf("taken for an initramfs: %q", info)
		}
	}
	if got, err := kernelMounts(disklessMounts); err != nil || !slices.Equal(got, []string{"/proc", "/sys", "/my proc"}) {
		t.Errorf("kernelMounts = %q, %v; want /proc, /sys and /my proc", got, err)
	}
	if got, err := kernelMounts(disklessMounts + "92 80 0:21 / /cut rw"); err == nil { // all must be covered
		t.Errorf("kernelMounts of an invalid file = %q; want an error", got)
	}
}
