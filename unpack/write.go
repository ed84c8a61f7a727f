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

// A LayerWriter writes a layer, an uncompressed tar, that adds files to a tree. It reads the
// tree to resolve links and find conflicts, but never changes it.
//
// Names are paths in the image. If the directory of a name contains links, of the tree or of
// the layer so far, the entry is written to the resolved path, as if the tree were the root.
type LayerWriter struct {
	// Owner is the user and group of directories created above an entry.
	Owner [2]int
	// DirMode is the mode of directories created above an entry (chmod(2)).
	DirMode int64
	// OwnAll gives Owner to the members of an archive as well.
	OwnAll bool
	// Newest limits the modification times of entries; zero: no limit. With a limit, all
	// directories above entries have the time of the layer.
	Newest time.Time
	// Times are the exact times of entries. The layer has them in whole seconds, rounded down.
	Times map[string]time.Time

	tw      *tar.Writer
	tree    string
	notes   *Notes
	root    string // links cannot lead out of it; "." except for archives
	stamp   time.Time
	entries map[string]layerEntry
	dirs    map[string]string // requested directory → resolved directory
	n       int
	buf     []byte // buffer for content
}

// A layerEntry is a path that the layer has so far.
type layerEntry struct {
	kind fs.FileMode
	link string
	new  bool // a directory that does not exist in the tree
}

// NewLayerWriter starts a layer for the tree in a directory, with its notes. stamp is the
// modification time of new directories above entries, and of those in which entries are.
func NewLayerWriter(w io.Writer, tree string, notes *Notes, stamp time.Time) *LayerWriter {
	return &LayerWriter{DirMode: 0o755, tw: tar.NewWriter(w), tree: tree, notes: notes, root: ".",
		stamp: stamp, Times: map[string]time.Time{}, entries: map[string]layerEntry{}, dirs: map[string]string{}, buf: make([]byte, 64<<10)}
}

// Close ends the layer and returns the number of entries.
func (w *LayerWriter) Close() (int, error) { return w.n, w.tw.Close() }

// maxLinks is the maximum number of symbolic links in one path, as in the kernel.
const maxLinks = 40

// Resolve follows all links of p, including the last. It returns the path below the root
// without a leading slash, "." for the root, and the file's type. If the file does not
// exist, it returns fs.ErrNotExist and the path.
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
		m, err := w.lookup(next)
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

// lookup returns the existing file at a path whose directory contains no links.
func (w *LayerWriter) lookup(p string) (layerEntry, error) {
	if m, ok := w.entries[p]; ok {
		return m, nil
	}
	if w.entries[path.Dir(p)].new {
		return layerEntry{}, fs.ErrNotExist
	}
	full := filepath.Join(w.tree, p)
	fi, err := os.Lstat(full)
	if err != nil {
		return layerEntry{}, err
	}
	m := layerEntry{kind: fi.Mode().Type()}
	if m.kind == fs.ModeSymlink {
		m.link, err = os.Readlink(full)
	}
	return m, err
}

// dir resolves the directory p, following links, and creates it if it is missing.
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
	if err := w.recordDirs(at, true); err != nil {
		return "", err
	}
	w.dirs[p] = at
	return at, nil
}

// recordDirs records the directories down to and including p that the layer does not have yet.
// Directories of the tree keep their mode and owner and, unless changed is set for p, their time.
func (w *LayerWriter) recordDirs(p string, changed bool) error {
	m, ok := w.entries[p]
	switch {
	case p == "." || (ok && m.kind == fs.ModeDir):
		return nil
	case ok:
		return fmt.Errorf("/%s is a file in the image, not a directory", p)
	}
	full := filepath.Join(w.tree, p)
	fi, err := os.Lstat(full)
	if err := w.recordDirs(path.Dir(p), err != nil); err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeDir, Name: p, Mode: w.DirMode, Uid: w.Owner[0], Gid: w.Owner[1], ModTime: w.stamp}
	switch {
	case err == nil && !fi.IsDir():
		return fmt.Errorf("/%s is a file in the image, not a directory", p)
	case err == nil:
		if w.notes.Describe(h, full, fi); !changed && w.Newest.IsZero() {
			h.ModTime = fi.ModTime()
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return w.emit(h, nil, err != nil)
}

// Dir creates the directory p if it is missing. An existing one stays unchanged.
func (w *LayerWriter) Dir(p string) error {
	_, err := w.dir(p)
	return err
}

// Put writes an entry. A file, link or device replaces an existing file, link or device with
// its name. A directory changes the mode and owner of an existing directory. content must have
// h.Size bytes.
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
		return fmt.Errorf("/%s: layers cannot hold a file whose name begins with %s, which marks removed files (image-spec, \"Whiteouts\")", e.Name, whPrefix)
	}
	if e.Name == configDir || strings.HasPrefix(e.Name, configDir+"/") {
		return nil // layers cannot write to this directory
	}
	existing, err := w.lookup(e.Name)
	isNew := err != nil
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil:
	case existing.kind == fs.ModeDir && h.Typeflag != tar.TypeDir:
		return fmt.Errorf("/%s is a directory in the image: a file cannot replace it", e.Name)
	case existing.kind == fs.ModeSymlink && h.Typeflag == tar.TypeDir:
		at, kind, err := w.Resolve(e.Name)
		if err != nil || kind != fs.ModeDir {
			return fmt.Errorf("/%s is a link in the image that does not lead to a directory: a directory cannot be copied onto it", e.Name)
		}
		e.Name = at
		if err := w.recordDirs(path.Dir(at), true); err != nil {
			return err
		}
	case existing.kind != fs.ModeDir && h.Typeflag == tar.TypeDir:
		return fmt.Errorf("/%s is a file in the image: a directory cannot be copied onto it", e.Name)
	}
	return w.emit(&e, content, isNew)
}

// emit writes an entry under its final name. isNew means that the tree does not contain it.
func (w *LayerWriter) emit(h *tar.Header, content io.Reader, isNew bool) error {
	m := layerEntry{kind: h.FileInfo().Mode().Type()}
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
	if !w.Newest.IsZero() && h.ModTime.After(w.Newest) {
		h.ModTime = w.Newest
	}
	if h.ModTime.Nanosecond() != 0 {
		w.Times[p], h.ModTime = h.ModTime, h.ModTime.Truncate(time.Second)
	} else { // of an earlier entry
		delete(w.Times, p)
	}
	w.entries[p] = m
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
		err = fmt.Errorf("expected %d bytes, read %d: the file changed while it was being read", h.Size, n)
	}
	if err != nil {
		return fmt.Errorf("recording /%s: %w", p, err)
	}
	return nil
}

// Archive writes the members of a tar archive below the directory dest, with their owners,
// times and modes, as tar does for root. Links are resolved as if dest were the root, as in
// BuildKit. Hard links must refer to earlier members.
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

// xattrRecord is the prefix of PAX records for extended attributes.
const xattrRecord = "SCHILY.xattr."

// member writes one member of an archive below the root.
func (w *LayerWriter) member(h *tar.Header, content io.Reader) error {
	name, err := cleanName(h.Name)
	if err != nil {
		return err
	}
	e := tar.Header{Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o7777,
		Uid: h.Uid, Gid: h.Gid, Devmajor: h.Devmajor, Devminor: h.Devminor, ModTime: h.ModTime}
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
			return nil // it exists
		}
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		e.Typeflag = tar.TypeReg // the content is read in full
	case tar.TypeSymlink:
		if h.Linkname == "" {
			return errors.New("the link target is empty")
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
	case tar.TypeLink:
		if e.Linkname, err = w.linked(h.Linkname); err != nil {
			return err
		}
	default:
		return fmt.Errorf("unknown type %q", h.Typeflag)
	}
	if len(e.Linkname) > maxPath {
		return fmt.Errorf("the link target has %d bytes; want at most %d", len(e.Linkname), maxPath)
	}
	return w.Put(&e, content)
}

// linked returns the member that a hard link refers to.
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
	if m, ok := w.entries[to]; !ok || m.kind == fs.ModeDir {
		return "", fmt.Errorf("hard link target %.200q is not an earlier member of the archive", target)
	}
	return to, nil
}
