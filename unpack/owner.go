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

// On disk, all files belong to the user, and nobody else may benefit from a set-user-id bit.
// Other metadata of the image is recorded in extended attributes, see [Notes].
const (
	notePrefix = "user.hpcc."
	ownerAttr  = notePrefix + "owner"      // "UID:GID"; missing: 0:0
	modeAttr   = notePrefix + "mode"       // octal, if it differs from the file's own; see granted
	capsAttr   = notePrefix + "capability" // the value of security.capability, capabilities(7)
	// Links and FIFOs cannot have such attributes (xattr(7)). Their directory records the
	// owners other than root, as "UID:GID NAME" separated by NUL bytes.
	linksAttr = notePrefix + "links"
)

// noteAttrs are the attributes in which notes are stored.
var noteAttrs = []string{ownerAttr, modeAttr, capsAttr, linksAttr}

// capsRecord is the PAX record for capsAttr in a layer's headers, as in GNU tar and
// BuildKit.
const capsRecord = xattrRecord + "security.capability"

// maxNote is the maximum length of a note, in bytes.
const maxNote = 64 << 10

// A note holds the image's metadata of a file.
type note struct {
	owned    bool // an owner is noted
	uid, gid int
	hasMode  bool // a mode is noted: the file's own is another
	mode     uint32
	caps     string
}

// notedByDir reports whether the owner of such a file is recorded in its directory.
func notedByDir(kind fs.FileMode) bool { return kind&(fs.ModeSymlink|fs.ModeNamedPipe) != 0 }

// of returns the note of a file of this type, according to Lstat.
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

// Describe sets the owner, mode and capabilities of a header to those of a file in the
// image. fi is the result of Lstat for the file.
func (n *Notes) Describe(h *tar.Header, file string, fi fs.FileInfo) {
	m := n.of(file, fi.Mode())
	h.Uid, h.Gid = m.uid, m.gid
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	h.Mode = int64(st.Mode & 0o7777)
	if m.hasMode && granted(m.mode, fi.IsDir()) == st.Mode&0o7777 {
		h.Mode = int64(m.mode) // it has not changed since
	}
	if m.caps != "" && fi.Mode().IsRegular() {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[capsRecord] = m.caps
	}
}

// shows reports whether two notes give the same metadata in a layer.
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

// linkOwner returns the recorded owner of a link or FIFO in a directory.
func (n *Notes) linkOwner(dir, name string) (uid, gid int, ok bool) {
	for _, l := range strings.Split(n.get(dir, linksAttr), "\x00") {
		if o, link, _ := strings.Cut(l, " "); link == name {
			return parseOwner(o)
		}
	}
	return 0, 0, false
}

// setLinkOwner records the owner of a link or FIFO. An attribute holds some thousand bytes,
// depending on the file system; the owner of further links is root.
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

// chownLink records the owner of a link and sets its times to their current values, so that
// an overlay copies it to its upper directory, in which [Upper] searches for changes.
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

// setOwner records the owner of a file in the image. It does not follow links. A file system
// without space for the note is not an error.
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

// CopyTo copies the notes of a file to its copy in another tree.
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

// copyTo copies the notes of a file or directory. It follows links.
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

// granted returns the mode on disk for mode m: without set-id bits, and with the permissions
// that its owner needs.
func granted(m uint32, dir bool) uint32 {
	if dir {
		return m&0o1777 | 0o700
	}
	return m&0o777 | 0o400
}

// keep records an entry's metadata for the open file or directory. A directory's descriptor
// is O_PATH, which needs a path in procfs.
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

// plain reports whether an entry needs no note.
func plain(h *tar.Header) bool {
	m := uint32(h.Mode) & 0o7777
	return h.Uid|h.Gid == 0 && m == granted(m, h.Typeflag == tar.TypeDir) && h.PAXRecords[capsRecord] == ""
}
