package unpack

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hpcc/files"
	"hpcc/store"
)

// Trees in a store are read-only, so the trees of images with the same lower layers share their
// files as hard links. That saves space, inodes and the time of unpacking these layers again.

// A lowerTree is the tree of an image that has the lowest layers of another image.
type lowerTree struct {
	dir    string
	layers int // number of its layers; 0 if the store has no such tree
}

// lowerTreeOf returns the tree in the store that has most of an image's lowest layers.
func lowerTreeOf(s *store.Store, img v1.Image) (best lowerTree) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return best
	}
	trees := filepath.Join(s.Dir(), "trees")
	entries, err := os.ReadDir(trees)
	if err != nil {
		return best
	}
	for _, e := range entries {
		dir := filepath.Join(trees, e.Name())
		if have := layersOfTree(dir); len(have) > best.layers && len(have) <= len(cfg.RootFS.DiffIDs) &&
			slices.Equal(have, cfg.RootFS.DiffIDs[:len(have)]) && !hasNotesFile(dir) {
			best = lowerTree{dir, len(have)}
		}
	}
	return best
}

// layersOfTree returns the diff IDs of a tree's layers, or nil if they cannot be read.
func layersOfTree(dir string) []v1.Hash {
	f, err := openOurs(dir, path.Base(ConfigFile))
	if err != nil {
		return nil
	}
	defer f.Close()
	var cfg struct {
		RootFS struct {
			DiffIDs []v1.Hash `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if json.NewDecoder(io.LimitReader(f, maxConfig)).Decode(&cfg) != nil {
		return nil
	}
	return cfg.RootFS.DiffIDs
}

// A linker links the files of a tree, in several directories at a time, because on a network file
// system each link waits for a server.
type linker struct {
	t     *tree
	mu    sync.Mutex // guards the fields of t
	group errgroup.Group
}

// linkTree makes the empty tree t a copy of the tree in dir, whose files it links.
func (t *tree) linkTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	l := &linker{t: t}
	l.group.SetLimit(files.MaxParallel(maxFills, 64)) // each keeps the directories above it open
	err = l.dir(f, t.root.fd, ".")
	if gerr := l.group.Wait(); err == nil {
		err = gerr
	}
	if err != nil {
		return fmt.Errorf("linking the files of %s: %w", dir, err)
	}
	return nil
}

// dir links the files of a directory into the new directory to, whose path in the tree is p, and
// copies its subdirectories. It returns when all of them are complete.
func (l *linker) dir(from *os.File, to int, p string) error {
	fd := int(from.Fd())
	if err := l.metadata(fd, to, p); err != nil {
		return err
	}
	entries, err := from.ReadDir(-1)
	if err != nil {
		return err
	}
	var below sync.WaitGroup
	defer below.Wait()
	links, files := 0, 0
	for _, e := range entries {
		name := e.Name()
		switch {
		case p == "." && name == configDir:
		case e.IsDir():
			below.Add(1)
			subdir := func() error {
				defer below.Done()
				return l.subdir(fd, to, path.Join(p, name))
			}
			if l.group.TryGo(subdir) {
				continue
			}
			if err := subdir(); err != nil {
				return err
			}
		default:
			if err := unix.Linkat(fd, name, to, name, 0); err != nil {
				return &os.LinkError{Op: "link", Old: path.Join(p, name), New: path.Join(p, name), Err: err}
			}
			if e.Type()&os.ModeSymlink != 0 {
				links++
			} else {
				files++
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p != "." {
		l.t.rep.Dirs++
	}
	l.t.rep.Links += links
	l.t.rep.Files += files
	return nil
}

// subdir makes the directory p of the tree, in to, from the one of the same name in from.
func (l *linker) subdir(from, to int, p string) error {
	const flags = unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	base := path.Base(p)
	source, err := unix.Openat(from, base, unix.O_RDONLY|flags, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: p, Err: err}
	}
	f := os.NewFile(uintptr(source), p)
	defer f.Close()
	if err := unix.Mkdirat(to, base, 0o755); err != nil {
		return &os.PathError{Op: "mkdir", Path: p, Err: err}
	}
	dir, err := unix.Openat(to, base, unix.O_PATH|flags, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: p, Err: err}
	}
	defer unix.Close(dir)
	return l.dir(f, dir, p)
}

// metadata copies the mode and notes of a directory, and notes its time for finish. to may be
// opened with O_PATH.
func (l *linker) metadata(from, to int, p string) error {
	var st, made unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user", p)
	}
	if err := unix.Fstat(to, &made); err != nil {
		return err
	}
	if made.Mode != st.Mode {
		if err := unix.Chmod(procPath(to), st.Mode&0o7777); err != nil {
			return err
		}
	}
	hasLinks := false
	if size, err := unix.Flistxattr(from, nil); err == nil && size > 0 {
		notes := l.t.notes
		if err := notes.copyTo(procPath(from), notes, procPath(to)); err != nil {
			return err
		}
		hasLinks = notes.get(procPath(to), linksAttr) != ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.time[p] = dirTime{time: time.Unix(st.Mtim.Unix())}
	l.t.linkOwners = l.t.linkOwners || hasLinks
	return nil
}
