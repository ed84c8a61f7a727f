package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// On disk all files are the user's own, and nobody but the user may profit from
// a set-user-id bit. What the image says beyond that is noted in extended
// attributes; a file system that has none forgets it.
const (
	notePrefix = "user.hpcc."
	ownerAttr  = notePrefix + "owner"      // "UID:GID"; without it 0:0
	modeAttr   = notePrefix + "mode"       // octal, when it is not the file's own; see granted
	capsAttr   = notePrefix + "capability" // the value of security.capability, capabilities(7)
	// Links have no such attributes (xattr(7)); their directory notes the owners of
	// those that are not root's, "UID:GID NAME" with NUL bytes between.
	linksAttr = notePrefix + "links"
)

// capsRecord is the record of capsAttr in a layer's headers, as GNU tar and
// BuildKit write it.
const capsRecord = xattrRecord + "security.capability"

// maxNote is the longest note that is read, in bytes.
const maxNote = 64 << 10

// A note is what the image says of a file.
type note struct {
	owned    bool // an owner is noted
	uid, gid int
	mode     uint32 // all bits; 0 when it is the file's own
	caps     string
}

// noteOf reads what is noted of a file. Of a link it reads its directory.
func noteOf(file string, link bool) note {
	var n note
	if link {
		n.uid, n.gid, n.owned = linkOwner(filepath.Dir(file), filepath.Base(file))
		return n
	}
	if size, err := unix.Llistxattr(file, nil); err != nil || size == 0 {
		return n
	}
	n.uid, n.gid, n.owned = parseOwner(getAttr(file, ownerAttr))
	if m, err := strconv.ParseUint(getAttr(file, modeAttr), 8, 32); err == nil {
		n.mode = uint32(m) & 0o7777
	}
	n.caps = getAttr(file, capsAttr)
	return n
}

// Describe puts into a header what the image says of a file of a tree: owner,
// mode, capabilities. fi is what Lstat says of it.
func Describe(h *tar.Header, file string, fi fs.FileInfo) {
	n := noteOf(file, fi.Mode()&fs.ModeSymlink != 0)
	h.Uid, h.Gid = n.uid, n.gid
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	h.Mode = int64(st.Mode & 0o7777)
	if n.mode != 0 && granted(n.mode, fi.IsDir()) == st.Mode&0o7777 {
		h.Mode = int64(n.mode) // nobody has changed it since
	}
	if n.caps != "" && fi.Mode().IsRegular() {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[capsRecord] = n.caps
	}
}

// shows says whether two notes come to the same in a layer.
func (n note) shows(m note) bool {
	n.owned, m.owned = false, false
	return n == m
}

func getAttr(file, attr string) string {
	b := make([]byte, 64)
	n, err := unix.Getxattr(file, attr, b)
	if errors.Is(err, unix.ERANGE) {
		b = make([]byte, maxNote)
		n, err = unix.Getxattr(file, attr, b)
	}
	if err != nil {
		return ""
	}
	return string(b[:n])
}

func parseOwner(text string) (uid, gid int, ok bool) {
	u, g, _ := strings.Cut(text, ":")
	uid, uerr := strconv.Atoi(u)
	gid, gerr := strconv.Atoi(g)
	if uerr != nil || gerr != nil || uid < 0 || gid < 0 {
		return 0, 0, false
	}
	return uid, gid, true
}

// linkOwner is the owner noted of a link in a directory.
func linkOwner(dir, name string) (uid, gid int, ok bool) {
	for _, l := range strings.Split(getAttr(dir, linksAttr), "\x00") {
		if o, n, _ := strings.Cut(l, " "); n == name {
			return parseOwner(o)
		}
	}
	return 0, 0, false
}

// setLinkOwner notes the owner of a link. A directory has room for some
// thousand bytes, as its file system allows; links beyond are root's.
func setLinkOwner(dir, name string, uid, gid int) error {
	old := getAttr(dir, linksAttr)
	var out []string
	for _, l := range strings.Split(old, "\x00") {
		if _, n, _ := strings.Cut(l, " "); l != "" && n != name {
			out = append(out, l)
		}
	}
	if uid != 0 || gid != 0 {
		out = append(out, fmt.Sprintf("%d:%d %s", uid, gid, name))
	}
	if text := strings.Join(out, "\x00"); text != "" {
		return unix.Setxattr(dir, linksAttr, []byte(text), 0)
	} else if old != "" {
		return unix.Removexattr(dir, linksAttr)
	}
	return nil
}

// chownLink notes the owner of a link and sets its times to what they are: so
// an overlay copies it to its upper directory, where [Upper] looks for changes.
func chownLink(dir, name string, uid, gid int) error {
	if err := setLinkOwner(dir, name, uid, gid); err != nil {
		return err
	}
	var st unix.Stat_t
	link := filepath.Join(dir, name)
	if err := unix.Lstat(link, &st); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, link, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// SetOwner notes the owner that a file has in the image; it follows no link. A
// file system without extended attributes is no error.
func SetOwner(file string, uid, gid int) error {
	fi, err := os.Lstat(file)
	if err != nil {
		return err
	}
	switch {
	case fi.Mode()&os.ModeSymlink != 0:
		err = chownLink(filepath.Dir(file), filepath.Base(file), uid, gid)
	case uid == 0 && gid == 0:
		err = unix.Lremovexattr(file, ownerAttr)
	default:
		err = unix.Lsetxattr(file, ownerAttr, fmt.Appendf(nil, "%d:%d", uid, gid), 0)
	}
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}

// CopyOwner notes of a copy what is noted of the original: owner, mode,
// capabilities.
func CopyOwner(from, to string) error {
	fi, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if fi.Mode()&os.ModeSymlink != 0 {
		if n := noteOf(from, true); n.owned {
			return SetOwner(to, n.uid, n.gid)
		}
		return nil
	}
	return copyNotes(from, to)
}

// copyNotes copies what is noted of a file; links in the paths are followed.
func copyNotes(from, to string) error {
	if size, err := unix.Listxattr(from, nil); err != nil || size == 0 {
		return nil
	}
	for _, attr := range []string{ownerAttr, modeAttr, capsAttr, linksAttr} {
		v := getAttr(from, attr)
		if v == "" {
			continue
		}
		if err := unix.Setxattr(to, attr, []byte(v), 0); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOSPC) {
			return err
		}
	}
	return nil
}

// granted is the mode that a file of the tree gets in place of m: set-id bits
// dropped, what its owner needs added.
func granted(m uint32, dir bool) uint32 {
	if dir {
		return m&0o1777 | 0o700
	}
	return m&0o777 | 0o400
}

// keepNotes notes what an entry says of the open file or directory. The
// latter's descriptor is a mere path (O_PATH), which only procfs can turn into more.
func keepNotes(fd int, h *tar.Header, fresh bool) {
	p := procPath(fd)
	keep := func(attr, value string) {
		if value != "" {
			_ = unix.Setxattr(p, attr, []byte(value), 0)
		} else if !fresh {
			_ = unix.Removexattr(p, attr)
		}
	}
	owner, mode := "", ""
	if h.Uid != 0 || h.Gid != 0 {
		owner = fmt.Sprintf("%d:%d", h.Uid, h.Gid)
	}
	if m := uint32(h.Mode) & 0o7777; m != granted(m, h.Typeflag == tar.TypeDir) {
		mode = strconv.FormatUint(uint64(m), 8)
	}
	keep(ownerAttr, owner)
	keep(modeAttr, mode)
	keep(capsAttr, h.PAXRecords[capsRecord])
}

// plain says whether an entry leaves nothing to be noted.
func plain(h *tar.Header) bool {
	m := uint32(h.Mode) & 0o7777
	return h.Uid|h.Gid == 0 && m == granted(m, h.Typeflag == tar.TypeDir) && h.PAXRecords[capsRecord] == ""
}
