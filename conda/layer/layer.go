// Package layer writes packages into image layers, and finds the layers that were
// written before.
//
//	packages → Order → Spread: which layer → Put: files below the prefix → Keep
//
// The same packages give the same layers on every machine, and a change of one package
// changes one layer. Files get the owner 0:0 and no time of day.
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

// A Writer writes files below the prefix as a layer's tar. Owners are 0:0;
// directories that no package describes get mode 0755. Write writes the content of the
// file whose header was written last.
type Writer struct {
	*tar.Writer
	prefix string // without the slash at its head
	dirs   map[string]bool
	buf    []byte // for the content of files
}

// NewWriter returns a Writer to w. Close writes the end of the layer.
func NewWriter(w io.Writer, prefix string) *Writer {
	return &Writer{Writer: tar.NewWriter(w), prefix: strings.TrimPrefix(prefix, "/"), dirs: map[string]bool{}, buf: make([]byte, 64<<10)}
}

// InLayer is the path in the layer of a path below the prefix.
func (w *Writer) InLayer(p string) string { return path.Join(w.prefix, p) }

// Copy writes the content of a file to the layer and to each of also.
func (w *Writer) Copy(r io.Reader, also ...io.Writer) (int64, error) {
	to := io.Writer(w.Writer)
	if len(also) > 0 {
		to = io.MultiWriter(append([]io.Writer{to}, also...)...)
	}
	return io.CopyBuffer(to, r, w.buf)
}

// Epoch is the time of what no package has a time for: the first day that zip
// archives can hold.
var Epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// parents writes the directories above p, once each.
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

// File writes a file that hpcc makes; sec is its time, 0 for none of its own.
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

// A Tee is called for each layer of an image that is written. The layer's tar goes to
// w as well, whose errors end the installation; then end is called, with the layer's diff
// id, or a zero Hash when the layer came to nothing. Several layers are written together.
type Tee func(ctx context.Context) (w io.Writer, end func(diffID v1.Hash))

// Put writes one layer of files below the prefix into the store, and to tee, which
// may be nil.
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
		info = store.LayerInfo{} // nothing has its name
	}
	return info, err
}

// New is Put for who wants the layer itself.
func New(ctx context.Context, s *store.Store, prefix string, tee Tee, fill func(w *Writer) error) (v1.Layer, error) {
	info, err := Put(ctx, s, prefix, tee, fill)
	if err != nil {
		return nil, err
	}
	return s.Layer(info)
}
