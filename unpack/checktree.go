package unpack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"hpcc/store"
)

// maxProblems bounds how many differences [checkTree] describes.
const maxProblems = 20

// A treeError reports a tree that differs from its image.
type treeError struct {
	Dir      string
	Problems []string // the first differences, each with its path
	Count    int      // number of all differences
}

func (e *treeError) Error() string {
	return fmt.Sprintf("tree %s differs from its image: %s", e.Dir, e.problems())
}

// problems describes the differences: the first one, and the number of the others.
func (e *treeError) problems() string {
	if e.Count == 1 {
		return e.Problems[0]
	}
	return fmt.Sprintf("%s (and %d more)", e.Problems[0], e.Count-1)
}

// VerifyTrees compares each unpacked image of a store with its layers and calls report for each tree
// that differs. It leaves out the trees of images that lack an undamaged layer, and counts them as
// unchecked; damaged holds the hexadecimal digests of damaged blobs. progress gets the compressed bytes
// of the layers that were read.
func VerifyTrees(ctx context.Context, s *store.Store, damaged map[string]bool, report func(store.Finding),
	progress func(n int64)) (compared, unchecked int, err error) {
	list, err := s.Trees()
	if err != nil {
		return 0, 0, err
	}
	present := func(d v1.Descriptor) bool {
		return !damaged[d.Digest.Hex] && s.HasLayer(store.LayerInfo{Digest: d.Digest, Size: d.Size})
	}
	var read int64
	for _, hex := range list {
		h := v1.Hash{Algorithm: "sha256", Hex: hex}
		img, err := s.ByManifest(h)
		var m *v1.Manifest
		if err == nil {
			m, err = img.Manifest()
		}
		if err != nil || damaged[hex] || !present(m.Config) || !all(m.Layers, present) {
			unchecked++
			progress(read)
			continue
		}
		rel := filepath.Join("trees", hex)
		var differs *treeError
		switch err := checkTree(ctx, img, filepath.Join(s.Dir(), rel)); {
		case errors.As(err, &differs):
			report(store.Finding{Path: rel, Reason: "differs from its layers: " + differs.problems(), Images: s.NamesOf(h),
				Cure: "nothing to do: the next run unpacks it again; programs that run in it now have read the damaged files"})
		case err != nil:
			return compared, unchecked, fmt.Errorf("comparing tree %s with its layers: %w", hex, err)
		}
		compared++
		for _, l := range m.Layers {
			read += l.Size
		}
		progress(read)
	}
	return compared, unchecked, nil
}

func all(list []v1.Descriptor, f func(v1.Descriptor) bool) bool {
	return !slices.ContainsFunc(list, func(d v1.Descriptor) bool { return !f(d) })
}

// checkTree compares the layers of an image with the tree in dir: the names, kinds, sizes
// and bytes of all files, the targets of links and the image's configuration. It ignores
// modes, times, extended attributes, devices and FIFOs. It returns a [treeError] if they
// differ.
func checkTree(ctx context.Context, img v1.Image, dir string) error {
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	f, err := list(ctx, img, true)
	if err != nil {
		return err
	}
	c := &treeCheck{dir: dir}
	if have, err := os.ReadFile(filepath.Join(dir, ConfigFile)); err != nil || !bytes.Equal(have, config) {
		c.differs(ConfigFile, "is not the image's configuration")
	}
	c.compare(".", f.root)
	var g errgroup.Group
	g.SetLimit(goruntime.GOMAXPROCS(0))
	for _, x := range c.contents {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error { return c.content(ctx, x) })
	}
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return err
	}
	if c.count == 0 {
		return nil
	}
	slices.Sort(c.problems)
	return &treeError{dir, c.problems, c.count}
}

// A treeCheck collects differences.
type treeCheck struct {
	dir      string
	contents []contentCheck // regular files to read

	mu       sync.Mutex
	problems []string
	count    int
}

type contentCheck struct {
	path string
	file *File
}

func (c *treeCheck) differs(path, how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count++; len(c.problems) < maxProblems {
		c.problems = append(c.problems, path+" "+how)
	}
}

// compare compares a directory and its subdirectories with the image.
func (c *treeCheck) compare(path string, want *File) {
	entries, err := os.ReadDir(filepath.Join(c.dir, path))
	if err != nil {
		c.differs(path, "cannot be read: "+err.Error())
		return
	}
	have := map[string]fs.DirEntry{}
	for _, e := range entries {
		have[e.Name()] = e
	}
	for name, e := range have {
		if (path == "." && name == configDir) || e.Type()&(fs.ModeDevice|fs.ModeNamedPipe) != 0 {
			continue
		}
		if want.names[name].file == nil {
			c.differs(filepath.Join(path, name), "is not in the image")
		}
	}
	for name, n := range want.names {
		p := filepath.Join(path, name)
		if n.file.Kind&(fs.ModeDevice|fs.ModeNamedPipe) != 0 {
			continue
		}
		e := have[name]
		switch {
		case e == nil:
			c.differs(p, "is missing")
		case e.Type() != n.file.Kind:
			c.differs(p, "has a different type")
		case e.IsDir():
			c.compare(p, n.file)
		case n.file.Kind == fs.ModeSymlink:
			if to, err := os.Readlink(filepath.Join(c.dir, p)); err != nil || to != n.file.Link {
				c.differs(p, "has a different target")
			}
		default:
			c.contents = append(c.contents, contentCheck{p, n.file})
		}
	}
}

// content compares the bytes of a regular file.
func (c *treeCheck) content(ctx context.Context, x contentCheck) error {
	f, err := os.Open(filepath.Join(c.dir, x.path))
	if err != nil {
		c.differs(x.path, "cannot be read: "+err.Error())
		return nil
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	switch {
	case err != nil:
		c.differs(x.path, "cannot be read: "+err.Error())
	case n != x.file.Size:
		c.differs(x.path, fmt.Sprintf("has %d bytes where the image has %d", n, x.file.Size))
	case !bytes.Equal(h.Sum(nil), x.file.sum[:]):
		c.differs(x.path, "has different content")
	}
	return ctx.Err()
}
