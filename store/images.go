package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
)

// An Entry is one line of a listing of images.
type Entry struct {
	Name      string
	Digest    v1.Hash // of the manifest or index
	Platforms []string
	Size      int64 // of the layers as they are kept, in bytes
	Created   time.Time
}

// Put keeps an image under a name. Blobs go first, the name last; blobs that
// are there are not written again.
func (s *Store) Put(ctx context.Context, name string, img v1.Image) (v1.Hash, error) {
	key, err := Canonical(name)
	if err != nil {
		return v1.Hash{}, err
	}
	d, err := s.putImage(ctx, img, nil)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("keeping image %q: %w", name, err)
	}
	return d.Digest, s.putRef(key, d)
}

// putImage writes an image's blobs. watch, which may be nil, wraps what is read.
func (s *Store) putImage(ctx context.Context, img v1.Image, watch func(io.Reader) io.Reader) (*v1.Descriptor, error) {
	ls, err := img.Layers()
	if err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, l := range ls {
		g.Go(func() error { return s.putBlob(gctx, l, watch) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	cfg, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	ch, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	if err := s.writeBlob(ctx, bytes.NewReader(cfg), ch, int64(len(cfg))); err != nil {
		return nil, err
	}
	m, err := img.RawManifest()
	if err != nil {
		return nil, err
	}
	mt, err := img.MediaType()
	if err != nil {
		return nil, err
	}
	d, err := s.putManifest(ctx, m, mt)
	if err != nil {
		return nil, err
	}
	if c, err := img.ConfigFile(); err == nil {
		d.Platform = c.Platform()
	}
	return d, nil
}

// putBlob keeps one layer.
func (s *Store) putBlob(ctx context.Context, l v1.Layer, watch func(io.Reader) io.Reader) error {
	h, err := l.Digest()
	if err != nil {
		return err
	}
	n, err := l.Size()
	if err != nil {
		return err
	}
	if fi, err := os.Stat(s.blob(h)); err == nil && fi.Size() == n && checkHash(h) == nil {
		touch(s.blob(h))
		return nil
	}
	r, err := l.Compressed()
	if err != nil {
		return fmt.Errorf("reading layer %s: %w", h, err)
	}
	defer r.Close()
	var in io.Reader = r
	if watch != nil {
		in = watch(r)
	}
	return s.writeBlob(ctx, in, h, n)
}

// putManifest keeps a manifest or index and describes it.
func (s *Store) putManifest(ctx context.Context, b []byte, mt types.MediaType) (*v1.Descriptor, error) {
	if len(b) > maxManifest {
		return nil, fmt.Errorf("the manifest has %d bytes; the most that is read is %d", len(b), maxManifest)
	}
	sum := sha256.Sum256(b)
	d := &v1.Descriptor{MediaType: mt, Size: int64(len(b)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
	return d, s.writeBlob(ctx, bytes.NewReader(b), d.Digest, d.Size)
}

// maxDepth bounds how deep indexes may nest.
const maxDepth = 4

// PutIndex keeps an image of several platforms under a name.
func (s *Store) PutIndex(ctx context.Context, name string, idx v1.ImageIndex) (v1.Hash, error) {
	key, err := Canonical(name)
	if err != nil {
		return v1.Hash{}, err
	}
	d, err := s.putIndex(ctx, idx, 0)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("keeping image %q: %w", name, err)
	}
	return d.Digest, s.putRef(key, d)
}

func (s *Store) putIndex(ctx context.Context, idx v1.ImageIndex, depth int) (*v1.Descriptor, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("indexes are nested deeper than %d", maxDepth)
	}
	m, err := idx.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range m.Manifests {
		switch {
		case d.MediaType.IsImage():
			img, err := idx.Image(d.Digest)
			if err != nil {
				return nil, err
			}
			if _, err := s.putImage(ctx, img, nil); err != nil {
				return nil, err
			}
		case d.MediaType.IsIndex():
			sub, err := idx.ImageIndex(d.Digest)
			if err != nil {
				return nil, err
			}
			if _, err := s.putIndex(ctx, sub, depth+1); err != nil {
				return nil, err
			}
		}
	}
	b, err := idx.RawManifest()
	if err != nil {
		return nil, err
	}
	mt, err := idx.MediaType()
	if err != nil {
		return nil, err
	}
	return s.putManifest(ctx, b, mt)
}

// putRef makes a name stand for a descriptor.
func (s *Store) putRef(key string, d *v1.Descriptor) error {
	b, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if old, err := s.ref(key); err == nil && old.Digest != d.Digest {
		s.retire(old)
	}
	return s.writeFile(filepath.Join("refs", escape(key)), append(b, '\n'))
}

// ref reads what a name stands for: a name, NAME@DIGEST, or a digest or its head.
func (s *Store) ref(n string) (v1.Descriptor, error) {
	var d v1.Descriptor
	key, err := Canonical(n)
	if err == nil {
		var b []byte
		if b, err = os.ReadFile(s.path("refs", escape(key))); err == nil {
			if err = json.Unmarshal(b, &d); err == nil {
				err = checkHash(d.Digest)
			}
			if err != nil {
				return d, fmt.Errorf("reading the name %q in the store: %w", n, err)
			}
			return d, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return d, fmt.Errorf("reading the name %q in the store: %w", n, err)
		}
	}
	_, hexpart, ok := strings.Cut(n, "@sha256:")
	if !ok {
		hexpart = strings.TrimPrefix(n, "sha256:")
		if !hexDigest().MatchString(n) {
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return d, err
			}
			return d, &NotFoundError{n}
		}
	}
	return s.byDigest(n, hexpart)
}

// byDigest finds a manifest by the head of its digest among the names.
func (s *Store) byDigest(n, head string) (v1.Descriptor, error) {
	refs, err := s.refs()
	if err != nil {
		return v1.Descriptor{}, err
	}
	for _, d := range refs {
		if head != "" && strings.HasPrefix(d.Digest.Hex, head) {
			return d, nil
		}
	}
	return v1.Descriptor{}, &NotFoundError{n}
}

// refs reads all names.
func (s *Store) refs() (map[string]v1.Descriptor, error) {
	entries, err := os.ReadDir(s.path("refs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // see OpenToRead
		return nil, fmt.Errorf("listing the store: %w", err)
	}
	out := map[string]v1.Descriptor{}
	for _, e := range entries {
		n, ok := unescape(e.Name())
		if !ok {
			continue
		}
		d, err := s.ref(n)
		var gone *NotFoundError
		if errors.As(err, &gone) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		out[n] = d
	}
	return out, nil
}

// Get returns an image by name, NAME@DIGEST or digest; of several platforms
// the one that p asks for (nil: this machine's, or the only one).
// [NotFoundError] when there is none of that name.
func (s *Store) Get(n string, p *v1.Platform) (v1.Image, error) {
	d, err := s.ref(n)
	if err != nil {
		return nil, err
	}
	d, err = s.choose(n, d, p, 0)
	if err != nil {
		return nil, err
	}
	return s.open(n, d)
}

// open returns the image with this manifest.
func (s *Store) open(n string, d v1.Descriptor) (v1.Image, error) {
	b, err := s.readBlob(d.Digest)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", n, err)
	}
	return &image{s, b, d.MediaType}, nil
}

// choose follows an index to the manifest of one platform.
func (s *Store) choose(n string, d v1.Descriptor, p *v1.Platform, depth int) (v1.Descriptor, error) {
	if !d.MediaType.IsIndex() {
		if p != nil && d.Platform != nil && !d.Platform.Satisfies(*p) {
			return d, &PlatformError{Name: n, Want: *p, Have: []string{d.Platform.String()}}
		}
		return d, nil
	}
	_, found, err := s.part(n, d, p, depth)
	if err != nil {
		return d, err
	}
	return s.choose(n, found, p, depth+1)
}

// part reads an index, so many indexes deep, and chooses one of its parts.
func (s *Store) part(n string, d v1.Descriptor, p *v1.Platform, depth int) (*v1.IndexManifest, v1.Descriptor, error) {
	if depth > maxDepth {
		return nil, d, fmt.Errorf("image %q: indexes are nested deeper than %d", n, maxDepth)
	}
	b, err := s.readBlob(d.Digest)
	if err != nil {
		return nil, d, fmt.Errorf("image %q: %w", n, err)
	}
	idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return nil, d, fmt.Errorf("image %q: reading its index: %w", n, err)
	}
	found, err := pick(n, idx, p)
	return idx, found, err
}

// A PlatformError says that an image has not the platform that was asked for.
type PlatformError struct {
	Name string
	Want v1.Platform
	Have []string
}

func (e *PlatformError) Error() string {
	return fmt.Sprintf("image %q has no %s; it has %s", e.Name, e.Want.String(), strings.Join(e.Have, ", "))
}

// pick chooses a platform from an index: the one asked for, else this
// machine's, else the only one there is.
func pick(n string, idx *v1.IndexManifest, p *v1.Platform) (v1.Descriptor, error) {
	var images []v1.Descriptor
	var have []string
	for _, m := range idx.Manifests {
		if !m.MediaType.IsImage() && !m.MediaType.IsIndex() || isAttestation(m) {
			continue
		}
		images = append(images, m)
		if m.Platform != nil {
			have = append(have, m.Platform.String())
		} else {
			have = append(have, "an unnamed platform")
		}
	}
	want := v1.Platform{OS: "linux", Architecture: goruntime.GOARCH}
	if p != nil {
		want = *p
	}
	for _, m := range images {
		if m.Platform != nil && m.Platform.Satisfies(want) {
			return m, nil
		}
	}
	if p == nil && len(images) == 1 || len(images) == 1 && images[0].Platform == nil {
		return images[0], nil
	}
	return v1.Descriptor{}, &PlatformError{n, want, have}
}

// TreeOf returns the directory that an image was unpacked to: two small reads
// and a stat, for the start of a run. [NotFoundError], or [NoTreeError].
func (s *Store) TreeOf(n string) (string, error) {
	d, err := s.ref(n)
	if err != nil {
		return "", err
	}
	if d, err = s.choose(n, d, nil, 0); err != nil {
		return "", err
	}
	dir := s.path("trees", d.Digest.Hex)
	_, err = os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", &NoTreeError{n}
	}
	if err != nil {
		return "", fmt.Errorf("finding the tree of %q: %w", n, err)
	}
	return dir, nil
}

// Images lists the images by name.
func (s *Store) Images() ([]Entry, error) {
	refs, err := s.refs()
	if err != nil {
		return nil, err
	}
	var out []Entry
	for n, d := range refs {
		e := Entry{Name: n, Digest: d.Digest}
		s.describe(&e, n, d, 0)
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// describe adds what the image's parts say; parts that are missing say nothing.
func (s *Store) describe(e *Entry, n string, d v1.Descriptor, depth int) {
	b, err := s.readBlob(d.Digest)
	if err != nil || depth > maxDepth {
		return
	}
	if d.MediaType.IsIndex() {
		if idx, err := v1.ParseIndexManifest(bytes.NewReader(b)); err == nil {
			for _, m := range idx.Manifests {
				if !isAttestation(m) {
					s.describe(e, n, m, depth+1)
				}
			}
		}
		return
	}
	img, err := s.open(n, d)
	if err != nil {
		return
	}
	if m, err := img.Manifest(); err == nil {
		for _, l := range m.Layers {
			e.Size += l.Size
		}
	}
	if c, err := img.ConfigFile(); err == nil {
		if p := c.Platform(); p != nil {
			e.Platforms = append(e.Platforms, p.String())
		}
		e.Created = c.Created.Time
	}
}

// Remove forgets a name. What it stood for goes with the next GC.
func (s *Store) Remove(n string) error {
	key, err := Canonical(n)
	if err != nil {
		return err
	}
	if d, err := s.ref(key); err == nil {
		s.retire(d)
	}
	err = os.Remove(s.path("refs", escape(key)))
	if errors.Is(err, fs.ErrNotExist) {
		return &NotFoundError{n}
	}
	if err != nil {
		return s.placeError(fmt.Errorf("removing %q: %w", n, err))
	}
	if err := ignoreGone(os.Remove(s.pushedFile(key))); err != nil {
		return fmt.Errorf("removing the note of where %q was pushed: %w", n, err)
	}
	return nil
}
