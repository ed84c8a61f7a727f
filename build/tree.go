package build

import (
	"cmp"
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

	"hpcc/files"
	"hpcc/runtime"
	"hpcc/unpack"
)

// A tree is the file system of a stage: the tree of the base image, which is shared and
// read-only, below the changes of each step. It is assembled only when a step needs it. Until
// then, the layers of cached steps wait in pending.
//
// If the kernel (5.11) and the file system (extended attributes) support it, changes are
// overlayfs upper directories, in the store or else on this node. Otherwise each step works on
// a copy, which is then compared with the original.
type tree struct {
	mu        sync.Mutex // guards the tree of a finished stage, which other stages read
	b         *builder
	image     v1.Image // base image
	layers    []string // directories, lowest first; in copy mode only the current state
	pending   []v1.Layer
	copyMode  bool          // steps work on copies, not on overlays
	merged    string        // directory of the open view, or ""
	upper     string        // upper directory of the open view; "" in copy mode
	notes     *unpack.Notes // notes of the open view
	changedBy *unpack.User  // user whose program changes the view; nil: the build copies files into it
}

// fork returns a new tree with the current state of t.
func (t *tree) fork() *tree {
	t.mu.Lock()
	defer t.mu.Unlock()
	return &tree{b: t.b, image: t.image, layers: append([]string(nil), t.layers...),
		pending: append([]v1.Layer(nil), t.pending...), copyMode: t.copyMode}
}

// readOnlyView returns a directory with the tree of a finished stage. It is safe for concurrent
// use. The first call applies the pending steps. The caller must call done after use.
func (t *tree) readOnlyView(ctx context.Context) (dir string, done func(), err error) {
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
	forked := t.fork()
	dir, err = forked.view(ctx)
	return dir, forked.discard, err
}

// view returns a directory with the current state, for a step to change. The caller must then
// call commit or discard.
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
			timed, ok := l.(timedLayer)
			if ok {
				l = timed.Layer
			}
			if _, err := unpack.Apply(ctx, l, dir, t.notes, timed.times); err != nil {
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

// base returns the directory of the base image, or an empty directory for scratch.
func (t *tree) base(ctx context.Context) (string, error) {
	if ls, err := t.image.Layers(); err == nil && len(ls) == 0 {
		return os.MkdirTemp(t.b.work, "scratch-")
	}
	dir, _, err := unpack.Tree(ctx, t.b.store, t.image, unpack.Options{Owners: true})
	return dir, err
}

// open opens a view of the layers: an overlay or, in copy mode, a copy.
func (t *tree) open() (string, error) {
	t.changedBy = nil
	// The kernel mounts an overlay without extended attributes, but then removing a
	// directory of a lower layer fails with EIO, and the notes of lower files, which are
	// extended attributes, are not copied with the files.
	t.copyMode = t.copyMode || !unpack.HasAttributes(t.b.work, t.layers[0])
	if !t.copyMode {
		err := t.overlayIn(t.b.views.place(t.b.work))
		if err != nil && len(t.layers) == 1 {
			if local := t.b.views.onNode(); local != "" {
				err = t.overlayIn(local)
			}
		}
		if err == nil {
			return t.merged, nil
		}
		if len(t.layers) > 1 {
			return "", fmt.Errorf("mounting an overlay of %d steps: %w", len(t.layers), err)
		}
		t.copyMode = true
	}
	dir, err := os.MkdirTemp(t.b.work, "step-")
	if err != nil {
		return "", err
	}
	t.merged, t.upper = filepath.Join(dir, "copy"), ""
	if t.notes, err = copyTree(t.layers[0], t.merged); err != nil {
		return "", fmt.Errorf("copying the tree for a step: %w", err)
	}
	return t.merged, nil
}

// overlayIn mounts an overlay whose changes are in a new directory in place.
func (t *tree) overlayIn(place string) error {
	if !unpack.HasAttributes(place, t.layers[0]) {
		return unix.ENOTSUP
	}
	dir, err := os.MkdirTemp(place, "step-")
	if err != nil {
		return err
	}
	t.merged, t.upper = filepath.Join(dir, "merged"), filepath.Join(dir, "upper")
	if err := t.overlay(dir); err != nil {
		_ = files.RemoveAll(dir)
		return err
	}
	t.notes = &unpack.Notes{}
	return nil
}

// views is the directory for the changes of a build's steps. It is in the store or, because no
// overlay can keep changes on a network file system, on this node.
type views struct {
	mu    sync.Mutex
	local string // the directory on this node, or ""
}

// place returns the directory in use. work is the one in the store.
func (v *views) place(work string) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return cmp.Or(v.local, work)
}

// onNode creates the directory on this node and uses it from now on. It returns "" if there is no
// safe place for it.
func (v *views) onNode() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.local == "" {
		if place, err := runtime.StagePlace(); err == nil {
			v.local, _ = os.MkdirTemp(place, "hpcc-build-")
		}
	}
	return v.local
}

func (v *views) close() {
	if v.local != "" {
		_ = files.RemoveAll(v.local)
	}
}

// overlay mounts the layers and a new upper directory in dir.
func (t *tree) overlay(dir string) error {
	work := filepath.Join(dir, "work")
	for _, d := range []string{t.merged, t.upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	// Paths by descriptor are short, so that many fit into the page of mount(2) options. They
	// contain no commas or colons.
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
	// volatile: fsync(2) and the unmount wait for no disk. A crash loses the build anyway.
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,userxattr,volatile", strings.Join(dirs[2:], ":"), dirs[0], dirs[1])
	return unix.Mount("overlay", t.merged, "overlay", 0, data)
}

// commit writes the changes in the open view as a layer (an uncompressed tar), makes them
// part of the tree, and returns the number of entries in the layer.
func (t *tree) commit(w io.Writer) (int, error) {
	o := unpack.DiffOptions{Skip: []string{".hpcc"}, By: t.changedBy, Notes: t.notes}
	if t.b.Reproducible {
		o.Newest, o.Stamp, o.SetTimes = t.b.since(), t.b.stamp, true
	}
	var n int
	var err error
	if t.copyMode {
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
	if t.copyMode {
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
	_ = files.RemoveAll(filepath.Dir(t.merged))
	t.merged, t.upper, t.notes = "", "", nil
}

// close discards an open view.
func (t *tree) close() {
	if t != nil {
		t.discard()
	}
}

// modeBits are the mode bits that chmod(2) sets.
const modeBits = os.ModePerm | os.ModeSetuid | os.ModeSetgid | os.ModeSticky

// copyTree copies a directory tree with modes, times, links and FIFOs, and returns the notes
// of the copy. Hard links become separate files. An overlay also separates a hard link that
// is changed, so that both modes produce the same layer.
func copyTree(from, to string) (*unpack.Notes, error) {
	fromNotes, err := unpack.OpenNotes(from)
	if err != nil {
		return nil, err
	}
	type stamp struct {
		from, to string
		mode     os.FileMode
		time     time.Time
	}
	var dirs []stamp
	var toNotes *unpack.Notes
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
			if toNotes == nil {
				toNotes = unpack.NewNotes(dst)
			}
			return err
		}
		switch fi.Mode().Type() {
		case 0:
			if err := copyFile(p, dst, fi.Mode()&modeBits, fi.ModTime()); err != nil {
				return err
			}
			return fromNotes.CopyTo(p, toNotes, dst)
		case fs.ModeSymlink:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, dst); err != nil {
				return err
			}
			return unpack.SetTime(dst, fi.ModTime())
		case fs.ModeNamedPipe:
			return copyFIFO(dst, fi)
		}
		return nil // sockets are useless without their program
	})
	for _, d := range slices.Backward(dirs) {
		if err == nil {
			err = fromNotes.CopyTo(d.from, toNotes, d.to)
		}
		if err == nil {
			err = os.Chmod(d.to, d.mode)
		}
		if err == nil {
			err = unpack.SetTime(d.to, d.time)
		}
	}
	return toNotes, err
}

// copyFIFO creates a FIFO with the mode and time of fi.
func copyFIFO(to string, fi os.FileInfo) error {
	err := unix.Mkfifo(to, 0o600)
	if err == nil {
		err = os.Chmod(to, fi.Mode()&modeBits)
	}
	if err == nil {
		err = unpack.SetTime(to, fi.ModTime())
	}
	return err
}

// copyFile copies a regular file to a new file with this mode and time.
func copyFile(from, to string, mode os.FileMode, mtime time.Time) error {
	err := files.Copy(from, to)
	if err == nil {
		err = os.Chmod(to, mode)
	}
	if err == nil {
		err = unpack.SetTime(to, mtime)
	}
	return err
}
