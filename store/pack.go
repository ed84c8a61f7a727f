package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"hpcc/store/gzip"
)

// PutLayer stores the layer that write writes, an uncompressed tar. mt selects the
// compression. The same tar gives the same blob on every machine. An error of write is
// returned unchanged, unless the disk is full.
func (s *Store) PutLayer(ctx context.Context, mt types.MediaType, write func(w io.Writer) error) (LayerInfo, error) {
	f, err := s.tempFile()
	if err != nil {
		return LayerInfo{}, err
	}
	outer, inner := sha256.New(), sha256.New()
	count := &counter{w: io.MultiWriter(f, outer)}
	z, err := packer(count, mt)
	if err == nil {
		err = write(&layerWriter{ctx, z, inner})
		if cerr := z.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("writing a layer: %w", cerr)
		}
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		return LayerInfo{}, s.diskError(err)
	}
	info := LayerInfo{Digest: hashOf(outer), DiffID: hashOf(inner), Size: count.n, MediaType: mt}
	return info, s.finish(f, nil, s.blob(info.Digest))
}

// A layerWriter compresses and digests written data until the context ends.
type layerWriter struct {
	ctx  context.Context
	pack io.Writer
	sum  hash.Hash
}

func (w *layerWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.pack.Write(p)
	w.sum.Write(p[:n])
	return n, err
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// packer returns the compressor for a media type.
func packer(w io.Writer, mt types.MediaType) (io.WriteCloser, error) {
	switch mt {
	case types.OCILayer, types.DockerLayer:
		return gzip.NewWriter(w)
	case types.OCILayerZStd:
		return newZstdWriter(w)
	case types.OCIUncompressedLayer, types.DockerUncompressedLayer:
		return nopCloser{w}, nil
	}
	return nil, fmt.Errorf("a layer of type %q cannot be written", mt)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// zstdFormat has the size of a frame in bytes, on which the output depends.
var zstdFormat = gzip.BlockFormat{Size: 4 << 20}

// A zstdWriter compresses to independent frames (RFC 8878, section 3.1), which decoders read
// as one file. An empty layer is one empty frame.
type zstdWriter struct {
	*gzip.BlockWriter
	enc *zstd.Encoder
}

func newZstdWriter(to io.Writer) (*zstdWriter, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)), zstd.WithZeroFrames(true))
	if err != nil {
		return nil, err
	}
	pack := func(b *gzip.Block) { b.Out = enc.EncodeAll(b.In, b.Out[:0]) }
	return &zstdWriter{zstdFormat.NewWriter(to, pack), enc}, nil
}

func (z *zstdWriter) Close() error { return cmp.Or(z.BlockWriter.Close(), z.enc.Close()) }
