package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A System describes a directory's file system.
type System struct {
	Dir      string // the examined directory
	Type     string // of the file system: "nfs", "ext4", …; a hexadecimal number if unknown
	Shared   bool   // other nodes see the same files
	ReadOnly bool   // mounted read-only
	NoExec   bool   // mounted noexec

	Total, Free           uint64 // bytes; Free is available to an ordinary user
	Inodes, FreeInodes    uint64 // 0 if the file system does not count them
	QuotaUsed, QuotaLimit uint64 // bytes; QuotaLimit is 0 if there is none or it cannot be read

	Write    error // why files cannot be created; nil if they can
	XAttr    error // why files cannot have user attributes; nil if they can
	HardLink error // why files cannot have hard links; nil if they can
	Owner    int   // owner of new files; -1 if not tested
}

// fileSystems maps the types of statfs(2), most of them from linux/magic.h. A star marks
// file systems that are shared between nodes.
var fileSystems = map[uint32]string{
	0x6969: "nfs*", 0x0bd00bd0: "lustre*", 0x47504653: "gpfs*", 0x19830326: "beegfs*", 0x00c36400: "ceph*",
	0xff534d42: "cifs*", 0xfe534d42: "smb*",
	0x5346414f: "afs*", 0x7461636f: "ocfs2*", 0x01161970: "gfs2*", 0xaad7aaea: "panfs*",
	0x20030528: "orangefs*", 0x013111a8: "ibrix*", 0x65735546: "fuse",
	0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x2fc12fc1: "zfs", 0x01021994: "tmpfs",
	0x858458f6: "ramfs", 0x794c7630: "overlay",
	0xf2f52010: "f2fs", 0x73717368: "squashfs", 0x4d44: "vfat", 0x2011bab0: "exfat", 0x01021997: "9p",
	0x6a656a63: "virtiofs", 0xca451a4e: "bcachefs",
}

// SystemOf examines the file system of dir, or of its nearest existing parent directory, by
// creating and removing a file.
func SystemOf(dir string) (System, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return System{}, err
	}
	for {
		fi, err := os.Stat(dir)
		if err == nil && fi.IsDir() {
			break
		}
		if (err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR)) || dir == "/" {
			return System{Dir: dir}, fmt.Errorf("examining %s: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
	p := System{Dir: dir, Owner: -1}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return p, fmt.Errorf("examining the file system of %s: %w", dir, err)
	}
	name, ok := fileSystems[uint32(st.Type)]
	if !ok {
		name = fmt.Sprintf("%#x", uint32(st.Type))
	}
	p.Type, p.Shared = strings.CutSuffix(name, "*")
	p.ReadOnly, p.NoExec = st.Flags&unix.ST_RDONLY != 0, st.Flags&unix.ST_NOEXEC != 0
	p.Total, p.Free = st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)
	p.Inodes, p.FreeInodes = st.Files, st.Ffree
	p.quota()
	p.probe()
	return p, nil
}

// probe creates and removes a file with an attribute and a hard link.
func (p *System) probe() {
	f, err := os.CreateTemp(p.Dir, ".hpcc-doctor-")
	if err != nil {
		var pe *fs.PathError
		if p.Write = err; errors.As(err, &pe) {
			p.Write = pe.Err
		}
		return
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(make([]byte, 4096)); err != nil { // on a full disk, files can be created but not written
		p.Write = errors.Unwrap(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err == nil {
		p.Owner = int(st.Uid)
	}
	p.XAttr = unix.Fsetxattr(int(f.Fd()), "user.hpcc.doctor", []byte("x"), 0)
	second := f.Name() + ".link"
	if p.HardLink = unix.Link(f.Name(), second); p.HardLink == nil {
		os.Remove(second)
	}
}

// quotaLimits is struct if_dqblk, <linux/quota.h>: space in KiB for the limits and
// in bytes for the use.
type quotaLimits struct {
	hard, soft, space, inodeHard, inodeSoft, inodes, blockTime, inodeTime uint64
	valid                                                                 uint32
}

// getUserQuota is QCMD(Q_GETQUOTA, USRQUOTA), quotactl(2).
const getUserQuota = 0x800007 << 8

// quota reads the user's quota if the kernel manages it (ext4, xfs; Linux 5.14). Network file
// systems keep quotas on the server.
func (p *System) quota() {
	f, err := os.Open(p.Dir)
	if err != nil {
		return
	}
	defer f.Close()
	var q quotaLimits
	if _, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, f.Fd(), getUserQuota, uintptr(os.Geteuid()),
		uintptr(unsafe.Pointer(&q)), 0, 0); errno != 0 {
		return
	}
	p.QuotaUsed, p.QuotaLimit = q.space, q.hard<<10
	if q.hard == 0 {
		p.QuotaLimit = q.soft << 10
	}
}
