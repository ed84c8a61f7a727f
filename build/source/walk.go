package source

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/patternmatcher"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hpcc/files"
)

// Walk returns the files that COPY copies for one source name. skip contains the patterns of
// --exclude, or is nil.
func (c *Dir) Walk(name string, skip *patternmatcher.PatternMatcher) (Set, error) {
	set := Set{Name: path.Base(name), sums: c.sums}
	full, err := securejoin.SecureJoin(c.Dir, name)
	if err != nil {
		return set, fmt.Errorf("finding %q in %s: %w", name, c.Of, err)
	}
	if rel, err := filepath.Rel(c.Dir, full); err == nil && slices.Contains(c.hidden, filepath.ToSlash(rel)) { // also through a link
		return set, fmt.Errorf("copying %q from %s: it holds secrets, which hpcc never copies into an image", name, c.Of)
	}
	top := Item{Path: full}
	err = top.lstat(unix.AT_FDCWD, full)
	excluded, ierr := c.ignored(name)
	if ierr != nil {
		return set, ierr
	}
	if errors.Is(err, fs.ErrNotExist) || (err == nil && excluded && !top.Mode.IsDir()) {
		if excluded && err == nil {
			return set, fmt.Errorf("copying %q from %s: left out by .dockerignore", name, c.Of)
		}
		return set, fmt.Errorf("copying %q: not found in %s", name, c.Of)
	}
	if err != nil {
		return set, fmt.Errorf("copying %q from %s: %w", name, c.Of, err)
	}
	if !top.Mode.IsDir() {
		if !top.Mode.IsRegular() {
			return set, fmt.Errorf("copying %q from %s: neither a file nor a directory", name, c.Of)
		}
		set.Items = []Item{top}
		return set, nil
	}
	set.Dir = true
	base, err := filepath.Rel(c.Dir, full)
	if err != nil {
		return set, err
	}
	w := &walker{context: c, base: base, skip: skip, top: full}
	w.group.SetLimit(files.MaxParallel(walkers, 3))
	list := dirList{found: []foundFile{{Item: top, below: &dirList{}}}}
	err = w.list(full, list.found[0].below)
	if werr := w.group.Wait(); err == nil {
		err = werr
	}
	if err != nil {
		return set, fmt.Errorf("reading %q of %s: %w", name, c.Of, err)
	}
	set.Items = list.appendTo(make([]Item, 0, w.count.Load()+1))
	if excluded && len(set.Items) < 2 { // .dockerignore has no exception below the directory
		return set, fmt.Errorf("copying %q from %s: left out by .dockerignore", name, c.Of)
	}
	return set, nil
}

// lstat sets the type, mode, size and link target of the item, which is name in the open
// directory dir.
func (it *Item) lstat(dir int, name string) error {
	var st unix.Stat_t
	for {
		err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return &fs.PathError{Op: "lstat", Path: it.Path, Err: err}
		}
	}
	it.Mode, it.stat = FromBits(st.Mode), statOf(&st)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		it.Mode |= fs.ModeDir
	case unix.S_IFLNK:
		it.Mode |= fs.ModeSymlink
		var err error
		it.Link, err = os.Readlink(it.Path)
		return err
	default: // sockets and devices are left out of layers
		it.Mode |= fs.ModeIrregular
	}
	return nil
}

// A walker lists the files below a directory. It reads several directories, and several
// files of one directory, at the same time, because each system call on a shared file
// system is a message to a server.
type walker struct {
	context *Dir
	base    string // path of the directory in the context
	skip    *patternmatcher.PatternMatcher
	top     string // path of the directory on the host
	group   errgroup.Group
	count   atomic.Int64 // number of names
	mu      sync.Mutex   // guards the patterns, which are compiled on first use
}

const (
	walkers  = 8   // directories, and parts of one directory, to read at the same time
	walkPart = 512 // names per part
)

// A dirList lists the files of a directory, by name.
type dirList struct{ found []foundFile }

type foundFile struct {
	Item
	excluded bool     // files below may be exceptions
	below    *dirList // the files in a directory
}

// appendTo appends the files to items, directories before their contents.
func (l *dirList) appendTo(items []Item) []Item {
	for i := range l.found {
		f := &l.found[i]
		if !f.excluded {
			items = append(items, f.Item)
		}
		if f.below != nil {
			items = f.below.appendTo(items)
		}
	}
	return items
}

// list stores the files of the directory dir, and of all directories below it, in into.
func (w *walker) list(dir string, into *dirList) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err == nil {
		slices.Sort(names)
		into.found = make([]foundFile, len(names))
		w.count.Add(int64(len(names)))
		err = w.visitAll(d, names, into.found)
	}
	d.Close()
	if err != nil {
		return err
	}
	for i := range into.found {
		f := &into.found[i]
		if !f.Mode.IsDir() {
			continue
		}
		f.below = &dirList{}
		if !w.group.TryGo(func() error { return w.list(f.Path, f.below) }) {
			if err := w.list(f.Path, f.below); err != nil {
				return err
			}
		}
	}
	return nil
}

// visitAll visits the named files in the open directory d, and stores them in into.
func (w *walker) visitAll(d *os.File, names []string, into []foundFile) error {
	var g errgroup.Group
	g.SetLimit(files.MaxParallel(walkers, 3))
	fd := int(d.Fd())
	for from := 0; from < len(names); from += walkPart {
		to := min(len(names), from+walkPart)
		part := func() error {
			for i := from; i < to; i++ {
				if err := w.visit(fd, d.Name(), names[i], &into[i]); err != nil {
					return err
				}
			}
			return nil
		}
		if len(names) <= walkPart {
			return part()
		}
		g.Go(part)
	}
	return g.Wait()
}

// visit sets f to the file name in the directory dir, which is open as fd. It does not stat an
// excluded file that cannot contain exceptions.
func (w *walker) visit(fd int, dir, name string, f *foundFile) error {
	f.Path = strings.TrimSuffix(dir, "/") + "/" + name
	f.Rel = strings.TrimPrefix(f.Path[len(w.top):], "/")
	var err error
	if f.excluded, err = w.excluded(f.Rel); err != nil || (f.excluded && !w.hasExceptions()) {
		return err
	}
	if err := f.lstat(fd, name); err != nil {
		return err
	}
	f.excluded = f.excluded || f.Mode&fs.ModeIrregular != 0
	return nil
}

// excluded reports whether .dockerignore or --exclude excludes the file.
func (w *walker) excluded(rel string) (bool, error) {
	if w.context.Ignore == nil && w.skip == nil {
		return false, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	excluded, err := w.context.ignored(path.Join(w.base, rel))
	if err == nil && !excluded && w.skip != nil {
		excluded, err = w.skip.MatchesOrParentMatches(rel)
	}
	return excluded, err
}

// hasExceptions reports whether an excluded directory may contain files to copy.
func (w *walker) hasExceptions() bool {
	return (w.context.Ignore != nil && w.context.Ignore.Exclusions()) || (w.skip != nil && w.skip.Exclusions())
}

// FromBits converts the mode bits of chmod(2) to a Go mode.
func FromBits(b uint32) fs.FileMode {
	m := fs.FileMode(b & 0o777)
	for _, f := range modeFlags {
		if b&f.bit != 0 {
			m |= f.mode
		}
	}
	return m
}

// modeFlags are the mode bits other than the permissions.
var modeFlags = [...]struct {
	mode fs.FileMode
	bit  uint32
}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}}
