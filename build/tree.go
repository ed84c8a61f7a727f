package build

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"hpcc/store/disk"
	"hpcc/unpack"
)

// A tree is the file system of a stage, assembled only when a step needs it: the base
// image's tree, which is shared and read-only, below the changes of each step. Cached
// steps wait in pending until then.
//
// Changes are overlayfs upper directories if the kernel (5.11) and the file system
// (extended attributes) support that. Otherwise each step works on a copy, and the copies
// are compared.
type tree struct {
	mu      sync.Mutex // for the tree of a finished stage, which other stages read
	b       *builder
	image   v1.Image // the base
	layers  []string // directories, lowest first; in copy mode only the current state
	pending []v1.Layer
	copies  bool
	merged  string // the open view, or ""
	upper   string
	notes   *unpack.Notes // of the view
	by      *unpack.User  // user whose program changes the view; nil: the build copies files into it
}

// fork returns a tree that starts with the state of t.
func (t *tree) fork() *tree {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &tree{b: t.b, image: t.image, layers: append([]string(nil), t.layers...),
		pending: append([]v1.Layer(nil), t.pending...), copies: t.copies}
}

// look returns a read-only view of a finished stage's tree, for concurrent use. The first
// call applies the pending steps.
func (t *tree) look(ctx context.Context) (dir string, done func(), err error) {
	t.mu.Lock()
	if len(t.layers) == 0 || len(t.pending) > 0 {
		_, err = t.view(ctx)
		t.discard()
	}
	layers := t.layers
	t.mu.Unlock()
	if err != nil {
		return "", func() {}, err
	}
	if len(layers) == 1 { // needs no mount
		return layers[0], func() {}, nil
	}
	own := t.fork()
	dir, err = own.view(ctx)
	return dir, own.discard, err
}

// view returns a directory with the current state, which may be changed. The caller must
// then call commit or discard.
func (t *tree) view(ctx context.Context) (string, error) {
	if len(t.layers) == 0 {
		base, err := t.base(ctx)
		if err != nil {
			return "", err
		}
		t.layers = []string{base}
	}
	if len(t.pending) > 0 {
		dir, err := t.open()
		if err != nil {
			return "", err
		}
		for _, l := range t.pending {
			if _, err := unpack.Apply(ctx, l, dir, t.notes); err != nil {
				t.discard()
				return "", fmt.Errorf("restoring a cached step: %w", err)
			}
		}
		if err := t.keep(); err != nil {
			return "", err
		}
		t.pending = nil
	}
	return t.open()
}

// base returns the directory of the base image, or an empty one for scratch.
func (t *tree) base(ctx context.Context) (string, error) {
	if ls, err := t.image.Layers(); err == nil && len(ls) == 0 {
		return os.MkdirTemp(t.b.work, "scratch-")
	}
	dir, _, err := unpack.Tree(ctx, t.b.store, t.image, unpack.Options{Owners: true})
	return dir, err
}

// open creates the view.
func (t *tree) open() (string, error) {
	dir, err := os.MkdirTemp(t.b.work, "step-")
	if err != nil {
		return "", err
	}
	t.merged, t.upper, t.by = filepath.Join(dir, "merged"), filepath.Join(dir, "upper"), nil
	// An overlay can be mounted without attributes, but then removing a directory of a
	// lower layer fails with EIO, and notes of lower files are not copied with them.
	t.copies = t.copies || !unpack.HasAttributes(t.b.work, t.layers[0])
	if !t.copies {
		err := t.overlay(dir)
		if err == nil {
			t.notes = &unpack.Notes{}
			return t.merged, nil
		}
		if len(t.layers) > 1 {
			return "", fmt.Errorf("mounting an overlay of %d steps: %w", len(t.layers), err)
		}
		t.copies = true
	}
	t.merged, t.upper = filepath.Join(dir, "copy"), ""
	if t.notes, err = copyTree(t.layers[0], t.merged); err != nil {
		return "", fmt.Errorf("copying the tree for a step: %w", err)
	}
	return t.merged, nil
}

// overlay mounts the layers with a new upper directory.
func (t *tree) overlay(dir string) error {
	work := filepath.Join(dir, "work")
	for _, d := range []string{t.merged, t.upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// Paths by descriptor are short, so that many fit into the one page of mount(2)
	// options, and have no commas or colons.
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	open := func(p string) (string, error) {
		fd, err := unix.Open(p, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return "", fmt.Errorf("opening %q: %w", p, err)
		}
		fds = append(fds, fd)
		return fmt.Sprintf("/proc/self/fd/%d", fd), nil
	}
	dirs := []string{t.upper, work}
	for _, l := range slices.Backward(t.layers) {
		dirs = append(dirs, l)
	}
	for i, d := range dirs {
		var err error
		if dirs[i], err = open(d); err != nil {
			return err
		}
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr", strings.Join(dirs[2:], ":"), dirs[0], dirs[1])
	return unix.Mount("overlay", t.merged, "overlay", 0, data)
}

// commit writes the changes since view as a layer (an uncompressed tar), makes them part
// of the tree, and returns the number of entries.
func (t *tree) commit(w io.Writer) (int, error) {
	o := unpack.DiffOptions{Newest: t.b.begun.Add(-time.Second), Stamp: t.b.stamp, Skip: []string{".hpcc"}, By: t.by, Notes: t.notes}
	var n int
	var err error
	if t.copies {
		n, err = unpack.Compare(w, t.layers[0], t.merged, o)
	} else {
		n, err = unpack.Upper(w, t.layers, t.upper, o)
	}
	if err != nil {
		t.discard()
		return 0, fmt.Errorf("finding what the step changed: %w", err)
	}
	return n, t.keep()
}

// keep closes the view and makes its changes part of the tree.
func (t *tree) keep() error {
	if err := t.notes.Save(t.merged); err != nil {
		t.discard()
		return err
	}
	if t.copies {
		t.layers = []string{t.merged}
	} else {
		_ = unix.Unmount(t.merged, unix.MNT_DETACH)
		t.layers = append(t.layers, t.upper)
	}
	t.merged, t.upper, t.notes = "", "", nil
	return nil
}

// discard closes the view and drops its changes.
func (t *tree) discard() {
	if t.merged == "" {
		return
	}
	_ = unix.Unmount(t.merged, unix.MNT_DETACH)
	_ = disk.RemoveAll(filepath.Dir(t.merged))
	t.merged, t.upper, t.notes = "", "", nil
}

func (t *tree) close() {
	if t != nil {
		t.discard()
	}
}

// modeBits are the mode bits that chmod(2) sets.
const modeBits = os.ModePerm | os.ModeSetuid | os.ModeSetgid | os.ModeSticky

// copyTree copies a directory tree with modes, times, links and FIFOs, and returns the
// notes of the copy. Hard links become separate files, as in an overlay when one of them
// is changed, so that both modes give the same layer.
func copyTree(from, to string) (*unpack.Notes, error) {
	theirs, err := unpack.OpenNotes(from)
	if err != nil {
		return nil, err
	}
	type stamp struct {
		from, to string
		mode     os.FileMode
		time     time.Time
	}
	var dirs []stamp
	var notes *unpack.Notes
	err = filepath.Walk(from, func(p string, fi os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil || rel == unpack.NotesFile {
			return err
		}
		dst := filepath.Join(to, rel)
		if fi.IsDir() {
			dirs = append(dirs, stamp{p, dst, fi.Mode() & modeBits, fi.ModTime()})
			err := os.Mkdir(dst, 0o700)
			if notes == nil {
				notes = unpack.NewNotes(dst)
			}
			return err
		}
		switch fi.Mode().Type() {
		case 0:
			if err := copyFile(p, dst, fi.Mode()&modeBits, fi.ModTime()); err != nil {
				return err
			}
			return theirs.CopyTo(p, notes, dst)
		case fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return os.Symlink(target, dst)
		case fs.ModeNamedPipe:
			return copyFIFO(dst, fi)
		}
		return nil // sockets are useless without their program
	})
	for _, d := range slices.Backward(dirs) {
		if err == nil {
			err = theirs.CopyTo(d.from, notes, d.to)
		}
		if err == nil {
			err = os.Chmod(d.to, d.mode)
		}
		if err == nil {
			err = os.Chtimes(d.to, d.time, d.time)
		}
	}
	return notes, err
}

// copyFIFO creates a FIFO with the same attributes.
func copyFIFO(to string, fi os.FileInfo) error {
	err := unix.Mkfifo(to, 0o600)
	if err == nil {
		err = os.Chmod(to, fi.Mode()&modeBits)
	}
	if err == nil {
		err = os.Chtimes(to, fi.ModTime(), fi.ModTime())
	}
	return err
}

// copyFile copies one regular file to a new file.
func copyFile(from, to string, mode os.FileMode, mtime time.Time) error {
	err := disk.CopyFile(from, to)
	if err == nil {
		err = os.Chmod(to, mode)
	}
	if err == nil {
		err = os.Chtimes(to, mtime, mtime)
	}
	return err
}
