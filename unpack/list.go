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

// Files is the merged content of an image's layers, as if root had unpacked it. It has the
// owners, modes and devices that an ordinary user's [Tree] cannot have.
type Files struct {
	layers []v1.Layer
	root   *File
	sums   bool // compute the digests of contents
	layer  int  // index of the layer being read
	count  int  // number of entries so far
}

// maxListed bounds the entries of an image's layers, including implied directories. Each
// takes at least 200 bytes of memory.
const maxListed = 5_000_000

// A File is an image's description of a file of any type.
type File struct {
	Kind     fs.FileMode // type bits only
	Perm     uint32      // permission bits, with set-id and sticky ones (chmod(2))
	UID, GID int
	Link     string // where a symbolic link points
	Size     int64
	Caps     bool // it has file capabilities (capabilities(7))
	Script   bool // it starts with "#!"

	names   map[string]name   // of a directory
	touched int               // last layer with an entry below this directory
	from    int               // layer with the content, counted from 1; 0: none
	entry   int               // entry of that layer, counted from 1
	sum     [sha256.Size]byte // of the content, if [Files] has sums
}

// A name is a directory's entry and the layer that created it.
type name struct {
	file  *File
	layer int
}

// List reads the layers of an image. It writes nothing and keeps no content. It checks blobs
// as unpacking does.
func List(ctx context.Context, img v1.Image) (*Files, error) { return list(ctx, img, false) }

// list implements [List]. If sums is set, it also computes the digests of contents.
func list(ctx context.Context, img v1.Image, sums bool) (*Files, error) {
	ls, err := img.Layers()
	if err != nil {
		return nil, err
	}
	f := &Files{layers: ls, root: newDir(), sums: sums}
	t := &tree{} // only counts sparse files; it has no directory
	err = eachLayer(ctx, ls, "reading", func(i int, c *content) error {
		f.layer, t.sparse = i+1, 0
		return f.read(ctx, t, c)
	}, func(int, int64) {})
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
		if err := f.countEntry(); err != nil {
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

// countEntry counts an entry or implied directory and returns an error beyond the limit.
func (f *Files) countEntry() error {
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
		if existing := parent.names[base].file; existing != nil && existing.Kind == fs.ModeDir {
			existing.Perm, existing.UID, existing.GID = file.Perm, file.UID, file.GID
			file = existing
		} else {
			file.names = map[string]name{}
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxPath {
			return fmt.Errorf("the link target has %d bytes; want 1 to %d", len(h.Linkname), maxPath)
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
		return fmt.Errorf("unknown type %q", h.Typeflag)
	}
	parent.names[base] = name{file, f.layer}
	return nil
}

// linked returns the file that a hard link refers to.
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
		return nil, fmt.Errorf("hard link target %q does not exist", target)
	}
	return file, nil
}

// dir returns the directory at p and follows links. It creates a missing directory and
// replaces any other file by one. It marks all directories on the path as touched by this
// layer.
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
			if err := f.countEntry(); err != nil {
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

// whiteout hides the lower layers' files of a name or in a directory, as tree.whiteout does.
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

// hideLower removes the entries of a directory that the current layer did not create.
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

// Resolve follows a path from the root, including links. It returns the path without links
// and the file. If visit is not nil, it is called for every directory that is searched. If the
// file does not exist, the error is fs.ErrNotExist and the path is the missing one.
func (f *Files) Resolve(p string, visit func(dir string, d *File)) (string, *File, error) {
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
		if visit != nil {
			visit(top.path, top.file)
		}
		full := path.Join(top.path, part)
		next := top.file.names[part].file
		switch {
		case next == nil:
			return full, nil, fmt.Errorf("%s: %w", full, fs.ErrNotExist)
		case next.Kind != fs.ModeSymlink:
			at = append(at, step{full, next})
			continue
		}
		if links++; links > maxLinks || len(next.Link)+len(rest) > maxLinks*maxPath {
			return full, nil, fmt.Errorf("%s: %w", full, unix.ELOOP)
		}
		if strings.HasPrefix(next.Link, "/") {
			at = at[:1]
		}
		rest = next.Link + "/" + rest
	}
	top := at[len(at)-1]
	return top.path, top.file, nil
}

// Names returns the sorted names of a directory.
func (d *File) Names() []string { return slices.Sorted(maps.Keys(d.names)) }

// At returns the entry with this name in a directory, or nil. It does not follow links.
func (d *File) At(base string) *File { return d.names[base].file }

// Read returns the content of a regular file, at most max bytes.
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
			err = io.EOF // stop: the rest of the layer is not needed
		}
		return err
	})
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return content, nil
}
