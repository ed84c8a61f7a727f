package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OwnerAttr is the extended attribute that keeps the owner of a file in the
// image, "UID:GID", where it is not 0:0: on disk all files are the user's own. A
// file system without such attributes, and symbolic links, forget it.
const OwnerAttr = "user.hpcc.owner"

// SetOwner notes the owner that a file has in the image; it follows no link.
func SetOwner(file string, uid, gid int) error {
	fi, err := os.Lstat(file)
	if err != nil || fi.Mode()&os.ModeSymlink != 0 {
		return err
	}
	if uid == 0 && gid == 0 {
		err = unix.Lremovexattr(file, OwnerAttr)
	} else {
		err = unix.Lsetxattr(file, OwnerAttr, fmt.Appendf(nil, "%d:%d", uid, gid), 0)
	}
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// CopyOwner gives a copy the owner that the original has in its image.
func CopyOwner(from, to string) error {
	if uid, gid := Owner(from); uid != 0 || gid != 0 {
		return SetOwner(to, uid, gid)
	}
	return nil
}

// Owner is the owner that a file of a tree has in the image; it follows no link.
func Owner(file string) (uid, gid int) {
	b := make([]byte, 32)
	n, err := unix.Lgetxattr(file, OwnerAttr, b)
	if err != nil {
		return 0, 0
	}
	if k, _ := fmt.Sscanf(string(b[:n]), "%d:%d", &uid, &gid); k != 2 || uid < 0 || gid < 0 {
		return 0, 0
	}
	return uid, gid
}

// keepOwner notes an entry's owner on the open file or directory. The latter's
// descriptor is a mere path (O_PATH), which only procfs can turn into more.
func keepOwner(fd int, h *tar.Header, fresh bool) {
	p := fmt.Sprintf("/proc/self/fd/%d", fd)
	if h.Uid != 0 || h.Gid != 0 {
		_ = unix.Setxattr(p, OwnerAttr, fmt.Appendf(nil, "%d:%d", h.Uid, h.Gid), 0)
	} else if !fresh {
		_ = unix.Removexattr(p, OwnerAttr)
	}
}
