package store

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/files"
)

// Save writes an image, with all its platforms, as an OCI layout: a directory if file is one
// or ends in a slash, else a tar. The layout lists the image under its name and under also.
func (s *Store) Save(ctx context.Context, n, file string, also ...string) error {
	key, d, err := s.named(n)
	if err != nil {
		return err
	}
	if fi, serr := os.Stat(file); strings.HasSuffix(file, "/") || (serr == nil && fi.IsDir()) {
		err = s.saveDir(ctx, append([]string{key}, also...), d, file)
	} else {
		err = NewFile(file, func(f *os.File) error { return s.writeTar(ctx, append([]string{key}, also...), d, f) })
	}
	if err != nil {
		return fmt.Errorf("saving %s to %s: %w", n, file, err)
	}
	return nil
}

// SaveDocker writes an image, for the platform that [Store.Get] chooses, as a docker
// archive.
func (s *Store) SaveDocker(n, file string) error {
	img, err := s.Get(n, nil)
	if err != nil {
		return err
	}
	key, err := Canonical(n)
	if err != nil {
		key = n
	}
	tag, err := name.NewTag(key)
	if err == nil {
		err = NewFile(file, func(f *os.File) error { return tarball.Write(tag, img, f) })
	}
	if err != nil {
		return fmt.Errorf("saving %s to %s: %w", n, file, err)
	}
	return nil
}

// indexJSON returns the layout's index.json, which lists the image under each name.
func indexJSON(names []string, d v1.Descriptor) ([]byte, error) {
	idx := v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex}
	for _, key := range names {
		ref, tag := key, "latest"
		if r, err := name.NewTag(key); err == nil {
			ref, tag = r.Name(), r.TagStr()
			// containerd, and so Kubernetes, uses another name for Docker Hub.
			if path, ok := strings.CutPrefix(ref, name.DefaultRegistry+"/"); ok {
				ref = "docker.io/" + path
			}
		}
		d.Annotations = map[string]string{refAnnotation: tag, containerdAnnotation: ref}
		idx.Manifests = append(idx.Manifests, d)
	}
	return json.Marshal(idx)
}

var ociLayout = []byte(`{"imageLayoutVersion":"1.0.0"}`)

// closure returns the blobs that a manifest or index references, itself first, each once.
func (s *Store) closure(d v1.Descriptor) ([]v1.Descriptor, error) {
	return s.closureBut(map[v1.Hash]bool{}, d, 0)
}

func (s *Store) closureBut(listed map[v1.Hash]bool, d v1.Descriptor, depth int) ([]v1.Descriptor, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("indexes are nested deeper than %d", maxDepth)
	}
	b, err := s.readAs(d)
	if err != nil {
		return nil, err
	}
	out := []v1.Descriptor{d}
	if d.MediaType.IsIndex() {
		idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
		if err != nil {
			return nil, err
		}
		for _, m := range idx.Manifests {
			if listed[m.Digest] {
				continue
			}
			sub, err := s.closureBut(listed, m, depth+1)
			if err != nil {
				return nil, err
			}
			listed[m.Digest] = true
			out = append(out, sub...)
		}
		return out, nil
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return append(append(out, m.Config), m.Layers...), nil
}

// saveDir writes a layout directory. index.json, which makes it valid, comes last.
func (s *Store) saveDir(ctx context.Context, names []string, d v1.Descriptor, dir string) error {
	blobs, err := s.closure(d)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755); err != nil {
		return err
	}
	for _, b := range blobs {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := NewFile(filepath.Join(dir, blobName(b.Digest)), func(f *os.File) error { return s.copyBlob(ctx, f, b) })
		if err != nil {
			return err
		}
	}
	idx, err := indexJSON(names, d)
	if err != nil {
		return err
	}
	for _, small := range []struct {
		name string
		data []byte
	}{{"oci-layout", ociLayout}, {"index.json", idx}} {
		if err := NewFile(filepath.Join(dir, small.name),
			func(f *os.File) error { _, err := f.Write(small.data); return err }); err != nil {
			return err
		}
	}
	return nil
}

// copyBlob writes a blob to w. If it does not match its digest, it returns a [DamagedError]
// before the last bytes.
func (s *Store) copyBlob(ctx context.Context, w io.Writer, d v1.Descriptor) error {
	r, err := s.openBlob(d.Digest, d.Size)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, readerWith(ctx, r))
	return err
}

// named returns an image's name in a layout and its manifest.
func (s *Store) named(n string) (key string, d v1.Descriptor, err error) {
	if d, err = s.ref(n); err != nil {
		return "", d, err
	}
	if key, err = Canonical(n); err != nil {
		key = n
	}
	return key, d, nil
}

// SaveTo writes an image, with all its platforms, as the tar of an OCI layout.
func (s *Store) SaveTo(ctx context.Context, n string, w io.Writer) error {
	key, d, err := s.named(n)
	if err != nil {
		return err
	}
	if err := s.writeTar(ctx, []string{key}, d, w); err != nil {
		return fmt.Errorf("saving %s: %w", n, err)
	}
	return nil
}

// writeTar writes a layout as a tar, deterministically.
func (s *Store) writeTar(ctx context.Context, names []string, d v1.Descriptor, w io.Writer) error {
	blobs, err := s.closure(d)
	if err != nil {
		return err
	}
	idx, err := indexJSON(names, d)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	head := func(n string, size int64) error {
		return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: n, Size: size, Mode: 0o644, ModTime: time.Unix(0, 0)})
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{"oci-layout", ociLayout}, {"index.json", idx}} {
		if err := head(f.name, int64(len(f.data))); err != nil {
			return err
		}
		if _, err := tw.Write(f.data); err != nil {
			return err
		}
	}
	// Some readers need directories before their files.
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
	}
	seen := map[v1.Hash]bool{}
	for _, b := range blobs {
		if seen[b.Digest] || ctx.Err() != nil {
			continue
		}
		seen[b.Digest] = true
		if err := head(blobName(b.Digest), b.Size); err != nil {
			return err
		}
		if err := s.copyBlob(ctx, tw, b); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return tw.Close()
}

// NewFile atomically writes a file of the user's, outside the store, and replaces an
// existing one. Data and name are on disk when NewFile returns, so that the file survives a
// power failure. Partial files are removed, also after the process was killed: see [Sibling].
func NewFile(file string, write func(f *os.File) error) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	tmp, err := Sibling(file)
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	f, err := os.Create(filepath.Join(tmp, "new"))
	if err != nil {
		return err
	}
	if err = files.Commit(f, write(f), file, true); err == nil {
		err = syncDir(filepath.Dir(file))
	}
	return err
}

// Compress passes to write a writer that compresses to f, at the fastest level because images
// are large and layers already compressed.
func Compress(f io.Writer, write func(io.Writer) error) error {
	buffered := bufio.NewWriterSize(f, 1<<20)
	z, err := gzip.NewWriterLevel(buffered, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := write(z); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return buffered.Flush()
}

// syncDir waits until the names in a directory are on disk. It ignores file systems that
// cannot synchronise directories (EINVAL: some network file systems).
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return nil // a directory that is writable but not readable
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return fmt.Errorf("synchronising directory %s: %w", dir, err)
	}
	return nil
}
