package store

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"hpcc/store/gzip"
)

// maxManifest bounds manifests, indexes and configurations, in bytes
// (distribution's own limit for manifests is 4 MiB; configurations with long
// histories are larger).
const maxManifest = 16 << 20

// writeSize is the size of most writes of large files, in bytes.
const writeSize = 1 << 20

func (s *Store) blob(h v1.Hash) string { return s.path("blobs", "sha256", h.Hex) }

// checkHash refuses digests that are not valid file names here.
func checkHash(h v1.Hash) error {
	if h.Algorithm != "sha256" || len(h.Hex) != 64 {
		return fmt.Errorf("digest %q is not sha256", h)
	}
	if _, err := hex.DecodeString(h.Hex); err != nil {
		return fmt.Errorf("digest %q is not sha256", h)
	}
	return nil
}

// writeBlob stores the bytes of r under their digest. It checks want and size (-1: unknown)
// before the blob gets its name. An existing blob is read; it stays if its bytes are correct
// and is replaced otherwise.
func (s *Store) writeBlob(ctx context.Context, r io.Reader, want v1.Hash, size int64) error {
	if err := checkHash(want); err != nil {
		return err
	}
	if have, err := s.intact(ctx, want, size, io.Discard); have || err != nil {
		return err
	}
	f, err := s.tempFile()
	if err != nil {
		return err
	}
	h := sha256.New()
	if size >= 0 {
		r = io.LimitReader(r, size+1)
	}
	// The pieces that a network delivers would be a write each, of parts of pages, which a network
	// file system then reads again.
	w := bufio.NewWriterSize(f, writeSize)
	n, err := io.Copy(io.MultiWriter(w, h), readerWith(ctx, r))
	if err == nil {
		err = w.Flush()
	}
	if err == nil && size >= 0 && n != size {
		err = fmt.Errorf("it has %d bytes instead of %d", n, size)
	}
	if got := hex.EncodeToString(h.Sum(nil)); err == nil && got != want.Hex {
		err = fmt.Errorf("its digest is sha256:%s", got)
	}
	if err != nil {
		f.Close()
		os.Remove(f.Name())
		return fmt.Errorf("storing blob %s: %w", want, s.diskError(err))
	}
	return s.finish(f, nil, s.blob(want))
}

// readerWith returns a reader of r that fails once the context has ended.
func readerWith(ctx context.Context, r io.Reader) io.Reader { return &ctxReader{ctx, r} }

type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// readBlob reads a small blob and verifies its digest.
func (s *Store) readBlob(h v1.Hash) ([]byte, error) {
	if err := checkHash(h); err != nil {
		return nil, err
	}
	r, err := s.openBlob(h, -1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err == nil && len(b) > maxManifest {
		err = fmt.Errorf("it is larger than %d bytes", maxManifest)
	}
	var bad *DamagedError
	if err != nil && !errors.As(err, &bad) {
		err = fmt.Errorf("reading blob %s: %w", h, err)
	}
	return b, err
}

// readAs reads the manifest or index of a descriptor and checks its size.
func (s *Store) readAs(d v1.Descriptor) ([]byte, error) {
	b, err := s.readBlob(d.Digest)
	if err == nil && d.Size != int64(len(b)) {
		err = fmt.Errorf("manifest %s: it has %d bytes instead of %d", d.Digest, len(b), d.Size)
	}
	return b, err
}

// touch records a use, at most once an hour. It does nothing in a read-only store.
func touch(p string) {
	if fi, err := os.Stat(p); err == nil && time.Since(fi.ModTime()) > time.Hour {
		now := time.Now()
		_ = os.Chtimes(p, now, now)
	}
}

// LayerInfo identifies a stored layer.
type LayerInfo struct {
	Digest    v1.Hash         `json:"digest"` // of the blob
	DiffID    v1.Hash         `json:"diffID"` // of the uncompressed tar
	Size      int64           `json:"size"`   // of the blob, in bytes
	MediaType types.MediaType `json:"mediaType"`
}

// HasLayer reports whether the layer's blob exists and has its size. It does not verify the
// content; readers do.
func (s *Store) HasLayer(d LayerInfo) bool {
	if checkHash(d.Digest) != nil {
		return false
	}
	fi, err := os.Stat(s.blob(d.Digest))
	return err == nil && fi.Size() == d.Size
}

// Layer returns a stored layer. It returns a [DamagedError] if the blob is missing or has
// another size.
func (s *Store) Layer(d LayerInfo) (v1.Layer, error) {
	if err := checkHash(d.Digest); err != nil {
		return nil, err
	}
	fi, err := os.Stat(s.blob(d.Digest))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, s.damaged(d.Digest, missing, "")
	case err != nil:
		return nil, fmt.Errorf("finding layer %s: %w", d.Digest, err)
	case fi.Size() != d.Size:
		return nil, s.condemn(d.Digest, d.Size)
	}
	if !s.foreign {
		touch(s.blob(d.Digest))
	}
	return &layer{s, d}, nil
}

// A layer is a v1.Layer whose blob is a file of the store.
type layer struct {
	s    *Store
	info LayerInfo
}

func (l *layer) Digest() (v1.Hash, error)            { return l.info.Digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.info.DiffID, nil }
func (l *layer) Size() (int64, error)                { return l.info.Size, nil }
func (l *layer) MediaType() (types.MediaType, error) { return l.info.MediaType, nil }

// Compressed opens the blob; see [Store.openBlob] for what its reader checks.
func (l *layer) Compressed() (io.ReadCloser, error) {
	return l.s.openBlob(l.info.Digest, l.info.Size)
}

func (l *layer) Uncompressed() (io.ReadCloser, error) {
	f, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	return uncompressed(f)
}

// Uncompressed opens a file and decompresses gzip or zstd. Other files are returned
// unchanged.
func Uncompressed(path string) (io.ReadCloser, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	return uncompressed(f)
}

func uncompressed(f io.ReadCloser) (io.ReadCloser, error) {
	r, done, err := decoder(f, zstd.IgnoreChecksum(false))
	if err != nil {
		f.Close()
		return nil, err
	}
	return readCloser{r, closers{done, f.Close}}, nil
}

// Decoder decompresses r from gzip or zstd and returns other data unchanged. done frees the
// decoder. It does not check zstd's checksums, which cost a tenth more time, so the caller
// must verify a digest.
func Decoder(r io.Reader) (plain io.Reader, done func(), err error) {
	return decoder(r, zstd.IgnoreChecksum(true))
}

func decoder(r io.Reader, checksums zstd.DOption) (plain io.Reader, done func(), err error) {
	in := bufio.NewReaderSize(r, 16) // large reads bypass this buffer
	head, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		return z, func() {}, err
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// One goroutine takes three quarters of the time, because others write meanwhile. The
		// window is zstd's own default maximum.
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20), checksums)
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return in, func() {}, nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

// closers closes a decoder, which returns no error, then its file.
type closers struct {
	first func()
	last  func() error
}

func (c closers) Close() error { c.first(); return c.last() }

// layers pairs the layers of a manifest with the configuration's diff IDs. An attestation in
// BuildKit's newer format has an empty configuration: its statements are not archives and
// have no diff IDs.
func (s *Store) layers(m *v1.Manifest, cfg *v1.ConfigFile) ([]v1.Layer, error) {
	if len(cfg.RootFS.DiffIDs) == 0 && !slices.ContainsFunc(m.Layers,
		func(d v1.Descriptor) bool { return d.MediaType != inTotoStatement }) {
		for _, d := range m.Layers {
			cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, d.Digest)
		}
	}
	if len(m.Layers) != len(cfg.RootFS.DiffIDs) {
		return nil, fmt.Errorf("the manifest lists %d layers, the configuration %d", len(m.Layers), len(cfg.RootFS.DiffIDs))
	}
	var out []v1.Layer
	for i, d := range m.Layers {
		l, err := s.Layer(LayerInfo{d.Digest, cfg.RootFS.DiffIDs[i], d.Size, d.MediaType})
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// image is a v1.Image whose parts are files of the store. partial.CompressedToImage would
// decompress layers with the standard library's decoder.
type image struct {
	s        *Store
	manifest []byte
	mt       types.MediaType
}

func (i *image) RawManifest() ([]byte, error)        { return i.manifest, nil }
func (i *image) MediaType() (types.MediaType, error) { return i.mt, nil }
func (i *image) RawConfigFile() ([]byte, error) {
	m, err := partial.Manifest(i)
	if err != nil {
		return nil, err
	}
	return i.s.readBlob(m.Config.Digest)
}

func (i *image) Size() (int64, error)                      { return partial.Size(i) }
func (i *image) Digest() (v1.Hash, error)                  { return partial.Digest(i) }
func (i *image) Manifest() (*v1.Manifest, error)           { return partial.Manifest(i) }
func (i *image) ConfigName() (v1.Hash, error)              { return partial.ConfigName(i) }
func (i *image) ConfigFile() (*v1.ConfigFile, error)       { return partial.ConfigFile(i) }
func (i *image) LayerByDigest(h v1.Hash) (v1.Layer, error) { return i.layer(h, v1.Layer.Digest) }
func (i *image) LayerByDiffID(h v1.Hash) (v1.Layer, error) { return i.layer(h, v1.Layer.DiffID) }

func (i *image) Layers() ([]v1.Layer, error) {
	m, err := i.Manifest()
	if err != nil {
		return nil, err
	}
	cfg, err := i.ConfigFile()
	if err != nil {
		return nil, err
	}
	return i.s.layers(m, cfg)
}

// layer finds a layer by one of its digests.
func (i *image) layer(h v1.Hash, digest func(v1.Layer) (v1.Hash, error)) (v1.Layer, error) {
	ls, err := i.Layers()
	if err != nil {
		return nil, err
	}
	for _, l := range ls {
		if got, err := digest(l); err == nil && got == h {
			return l, nil
		}
	}
	return nil, &NotFoundError{Name: h.String()}
}
