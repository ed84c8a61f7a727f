package conda

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

// A layerWriter writes files below the prefix as a layer's tar. Owners are 0:0;
// directories that no package describes get mode 0755.
type layerWriter struct {
	tw     *tar.Writer
	prefix string // fetch.WithoutToken the slash at its head
	dirs   map[string]bool
	buf    []byte // for the bytes of files
}

// stamp is the time of what no package has a time for: the first day that zip
// archives can hold.
var stamp = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// parents writes the directories above p, once each.
func (w *layerWriter) parents(p string) error {
	d := path.Dir(p)
	if d == "." || w.dirs[d] {
		return nil
	}
	if err := w.parents(d); err != nil {
		return err
	}
	w.dirs[d] = true
	return w.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: stamp})
}

// header writes an entry below the prefix.
func (w *layerWriter) header(h *tar.Header) error {
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
	return w.tw.WriteHeader(h)
}

// file writes a file that hpcc makes; sec is its time, 0 for none of its own.
func (w *layerWriter) file(name string, mode int64, data []byte, sec int64) error {
	t := stamp
	if sec > 0 {
		t = time.Unix(sec, 0)
	}
	if err := w.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data)), ModTime: t}); err != nil {
		return err
	}
	_, err := w.tw.Write(data)
	return err
}

// A TeeFunc is called for each layer of an image that is written. The layer's tar goes to
// w as well, whose errors end the installation; then end is called, with the layer's diff
// id, or a zero Hash when the layer came to nothing. Several layers are written together.
type TeeFunc func(ctx context.Context) (w io.Writer, end func(diffID v1.Hash))

// putLayer writes one layer of files below the prefix into the store, and to tee, which
// may be nil.
func putLayer(ctx context.Context, s *store.Store, prefix string, tee TeeFunc, fill func(w *layerWriter) error) (info store.LayerInfo, err error) {
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
		w := &layerWriter{tw: tar.NewWriter(to), prefix: strings.TrimPrefix(prefix, "/"), dirs: map[string]bool{}, buf: make([]byte, 64<<10)}
		if err := fill(w); err != nil {
			return err
		}
		return w.tw.Close()
	})
	if err != nil {
		info = store.LayerInfo{} // nothing has its name
	}
	return info, err
}

// newLayer is putLayer for who wants the layer itself.
func newLayer(ctx context.Context, s *store.Store, prefix string, tee TeeFunc, fill func(w *layerWriter) error) (v1.Layer, error) {
	info, err := putLayer(ctx, s, prefix, tee, fill)
	if err != nil {
		return nil, err
	}
	return s.Layer(info)
}
