package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// Names of whiteouts (image-spec, "layer", "Whiteouts").
const (
	whPrefix = ".wh."
	whOpaque = ".wh..wh..opq"
)

// maxPath is the longest name or link target of an entry, in bytes.
const maxPath = 4096

// A tree is a directory that layers are being applied to.
type tree struct {
	root *os.File
	dirs map[string]*os.File  // opened directories by path below the root
	time map[string]time.Time // of directories; set last, for every file made changes them
	made map[string]bool      // what the present layer made
	rep  Report
	buf  []byte // for the bytes of files
}

// maxOpen is how many directories stay open between entries.
const maxOpen = 512

func openTree(dir string) (*tree, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return &tree{root: f, dirs: map[string]*os.File{}, time: map[string]time.Time{}, buf: make([]byte, 64<<10)}, nil
}

func (t *tree) close() {
	t.forgetDirs()
	t.root.Close()
}

// forgetDirs closes the remembered directories: a name may lead elsewhere now.
func (t *tree) forgetDirs() {
	for _, f := range t.dirs {
		f.Close()
	}
	clear(t.dirs)
}

// dir opens the directory p, which may lead through links of the tree; they are
// resolved as if the tree were the root. What is missing is made.
func (t *tree) dir(p string) (*os.File, error) {
	if p == "." || p == "" {
		return t.root, nil
	}
	if f, ok := t.dirs[p]; ok {
		return f, nil
	}
	f, err := pathrs.OpenatInRoot(t.root, p)
	if errors.Is(err, unix.ENOENT) {
		f, err = t.makeDir(p)
	}
	if err != nil {
		return nil, fmt.Errorf("opening its directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		f.Close()
		return t.replaceByDir(p)
	}
	t.dirs[p] = f
	return f, nil
}

// makeDir makes a directory that an entry needs and no entry described.
func (t *tree) makeDir(p string) (*os.File, error) {
	parent, err := t.dir(path.Dir(p))
	if err != nil {
		return nil, err
	}
	err = unix.Mkdirat(int(parent.Fd()), path.Base(p), 0o755)
	if errors.Is(err, unix.EEXIST) {
		// A link that leads nowhere yet stands there, as "bin" does before
		// "usr/bin": the directory is made where it leads.
		full, jerr := securejoin.SecureJoin(t.root.Name(), p)
		if jerr != nil {
			return nil, jerr
		}
		to, jerr := filepath.Rel(t.root.Name(), full)
		if jerr != nil || to == p {
			return nil, err
		}
		_, err = t.dir(to)
	}
	if err != nil {
		return nil, err
	}
	return pathrs.OpenatInRoot(t.root, p)
}

// replaceByDir puts a directory where a file is: a later entry lies below it.
func (t *tree) replaceByDir(p string) (*os.File, error) {
	if err := t.remove(p); err != nil {
		return nil, err
	}
	f, err := t.makeDir(p)
	if err == nil {
		t.dirs[p] = f
	}
	return f, err
}

// cleanName is an entry's name below the root; "." is the root itself.
func cleanName(n string) (string, error) {
	if len(n) > maxPath {
		return "", fmt.Errorf("its name has %d bytes", len(n))
	}
	if strings.ContainsRune(n, 0) {
		return "", errors.New("its name holds a NUL byte")
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
	if len(t.dirs) > maxOpen {
		t.forgetDirs()
	}
	if name == configDir || strings.HasPrefix(name, configDir+"/") {
		return nil
	}
	if name == "." {
		if h.Typeflag == tar.TypeDir {
			t.time["."] = h.ModTime
			return unix.Fchmod(int(t.root.Fd()), granted(uint32(h.Mode), true))
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
		t.rep.FIFOs++
		return t.remove(name)
	}
	return fmt.Errorf("its type %q is not known", h.Typeflag)
}

// lstat looks at a name in an opened directory.
func lstat(dir *os.File, name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
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
	fresh := errors.Is(err, unix.ENOENT)
	if fresh {
		err = unix.Mkdirat(int(parent.Fd()), base, 0o700)
	}
	if err != nil {
		return err
	}
	if !fresh || !plain(h) {
		d, err := t.dir(name)
		if err != nil {
			return err
		}
		keepNotes(int(d.Fd()), h, fresh)
	}
	t.made[name] = true
	t.time[name] = h.ModTime
	t.rep.Dirs++
	return unix.Fchmodat(int(parent.Fd()), base, granted(uint32(h.Mode), true), 0)
}

// clearName makes room for a file: whatever has the name goes.
func (t *tree) clearName(parent *os.File, name string) error {
	base := path.Base(name)
	err := unix.Unlinkat(int(parent.Fd()), base, 0)
	if err == nil {
		if len(t.dirs) > 0 {
			t.forgetLink(name)
		}
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

// forgetLink drops remembered directories that may have been reached by name.
func (t *tree) forgetLink(name string) {
	for p := range t.dirs {
		if p == name || strings.HasPrefix(p, name+"/") {
			t.forgetDirs()
			return
		}
	}
}

func (t *tree) putFile(name string, h *tar.Header, r io.Reader) error {
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(int(parent.Fd()), base, flags, 0o600)
	if errors.Is(err, unix.EEXIST) {
		if err := t.clearName(parent, name); err != nil {
			return err
		}
		if parent, err = t.dir(path.Dir(name)); err != nil {
			return err
		}
		fd, err = unix.Openat(int(parent.Fd()), base, flags, 0o600)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{r}, t.buf)
	if err == nil && h.Mode&0o6000 != 0 {
		t.rep.SetID++
	}
	if err == nil {
		keepNotes(fd, h, true)
		err = unix.Fchmod(fd, granted(uint32(h.Mode), false))
	}
	if err == nil {
		ts := timespec(h.ModTime)
		err = unix.UtimesNanoAt(fd, "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // before Linux 5.8
			err = unix.Futimes(fd, []unix.Timeval{unix.NsecToTimeval(h.ModTime.UnixNano()), unix.NsecToTimeval(h.ModTime.UnixNano())})
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	t.made[name] = true
	t.rep.Files++
	t.rep.Bytes += n
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
		return fmt.Errorf("its link target has %d bytes", len(h.Linkname))
	}
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return err
	}
	if err := t.clearName(parent, name); err != nil {
		return err
	}
	if parent, err = t.dir(path.Dir(name)); err != nil {
		return err
	}
	if err := unix.Symlinkat(h.Linkname, int(parent.Fd()), path.Base(name)); err != nil {
		return err
	}
	_ = setLinkOwner(fmt.Sprintf("/proc/self/fd/%d", parent.Fd()), path.Base(name), h.Uid, h.Gid)
	t.made[name] = true
	t.rep.Links++
	ts := timespec(h.ModTime)
	return unix.UtimesNanoAt(int(parent.Fd()), path.Base(name), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
}

func (t *tree) putHardLink(name string, h *tar.Header) error {
	target, err := cleanName(h.Linkname)
	if err != nil {
		return fmt.Errorf("its link target %q: %w", h.Linkname, err)
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
		return fmt.Errorf("it is a hard link to %q, which is not there", h.Linkname)
	}
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fmt.Errorf("it is a hard link to %q, which is a directory", h.Linkname)
	}
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return err
	}
	if err := t.clearName(parent, name); err != nil {
		return err
	}
	// Both again: clearing may have closed them.
	if from, err = t.dir(path.Dir(target)); err != nil {
		return err
	}
	if parent, err = t.dir(path.Dir(name)); err != nil {
		return err
	}
	t.made[name] = true
	t.rep.Links++
	return unix.Linkat(int(from.Fd()), path.Base(target), int(parent.Fd()), path.Base(name), 0)
}

// whiteout hides what lower layers put at a name, or in a whole directory. What
// this layer made itself stays, wherever the whiteout stands in the archive.
func (t *tree) whiteout(dir, base string) error {
	if base == whOpaque {
		return t.hideLower(dir)
	}
	target := strings.TrimPrefix(base, whPrefix)
	if target == "" || target == "." || target == ".." || strings.HasPrefix(base, ".wh..wh.") {
		return nil // names that mean nothing (aufs keeps its own notes so)
	}
	name := path.Join(dir, target)
	if name == configDir {
		return nil
	}
	if t.made[name] {
		return t.hideLower(name)
	}
	if ok, err := t.hasDir(dir); err != nil || !ok {
		return err
	}
	return t.remove(name)
}

// hasDir says whether p leads to a directory; unlike dir it makes none, and
// leaves a file in its place alone.
func (t *tree) hasDir(p string) (bool, error) {
	if p == "" {
		p = "."
	}
	f, err := pathrs.OpenatInRoot(t.root, p)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	var st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &st)
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

// hideLower removes from directory p what the present layer did not make.
func (t *tree) hideLower(p string) error {
	if ok, err := t.hasDir(path.Dir(p)); err != nil || !ok {
		return err // nothing to hide
	}
	parent, err := t.dir(path.Dir(p))
	if err != nil {
		return err
	}
	if p != "." {
		if st, err := lstat(parent, path.Base(p)); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return nil
		}
	}
	d, err := t.dir(p)
	if err != nil {
		return err
	}
	names, err := readNames(d)
	if err != nil {
		return err
	}
	for _, n := range names {
		child := path.Join(p, n)
		if child == configDir {
			continue
		}
		if t.made[child] || t.madeBelow(child) {
			err = t.hideLower(child)
		} else {
			err = t.remove(child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// madeBelow says whether this layer made something under p, which itself it
// did not describe.
func (t *tree) madeBelow(p string) bool {
	for m := range t.made {
		if strings.HasPrefix(m, p+"/") {
			return true
		}
	}
	return false
}

// readNames lists a directory opened with O_PATH or not.
func readNames(d *os.File) ([]string, error) {
	fd, err := unix.Openat(int(d.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	sort.Strings(names)
	return names, err
}

// remove removes the name, with all below it. Links are removed, not followed.
func (t *tree) remove(name string) error {
	t.forgetDirs()
	parent, err := t.dir(path.Dir(name))
	if err != nil {
		return err
	}
	err = removeAt(int(parent.Fd()), path.Base(name), 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	delete(t.time, name)
	for p := range t.time {
		if strings.HasPrefix(p, name+"/") {
			delete(t.time, p)
		}
	}
	return err
}

// maxNesting bounds how deep directories may lie below each other.
const maxNesting = 4096

// removeAt removes a name in an opened directory.
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

// finish sets the times of directories, which every file made below changed.
func (t *tree) finish() error {
	for p, m := range t.time {
		ts := []unix.Timespec{timespec(m), timespec(m)}
		if p == "." {
			if err := unix.UtimesNanoAt(int(t.root.Fd()), ".", ts, 0); err != nil {
				return err
			}
			continue
		}
		parent, err := t.dir(path.Dir(p))
		if err != nil {
			return err
		}
		st, err := lstat(parent, path.Base(p))
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue // a later layer put something else there
		}
		if err := unix.UtimesNanoAt(int(parent.Fd()), path.Base(p), ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("setting the time of %q: %w", p, err)
		}
	}
	return nil
}
