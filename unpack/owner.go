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
// attributes, see [Notes].
const (
	notePrefix = "user.hpcc."
	ownerAttr  = notePrefix + "owner"      // "UID:GID"; without it 0:0
	modeAttr   = notePrefix + "mode"       // octal, when it is not the file's own; see granted
	capsAttr   = notePrefix + "capability" // the value of security.capability, capabilities(7)
	// Links and FIFOs have no such attributes (xattr(7)). Their directory notes the
	// owners of those that are not root's, "UID:GID NAME" with NUL bytes between.
	linksAttr = notePrefix + "links"
)

// noteAttrs are the attributes that notes consist of.
var noteAttrs = []string{ownerAttr, modeAttr, capsAttr, linksAttr}

// capsRecord is the record of capsAttr in a layer's headers, as GNU tar and
// BuildKit write it.
const capsRecord = xattrRecord + "security.capability"

// maxNote is the longest note that is read, in bytes.
const maxNote = 64 << 10

// A note is what the image says of a file.
type note struct {
	owned    bool // an owner is noted
	uid, gid int
	hasMode  bool // a mode is noted: the file's own is another
	mode     uint32
	caps     string
}

// notedByDir reports whether the owner of such a file is noted in its directory.
func notedByDir(kind fs.FileMode) bool { return kind&(fs.ModeSymlink|fs.ModeNamedPipe) != 0 }

// of reads the note of a file that Lstat says is of this kind.
func (n *Notes) of(file string, kind fs.FileMode) note {
	var m note
	if notedByDir(kind) {
		m.uid, m.gid, m.owned = n.linkOwner(filepath.Dir(file), filepath.Base(file))
		return m
	}
	if n.table == nil {
		if size, err := unix.Llistxattr(file, nil); err != nil || size == 0 {
			return m
		}
	}
	m.uid, m.gid, m.owned = parseOwner(n.get(file, ownerAttr))
	if mode, err := strconv.ParseUint(n.get(file, modeAttr), 8, 32); err == nil {
		m.hasMode, m.mode = true, uint32(mode)&0o7777
	}
	m.caps = n.get(file, capsAttr)
	return m
}

// Describe puts into a header what the image says of a file of the tree: owner,
// mode, capabilities. fi is what Lstat returns for it.
func (n *Notes) Describe(h *tar.Header, file string, fi fs.FileInfo) {
	m := n.of(file, fi.Mode())
	h.Uid, h.Gid = m.uid, m.gid
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	h.Mode = int64(st.Mode & 0o7777)
	if m.hasMode && granted(m.mode, fi.IsDir()) == st.Mode&0o7777 {
		h.Mode = int64(m.mode) // nobody has changed it since
	}
	if m.caps != "" && fi.Mode().IsRegular() {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[capsRecord] = m.caps
	}
}

// shows says whether two notes come to the same in a layer.
func (n note) shows(m note) bool {
	n.owned, m.owned = false, false
	return n == m
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

// linkOwner returns the owner noted of a link or FIFO in a directory.
func (n *Notes) linkOwner(dir, name string) (uid, gid int, ok bool) {
	for _, l := range strings.Split(n.get(dir, linksAttr), "\x00") {
		if o, link, _ := strings.Cut(l, " "); link == name {
			return parseOwner(o)
		}
	}
	return 0, 0, false
}

// setLinkOwner notes the owner of a link or FIFO. An attribute has room for some
// thousand bytes, depending on the file system; links beyond are root's.
func (n *Notes) setLinkOwner(dir, name string, uid, gid int) error {
	old := n.get(dir, linksAttr)
	var out []string
	for _, l := range strings.Split(old, "\x00") {
		if _, link, _ := strings.Cut(l, " "); l != "" && link != name {
			out = append(out, l)
		}
	}
	if uid != 0 || gid != 0 {
		out = append(out, fmt.Sprintf("%d:%d %s", uid, gid, name))
	}
	if text := strings.Join(out, "\x00"); text != "" {
		return n.set(dir, linksAttr, text)
	} else if old != "" {
		return n.remove(dir, linksAttr)
	}
	return nil
}

// chownLink notes the owner of a link and sets its times to what they are: so
// an overlay copies it to its upper directory, where [Upper] looks for changes.
func (n *Notes) chownLink(dir, name string, uid, gid int) error {
	if err := n.setLinkOwner(dir, name, uid, gid); err != nil {
		return err
	}
	var st unix.Stat_t
	link := filepath.Join(dir, name)
	if err := unix.Lstat(link, &st); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, link, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// setOwner notes the owner that a file has in the image; it follows no link. A
// file system without room for it is not an error.
func (n *Notes) setOwner(file string, uid, gid int) error {
	fi, err := os.Lstat(file)
	if err != nil {
		return err
	}
	switch {
	case notedByDir(fi.Mode()):
		err = n.chownLink(filepath.Dir(file), filepath.Base(file), uid, gid)
	case uid == 0 && gid == 0:
		err = n.remove(file, ownerAttr)
	default:
		err = n.set(file, ownerAttr, fmt.Sprintf("%d:%d", uid, gid))
	}
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}

// CopyTo gives the copy of a file, which another tree has, the notes of the
// original.
func (n *Notes) CopyTo(from string, other *Notes, to string) error {
	fi, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if notedByDir(fi.Mode()) {
		if m := n.of(from, fi.Mode()); m.owned {
			return other.setOwner(to, m.uid, m.gid)
		}
		return nil
	}
	return n.copyTo(from, other, to)
}

// copyTo copies the notes of a file or directory; links in the paths are followed.
func (n *Notes) copyTo(from string, other *Notes, to string) error {
	if n.table == nil {
		if size, err := unix.Listxattr(from, nil); err != nil || size == 0 {
			return nil
		}
	}
	for _, attr := range noteAttrs {
		v := n.get(from, attr)
		if v == "" {
			continue
		}
		if err := other.set(to, attr, v); err != nil && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.ENOSPC) {
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

// keep notes what an entry says of the open file or directory. The latter's
// descriptor is a mere path (O_PATH), which only procfs can turn into more.
func (n *Notes) keep(fd int, h *tar.Header, fresh bool) {
	p := procPath(fd)
	keep := func(attr, value string) {
		if value != "" {
			_ = n.set(p, attr, value)
		} else if !fresh {
			_ = n.remove(p, attr)
		}
	}
	if fresh {
		n.forget(fd)
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
