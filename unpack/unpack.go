// Package unpack unpacks layers into a directory tree, and records the changes of a tree as
// a layer, as an ordinary user. Only this package knows whiteouts, ownership and hostile
// archives.
//
// A tree holds directories, regular files, FIFOs, links and hard links. All belong to the
// user. Device nodes are left out and counted, set-id bits are dropped, and modes that would
// lock out their owner are extended. [Notes] record the image's metadata. Times are kept.
// The image's configuration is in [ConfigFile].
//
// No archive can touch a path outside its tree: every name is resolved below an open
// directory, including links, and a file is never written through an existing name.
package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/files"
	"hpcc/store"
	"hpcc/text"
)

// ConfigFile is the file of a tree with its image's configuration (image-spec, "config").
// Layers cannot write below its directory.
const ConfigFile = ".hpcc/image.json"

// configDir is the directory of ConfigFile.
const configDir = ".hpcc"

// Options control unpacking. The zero value is the usual case.
type Options struct {
	Progress func(done, total int64) // compressed bytes of layers
	Parts    *Parts                  // layers that Tree need not unpack again; they are used up
	Owners   bool                    // the caller of Tree reads owners
}

// A Report counts the written files, and those that an ordinary user cannot create.
type Report struct {
	Files, Dirs, Links int
	Bytes              int64
	Devices            int // skipped
	FIFOs              int // skipped: the file system does not support them
	SetID              int // files whose set-user-id or set-group-id bit was dropped
	Copies             int // files copied because the file system could not create a hard link
}

// Notes returns messages for the user about files of an image that the tree lacks.
func (r Report) Notes() (notes []string) {
	for _, n := range []struct {
		count                int
		format, one, several string
	}{
		{r.Devices, "left out %s, which only root can create; containers use the /dev of the host", "device node", "device nodes"},
		{r.FIFOs, "left out %s, which the file system does not support", "FIFO", "FIFOs"},
		{r.Copies, "copied %s instead of making hard links, which the file system does not support", "file", "files"},
	} {
		if n.count > 0 {
			notes = append(notes, fmt.Sprintf(n.format, text.Count(n.count, n.one, n.several)))
		}
	}
	return notes
}

// Image unpacks an image to dir, which must not exist or be empty. If it fails, dir is
// unchanged.
func Image(ctx context.Context, img v1.Image, dir string, o Options) (Report, error) {
	var rep Report
	err := NewDir(dir, func(root string) error {
		var err error
		rep, err = Fill(ctx, img, root, o)
		return err
	})
	if err != nil {
		return Report{}, fmt.Errorf("unpacking to %q: %w", dir, err)
	}
	return rep, nil
}

// NewDir calls fill for a new directory and renames it to dir, which must not exist or be
// empty, on success. If fill fails, dir is unchanged.
func NewDir(dir string, fill func(root string) error) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if entries, err := os.ReadDir(abs); err == nil && len(entries) > 0 {
		return errors.New("the directory is not empty; name a new one")
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	tmp, err := store.Sibling(abs)
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	root := filepath.Join(tmp, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := fill(root); err != nil {
		return err
	}
	return os.Rename(root, abs)
}

// Tree returns the shared, read-only tree of an image in the store, and unpacks it if it
// does not exist yet. Its files may be hard links to those of other trees in the store. Then
// the Report does not count what the shared layers had to leave out.
func Tree(ctx context.Context, s *store.Store, img v1.Image, o Options) (string, Report, error) {
	d, err := img.Digest()
	if err != nil {
		return "", Report{}, err
	}
	var rep Report
	var lower lowerTree
	dir, err := s.Once(ctx, "trees/"+d.Hex, func(dir string) (err error) {
		lower = lowerTreeOf(s, img)
		rep, err = fill(ctx, img, dir, lower, o)
		return err
	})
	reused := lower.layers > 0 || o.Parts != nil
	var damaged *store.DamagedError
	// Some file systems cannot link or move files that they can write.
	if err != nil && reused && ctx.Err() == nil && !errors.As(err, &damaged) {
		o.Parts = nil
		dir, err = s.Once(ctx, "trees/"+d.Hex, func(dir string) (err error) {
			rep, err = Fill(ctx, img, dir, o)
			return err
		})
	}
	if err != nil {
		return "", Report{}, fmt.Errorf("unpacking image %s: %w", d, err)
	}
	if o.Owners && !supportsAttributes(dir) && !hasNotesFile(dir) {
		err = addNotes(ctx, s, img, dir)
	}
	return dir, rep, err
}

// addNotes adds a notes file to a tree that was unpacked on a node with extended attributes,
// if this node does not support them.
func addNotes(ctx context.Context, s *store.Store, img v1.Image, dir string) error {
	tmp, err := s.TempDir()
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	if _, err = Fill(ctx, img, tmp, Options{}); err == nil {
		err = os.Rename(filepath.Join(tmp, NotesFile), filepath.Join(dir, NotesFile))
	}
	if err != nil {
		return fmt.Errorf("noting the owners in %s: %w", dir, err)
	}
	return nil
}

// Fill unpacks an image into an empty directory that only the caller uses meanwhile. If it
// fails, the content of dir is undefined.
func Fill(ctx context.Context, img v1.Image, dir string, o Options) (Report, error) {
	return fill(ctx, img, dir, lowerTree{}, o)
}

// fill unpacks an image as [Fill] does. It links the files of a tree that has the lowest layers.
func fill(ctx context.Context, img v1.Image, dir string, lower lowerTree, o Options) (Report, error) {
	var rep Report
	ls, err := img.Layers()
	if err != nil {
		return rep, err
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return rep, err
	}
	if fi, err := os.Stat(dir); err == nil && fi.Mode()&fs.ModeSetgid != 0 {
		_ = os.Chmod(dir, fi.Mode().Perm()) // inherited: no directory of the image may have it
	}
	var total int64
	before := make([]int64, len(ls)) // compressed bytes of the layers below
	for i, l := range ls {
		size, err := l.Size()
		if err != nil {
			return rep, err
		}
		before[i] = total
		total += size
	}
	t, err := openTree(dir, NewNotes(dir))
	if err != nil {
		return rep, err
	}
	defer t.close()
	t.linkOwners = false
	if t.notes.InMemory() {
		lower = lowerTree{} // its notes are attributes
	}
	if lower.layers > 0 {
		if err := t.linkTree(lower.dir); err != nil {
			return rep, err
		}
	}
	err = t.layersAndParts(ctx, ls[lower.layers:], o.Parts, func(i int, read int64) {
		if o.Progress != nil {
			o.Progress(before[lower.layers+i]+read, total)
		}
	})
	if err != nil {
		return rep, err
	}
	if err := t.finish(); err != nil {
		return rep, err
	}
	if err := putConfig(dir, raw); err != nil {
		return t.rep, err
	}
	return t.rep, t.notes.Save(dir)
}

// putConfig writes a tree's configuration.
func putConfig(dir string, config []byte) error {
	if err := os.Mkdir(filepath.Join(dir, configDir), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, ConfigFile), config, 0o644)
}

// Apply applies one more layer to the tree in dir and to the notes, which the caller saves.
// times, which may be nil, replaces the times of entries, by path. If Apply fails, the tree is
// undefined.
func Apply(ctx context.Context, l v1.Layer, dir string, notes *Notes, times map[string]time.Time) (Report, error) {
	t, err := openTree(dir, notes)
	if err != nil {
		return Report{}, err
	}
	defer t.close()
	t.keepTimes, t.exact = true, times
	if err := t.layers(ctx, []v1.Layer{l}, func(int, int64) {}); err != nil {
		return Report{}, err
	}
	return t.rep, t.finish()
}

// Archive unpacks a tar archive into dir, as [Apply] does for a layer. Owners that need
// notes in memory are lost. If it fails, the content of dir is undefined.
func Archive(ctx context.Context, r io.Reader, dir string) error {
	t, err := openTree(dir, NewNotes(dir))
	if err != nil {
		return err
	}
	defer t.close()
	if err := t.entries(ctx, tar.NewReader(r)); err != nil {
		return err
	}
	return t.finish()
}

// maxEntries bounds the entries of one layer.
const maxEntries = 20_000_000

// layers applies layers in order. It calls progress as [eachLayer] does.
func (t *tree) layers(ctx context.Context, ls []v1.Layer, progress func(i int, read int64)) error {
	return eachLayer(ctx, ls, "unpacking", func(i int, c *content) error {
		t.content = c
		defer func() { t.content = nil }()
		return t.entries(ctx, tar.NewReader(c))
	}, progress)
}

// eachLayer calls read for the layers in order. doing is used in messages. Blobs are checked
// against their digests, and their content against the diff IDs. It calls progress with the
// compressed bytes of layer i that were read.
func eachLayer(ctx context.Context, ls []v1.Layer, doing string, read func(i int, c *content) error,
	progress func(i int, read int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	ahead := readAhead(ctx, ls)
	defer func() {
		cancel()
		for c := range ahead {
			c.close()
		}
	}()
	for i, l := range ls {
		c, ok := <-ahead
		if !ok {
			return ctx.Err()
		}
		c.advanced = func() { progress(i, c.blob.Load()) }
		err := read(i, c)
		if err == nil {
			err = c.checkAs(l)
		}
		if c.close(); err != nil {
			err = blame(ctx, l, err)
			id, derr := l.Digest()
			if derr != nil {
				return derr
			}
			return fmt.Errorf("%s layer %s: %w", doing, id, err)
		}
		progress(i, c.blob.Load())
	}
	return nil
}

// layersAndParts applies layers in order. It moves layers that are available as parts into
// place.
func (t *tree) layersAndParts(ctx context.Context, ls []v1.Layer, parts *Parts, progress func(i int, read int64)) error {
	begun := 0 // first layer that is not applied
	plain := func(end int) error {
		first := begun
		begun = end + 1
		return t.layers(ctx, ls[first:end], func(i int, read int64) { progress(first+i, read) })
	}
	for i, l := range ls {
		part := parts.take(l)
		if part == nil {
			continue
		}
		if err := plain(i); err != nil {
			return err
		}
		if err := t.adopt(part); err != nil {
			return err
		}
		if size, err := l.Size(); err == nil {
			progress(i, size)
		}
	}
	return plain(len(ls))
}

// blame returns the cause of an error in a layer's content: the damage, if the blob is
// damaged, else the error itself.
func blame(ctx context.Context, l v1.Layer, err error) error {
	var damaged *store.DamagedError
	if errors.As(err, &damaged) || ctx.Err() != nil {
		return err
	}
	if verr := store.VerifyLayer(ctx, l); errors.As(verr, &damaged) {
		return verr
	}
	return err
}

// checkAs compares a completely read layer with the image's diff ID.
func (c *content) checkAs(l v1.Layer) error {
	plain, err := l.DiffID()
	if err != nil {
		return err
	}
	return c.check(plain)
}

// entries applies the members of one layer's archive.
func (t *tree) entries(ctx context.Context, tr *tar.Reader) error {
	t.created, t.above, t.sparse = map[string]bool{}, nil, 0
	return t.each(ctx, tr, func(h *tar.Header) error { return t.entry(h, tr) })
}

// eachEntry calls do for each member of an archive.
func eachEntry(ctx context.Context, tr *tar.Reader, do func(h *tar.Header) error) error {
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d entries: %w", n, err)
		}
		if n >= maxEntries {
			return fmt.Errorf("the layer has more than %d entries", maxEntries)
		}
		if n%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := do(h); err != nil {
			return fmt.Errorf("entry %.200q: %w", h.Name, err)
		}
	}
}
