package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DiffOptions control how changes are recorded. The zero value records times unchanged.
type DiffOptions struct {
	// Newest, unless zero, limits modification times: later ones become Stamp, and so do those of
	// directories, which have the time of unpacking if no layer below describes them.
	Newest   time.Time
	Stamp    time.Time
	SetTimes bool     // the tree gets the same times as the layer
	Skip     []string // paths that are never recorded, including everything below
	By       *User    // user whose program made the changes; nil: they are copies
	Notes    *Notes   // notes of the changed tree; nil: it is not in use, and diff opens them
	// LeftOut is called for sockets and device nodes, which a layer does not record; may be nil.
	LeftOut func(path string)
}

// User is the image's user that runs a program.
type User struct{ UID, GID int }

// Upper writes the changes in the upper directory of an overlay mount, relative to the
// directories below it (lowest first), as a layer: an uncompressed tar. It returns the
// number of entries. The overlay must have been mounted with "userxattr" (Linux 5.11):
// whiteouts are character devices 0:0, and an opaque directory has the attribute
// user.overlay.opaque.
//
// An entry is recorded if its type, mode, size, time, link target or content differs. A
// directory is recorded if it is new, its mode differs, or something below it is recorded.
// Entries are sorted and described as by [Describe], with exact times: a later step may compare
// them. [Compare] records the same, byte for byte.
func Upper(w io.Writer, lowers []string, upper string, o DiffOptions) (int, error) {
	return diff(w, lowers, upper, false, o)
}

// Compare writes the differences of the tree upper from the tree lower, as [Upper] does.
func Compare(w io.Writer, lower, upper string, o DiffOptions) (int, error) {
	return diff(w, []string{lower}, upper, true, o)
}

// A lowerFile is a file or directory of a lower layer, with the notes of its tree.
type lowerFile struct {
	path  string
	notes *Notes
}

func diff(w io.Writer, lowers []string, upper string, complete bool, o DiffOptions) (int, error) {
	if o.Notes == nil {
		var err error
		if o.Notes, err = OpenNotes(upper); err != nil {
			return 0, err
		}
	}
	var live []lowerFile
	for _, dir := range slices.Backward(lowers) {
		notes, err := OpenNotes(dir)
		if err != nil {
			return 0, err
		}
		live = append(live, lowerFile{dir, notes})
	}
	d := &differ{tw: tar.NewWriter(w), o: o, links: map[inode]string{}}
	if err := d.dir(".", upper, live, complete); err != nil {
		return d.n, err
	}
	return d.n, d.tw.Close()
}

// A differ writes one layer.
type differ struct {
	tw      *tar.Writer
	o       DiffOptions
	n       int
	pending []*tar.Header // parent directories that are not written yet
	links   map[inode]string
}

type inode struct{ dev, ino uint64 }

// dir compares one directory. live holds the visible directories of the lower layers at this
// path, highest first. whole reports that up is the complete directory, so missing names
// were removed.
func (d *differ) dir(rel, up string, live []lowerFile, complete bool) error {
	entries, err := os.ReadDir(up)
	if err != nil {
		return fmt.Errorf("reading %q: %w", rel, err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if complete {
		lower, err := lowerNames(live)
		if err != nil {
			return err
		}
		for _, n := range lower {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		sort.Strings(names)
		names = slices.Compact(names)
	}
	for _, n := range names {
		p := path.Join(rel, n)
		if slices.Contains(d.o.Skip, p) {
			continue
		}
		if err := d.name(p, filepath.Join(up, n), live, complete); err != nil {
			return err
		}
	}
	return nil
}

// lowerNames lists the visible names of the lower layers.
func lowerNames(live []lowerFile) ([]string, error) {
	var out []string
	seen := map[string]bool{}
	for _, l := range live {
		entries, err := os.ReadDir(l.path)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if seen[e.Name()] {
				continue
			}
			seen[e.Name()] = true
			if fi, err := e.Info(); err == nil && !isWhiteout(fi) {
				out = append(out, e.Name())
			}
		}
	}
	return out, nil
}

// name compares one name.
func (d *differ) name(p, up string, live []lowerFile, complete bool) error {
	fi, err := os.Lstat(up)
	gone := errors.Is(err, fs.ErrNotExist)
	if err != nil && !gone {
		return fmt.Errorf("reading %q: %w", p, err)
	}
	lower, below := lookup(live, path.Base(p))
	if gone || isWhiteout(fi) {
		return d.removed(p, lower)
	}
	if strings.HasPrefix(path.Base(p), whPrefix) {
		return fmt.Errorf("/%s: layers cannot hold a file whose name begins with %s, which marks removed files (image-spec, \"Whiteouts\"); rename or remove it", p, whPrefix)
	}
	if d.o.By != nil {
		d.attribute(up, fi, lower, lowerPath(live, path.Base(p)))
	}
	h, err := d.header(p, up, fi)
	if err != nil {
		return err
	}
	if h == nil {
		if d.o.LeftOut != nil {
			d.o.LeftOut(p)
		}
		return d.removed(p, lower)
	}
	if !fi.IsDir() {
		if lower != nil && !lower.IsDir() {
			same, err := d.sameFile(up, fi, lowerPath(live, path.Base(p)), lower)
			if err != nil || same {
				return err
			}
		}
		return d.write(h, up)
	}
	return d.subdir(p, up, fi, h, lower, below, complete)
}

// removed records that a name is gone, if a lower layer has it.
func (d *differ) removed(p string, lower fs.FileInfo) error {
	if lower == nil {
		return nil
	}
	return d.write(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(path.Dir(p), whPrefix+path.Base(p)),
		Mode: 0o644, ModTime: d.o.Stamp}, "")
}

// subdir compares a directory and its contents.
func (d *differ) subdir(p, up string, fi fs.FileInfo, h *tar.Header, lower fs.FileInfo, below []lowerFile, complete bool) error {
	if lower == nil || !lower.IsDir() || lower.Mode() != fi.Mode() ||
		!d.o.Notes.of(up, fi.Mode()).shows(below[0].notes.of(below[0].path, lower.Mode())) {
		if err := d.write(h, ""); err != nil {
			return err
		}
		return d.dir(p, up, below, complete || isOpaque(up))
	}
	d.pending = append(d.pending, h)
	depth := len(d.pending)
	if err := d.dir(p, up, below, complete || isOpaque(up)); err != nil {
		return err
	}
	if len(d.pending) == depth { // nothing below was recorded
		d.pending = d.pending[:depth-1]
		if d.o.SetTimes {
			return SetTime(up, lower.ModTime())
		}
	}
	return nil
}

// lookup finds a name in the lower layers. It returns the visible file and, for a directory,
// the directories visible in it.
func lookup(live []lowerFile, name string) (top fs.FileInfo, below []lowerFile) {
	for _, l := range live {
		p := filepath.Join(l.path, name)
		fi, err := os.Lstat(p)
		if err != nil {
			continue
		}
		if isWhiteout(fi) {
			break
		}
		if !fi.IsDir() {
			if top == nil {
				top = fi
			}
			break
		}
		if top == nil {
			top = fi
		}
		below = append(below, lowerFile{p, l.notes})
		if isOpaque(p) {
			break
		}
	}
	return top, below
}

// lowerPath returns the location of the file that lookup found.
func lowerPath(live []lowerFile, name string) lowerFile {
	for _, l := range live {
		p := filepath.Join(l.path, name)
		if _, err := os.Lstat(p); err == nil {
			return lowerFile{p, l.notes}
		}
	}
	return lowerFile{}
}

// isWhiteout reports whether a file is overlayfs's whiteout.
func isWhiteout(fi fs.FileInfo) bool {
	if fi.Mode()&fs.ModeCharDevice == 0 {
		return false
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Rdev == 0
}

// isOpaque reports whether a directory hides the contents of lower layers.
func isOpaque(p string) bool {
	b := make([]byte, 8)
	n, err := unix.Lgetxattr(p, "user.overlay.opaque", b)
	return err == nil && n == 1 && b[0] == 'y'
}

// SetTime sets the modification time of a file, directory or link.
func SetTime(path string, when time.Time) error {
	ts := timespec(when)
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("setting the time of %q: %w", path, err)
	}
	return nil
}

// header describes a file. It returns nil for kinds that are not recorded.
func (d *differ) header(p, full string, fi fs.FileInfo) (*tar.Header, error) {
	h := &tar.Header{Name: p, ModTime: fi.ModTime()}
	d.o.Notes.Describe(h, full, fi)
	if !d.o.Newest.IsZero() && (fi.IsDir() || fi.ModTime().After(d.o.Newest)) {
		h.ModTime = d.o.Stamp
		if d.o.SetTimes { // later steps see the same time, whether the layer was created or cached
			if err := SetTime(full, d.o.Stamp); err != nil {
				return nil, err
			}
		}
	}
	if h.ModTime.Nanosecond() != 0 {
		h.Format = tar.FormatPAX
	}
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err != nil {
		return nil, fmt.Errorf("reading %q: %w", p, err)
	}
	switch {
	case fi.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, p+"/"
	case fi.Mode()&fs.ModeSymlink != 0:
		t, err := os.Readlink(full)
		if err != nil {
			return nil, fmt.Errorf("reading %q: %w", p, err)
		}
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, t, 0o777
	case fi.Mode().IsRegular():
		h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	case fi.Mode()&fs.ModeNamedPipe != 0:
		h.Typeflag = tar.TypeFifo
	default:
		return nil, nil // sockets do not outlive their program
	}
	if first, ok := d.links[inode{uint64(st.Dev), st.Ino}]; ok && st.Nlink > 1 && !fi.IsDir() {
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
	}
	return h, nil
}

// write records an entry after its parent directories. full is the path of a regular file's
// content.
func (d *differ) write(h *tar.Header, full string) error {
	for _, p := range d.pending {
		if err := d.emit(p, ""); err != nil {
			return err
		}
	}
	d.pending = d.pending[:0]
	return d.emit(h, full)
}

func (d *differ) emit(h *tar.Header, full string) error {
	d.n++
	if err := d.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("recording %q: %w", h.Name, err)
	}
	if (h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeFifo) || full == "" {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(full, &st); err == nil && st.Nlink > 1 {
		d.links[inode{uint64(st.Dev), st.Ino}] = h.Name
	}
	if h.Typeflag == tar.TypeFifo {
		return nil
	}
	f, err := openRepaired(full)
	if err != nil {
		return fmt.Errorf("recording %q: %w", h.Name, err)
	}
	defer f.Close()
	if _, err := io.Copy(d.tw, f); err != nil {
		return fmt.Errorf("recording %q: %w", h.Name, err)
	}
	return nil
}

// openRepaired opens one of the user's own files, even if its mode denies reading.
func openRepaired(p string) (*os.File, error) {
	f, err := os.Open(p)
	if !errors.Is(err, fs.ErrPermission) {
		return f, err
	}
	fi, err := os.Lstat(p)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(p, 0o400); err != nil {
		return nil, err
	}
	defer os.Chmod(p, fi.Mode())
	return os.Open(p)
}

// sameFile compares two files that are not directories.
func (d *differ) sameFile(a string, fa fs.FileInfo, b lowerFile, fb fs.FileInfo) (bool, error) {
	if fa.Mode() != fb.Mode() || !d.o.Notes.of(a, fa.Mode()).shows(b.notes.of(b.path, fb.Mode())) {
		return false, nil
	}
	if fa.Mode()&fs.ModeSymlink != 0 {
		ta, err := os.Readlink(a)
		if err != nil {
			return false, err
		}
		tb, err := os.Readlink(b.path)
		return ta == tb, err
	}
	if !fa.Mode().IsRegular() {
		return true, nil
	}
	if fa.Size() != fb.Size() || !fa.ModTime().Equal(fb.ModTime()) {
		return false, nil
	}
	return sameBytes(a, b.path)
}

func sameBytes(a, b string) (bool, error) {
	fa, err := openRepaired(a)
	if err != nil {
		return false, err
	}
	defer fa.Close()
	fb, err := openRepaired(b)
	if err != nil {
		return false, err
	}
	defer fb.Close()
	ba, bb := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, ea := io.ReadFull(fa, ba)
		m, eb := io.ReadFull(fb, bb)
		if n != m || !bytes.Equal(ba[:n], bb[:m]) {
			return false, nil
		}
		if ea != nil || eb != nil {
			return (ea == nil) == (eb == nil), nil
		}
	}
}
