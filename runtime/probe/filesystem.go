package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// networkTypes are the file systems that several nodes share, by their number in statfs(2).
var networkTypes = map[uint32]string{
	0x6969: "NFS", 0x0BD00BD0: "Lustre", 0x47504653: "GPFS (IBM Storage Scale)", 0x19830326: "BeeGFS", 0x00C36400: "CephFS",
	0xAAD7AAEA: "PanFS", 0x20030528: "OrangeFS", 0x517B: "SMB", 0xFF534D42: "CIFS", 0xFE534D42: "SMB 2", 0x5346414F: "AFS",
	0x6B414653: "AFS", 0x01161970: "GFS2", 0x7461636F: "OCFS2", 0x01021997: "9P", 0x65735546: "FUSE",
}

// localTypes are file systems of one node.
var localTypes = map[uint32]string{
	0xEF53: "ext4", 0x58465342: "XFS", 0x9123683E: "Btrfs", 0x2FC12FC1: "ZFS", 0x01021994: "tmpfs",
	0x794C7630: "overlay", 0xF2F52010: "F2FS",
}

// storeFileSystem reports the file system of the store in dir and what follows from it.
func storeFileSystem(dir string) Feature {
	dir = existing(dir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Feature{State: Limited, Why: fmt.Sprintf("unknown: %s: %v", dir, err)}
	}
	kind, mountType := uint32(st.Type), mountType(dir)
	name, network := networkTypes[kind]
	_, program, isFUSE := strings.Cut(mountType, "fuse.")
	switch {
	case mountType == "fuseblk":
		network = false
	case isFUSE:
		name += " (" + program + ")"
	}
	if !network {
		if name = localTypes[kind]; name == "" {
			name = fmt.Sprintf("type %#x", kind)
		}
		return Feature{State: OK, Why: fmt.Sprintf("%s, on this node: other nodes do not see %s unless it is shared", name, dir)}
	}
	f := Feature{State: Limited, Why: fmt.Sprintf("%s, a network file system: a program asks it for each file that it opens", name),
		Do: "if programs start slowly: hpcc run --stage IMAGE copies the image to the node; hpcc save IMAGE FILE.sqfs makes one file, which hpcc run FILE.sqfs runs"}
	if took, ok := lookupTime(dir); ok {
		f.Why += fmt.Sprintf(" (%.2f ms each now)", took.Seconds()*1000)
	}
	return f
}

// existing returns the lowest directory on the path dir that exists.
func existing(dir string) string {
	for dir != "/" {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// mountType returns the type of a directory's mount in /proc/self/mountinfo, such as
// "fuse.sshfs", or "".
func mountType(dir string) string {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ""
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, line := range strings.Split(kernelFile("/proc/self/mountinfo"), "\n") {
		mount, source, _ := strings.Cut(line, " - ")
		if f := strings.Fields(mount); len(f) > 2 && f[2] == device {
			kind, _, _ := strings.Cut(source, " ")
			return kind
		}
	}
	return ""
}

// lookups is the number of names that lookupTime asks for.
const lookups = 20

// lookupTime measures how long a directory takes to look up a name. The names do not exist, so
// that no cache has them.
func lookupTime(dir string) (time.Duration, bool) {
	begin := time.Now()
	for i := range lookups {
		name := fmt.Sprintf(".hpcc-doctor-%d-%d-%d", os.Getpid(), begin.UnixNano(), i)
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			return 0, false
		}
	}
	return time.Since(begin) / lookups, true
}
