package unpack

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

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

// linkTree makes the empty tree t a copy of the tree in dir, whose files it links.
func (t *tree) linkTree(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := t.linkDir(f, t.root.fd, "."); err != nil {
		return fmt.Errorf("linking the files of %s: %w", dir, err)
	}
	return nil
}

// linkDir links the files of a directory into the new directory to, whose path in the tree is
// p, and copies its subdirectories.
func (t *tree) linkDir(from *os.File, to int, p string) error {
	fd := int(from.Fd())
	if err := t.copyDirMetadata(fd, to, p); err != nil {
		return err
	}
	entries, err := from.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case p == "." && name == configDir:
		case e.IsDir():
			if err := t.linkSubdir(fd, to, path.Join(p, name)); err != nil {
				return err
			}
		default:
			if err := unix.Linkat(fd, name, to, name, 0); err != nil {
				return &os.LinkError{Op: "link", Old: path.Join(p, name), New: path.Join(p, name), Err: err}
			}
			if e.Type()&os.ModeSymlink != 0 {
				t.rep.Links++
			} else {
				t.rep.Files++
			}
		}
	}
	return nil
}

// linkSubdir makes the directory p of the tree, in to, from the one of the same name in from.
func (t *tree) linkSubdir(from, to int, p string) error {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	base := path.Base(p)
	source, err := unix.Openat(from, base, flags, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: p, Err: err}
	}
	f := os.NewFile(uintptr(source), p)
	defer f.Close()
	if err := unix.Mkdirat(to, base, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: p, Err: err}
	}
	dir, err := unix.Openat(to, base, flags, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: p, Err: err}
	}
	defer unix.Close(dir)
	t.rep.Dirs++
	return t.linkDir(f, dir, p)
}

// copyDirMetadata copies the mode and notes of a directory, and notes its time for finish.
func (t *tree) copyDirMetadata(from, to int, p string) error {
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return err
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user", p)
	}
	t.time[p] = dirTime{time: time.Unix(st.Mtim.Unix())}
	if err := unix.Fchmod(to, st.Mode&0o7777); err != nil {
		return err
	}
	if err := t.notes.copyTo(procPath(from), t.notes, procPath(to)); err != nil {
		return err
	}
	t.linkOwners = t.linkOwners || t.notes.get(procPath(to), linksAttr) != ""
	return nil
}
