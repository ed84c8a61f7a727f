// Package code packs a directory of programs that pods take along, without a build of their image.
// A few small files fit into a config map. Others become a layer on top of the image.
package code

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/build/source"
	"hpcc/store"
)

// Limits of a directory. An archive of what fits into a config map stays below 1 MiB, with base64 and
// the rest of the manifest.
const (
	maxFiles    = 50_000
	maxBytes    = 1 << 30   // of a layer
	MaxMapFiles = 64        // in a config map, each a mount of the pod
	MaxMapBytes = 640 << 10 // in a config map
)

// A Directory lists the files of a directory of this machine.
type Directory struct {
	Dir   string
	Bytes int64 // of the files

	root  *os.Root
	items []source.Item
	links bool      // not all items are regular files
	date  time.Time // of all files; zero: their own
	last  time.Time // of the newest file
}

// Read lists the files of a directory without those that .dockerignore names, and secrets, which are
// paths of files with credentials. It refuses links that lead out, and directories above the limits.
// The caller must close the result.
func Read(dir string, secrets ...string) (c *Directory, err error) {
	c = &Directory{Dir: dir}
	switch fi, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", dir, syscall.ENOENT)
	case err == nil && !fi.IsDir():
		return nil, fmt.Errorf("%s: not a directory; name the one with the program", dir)
	}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		if _, c.date, err = source.Date(epoch); err != nil {
			return nil, err
		}
	}
	d, err := source.Open(dir, "", secrets...)
	if err != nil {
		return nil, err
	}
	set, err := d.Walk(".", nil)
	if err != nil {
		return nil, err
	}
	if c.root, err = os.OpenRoot(d.Dir); err != nil {
		return nil, err
	}
	for _, it := range set.Items {
		if it.Rel == "" {
			continue
		}
		switch {
		case it.Mode.IsRegular():
			fi, err := c.root.Lstat(it.Rel)
			if err != nil {
				return c.fail("%w", err)
			}
			c.Bytes += fi.Size()
		case it.Mode&fs.ModeSymlink != 0:
			c.links = true
			if _, err := c.root.Stat(it.Rel); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return c.fail("the link %s leads out of the directory, to %s; replace the link by a copy, or add it to .dockerignore", it.Rel, it.Link)
			}
		}
		c.items = append(c.items, it)
		if t := c.time(it); t.After(c.last) {
			c.last = t
		}
	}
	switch {
	case len(c.items) == 0:
		return c.fail("no files")
	case len(c.items) > maxFiles:
		return c.fail("%d files, above the limit of %d; list data and results in .dockerignore", len(c.items), maxFiles)
	case c.Bytes > maxBytes:
		return c.fail("%d MB, above the limit of %d MB; list data in .dockerignore, and mount it with --volume CLAIM:DIR", c.Bytes>>20, maxBytes>>20)
	}
	return c, nil
}

// fail closes the directory and returns the error for it.
func (c *Directory) fail(format string, a ...any) (*Directory, error) {
	c.Close()
	return nil, fmt.Errorf("%s: %w", c.Dir, fmt.Errorf(format, a...))
}

// time returns the time of a file in an archive.
func (c *Directory) time(it source.Item) time.Time {
	if !c.date.IsZero() {
		return c.date
	}
	return it.Time().Truncate(time.Second)
}

// Close releases the directory.
func (c *Directory) Close() { c.root.Close() }

// Write writes the files as a tar archive below prefix, with their times or SOURCE_DATE_EPOCH. Owners
// and umasks of this machine have no effect. Group 0 owns the files, because pods with any user ID run
// in it. With withDir, the archive has an entry for prefix too.
func (c *Directory) Write(w io.Writer, prefix string, withDir bool) error {
	t := tar.NewWriter(w)
	if withDir {
		if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: prefix + "/", Mode: 0o775, ModTime: c.last}); err != nil {
			return err
		}
	}
	for _, it := range c.items {
		h := &tar.Header{Name: path.Join(prefix, it.Rel), ModTime: c.time(it), Mode: 0o664}
		if it.Mode&0o111 != 0 {
			h.Mode = 0o775
		}
		var err error
		switch {
		case it.Mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
			err = t.WriteHeader(h)
		case it.Mode&fs.ModeSymlink != 0:
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, it.Link, 0o777
			err = t.WriteHeader(h)
		default:
			err = c.writeFile(t, h, it.Rel)
		}
		if err != nil {
			return fmt.Errorf("packing %s of %s: %w", it.Rel, c.Dir, err)
		}
	}
	return t.Close()
}

func (c *Directory) writeFile(t *tar.Writer, h *tar.Header, rel string) error {
	f, err := c.root.Open(rel)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	h.Typeflag, h.Size = tar.TypeReg, fi.Size()
	if err = t.WriteHeader(h); err == nil {
		_, err = io.CopyN(t, f, h.Size)
	}
	return err
}

// FitsMap reports whether a config map can hold the files.
func (c *Directory) FitsMap() bool {
	files := 0
	for _, it := range c.items {
		if it.Mode.IsRegular() {
			files++
		}
		if strings.ContainsAny(it.Rel, ":\n") {
			return false
		}
	}
	return c.Bytes <= MaxMapBytes && files <= MaxMapFiles && !c.links
}

// Modes returns the mode of each regular file, by its path in the directory.
func (c *Directory) Modes() map[string]int64 {
	modes := map[string]int64{}
	for _, it := range c.items {
		switch {
		case !it.Mode.IsRegular():
		case it.Mode&0o111 != 0:
			modes[it.Rel] = 0o755
		default:
			modes[it.Rel] = 0o644
		}
	}
	return modes
}

// Layer adds the files to an image as a layer, at the absolute path at. withDir is as in Write.
func (c *Directory) Layer(ctx context.Context, s *store.Store, base v1.Image, at string, withDir bool) (v1.Image, error) {
	mt := types.OCILayer
	if m, err := base.MediaType(); err == nil && m == types.DockerManifestSchema2 {
		mt = types.DockerLayer
	}
	info, err := s.PutLayer(ctx, mt, func(w io.Writer) error { return c.Write(w, at[1:], withDir) })
	if err != nil {
		return nil, err
	}
	layer, err := s.Layer(info)
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(base, mutate.Addendum{Layer: layer,
		History: v1.History{Created: v1.Time{Time: c.last.UTC()}, CreatedBy: "hpcc submit --with-code"}})
	if err != nil {
		return nil, fmt.Errorf("adding the layer of %s: %w", c.Dir, err)
	}
	return img, nil
}
