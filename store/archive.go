package store

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"hpcc/files"
)

// Annotations that carry a name in an OCI layout: image-spec's "annotations",
// and containerd's, which holds the full reference.
const (
	refAnnotation        = "org.opencontainers.image.ref.name"
	containerdAnnotation = "io.containerd.image.name"
)

// A layout opens a file of an OCI image layout (image-spec, "image-layout") by its
// slash-separated name. The layout is a directory, or the tar of one.
type layout func(name string) (*os.File, error)

// Load stores the images of a file: an OCI layout as a directory or tar, a docker archive,
// or a tar of a root file system. Tars may be compressed with gzip or zstd. LAYOUT:TAG
// selects one image of an OCI layout.
//
// If as is not empty, it names the single image of the file. Otherwise images have the names
// in the file, or the file's own name. Load returns the stored names. It calls progress, if
// not nil, with the number of processed bytes; calls do not overlap.
func (s *Store) Load(ctx context.Context, file, as string, progress func(done, total int64)) ([]string, error) {
	l := &loading{s: s, as: as, progress: progress}
	if l.file, l.want.tag = SplitTag(file); l.want.tag == "" {
		l.all = true
	}
	return l.load(ctx)
}

// LoadOne is like Load, but stores only the image that LAYOUT:TAG and the platform select.
func (s *Store) LoadOne(ctx context.Context, file, as string, p *v1.Platform, progress func(done, total int64)) ([]string, error) {
	l := &loading{s: s, as: as, progress: progress}
	l.file, l.want.tag = SplitTag(file)
	l.want.platform = p
	return l.load(ctx)
}

// A loading loads images of one file.
type loading struct {
	s    *Store
	file string
	as   string // name of a single image; "" if the file names it
	all  bool   // load all images of a layout instead of the selected one
	want selection

	progress    func(done, total int64) // may be nil
	mu          sync.Mutex              // guards done and calls of progress
	done, total int64                   // bytes of all passes
	passes      int64                   // how often the data is read
}

func (l *loading) load(ctx context.Context) ([]string, error) {
	l.passes = 1
	fi, err := os.Stat(l.file)
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		err = pe.Err
	}
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", l.file, err)
	}
	var names []string
	if fi.IsDir() {
		names, err = l.loadDir(ctx)
	} else {
		l.total = fi.Size()
		names, err = l.loadFile(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", l.file, err)
	}
	return names, nil
}

// reached reports progress, unless it has already reported as many bytes.
func (l *loading) reached(done int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.progress != nil && done > l.done {
		l.done = done
		l.progress(done/l.passes, max(done, l.total)/l.passes)
	}
}

// counted returns a reader of r that reports its position as progress. The position of the
// first byte is start.
func (l *loading) counted(r io.ReadCloser, start int64) io.ReadCloser {
	return &countingReader{ReadCloser: r, at: start, reached: l.reached}
}

type countingReader struct {
	io.ReadCloser
	at      int64
	reached func(int64)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.at += int64(n)
	c.reached(c.at)
	return n, err
}

// uncompressed opens the file and reports the position in it as progress.
func (l *loading) uncompressed() (io.ReadCloser, error) {
	f, err := openRegular(l.file)
	if err != nil {
		return nil, err
	}
	return uncompressed(l.counted(f, 0))
}

func (l *loading) loadDir(ctx context.Context) ([]string, error) {
	root, err := os.OpenRoot(l.file)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if _, err := root.Stat("oci-layout"); err != nil {
		return nil, errors.New("the directory is not an OCI layout (it has no file oci-layout); to run a directory tree, use \"hpcc run DIR\"")
	}
	open := func(n string) (*os.File, error) { return regular(root.OpenFile(n, os.O_RDONLY|unix.O_NONBLOCK, 0)) }
	return l.loadLayout(ctx, open)
}

// defaultName returns the name of an unnamed image: as, or the file's name without archive
// suffixes.
func defaultName(file, as string) string {
	if as != "" {
		return as
	}
	base := filepath.Base(filepath.Clean(file))
	for _, e := range []string{".gz", ".zst", ".tgz", ".tar", ".docker", ".oci"} {
		base = strings.TrimSuffix(base, e)
	}
	return strings.ToLower(base)
}

// loadFile detects the kind of a tar file from its first entries.
func (l *loading) loadFile(ctx context.Context) ([]string, error) {
	r, err := Uncompressed(l.file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	tr := tar.NewReader(r)
	for n := 0; n < 4096; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("not an OCI layout, a docker archive or a tar of a root file system: %w", err)
		}
		switch path.Clean(h.Name) {
		case "oci-layout":
			return l.loadLayoutTar(ctx)
		case "manifest.json":
			if l.want.tag != "" {
				return nil, fmt.Errorf("cannot select tag %q in a docker archive; only OCI layouts have tags", l.want.tag)
			}
			return l.loadDocker(ctx)
		}
		if inRoot(h) {
			break // a root file system; the rest is not needed
		}
	}
	if l.want.tag != "" {
		return nil, fmt.Errorf("cannot select tag %q in a tar of a root file system; only OCI layouts have tags", l.want.tag)
	}
	return l.loadRoot(ctx)
}

// inRoot reports whether an entry shows that the archive is a root file system. Archives of
// images have files only at the top, below blobs/, and one level deep (such as
// <layer>/layer.tar).
func inRoot(h *tar.Header) bool {
	n := path.Clean("/" + h.Name)[1:]
	if h.Typeflag != tar.TypeReg || strings.HasPrefix(n, "blobs/") {
		return false
	}
	switch path.Base(n) {
	case "layer.tar", "VERSION", "json":
		return false
	}
	return strings.Contains(n, "/")
}

// loadLayoutTar extracts the required files of a layout to a private directory.
func (l *loading) loadLayoutTar(ctx context.Context) ([]string, error) {
	l.passes = 2 // the file, then its blobs
	l.total *= l.passes
	tmp, err := l.s.TempDir()
	if err != nil {
		return nil, err
	}
	defer files.RemoveAll(tmp)
	r, err := l.uncompressed()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := os.MkdirAll(filepath.Join(tmp, "blobs/sha256"), 0o700); err != nil {
		return nil, l.s.diskError(err)
	}
	for tr := tar.NewReader(readerWith(ctx, r)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		n := path.Clean(h.Name)
		hexname, isBlob := strings.CutPrefix(n, "blobs/sha256/")
		isBlob = isBlob && checkHash(v1.Hash{Algorithm: "sha256", Hex: hexname}) == nil
		required := isBlob || n == "index.json" || n == "oci-layout"
		if !required || h.Typeflag != tar.TypeReg {
			continue
		}
		if h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != "" || h.PAXRecords["GNU.sparse.realsize"] != "" {
			return nil, fmt.Errorf("entry %.200q is a sparse file: hpcc refuses them in OCI layouts, because a few bytes could fill the disk", h.Name)
		}
		f, err := os.OpenFile(filepath.Join(tmp, n), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return nil, l.s.diskError(err)
		}
		_, err = io.Copy(f, tr)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, l.s.diskError(err)
		}
	}
	l.done = max(l.done, l.total/2)
	return l.loadLayout(ctx, func(n string) (*os.File, error) { return os.Open(filepath.Join(tmp, n)) })
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// source returns the arguments of hpcc that recreate the images, for [ref.Source].
func (l *loading) source() string {
	abs, err := filepath.Abs(l.file)
	if l.want.tag != "" {
		abs += ":" + l.want.tag
	}
	switch {
	case err != nil || strings.HasPrefix(abs, l.s.path("tmp")+"/"): // standard input, which was copied to the store
		abs = "FILE"
	case strings.ContainsFunc(abs, func(r rune) bool { return r <= ' ' || r == 0x7f }),
		strings.ContainsAny(abs, "'\"\\$`&|;<>()*?[]{}!#~"):
		abs = strconv.Quote(abs)
	}
	return strings.TrimSpace("load " + abs + " " + l.as)
}

// loadLayout stores the images of the layout in file, or the selected one.
func (l *loading) loadLayout(ctx context.Context, open layout) ([]string, error) {
	fallback, source := defaultName(l.file, l.as), l.source()
	b, err := readSmall(open("index.json"))
	if err != nil {
		return nil, fmt.Errorf("reading index.json: %w", err)
	}
	idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("reading index.json: %w", err)
	}
	idx.Manifests = slices.DeleteFunc(idx.Manifests, isAttestation)
	if len(idx.Manifests) == 0 {
		return nil, errors.New("index.json lists no image")
	}
	if !l.all {
		one, err := l.want.one(l.file, open, idx.Manifests)
		if err != nil {
			return nil, err
		}
		idx.Manifests = []v1.Descriptor{one}
	}
	if l.as != "" && len(idx.Manifests) > 1 {
		return nil, fmt.Errorf("the file has %d images, but NAME can name only one; omit NAME to load all, or select one with %s:TAG", len(idx.Manifests), l.file)
	}
	var names []string
	for _, d := range idx.Manifests {
		n := layoutName(d, fallback, l.as)
		key, err := Canonical(n)
		if err != nil {
			return nil, fmt.Errorf("%w; give a NAME", err)
		}
		platform, err := l.copyBlobs(ctx, open, d, 0, map[v1.Hash]bool{})
		if err != nil {
			return nil, err
		}
		if d.Platform == nil {
			d.Platform = platform
		}
		d.Annotations, d.URLs, d.Data = nil, nil, nil
		if err := l.s.putRef(key, &d, source); err != nil {
			return nil, err
		}
		names = append(names, key)
	}
	return names, nil
}

// layoutName returns the name of an image in a layout. A ref.name may be a full reference or
// only a tag.
func layoutName(d v1.Descriptor, fallback, as string) string {
	if as != "" {
		return as
	}
	if n := d.Annotations[containerdAnnotation]; n != "" {
		return n
	}
	switch n := d.Annotations[refAnnotation]; {
	case n == "":
		return fallback
	case strings.ContainsAny(n, "/:"):
		return n
	default:
		return fallback + ":" + n
	}
}

// copyBlobs copies and verifies a manifest or index and all blobs that it references. It
// skips manifests in copied, because indexes can reference each other many times.
func (l *loading) copyBlobs(ctx context.Context, open layout, d v1.Descriptor, depth int, copied map[v1.Hash]bool) (*v1.Platform, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("indexes are nested deeper than %d", maxDepth)
	}
	if err := checkHash(d.Digest); err != nil {
		return nil, err
	}
	if d.Size > maxManifest {
		return nil, fmt.Errorf("manifest %s: larger than %d bytes", d.Digest, maxManifest)
	}
	if err := l.copyBlob(ctx, open, d); err != nil {
		return nil, err
	}
	b, err := l.s.readBlob(d.Digest)
	if err != nil {
		return nil, err
	}
	if d.MediaType.IsIndex() {
		idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("reading index %s: %w", d.Digest, err)
		}
		for _, m := range idx.Manifests {
			if copied[m.Digest] {
				continue
			}
			if _, err := l.copyBlobs(ctx, open, m, depth+1, copied); err != nil {
				return nil, err
			}
			copied[m.Digest] = true
		}
		return nil, nil
	}
	if !d.MediaType.IsImage() {
		return nil, fmt.Errorf("%s is of type %q, which is not an image", d.Digest, d.MediaType)
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("reading manifest %s: %w", d.Digest, err)
	}
	for _, x := range append([]v1.Descriptor{m.Config}, m.Layers...) {
		if err := l.copyBlob(ctx, open, x); err != nil {
			return nil, err
		}
	}
	if b, err = l.s.readBlob(m.Config.Digest); err != nil {
		return nil, err
	}
	cfg, err := v1.ParseConfigFile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("reading configuration %s: %w", m.Config.Digest, err)
	}
	return cfg.Platform(), nil
}

func (l *loading) copyBlob(ctx context.Context, open layout, d v1.Descriptor) error {
	if err := checkHash(d.Digest); err != nil {
		return err
	}
	r, err := open(blobName(d.Digest))
	if err != nil {
		return fmt.Errorf("opening blob %s: %w", d.Digest, err)
	}
	defer r.Close()
	before := l.done
	if err := l.s.writeBlob(ctx, l.counted(r, before), d.Digest, d.Size); err != nil {
		return err
	}
	l.reached(before + d.Size) // writeBlob reads nothing if the store has the blob
	return nil
}

// loadDocker stores the images of a docker archive.
func (l *loading) loadDocker(ctx context.Context) ([]string, error) {
	m, err := tarball.LoadManifest(l.uncompressed)
	if err != nil {
		return nil, fmt.Errorf("reading manifest.json: %w", err)
	}
	if l.as != "" && len(m) > 1 {
		return nil, fmt.Errorf("the file has %d images, but NAME can name only one; omit NAME to load all under their own names", len(m))
	}
	var names []string
	for _, d := range m {
		var tag *name.Tag
		if len(d.RepoTags) > 0 {
			t, err := name.NewTag(d.RepoTags[0])
			if err != nil {
				return nil, err
			}
			tag = &t
		} else if len(m) > 1 {
			return nil, errors.New("the file has several images, and one of them has no name")
		}
		img, err := tarball.Image(l.uncompressed, tag)
		if err != nil {
			return nil, err
		}
		all := d.RepoTags
		if l.as != "" || len(all) == 0 {
			all = []string{defaultName(l.file, l.as)}
		}
		for _, n := range all {
			if _, err := l.s.putFrom(ctx, n, img, l.source()); err != nil {
				return nil, err
			}
			key, _ := Canonical(n)
			names = append(names, key)
		}
	}
	return names, nil
}

// loadRoot builds an image with one layer from the tar of a root file system.
func (l *loading) loadRoot(ctx context.Context) ([]string, error) {
	key, err := Canonical(defaultName(l.file, l.as))
	if err != nil {
		return nil, fmt.Errorf("%w; give a NAME", err)
	}
	r, err := l.uncompressed()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	img, err := l.s.RootImage(ctx, func(w io.Writer) error {
		_, err := io.Copy(w, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = l.s.putFrom(ctx, key, img, l.source())
	return []string{key}, err
}

// RootImage builds an image from a root file system, whose tar write produces. It stores the
// tar as the only layer. The image has no name yet.
func (s *Store) RootImage(ctx context.Context, write func(w io.Writer) error) (v1.Image, error) {
	info, err := s.PutLayer(ctx, types.OCILayer, write)
	if err != nil {
		return nil, err
	}
	l, err := s.Layer(info)
	if err != nil {
		return nil, err
	}
	arch, err := rootArchitecture(l)
	if err != nil {
		return nil, err
	}
	img, err := mutate.Append(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		mutate.Addendum{Layer: l, History: v1.History{CreatedBy: "hpcc load", Comment: "a root file system"}})
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	cfg = cfg.DeepCopy()
	cfg.OS, cfg.Architecture = "linux", arch
	cfg.Created = v1.Time{Time: time.Unix(0, 0).UTC()}
	return mutate.ConfigFile(img, cfg)
}
