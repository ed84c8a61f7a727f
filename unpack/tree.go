package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Names of whiteouts (image-spec, "layer", "Whiteouts").
const (
	whPrefix = ".wh."
	whOpaque = ".wh..wh..opq"
)

// maxPath is the maximum length of an entry's name or link target, in bytes.
const maxPath = 4096

// A tree is a directory to which layers are applied.
type tree struct {
	file     *os.File // the root
	root     directory
	dirs     map[string]*directory // open directories by path below the root
	inUse    *directory            // directory in which an entry is being created, or nil
	linked   int                   // number of directories whose paths may contain links
	open     int                   // maximum number of open directories
	time     map[string]dirTime    // times of directories; set last, because every new file changes them
	removed  map[string]int        // removed directories, with the number of their removal
	removals int                   // number of removals of directories so far
	created  map[string]bool       // names that the current layer created
	above    map[string]bool       // parent directories of created; nil until createdBelow is called
	rep      Report
	notes    *Notes
	buf      []byte // for the bytes of files
	umask    uint32
	sparse   int64 // total size of the current layer's sparse files, in bytes
	copied   int64 // total size of copies instead of hard links, in bytes
	// Source of the entries, or nil if it is not a layer.
	content *content
	// Some links of this tree may have recorded owners.
	linkOwners bool
	oldTimes   atomic.Bool          // the kernel sets times of files only by path
	keepTimes  bool                 // directories that the layers do not describe keep their times
	exact      map[string]time.Time // times that replace those of entries
	fills      fills
}

// dirTime is the time of a directory's entry and the number of removals before it.
type dirTime struct {
	time     time.Time
	removals int
}

// openTree opens a tree with its notes, to apply layers to it.
func openTree(dir string, notes *Notes) (*tree, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return &tree{
		file: f, notes: notes, root: directory{fd: int(f.Fd())}, dirs: map[string]*directory{}, open: openLimit(),
		time: map[string]dirTime{}, removed: map[string]int{}, buf: make([]byte, 256<<10), umask: readUmask(), linkOwners: true,
	}, nil
}

func (t *tree) close() {
	_ = t.drain()
	if t.fills.queue != nil {
		close(t.fills.queue)
		t.fills.queue = nil
	}
	t.forgetDirs()
	t.file.Close()
}

// cleanName returns an entry's path below the root. "." is the root itself.
func cleanName(n string) (string, error) {
	if len(n) > maxPath {
		return "", fmt.Errorf("the name has %d bytes", len(n))
	}
	if strings.ContainsRune(n, 0) {
		return "", errors.New("the name contains a NUL byte")
	}
	c := path.Clean(strings.TrimLeft(n, "/"))
	if c == ".." || strings.HasPrefix(c, "../") {
		return "", errors.New("path leaves the root")
	}
	return c, nil
}

// entry applies one member of a layer.
func (t *tree) entry(h *tar.Header, r io.Reader) error {
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	if len(t.dirs) > t.open {
		t.forgetDirs()
	}
	if name == configDir || strings.HasPrefix(name, configDir+"/") {
		return nil
	}
	if m, ok := t.exact[name]; ok {
		h.ModTime = m
	}
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			t.time["."] = dirTime{time: h.ModTime}
			t.notes.keep(t.root.fd, h, false)
			return unix.Fchmod(t.root.fd, granted(uint32(h.Mode), true))
		}
		return nil
	}
	if base := path.Base(name); strings.HasPrefix(base, whPrefix) {
		return t.whiteout(path.Dir(name), base)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return t.putDir(name, h)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return t.putFile(name, h, r)
	case tar.TypeSymlink:
		return t.putLink(name, h)
	case tar.TypeLink:
		return t.putHardLink(name, h)
	case tar.TypeChar, tar.TypeBlock:
		t.rep.Devices++
		return t.remove(name)
	case tar.TypeFifo:
		return t.putFIFO(name, h)
	}
	return fmt.Errorf("unknown type %q", h.Typeflag)
}

// lstat returns the status of a name in an open directory.
func lstat(dir *directory, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

func (t *tree) putDir(name string, h *tar.Header) error {
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	st, err := lstat(parent, base)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := t.remove(name); err != nil {
			return err
		}
		if parent, err = t.dir(path.Dir(name)); err != nil {
			return err
		}
		err = unix.ENOENT
	}
	mode := granted(uint32(h.Mode), true)
	fresh := errors.Is(err, unix.ENOENT)
	if fresh {
		if err = unix.Mkdirat(parent.fd, base, mode); err == nil {
			st, err = lstat(parent, base)
		}
	}
	if err != nil {
		return err
	}
	if !fresh || !plain(h) || t.notes.InMemory() {
		d, err := t.dir(name)
		if err != nil {
			return err
		}
		t.notes.keep(d.fd, h, fresh)
	}
	t.mark(name)
	t.time[name] = dirTime{h.ModTime, t.removals}
	t.rep.Dirs++
	if st.Mode&0o7777 == mode {
		return nil
	}
	return unix.Fchmodat(parent.fd, base, mode, 0)
}

// clearName removes the file, link or directory of that name.
func (t *tree) clearName(parent *directory, name string) error {
	err := unix.Unlinkat(parent.fd, path.Base(name), 0)
	if err == nil {
		t.forgetLinked()
		return nil
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM) {
		return t.remove(name)
	}
	return err
}

func timespec(m time.Time) unix.Timespec {
	if m.Unix() < 0 {
		m = time.Unix(0, 0)
	}
	return unix.NsecToTimespec(m.UnixNano())
}

func (t *tree) putLink(name string, h *tar.Header) error {
	if h.Linkname == "" || len(h.Linkname) > maxPath {
		return fmt.Errorf("the link target has %d bytes; want 1 to %d", len(h.Linkname), maxPath)
	}
	parent, err := t.inDir(name, func(d *directory, base string) error { return unix.Symlinkat(h.Linkname, d.fd, base) })
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("the file system does not support symbolic links (%w); unpack to another one", err)
	}
	if err != nil {
		return err
	}
	t.rep.Links++
	return t.describeLink(parent, name, h)
}

// describeLink records the owner of a new link or FIFO and sets its time.
func (t *tree) describeLink(parent *directory, name string, h *tar.Header) error {
	if t.linkOwners = t.linkOwners || h.Uid|h.Gid != 0; t.linkOwners {
		_ = t.notes.setLinkOwner(procPath(parent.fd), path.Base(name), h.Uid, h.Gid)
	}
	t.mark(name)
	ts := timespec(h.ModTime)
	return unix.UtimesNanoAt(parent.fd, path.Base(name), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

// putFIFO creates a FIFO. It keeps the image's mode, because recording or removing a FIFO
// does not open it.
func (t *tree) putFIFO(name string, h *tar.Header) error {
	parent, err := t.inDir(name, func(d *directory, base string) error { return unix.Mknodat(d.fd, base, unix.S_IFIFO|0o600, 0) })
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS) {
		t.rep.FIFOs++ // the file system does not support FIFOs
		return t.remove(name)
	}
	if err == nil {
		err = unix.Fchmodat(parent.fd, path.Base(name), uint32(h.Mode)&0o7777, 0)
	}
	if err != nil {
		return err
	}
	return t.describeLink(parent, name, h)
}

func (t *tree) putHardLink(name string, h *tar.Header) error {
	target, err := cleanName(h.Linkname)
	if err != nil {
		return fmt.Errorf("link target %q: %w", h.Linkname, err)
	}
	if target == name {
		return nil
	}
	from, err := t.dir(path.Dir(target))
	if err != nil {
		return err
	}
	st, err := lstat(from, path.Base(target))
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("hard link target %q does not exist", h.Linkname)
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("hard link target %q is a directory", h.Linkname)
	}
	_, err = t.inDir(name, func(d *directory, base string) error {
		from, err := t.dir(path.Dir(target))
		if err != nil {
			return err
		}
		err = unix.Linkat(from.fd, path.Base(target), d.fd, base, 0)
		if noSecondName(err) {
			t.rep.Copies++
			if err := t.drain(); err != nil {
				return err
			}
			err = t.copyName(from.fd, path.Base(target), d.fd, base)
		}
		return err
	})
	t.mark(name)
	t.rep.Links++
	return err
}

// inDir calls make to create name, replacing what exists.
func (t *tree) inDir(name string, make func(d *directory, base string) error) (*directory, error) {
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return nil, err
	}
	t.inUse = parent
	defer func() { t.inUse = nil }()
	if err = make(parent, path.Base(name)); !errors.Is(err, unix.EEXIST) {
		return parent, err
	}
	if err := t.clearName(parent, name); err != nil {
		return nil, err
	}
	// Clearing may have closed it.
	if parent, err = t.dir(path.Dir(name)); err != nil {
		return nil, err
	}
	t.inUse = parent
	return parent, make(parent, path.Base(name))
}

// mark records that the current layer created the name.
func (t *tree) mark(name string) {
	t.created[name] = true
	if t.above != nil {
		t.markAbove(name)
	}
}

func (t *tree) markAbove(name string) {
	for p := path.Dir(name); p != "." && !t.above[p]; p = path.Dir(p) {
		t.above[p] = true
	}
}

// createdBelow reports whether this layer created something below p without describing p
// itself.
func (t *tree) createdBelow(p string) bool {
	if t.above == nil {
		t.above = map[string]bool{}
		for m := range t.created {
			t.markAbove(m)
		}
	}
	return t.above[p]
}

// readNames lists a directory, which may be opened with O_PATH.
func readNames(d *directory) ([]string, error) {
	fd, err := unix.Openat(d.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	sort.Strings(names)
	return names, err
}

// remove removes the name and everything below it. It does not follow links.
func (t *tree) remove(name string) error {
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return err
	}
	if err := unix.Unlinkat(parent.fd, path.Base(name), 0); err == nil || errors.Is(err, unix.ENOENT) {
		t.forgetLinked()
		return nil
	}
	_ = t.drain() // NFS keeps the names of removed files that are open
	err = removeAt(parent.fd, path.Base(name), 0)
	t.forgetDirs()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	t.removals++
	t.removed[name] = t.removals
	return err
}

// removedSince reports whether p or a directory above it was removed after the given number
// of removals.
func (t *tree) removedSince(p string, removals int) bool {
	for ; removals < t.removals && p != "."; p = path.Dir(p) {
		if t.removed[p] > removals {
			return true
		}
	}
	return false
}

// maxNesting bounds the nesting depth of directories.
const maxNesting = 4096

// removeAt removes a name in an open directory.
func removeAt(at int, name string, depth int) error {
	err := unix.Unlinkat(at, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) || depth > maxNesting {
		return err
	}
	fd, oerr := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(oerr, unix.EACCES) {
		_ = unix.Fchmodat(at, name, 0o700, 0)
		fd, oerr = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	}
	if oerr != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	_ = unix.Fchmod(fd, 0o700)
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeAt(fd, n, depth+1); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
}

// finish sets the times of directories, which every new file below changes.
func (t *tree) finish() error {
	for _, p := range slices.Sorted(maps.Keys(t.time)) {
		if len(t.dirs) > t.open {
			t.forgetDirs()
		}
		m := t.time[p]
		if t.removedSince(p, m.removals) {
			continue
		}
		ts := []unix.Timespec{timespec(m.time), timespec(m.time)}
		if p == "." {
			if err := unix.UtimesNanoAt(t.root.fd, ".", ts, 0); err != nil {
				return err
			}
			continue
		}
		if t.removals > 0 { // a link in its path may have lost its target
			if ok, err := t.hasDir(path.Dir(p)); err != nil {
				return err
			} else if !ok {
				continue
			}
		}
		parent, err := t.dir(path.Dir(p))
		if err != nil {
			return err
		}
		st, err := lstat(parent, path.Base(p))
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue // a later layer replaced it
		}
		if err := unix.UtimesNanoAt(parent.fd, path.Base(p), ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("setting the time of %q: %w", p, err)
		}
	}
	return nil
}
