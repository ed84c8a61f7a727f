package unpack

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"

	"hpcc/files"
)

// A directory is a directory of the tree that is kept open (O_PATH) while entries are written
// to it.
type directory struct {
	fd     int
	linked bool     // its path contains links
	modes  []uint32 // modes that new files in it get exactly
}

// exact reports whether a file has received this mode at its creation. A directory's default
// ACL can mask bits that the umask allows, so it checks the first file of each mode.
func (d *directory) exact(fd int, mode uint32) bool {
	if slices.Contains(d.modes, mode) {
		return true
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&0o7777 != mode {
		return false
	}
	d.modes = append(d.modes, mode)
	return true
}

// maxOpen is the maximum number of directories that stay open between entries.
const maxOpen = 4096

// openLimit returns a quarter of the process's limit of open files, at most maxOpen, because
// other trees may be unpacked concurrently.
func openLimit() int { return files.MaxParallel(maxOpen, 4) }

// forgetDirs closes the cached directories, because their paths may have changed.
func (t *tree) forgetDirs() {
	for _, d := range t.dirs {
		d.close()
	}
	clear(t.dirs)
	t.linked = 0
}

// forgetOthers closes the cached directories except keep and the one in use.
func (t *tree) forgetOthers(keep *directory) {
	t.linked = 0
	for p, d := range t.dirs {
		if d != keep && d != t.inUse {
			d.close()
			delete(t.dirs, p)
		} else if d.linked {
			t.linked++
		}
	}
}

// close closes and invalidates the descriptor, so that no other file is mistaken for the
// directory.
func (d *directory) close() {
	unix.Close(d.fd)
	d.fd = -1
}

// forgetLinked closes the cached directories whose paths contain links, because a name that
// was removed may have been one of these links.
func (t *tree) forgetLinked() {
	if t.linked == 0 {
		return
	}
	for p, d := range t.dirs {
		if d.linked {
			d.close()
			delete(t.dirs, p)
		}
	}
	t.linked = 0
}

func (t *tree) remember(p string, fd int, linked bool) *directory {
	d := &directory{fd: fd, linked: linked}
	t.dirs[p] = d
	if linked {
		t.linked++
	}
	return d
}

// dir opens the directory p. Links in p are resolved as if the tree were the root. Missing
// directories are created.
func (t *tree) dir(p string) (*directory, error) {
	if p == "." || p == "" {
		return &t.root, nil
	}
	if d, ok := t.dirs[p]; ok {
		return d, nil
	}
	parent, err := t.dir(path.Dir(p))
	if err != nil {
		return nil, err
	}
	if len(t.dirs) > 2*t.open { // the path has more directories than may be open
		t.forgetOthers(parent)
	}
	// The common case: a directory in a directory.
	d, err := t.openIn(parent, p)
	switch {
	case err == nil:
		t.keepTime(p, d)
		return d, nil
	case errors.Is(err, unix.ENOENT):
		return t.makeDir(p)
	}
	return t.follow(p)
}

// keepTime notes the time of a directory that a layer may change without describing it.
func (t *tree) keepTime(p string, d *directory) {
	if _, described := t.time[p]; described || !t.keepTimes {
		return
	}
	var st unix.Stat_t
	if unix.Fstat(d.fd, &st) == nil {
		t.time[p] = dirTime{time.Unix(st.Mtim.Unix()), t.removals}
	}
}

// follow opens the directory p and follows the links in it.
func (t *tree) follow(p string) (*directory, error) {
	fd, kind, err := t.lookup(p)
	if errors.Is(err, unix.ENOENT) {
		return t.makeDir(p)
	}
	if err != nil {
		return nil, fmt.Errorf("opening its directory: %w", err)
	}
	if kind != unix.S_IFDIR {
		unix.Close(fd)
		return t.replaceByDir(p)
	}
	return t.remember(p, fd, true), nil
}

// lookup opens (O_PATH) the file that p resolves to and returns its type.
func (t *tree) lookup(p string) (fd int, kind uint32, err error) {
	f, err := pathrs.OpenatInRoot(t.file, p)
	if err != nil {
		return -1, 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return -1, 0, err
	}
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return fd, st.Mode & unix.S_IFMT, err
}

// makeDir creates a directory that the image does not describe but that contains an entry.
func (t *tree) makeDir(p string) (*directory, error) {
	parent, err := t.dir(path.Dir(p))
	if err != nil {
		return nil, err
	}
	err = unix.Mkdirat(parent.fd, path.Base(p), 0o755)
	if errors.Is(err, unix.EEXIST) {
		return t.makeTarget(p)
	}
	if err != nil {
		return nil, err
	}
	return t.openIn(parent, p)
}

// makeTarget creates the target directory of a dangling link, such as "bin" before
// "usr/bin".
func (t *tree) makeTarget(p string) (*directory, error) {
	full, err := securejoin.SecureJoin(t.file.Name(), p)
	if err != nil {
		return nil, err
	}
	to, err := filepath.Rel(t.file.Name(), full)
	if err != nil || to == p {
		return nil, unix.EEXIST
	}
	if _, err := t.dir(to); err != nil {
		return nil, err
	}
	fd, kind, err := t.lookup(p)
	if err != nil {
		return nil, err
	}
	if kind != unix.S_IFDIR {
		unix.Close(fd)
		return nil, unix.ENOTDIR
	}
	return t.remember(p, fd, true), nil
}

// openIn opens the directory p, which is not a link, in its parent.
func (t *tree) openIn(parent *directory, p string) (*directory, error) {
	fd, err := unix.Openat(parent.fd, path.Base(p), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return t.remember(p, fd, parent.linked), nil
}

// replaceByDir replaces a file by a directory, because a later entry is below it.
func (t *tree) replaceByDir(p string) (*directory, error) {
	if err := t.remove(p); err != nil {
		return nil, err
	}
	return t.makeDir(p)
}

// hasDir reports whether p leads to a directory. Unlike dir, it creates and replaces
// nothing.
func (t *tree) hasDir(p string) (bool, error) {
	if p == "" || p == "." {
		return true, nil
	}
	if _, ok := t.dirs[p]; ok {
		return true, nil
	}
	fd, kind, err := t.lookup(p)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	unix.Close(fd)
	return kind == unix.S_IFDIR, nil
}

// procPath returns a path for an open file, for system calls that do not accept O_PATH
// descriptors.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }
