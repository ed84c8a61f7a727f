// Package layer writes packages into image layers and caches the layers.
//
//	packages → Order → Spread: which layer → Put: files below the prefix → Keep
//
// The same packages give the same layers on every machine, and changing one package changes
// one layer. Files have owner 0:0 and no modification times of the build.
package layer

import (
	"archive/tar"
	"context"
	"io"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/store"
)

// A Writer writes files below the prefix to a layer's tar. Owners are 0:0; directories that
// no package describes have mode 0755. Write writes content of the file whose header was
// written last.
type Writer struct {
	*tar.Writer
	prefix string // without the leading slash
	dirs   map[string]bool
	buf    []byte // buffer for the content of files
}

// NewWriter returns a Writer that writes to w. Close finishes the layer.
func NewWriter(w io.Writer, prefix string) *Writer {
	return &Writer{Writer: tar.NewWriter(w), prefix: strings.TrimPrefix(prefix, "/"), dirs: map[string]bool{}, buf: make([]byte, 64<<10)}
}

// InLayer returns the path in the layer of a path below the prefix.
func (w *Writer) InLayer(p string) string { return path.Join(w.prefix, p) }

// Copy copies the content of a file to the layer, and to the writers in also.
func (w *Writer) Copy(r io.Reader, also ...io.Writer) (int64, error) {
	to := io.Writer(w.Writer)
	if len(also) > 0 {
		to = io.MultiWriter(append([]io.Writer{to}, also...)...)
	}
	return io.CopyBuffer(to, r, w.buf)
}

// Epoch is the modification time of files without one: the first day that zip archives
// support in every time zone.
var Epoch = time.Date(1980, 1, 2, 0, 0, 0, 0, time.UTC)

// parents writes the directories above p, each once.
func (w *Writer) parents(p string) error {
	d := path.Dir(p)
	if d == "." || w.dirs[d] {
		return nil
	}
	if err := w.parents(d); err != nil {
		return err
	}
	w.dirs[d] = true
	return w.Writer.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: Epoch})
}

// Header writes an entry below the prefix.
func (w *Writer) Header(h *tar.Header) error {
	h.Name = path.Join(w.prefix, h.Name)
	if h.Typeflag == tar.TypeDir {
		if w.dirs[h.Name] {
			return nil
		}
		w.dirs[h.Name] = true
		h.Name += "/"
	}
	if err := w.parents(strings.TrimSuffix(h.Name, "/")); err != nil {
		return err
	}
	return w.Writer.WriteHeader(h)
}

// File writes a file created by hpcc. sec is its modification time, 0 for Epoch.
func (w *Writer) File(name string, mode int64, data []byte, sec int64) error {
	t := Epoch
	if sec > 0 {
		t = time.Unix(sec, 0)
	}
	if err := w.Header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data)), ModTime: t}); err != nil {
		return err
	}
	_, err := w.Writer.Write(data)
	return err
}

// A Tee is called before each layer is written. The layer's tar also goes to w; an error of w
// ends the installation. After that, end is called with the layer's diff ID, or a zero Hash if
// the layer was dropped. Calls can overlap, because layers are written in parallel.
type Tee func(ctx context.Context) (w io.Writer, end func(diffID v1.Hash))

// Put stores a layer of the files that fill writes below the prefix. The layer also goes to
// tee, which may be nil.
func Put(ctx context.Context, s *store.Store, prefix string, tee Tee, fill func(w *Writer) error) (info store.LayerInfo, err error) {
	var also io.Writer
	if tee != nil {
		var end func(v1.Hash)
		also, end = tee(ctx)
		defer func() { end(info.DiffID) }()
	}
	info, err = s.PutLayer(ctx, types.OCILayer, func(to io.Writer) error {
		if also != nil {
			to = io.MultiWriter(to, also)
		}
		w := NewWriter(to, prefix)
		if err := fill(w); err != nil {
			return err
		}
		return w.Writer.Close()
	})
	if err != nil {
		info = store.LayerInfo{} // the layer was dropped
	}
	return info, err
}

// New is like Put, but returns the layer itself.
func New(ctx context.Context, s *store.Store, prefix string, tee Tee, fill func(w *Writer) error) (v1.Layer, error) {
	info, err := Put(ctx, s, prefix, tee, fill)
	if err != nil {
		return nil, err
	}
	return s.Layer(info)
}
