package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"hpcc/files"
	"hpcc/store/ready"
)

// An Entry is one line of the list of images.
type Entry struct {
	Name      string
	Digest    v1.Hash // of the manifest or index
	Platforms []string
	Size      int64 // of the stored layers, in bytes
	Created   time.Time
	Problem   error // why the image could not be read completely; nil if it could
}

// A ref is the content of a name's file: the image that the name refers to.
type ref struct {
	v1.Descriptor
	Source string `json:"source,omitempty"` // arguments of hpcc that recreate the image, or sourceBuild
}

// sourceBuild is the source of an image that was built.
const sourceBuild = "build"

// Put stores a built image under a name. It writes blobs first and the name last, and skips
// existing blobs.
func (s *Store) Put(ctx context.Context, name string, img v1.Image) (v1.Hash, error) {
	return s.putFrom(ctx, name, img, sourceBuild)
}

// PutLoaded is [Store.Put] for an image read from a file.
func (s *Store) PutLoaded(ctx context.Context, name string, img v1.Image, file string) (v1.Hash, error) {
	return s.putFrom(ctx, name, img, (&loading{s: s, file: file, as: name}).source())
}

// putFrom is Put for an image from any source.
func (s *Store) putFrom(ctx context.Context, name string, img v1.Image, source string) (v1.Hash, error) {
	key, err := Canonical(name)
	if err != nil {
		return v1.Hash{}, err
	}
	d, err := s.putImage(ctx, img)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("keeping image %q: %w", name, err)
	}
	return d.Digest, s.putRef(key, d, source)
}

// putImage writes an image's blobs.
func (s *Store) putImage(ctx context.Context, img v1.Image) (*v1.Descriptor, error) {
	ls, err := img.Layers()
	if err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(files.MaxParallel(4, 4))
	for _, l := range ls {
		g.Go(func() error { return s.putBlob(gctx, l) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return s.putConfig(ctx, img)
}

// putConfig writes the configuration and the manifest of an image.
func (s *Store) putConfig(ctx context.Context, img v1.Image) (*v1.Descriptor, error) {
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

// putBlob stores one layer.
func (s *Store) putBlob(ctx context.Context, l v1.Layer) error {
	h, err := l.Digest()
	if err != nil {
		return err
	}
	n, err := l.Size()
	if err != nil {
		return err
	}
	if own, ok := l.(*layer); ok && own.s.dir == s.dir && s.HasLayer(own.info) { // the blob is already in this store
		return nil
	}
	if have, err := s.intactLayer(ctx, h, n, io.Discard); have || err != nil {
		return err
	}
	r, err := l.Compressed()
	if err != nil {
		return fmt.Errorf("reading layer %s: %w", h, err)
	}
	defer r.Close()
	return s.writeBlob(ctx, r, h, n)
}

// intactLayer is intact for an unchecked digest.
func (s *Store) intactLayer(ctx context.Context, h v1.Hash, size int64, count io.Writer) (bool, error) {
	if err := checkHash(h); err != nil {
		return false, err
	}
	return s.intact(ctx, h, size, count)
}

// putManifest stores a manifest or index and returns its descriptor.
func (s *Store) putManifest(ctx context.Context, b []byte, mt types.MediaType) (*v1.Descriptor, error) {
	if len(b) > maxManifest {
		return nil, fmt.Errorf("the manifest has %d bytes; the maximum is %d", len(b), maxManifest)
	}
	sum := sha256.Sum256(b)
	d := &v1.Descriptor{MediaType: mt, Size: int64(len(b)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
	return d, s.writeBlob(ctx, bytes.NewReader(b), d.Digest, d.Size)
}

// maxDepth bounds the nesting of indexes.
const maxDepth = 4

// PutIndex stores an image of several platforms under a name.
func (s *Store) PutIndex(ctx context.Context, name string, idx v1.ImageIndex) (v1.Hash, error) {
	key, err := Canonical(name)
	if err != nil {
		return v1.Hash{}, err
	}
	d, err := s.putIndex(ctx, idx, 0)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("keeping image %q: %w", name, err)
	}
	return d.Digest, s.putRef(key, d, sourceBuild)
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
			if _, err := s.putImage(ctx, img); err != nil {
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

// putRef makes a name refer to a descriptor. source is as in [ref].
func (s *Store) putRef(key string, d *v1.Descriptor, source string) error {
	b, err := files.SealJSON(ref{*d, source})
	if err != nil {
		return err
	}
	if old, err := s.ref(key); err == nil && old.Digest != d.Digest {
		s.retire(old)
	}
	return s.writeFile(filepath.Join("refs", escape(key)), b)
}

// Tag adds a name to an image, as if it had been loaded or pulled under that name.
func (s *Store) Tag(n, added string) error {
	key, err := Canonical(added)
	if err != nil {
		return err
	}
	d, err := s.ref(n)
	if err != nil {
		return err
	}
	source := ""
	if old, err := Canonical(n); err == nil {
		if r, err := s.readRef(old); err == nil {
			source = r.Source
		}
	}
	return s.putRef(key, &d, source)
}

// ref returns the descriptor of a name, NAME@DIGEST, a digest or a digest prefix.
func (s *Store) ref(n string) (v1.Descriptor, error) {
	key, err := Canonical(n)
	if err == nil {
		r, err := s.readRef(key)
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return r.Descriptor, err
		}
	}
	_, hexpart, ok := strings.Cut(n, "@sha256:")
	if !ok {
		hexpart = strings.TrimPrefix(n, "sha256:")
		if !hexDigest().MatchString(n) {
			if err != nil {
				return v1.Descriptor{}, err
			}
			return v1.Descriptor{}, &NotFoundError{Name: n, store: s}
		}
	}
	return s.byDigest(n, hexpart)
}

// readRef reads the file of a name. It returns fs.ErrNotExist if it is missing, and a
// [DamagedRefError] if it is not what hpcc wrote.
func (s *Store) readRef(key string) (r ref, err error) {
	b, err := os.ReadFile(s.path("refs", escape(key)))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
		return r, fmt.Errorf("reading the name %q in the store: %w", key, err)
	}
	if err = files.CheckJSON(b); err == nil || errors.Is(err, files.ErrNoSum) {
		err = json.Unmarshal(b, &r)
	}
	if err == nil {
		err = checkHash(r.Digest)
	}
	if err == nil && !r.MediaType.IsIndex() && !r.MediaType.IsImage() {
		err = fmt.Errorf("its media type is %q", r.MediaType)
	}
	if err != nil {
		return ref{}, &DamagedRefError{Name: key, Cure: s.cure(key, ref{}), Err: err}
	}
	return r, nil
}

// A Description describes an image.
type Description struct {
	Digest string          `json:"digest"`
	Config *v1.ConfigFile  `json:"image"`
	Layers []v1.Descriptor `json:"layers"`
	Pushed *string         `json:"pushed"` // reference by digest in a registry; nil if the image was not pushed
}

// Describe describes an image. A nil platform selects this machine's.
func (s *Store) Describe(name string, p *v1.Platform) (*Description, error) {
	img, err := s.Get(name, p)
	if err != nil {
		return nil, err
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	d := &Description{Digest: digest.String(), Layers: m.Layers}
	if d.Config, err = img.ConfigFile(); err != nil {
		return nil, err
	}
	ref, err := s.Pushed(name)
	if err == nil {
		d.Pushed = &ref
	} else if !errors.As(err, new(*NotPushedError)) {
		return nil, err
	}
	return d, nil
}

// A Step is a step of an image's history.
type Step struct {
	Created time.Time `json:"created,omitzero"`
	Step    string    `json:"step"`
	Bytes   int64     `json:"bytes"`           // compressed size of its layer; 0 without a layer
	Digest  string    `json:"layer,omitempty"` // of the layer
}

// History returns the steps of an image, the newest first. Layers that its history does not mention come
// last, as the oldest.
func History(img v1.Image) (list []Step, err error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	layers := m.Layers
	add := func(st Step, hasLayer bool) {
		if n := len(layers) - 1; hasLayer && n >= 0 {
			st.Bytes, st.Digest, layers = layers[n].Size, layers[n].Digest.String(), layers[:n]
		}
		list = append(list, st)
	}
	for _, h := range slices.Backward(cfg.History) {
		add(Step{Created: h.Created.Time, Step: cmp.Or(h.CreatedBy, h.Comment)}, !h.EmptyLayer)
	}
	for len(layers) > 0 {
		add(Step{Created: cfg.Created.Time}, true)
	}
	return list, nil
}

// DamagedRefError reports a name whose file in refs/ is invalid.
type DamagedRefError struct {
	Name string
	Cure string // command that recreates the name
	Err  error
}

func (e *DamagedRefError) Error() string {
	return fmt.Sprintf("reading the name %q in the store: %v", e.Name, e.Err)
}

func (e *DamagedRefError) Unwrap() error { return e.Err }

// Advice says how to create the name again.
func (e *DamagedRefError) Advice() string { return e.Cure + " creates it again" }

// byDigest finds a manifest by its digest, or by a prefix of it among the named images.
func (s *Store) byDigest(n, head string) (v1.Descriptor, error) {
	if h := (v1.Hash{Algorithm: "sha256", Hex: head}); checkHash(h) == nil {
		if d, err := s.manifest(h); !errors.Is(err, fs.ErrNotExist) && (err != nil || s.complete(d)) {
			return d, err
		}
	}
	refs, problems := s.refs()
	for _, r := range refs {
		if head != "" && strings.HasPrefix(r.Digest.Hex, head) {
			return r.Descriptor, nil
		}
	}
	if len(problems) > 0 { // one of these may be the image
		return v1.Descriptor{}, errors.Join(slices.Collect(maps.Values(problems))...)
	}
	return v1.Descriptor{}, &NotFoundError{Name: n, store: s}
}

// manifest returns the descriptor of a manifest or index that the store has, whether or not a name
// refers to it. It returns fs.ErrNotExist if the store does not have it.
func (s *Store) manifest(h v1.Hash) (v1.Descriptor, error) {
	if _, err := os.Stat(s.blob(h)); errors.Is(err, fs.ErrNotExist) {
		return v1.Descriptor{}, err
	}
	b, err := s.readBlob(h)
	if err != nil {
		return v1.Descriptor{}, err
	}
	var m struct { // of both kinds
		MediaType types.MediaType `json:"mediaType"` // optional in OCI images
		Manifests json.RawMessage `json:"manifests"`
		Layers    json.RawMessage `json:"layers"`
	}
	err = json.Unmarshal(b, &m)
	d := v1.Descriptor{MediaType: m.MediaType, Size: int64(len(b)), Digest: h}
	switch {
	case err != nil || (m.Manifests == nil && m.Layers == nil):
		return d, fmt.Errorf("%s is not the digest of an image", h)
	case d.MediaType != "":
	case m.Manifests != nil:
		d.MediaType = types.OCIImageIndex
	default:
		d.MediaType = types.OCIManifestSchema1
	}
	return d, nil
}

// complete reports whether the store has all blobs of an image. Without a name, GC may have removed
// some of them.
func (s *Store) complete(d v1.Descriptor) bool {
	blobs, err := s.closure(d)
	return err == nil && !slices.ContainsFunc(blobs,
		func(b v1.Descriptor) bool { return !s.HasLayer(LayerInfo{Digest: b.Digest, Size: b.Size}) })
}

// Names lists the names of images, sorted, without reading them.
func (s *Store) Names() (names []string, err error) {
	entries, err := os.ReadDir(s.path("refs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // see OpenToRead
		return nil, fmt.Errorf("listing the store: %w", err)
	}
	for _, e := range entries {
		if n, ok := unescape(e.Name()); ok {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	return names, nil
}

// refs reads all names. problems holds the errors of unreadable names; "" is the
// directory itself.
func (s *Store) refs() (refs map[string]ref, problems map[string]error) {
	refs, problems = map[string]ref{}, map[string]error{}
	names, err := s.Names()
	if err != nil {
		problems[""] = err
	}
	read, errs := make([]ref, len(names)), make([]error, len(names))
	inParallel(len(names), func(i int) { read[i], errs[i] = s.readRef(names[i]) })
	for i, n := range names {
		switch err := errs[i]; {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			problems[n] = err
		default:
			refs[n] = read[i]
		}
	}
	return refs, problems
}

// Get returns an image by name, NAME@DIGEST or digest. p selects the platform (nil: this
// machine's, or the only one). It returns a [NotFoundError] if the name does not exist.
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
	b, err := s.readAs(d)
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

// part reads an index at the given nesting depth and chooses one of its parts.
func (s *Store) part(n string, d v1.Descriptor, p *v1.Platform, depth int) (*v1.IndexManifest, v1.Descriptor, error) {
	if depth > maxDepth {
		return nil, d, fmt.Errorf("image %q: indexes are nested deeper than %d", n, maxDepth)
	}
	b, err := s.readAs(d)
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

// PlatformError reports that an image lacks the requested platform.
type PlatformError struct {
	Name string
	Want v1.Platform
	Have []string
}

func (e *PlatformError) Error() string {
	return fmt.Sprintf("image %q has no %s; it has %s", e.Name, e.Want.String(), strings.Join(e.Have, ", "))
}

// Advice says how to get an image for the platform.
func (e *PlatformError) Advice() string {
	return fmt.Sprintf("%q builds such an image; or choose a platform that this one has", "hpcc build --platform "+e.Want.String())
}

// pick chooses a platform from an index: the requested one, else this machine's, else the
// only one.
func pick(n string, idx *v1.IndexManifest, p *v1.Platform) (v1.Descriptor, error) {
	var images []v1.Descriptor
	var have []string
	for _, m := range idx.Manifests {
		if (!m.MediaType.IsImage() && !m.MediaType.IsIndex()) || isAttestation(m) {
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
	if (p == nil && len(images) == 1) || (len(images) == 1 && images[0].Platform == nil) {
		return images[0], nil
	}
	return v1.Descriptor{}, &PlatformError{n, want, have}
}

// TreeOf returns the directory of an unpacked image. It takes two small reads and a stat, to
// start runs fast. It returns a [NotFoundError] or [NoTreeError].
func (s *Store) TreeOf(n string) (string, error) {
	if hex, ok := ready.Digest(n); ok && strings.Contains(n, "@") {
		dir := s.path("trees", hex)
		if _, err := os.Stat(dir); err == nil {
			return dir, nil
		}
	}
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

// Images returns the images sorted by name. Unreadable images have their problem set.
func (s *Store) Images() ([]Entry, error) {
	refs, problems := s.refs()
	if err := problems[""]; err != nil {
		return nil, err
	}
	var out []Entry
	for n, r := range refs {
		out = append(out, Entry{Name: n, Digest: r.Digest})
	}
	inParallel(len(out), func(i int) { s.describe(&out[i], out[i].Name, refs[out[i].Name].Descriptor, 0) })
	for n, err := range problems {
		out = append(out, Entry{Name: n, Problem: err})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// describe adds the properties of the image's parts to e and records the first error.
func (s *Store) describe(e *Entry, n string, d v1.Descriptor, depth int) {
	fail := func(err error) {
		if e.Problem == nil {
			e.Problem = err
		}
	}
	b, err := s.readAs(d)
	if err != nil || depth > maxDepth {
		fail(err)
		return
	}
	if d.MediaType.IsIndex() {
		idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
		if err != nil {
			fail(fmt.Errorf("reading index %s: %w", d.Digest, err))
			return
		}
		for _, m := range idx.Manifests {
			if !isAttestation(m) {
				s.describe(e, n, m, depth+1)
			}
		}
		return
	}
	img := &image{s, b, d.MediaType}
	m, err := img.Manifest()
	if err != nil {
		fail(fmt.Errorf("reading manifest %s: %w", d.Digest, err))
		return
	}
	for _, l := range m.Layers {
		e.Size += l.Size
	}
	c, err := img.ConfigFile()
	if err != nil {
		fail(err)
		return
	}
	if p := c.Platform(); p != nil {
		e.Platforms = append(e.Platforms, p.String())
	}
	e.Created = c.Created.Time
}

// Remove removes a name. The next GC removes its image.
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
		return &NotFoundError{Name: n, store: s}
	}
	if err != nil {
		return s.placeError(fmt.Errorf("removing %q: %w", n, err))
	}
	if err := ignoreGone(os.Remove(s.pushedFile(key))); err != nil {
		return fmt.Errorf("removing the push record of %q: %w", n, err)
	}
	return nil
}
