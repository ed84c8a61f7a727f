package unpack

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A LayerWriter writes a layer, an uncompressed tar, that puts files on top of
// a tree. It looks at the tree, to follow its links and to see what is in the
// way, and never changes it: nothing is copied before the layer is applied.
//
// Names are paths in the image; where the directory of a name leads through
// links, of the tree or of the layer so far, the entry is written to the place
// where they lead, resolved as if the tree were the root.
type LayerWriter struct {
	// Owner of directories that are missing above an entry: user and group.
	Owner [2]int
	// DirMode is the mode of directories that are missing above an entry, as
	// archives have it (chmod(2)).
	DirMode int64
	// OwnAll gives Owner to the members of an archive too, whatever it says.
	OwnAll bool

	tw    *tar.Writer
	tree  string
	notes *Notes
	root  string // what paths begin at and links do not lead out of; "." but for archives
	stamp time.Time
	made  map[string]made
	dirs  map[string]string // directories by the name they were asked for: where they are
	n     int
	buf   []byte // for content on its way
}

// made is what the layer so far has at a path.
type made struct {
	kind fs.FileMode
	link string
	new  bool // a directory that the tree does not have, nor anything in it
}

// NewLayerWriter begins a layer for the tree in that directory, with its notes.
// Directories that change because something is put into them get the time stamp.
func NewLayerWriter(w io.Writer, tree string, notes *Notes, stamp time.Time) *LayerWriter {
	return &LayerWriter{DirMode: 0o755, tw: tar.NewWriter(w), tree: tree, notes: notes, root: ".", stamp: stamp, made: map[string]made{}, dirs: map[string]string{}, buf: make([]byte, 64<<10)}
}

// Close ends the layer and returns how many entries it has.
func (w *LayerWriter) Close() (int, error) { return w.n, w.tw.Close() }

// maxLinks is how many symbolic links one path may lead through, as in the kernel.
const maxLinks = 40

// Resolve follows all links of p, the last one as well. It returns the path
// below the root without a leading slash, "." being the root, and the kind of
// what is there; fs.ErrNotExist, with the path, when nothing is.
func (w *LayerWriter) Resolve(p string) (string, fs.FileMode, error) {
	at, rest, links := w.root, p, 0
	kind := fs.ModeDir
	for rest != "" {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			if at != w.root {
				at = path.Dir(at)
			}
			kind = fs.ModeDir
			continue
		}
		next := path.Join(at, name)
		m, err := w.look(next)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return path.Join(next, path.Clean("/" + rest)[1:]), 0, fmt.Errorf("%s: %w", "/"+next, fs.ErrNotExist)
		}
		if err != nil {
			return "", 0, err
		}
		if m.kind != fs.ModeSymlink {
			at, kind = next, m.kind
			continue
		}
		if links++; links > maxLinks {
			return "", 0, fmt.Errorf("%s: %w", p, unix.ELOOP)
		}
		if strings.HasPrefix(m.link, "/") {
			at = w.root
		}
		rest = m.link + "/" + rest
	}
	return at, kind, nil
}

// look says what is at a path whose directory leads through no link.
func (w *LayerWriter) look(p string) (made, error) {
	if m, ok := w.made[p]; ok {
		return m, nil
	}
	if w.made[path.Dir(p)].new {
		return made{}, fs.ErrNotExist
	}
	full := filepath.Join(w.tree, p)
	fi, err := os.Lstat(full)
	if err != nil {
		return made{}, err
	}
	m := made{kind: fi.Mode().Type()}
	if m.kind == fs.ModeSymlink {
		m.link, err = os.Readlink(full)
	}
	return m, err
}

// dir finds the directory p, through links, and makes it where it is missing.
func (w *LayerWriter) dir(p string) (string, error) {
	if at, ok := w.dirs[p]; ok {
		return at, nil
	}
	at, kind, err := w.Resolve(p)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err == nil && kind != fs.ModeDir {
		return "", fmt.Errorf("/%s is a file in the image, not a directory", at)
	}
	if err := w.above(at); err != nil {
		return "", err
	}
	w.dirs[p] = at
	return at, nil
}

// above records the directories down to p itself that the layer does not have
// yet: those of the tree as they are.
func (w *LayerWriter) above(p string) error {
	m, ok := w.made[p]
	switch {
	case p == "." || (ok && m.kind == fs.ModeDir):
		return nil
	case ok:
		return fmt.Errorf("/%s is a file in the image, not a directory", p)
	}
	if err := w.above(path.Dir(p)); err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeDir, Name: p, Mode: w.DirMode, Uid: w.Owner[0], Gid: w.Owner[1], ModTime: w.stamp}
	full := filepath.Join(w.tree, p)
	fi, err := os.Lstat(full)
	switch {
	case err == nil && !fi.IsDir():
		return fmt.Errorf("/%s is a file in the image, not a directory", p)
	case err == nil:
		w.notes.Describe(h, full, fi)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return w.emit(h, nil, err != nil)
}

// Dir makes sure that the directory p is there; an existing one stays as it is.
func (w *LayerWriter) Dir(p string) error {
	_, err := w.dir(p)
	return err
}

// Put writes an entry: a directory, or a file, link or device in the place of
// whatever file, link or device has its name. A directory that exists gets the
// entry's mode and owner. content has h.Size bytes.
func (w *LayerWriter) Put(h *tar.Header, content io.Reader) error {
	name := path.Clean("/" + h.Name)[1:]
	if name == "" {
		return errors.New("the root cannot be replaced")
	}
	in, err := w.dir(path.Dir(name))
	if err != nil {
		return err
	}
	e := *h
	e.Name = path.Join(in, path.Base(name))
	if strings.HasPrefix(path.Base(name), whPrefix) {
		return fmt.Errorf("/%s: layers cannot hold a file whose name begins with %s, which marks what was removed (image-spec, \"Whiteouts\")", e.Name, whPrefix)
	}
	if e.Name == configDir || strings.HasPrefix(e.Name, configDir+"/") {
		return nil // no layer writes there
	}
	there, err := w.look(e.Name)
	isNew := err != nil
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil:
	case there.kind == fs.ModeDir && h.Typeflag != tar.TypeDir:
		return fmt.Errorf("/%s is a directory in the image: a file cannot replace it", e.Name)
	case there.kind == fs.ModeSymlink && h.Typeflag == tar.TypeDir:
		at, kind, err := w.Resolve(e.Name)
		if err != nil || kind != fs.ModeDir {
			return fmt.Errorf("/%s is a link in the image that leads to no directory: a directory cannot be copied onto it", e.Name)
		}
		e.Name = at
		if err := w.above(path.Dir(at)); err != nil {
			return err
		}
	case there.kind != fs.ModeDir && h.Typeflag == tar.TypeDir:
		return fmt.Errorf("/%s is a file in the image: a directory cannot be copied onto it", e.Name)
	}
	return w.emit(&e, content, isNew)
}

// emit writes an entry under its final name; isNew: the tree has none there.
func (w *LayerWriter) emit(h *tar.Header, content io.Reader, isNew bool) error {
	m := made{kind: h.FileInfo().Mode().Type()}
	p := h.Name
	switch h.Typeflag {
	case tar.TypeDir:
		h.Name += "/"
		m.new = isNew
	case tar.TypeSymlink:
		m.link = h.Linkname
	case tar.TypeLink:
		m.kind = 0
	}
	w.made[p] = m
	if m.kind == fs.ModeSymlink {
		clear(w.dirs)
	}
	w.n++
	if err := w.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("recording /%s: %w", p, err)
	}
	if h.Size == 0 || content == nil {
		return nil
	}
	n, err := io.CopyBuffer(w.tw, io.LimitReader(content, h.Size), w.buf)
	if err == nil && n < h.Size {
		err = fmt.Errorf("it has %d bytes where %d were expected: it was changed while it was read", n, h.Size)
	}
	if err != nil {
		return fmt.Errorf("recording /%s: %w", p, err)
	}
	return nil
}

// Archive puts the members of a tar archive below the directory dest: with
// their owners, times and modes, as tar does for root. Links are followed as if
// dest were the root, as BuildKit does. Links in it that are hard must name
// members before them.
func (w *LayerWriter) Archive(ctx context.Context, dest string, tr *tar.Reader) error {
	at, err := w.dir(dest)
	if err != nil {
		return err
	}
	w.root = at
	clear(w.dirs)
	defer func() {
		w.root = "."
		clear(w.dirs)
	}()
	return eachEntry(ctx, tr, func(h *tar.Header) error { return w.member(h, tr) })
}

// xattrRecord begins the PAX records that hold extended attributes.
const xattrRecord = "SCHILY.xattr."

// member puts one member of an archive below the root.
func (w *LayerWriter) member(h *tar.Header, content io.Reader) error {
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	e := tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o7777,
		Uid: h.Uid, Gid: h.Gid, Devmajor: h.Devmajor, Devminor: h.Devminor, ModTime: h.ModTime.Truncate(time.Second)}
	if w.OwnAll {
		e.Uid, e.Gid = w.Owner[0], w.Owner[1]
	}
	for k, v := range h.PAXRecords {
		if strings.HasPrefix(k, xattrRecord) && !strings.HasPrefix(k, xattrRecord+notePrefix) {
			if e.PAXRecords == nil {
				e.PAXRecords = map[string]string{}
			}
			e.PAXRecords[k] = v
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if name == "." {
			return nil // it is there
		}
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		e.Typeflag = tar.TypeReg // what is read is the whole content
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return errors.New("it is a link to nothing")
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeLink:
		if e.Linkname, err = w.linked(h.Linkname); err != nil {
			return err
		}
	default:
		return fmt.Errorf("its type %q is not known", h.Typeflag)
	}
	if len(e.Linkname) > maxPath {
		return fmt.Errorf("its link target has %d bytes", len(e.Linkname))
	}
	return w.Put(&e, content)
}

// linked finds the member that a hard link names.
func (w *LayerWriter) linked(target string) (string, error) {
	name, err := cleanName(target)
	if err != nil {
		return "", err
	}
	in, err := w.dir(path.Dir(name))
	if err != nil {
		return "", err
	}
	to := path.Join(in, path.Base(name))
	if m, ok := w.made[to]; !ok || m.kind == fs.ModeDir {
		return "", fmt.Errorf("it is a link to %.200q, which the archive does not have before it", target)
	}
	return to, nil
}
