package unpack

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// Files are what the layers of an image come to, as a runtime with root's rights
// would unpack them: with the owners, modes and devices that a [Tree] of an
// ordinary user cannot have.
type Files struct {
	layers []v1.Layer
	root   *File
	sums   bool // Files get the digests of their contents
	layer  int  // that is being read
	count  int  // of entries so far
}

// maxListed bounds the entries of an image's layers, and the directories that their
// names imply: they are kept in memory, 200 bytes and more each.
const maxListed = 5_000_000

// A File is what an image says of a file of any kind.
type File struct {
	Kind     fs.FileMode // its type bits alone
	Perm     uint32      // permission bits, with set-id and sticky ones (chmod(2))
	UID, GID int
	Link     string // where a symbolic link points
	Size     int64
	Caps     bool // the kernel gives who executes it capabilities(7)
	Script   bool // it begins with "#!"

	names   map[string]name // of a directory
	touched int             // the last layer that put something below
	from    int             // the layer that has the content, and which of its entries it is
	entry   int
	sum     [sha256.Size]byte // of the content, where [Files] has sums
}

// A name is one of a directory, and the layer that made it.
type name struct {
	file  *File
	layer int
}

// List reads the layers of an image. Nothing is written, and no content is kept. Blobs
// are checked as when they are unpacked.
func List(ctx context.Context, img v1.Image) (*Files, error) { return list(ctx, img, false) }

// list is List; with sums, files get the digests of their contents.
func list(ctx context.Context, img v1.Image, sums bool) (*Files, error) {
	ls, err := img.Layers()
	if err != nil {
		return nil, err
	}
	f := &Files{layers: ls, root: newDir(), sums: sums}
	t := &tree{} // what counts sparse files; it has no directory
	err = eachLayer(ctx, ls, "reading", func(i int, c *content) error {
		f.layer, t.sparse = i+1, 0
		return f.read(ctx, t, c)
	}, func(int) {})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func newDir() *File { return &File{Kind: fs.ModeDir, Perm: 0o755, names: map[string]name{}} }

// read applies one layer.
func (f *Files) read(ctx context.Context, t *tree, c *content) error {
	n, tr := 0, tar.NewReader(c)
	return eachEntry(ctx, tr, func(h *tar.Header) error {
		n++
		if err := f.another(); err != nil {
			return err
		}
		if err := t.checkSparse(h); err != nil {
			return err
		}
		digest := sha256.New()
		var head [2]byte
		if h.Typeflag == tar.TypeReg && h.Size > 1 {
			if _, err := io.ReadFull(tr, head[:]); err != nil {
				return err
			}
			digest.Write(head[:])
		}
		var sum [sha256.Size]byte
		if f.sums {
			if _, err := io.Copy(digest, tr); err != nil {
				return err
			}
			digest.Sum(sum[:0])
		}
		return f.apply(h, n, string(head[:]) == "#!", sum)
	})
}

// another counts one more file.
func (f *Files) another() error {
	if f.count++; f.count > maxListed {
		return fmt.Errorf("the image has more than %d entries", maxListed)
	}
	return nil
}

// apply applies entry number n of a layer, as tree.entry does.
func (f *Files) apply(h *tar.Header, n int, script bool, sum [sha256.Size]byte) error {
	p, err := cleanName(h.Name)
	if err != nil || p == configDir || strings.HasPrefix(p, configDir+"/") {
		return err
	}
	if base := path.Base(p); strings.HasPrefix(base, whPrefix) {
		f.whiteout(path.Dir(p), base)
		return nil
	}
	file := &File{Kind: h.FileInfo().Mode().Type(), Perm: uint32(h.Mode) & 0o7777, UID: h.Uid, GID: h.Gid, Size: h.Size,
		Caps: h.PAXRecords[capsRecord] != "", Script: script, from: f.layer, entry: n, sum: sum}
	if p == "." {
		if h.Typeflag == tar.TypeDir {
			f.root.Perm, f.root.UID, f.root.GID = file.Perm, file.UID, file.GID
		}
		return nil
	}
	parent, err := f.dir(path.Dir(p), 0)
	if err != nil {
		return err
	}
	base := path.Base(p)
	switch h.Typeflag {
	case tar.TypeDir:
		if had := parent.names[base].file; had != nil && had.Kind == fs.ModeDir {
			had.Perm, had.UID, had.GID = file.Perm, file.UID, file.GID
			file = had
		} else {
			file.names = map[string]name{}
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxPath {
			return fmt.Errorf("its link target has %d bytes", len(h.Linkname))
		}
		file.Link, file.Kind = h.Linkname, fs.ModeSymlink
	case tar.TypeLink:
		if file, err = f.linked(h.Linkname); err != nil {
			return err
		}
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		file.Kind = 0
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	default:
		return fmt.Errorf("its type %q is not known", h.Typeflag)
	}
	parent.names[base] = name{file, f.layer}
	return nil
}

// linked is the file that a hard link is another name of.
func (f *Files) linked(target string) (*File, error) {
	to, err := cleanName(target)
	if err != nil {
		return nil, err
	}
	parent, err := f.dir(path.Dir(to), 0)
	if err != nil {
		return nil, err
	}
	file := parent.names[path.Base(to)].file
	if file == nil || file.Kind == fs.ModeDir {
		return nil, fmt.Errorf("it is a hard link to %q, which is not there", target)
	}
	return file, nil
}

// dir is the directory at p, through links; what is missing, or no directory, is made one. All on
// the way are noted to have something of this layer below.
func (f *Files) dir(p string, links int) (*File, error) {
	at, rest := []*File{f.root}, p
	for rest != "" && rest != "." {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		top := at[len(at)-1]
		top.touched = f.layer
		switch part {
		case "", ".":
			continue
		case "..":
			at = at[:max(1, len(at)-1)]
			continue
		}
		next := top.names[part].file
		switch {
		case next != nil && next.Kind == fs.ModeSymlink:
			if links++; links > maxLinks {
				return nil, fmt.Errorf("%s: %w", p, unix.ELOOP)
			}
			if strings.HasPrefix(next.Link, "/") {
				at = at[:1]
			}
			rest = next.Link + "/" + rest
			continue
		case next == nil || next.Kind != fs.ModeDir:
			if err := f.another(); err != nil {
				return nil, err
			}
			next = newDir()
			top.names[part] = name{next, 0}
		}
		if at = append(at, next); len(at) > maxNesting {
			return nil, fmt.Errorf("%s: %w", p, unix.ENAMETOOLONG)
		}
	}
	at[len(at)-1].touched = f.layer
	return at[len(at)-1], nil
}

// whiteout hides what lower layers put at a name or in a directory, as tree.whiteout does.
func (f *Files) whiteout(dir, base string) {
	target := strings.TrimPrefix(base, whPrefix)
	if base != whOpaque && (target == "" || target == "." || target == ".." || strings.HasPrefix(base, ".wh..wh.")) {
		return
	}
	_, d, err := f.Resolve("/"+dir, nil)
	if err != nil || d.Kind != fs.ModeDir {
		return
	}
	if base == whOpaque {
		f.hideLower(d)
		return
	}
	switch n, ok := d.names[target]; {
	case ok && n.layer == f.layer:
		f.hideLower(n.file)
	case ok:
		delete(d.names, target)
	}
}

// hideLower takes out of a directory what the present layer did not make.
func (f *Files) hideLower(d *File) {
	for base, n := range d.names {
		switch {
		case n.layer == f.layer || (n.file.Kind == fs.ModeDir && n.file.touched == f.layer):
			f.hideLower(n.file)
		default:
			delete(d.names, base)
		}
	}
}

// Resolve follows a path from the root, links included, to what is there, and to the
// path without links. through, unless nil, is told of every directory that is searched
// on the way. Where nothing is, the error is fs.ErrNotExist, and the path is that of
// what is missing.
func (f *Files) Resolve(p string, through func(dir string, d *File)) (string, *File, error) {
	type step struct {
		path string
		file *File
	}
	at, rest, links := []step{{"/", f.root}}, p, 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		top := at[len(at)-1]
		if part == "" || part == "." {
			continue
		}
		if top.file.Kind != fs.ModeDir {
			return top.path, nil, fmt.Errorf("%s: %w", top.path, unix.ENOTDIR)
		}
		if part == ".." {
			at = at[:max(1, len(at)-1)]
			continue
		}
		if through != nil {
			through(top.path, top.file)
		}
		here := path.Join(top.path, part)
		next := top.file.names[part].file
		switch {
		case next == nil:
			return here, nil, fmt.Errorf("%s: %w", here, fs.ErrNotExist)
		case next.Kind != fs.ModeSymlink:
			at = append(at, step{here, next})
			continue
		}
		if links++; links > maxLinks || len(next.Link)+len(rest) > maxLinks*maxPath {
			return here, nil, fmt.Errorf("%s: %w", here, unix.ELOOP)
		}
		if strings.HasPrefix(next.Link, "/") {
			at = at[:1]
		}
		rest = next.Link + "/" + rest
	}
	top := at[len(at)-1]
	return top.path, top.file, nil
}

// Names are those of a directory, sorted.
func (d *File) Names() []string { return slices.Sorted(maps.Keys(d.names)) }

// At is what a directory has under a name; links are not followed. nil is nothing.
func (d *File) At(base string) *File { return d.names[base].file }

// Read returns the content of a regular file, at most its first max bytes.
func (f *Files) Read(ctx context.Context, file *File, max int64) ([]byte, error) {
	if file.Kind != 0 || file.from == 0 {
		return nil, errors.New("not a regular file")
	}
	r, err := f.layers[file.from-1].Uncompressed()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	var content []byte
	n, tr := 0, tar.NewReader(r)
	err = eachEntry(ctx, tr, func(*tar.Header) error {
		if n++; n < file.entry {
			return nil
		}
		var err error
		if content, err = io.ReadAll(io.LimitReader(tr, max)); err == nil {
			err = io.EOF // nothing behind it is of interest
		}
		return err
	})
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return content, nil
}
