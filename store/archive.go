package store

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"hpcc/store/disk"
)

// Annotations that carry a name in an OCI layout: image-spec's "annotations",
// and containerd's, which holds the whole reference.
const (
	refAnnotation        = "org.opencontainers.image.ref.name"
	containerdAnnotation = "io.containerd.image.name"
)

// A layout opens a file of an OCI image layout (image-spec, "image-layout") by its
// slash-separated name. The layout is a directory, or the tar of one.
type layout func(name string) (*os.File, error)

// Load stores the images of a file: an OCI layout as a directory or tar, a docker archive,
// or a tar of a root file system. Tars may be compressed with gzip or zstd. The name of a
// single image is as, unless empty, else the name in the file, else the file's own name.
// LAYOUT:TAG selects one image of an OCI layout. Load returns the stored names.
func (s *Store) Load(ctx context.Context, file, as string) ([]string, error) {
	file, tag := SplitTag(file)
	if tag == "" {
		return s.load(ctx, file, as, nil)
	}
	return s.load(ctx, file, as, &selection{tag: tag})
}

// LoadOne is Load for one image, which LAYOUT:TAG and the platform select.
func (s *Store) LoadOne(ctx context.Context, file, as string, p *v1.Platform) ([]string, error) {
	file, tag := SplitTag(file)
	return s.load(ctx, file, as, &selection{tag, p})
}

// load stores the selected image of an OCI layout, or all images if want is nil.
func (s *Store) load(ctx context.Context, file, as string, want *selection) ([]string, error) {
	fi, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("loading: %w", err)
	}
	var names []string
	if fi.IsDir() {
		names, err = s.loadDir(ctx, file, as, want)
	} else {
		names, err = s.loadFile(ctx, file, as, want)
	}
	if err != nil {
		return nil, fmt.Errorf("loading %s: %w", file, err)
	}
	return names, nil
}

func (s *Store) loadDir(ctx context.Context, dir, as string, want *selection) ([]string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if _, err := root.Stat("oci-layout"); err != nil {
		return nil, errors.New("the directory is not an OCI layout (it has no file oci-layout); to run a directory tree, hpcc run DIR")
	}
	open := func(n string) (*os.File, error) { return regular(root.OpenFile(n, os.O_RDONLY|unix.O_NONBLOCK, 0)) }
	return s.loadLayout(ctx, open, dir, as, want)
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
func (s *Store) loadFile(ctx context.Context, file, as string, want *selection) ([]string, error) {
	r, err := Uncompressed(file)
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
			return nil, fmt.Errorf("not a tar archive of an OCI layout, of docker's format or of a root file system: %w", err)
		}
		switch path.Clean(h.Name) {
		case "oci-layout":
			return s.loadLayoutTar(ctx, file, as, want)
		case "manifest.json":
			if want != nil && want.tag != "" {
				return nil, fmt.Errorf("this is a docker archive; only OCI layouts have tags, such as %q", want.tag)
			}
			return s.loadDocker(ctx, file, as)
		}
		if inRoot(h) {
			break // a root file system; the rest is not needed
		}
	}
	if want != nil && want.tag != "" {
		return nil, fmt.Errorf("only OCI layouts have tags, such as %q", want.tag)
	}
	return s.loadRoot(ctx, file, as)
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
func (s *Store) loadLayoutTar(ctx context.Context, file, as string, want *selection) ([]string, error) {
	tmp, err := s.TempDir()
	if err != nil {
		return nil, err
	}
	defer disk.RemoveAll(tmp)
	r, err := Uncompressed(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := os.MkdirAll(filepath.Join(tmp, "blobs/sha256"), 0o700); err != nil {
		return nil, s.diskError(err)
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
		if (isBlob && checkHash(v1.Hash{Algorithm: "sha256", Hex: hexname}) != nil) || (!isBlob && n != "index.json" && n != "oci-layout") || h.Typeflag != tar.TypeReg {
			continue
		}
		if h.PAXRecords["GNU.sparse.major"] != "" || h.PAXRecords["GNU.sparse.map"] != "" || h.PAXRecords["GNU.sparse.realsize"] != "" {
			return nil, fmt.Errorf("entry %.200q is sparse: no tool writes such layouts, and a few bytes could fill the disk", h.Name)
		}
		f, err := os.OpenFile(filepath.Join(tmp, n), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return nil, s.diskError(err)
		}
		_, err = io.Copy(f, tr)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, s.diskError(err)
		}
	}
	return s.loadLayout(ctx, func(n string) (*os.File, error) { return os.Open(filepath.Join(tmp, n)) }, file, as, want)
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// loadedFrom returns the source of images loaded from a file or directory.
func (s *Store) loadedFrom(file, as string, want *selection) string {
	abs, err := filepath.Abs(file)
	if want != nil && want.tag != "" {
		abs += ":" + want.tag
	}
	switch {
	case err != nil || strings.HasPrefix(abs, s.path("tmp")+"/"): // a copy of standard input
		abs = "FILE"
	case strings.ContainsFunc(abs, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune("'\"\\$`&|;<>()*?[]{}!#~", r) }):
		abs = strconv.Quote(abs)
	}
	return strings.TrimSpace("load " + abs + " " + as)
}

// loadLayout stores the images of the layout in file, or the selected one.
func (s *Store) loadLayout(ctx context.Context, l layout, file, as string, want *selection) ([]string, error) {
	fallback, source := defaultName(file, as), s.loadedFrom(file, as, want)
	b, err := readSmall(l("index.json"))
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
	if want != nil {
		one, err := want.one(file, l, idx.Manifests)
		if err != nil {
			return nil, err
		}
		idx.Manifests = []v1.Descriptor{one}
	}
	if as != "" && len(idx.Manifests) > 1 {
		return nil, fmt.Errorf("the file holds %d images but one name was given; load them by their own names, or one as %s:TAG", len(idx.Manifests), file)
	}
	var names []string
	for _, d := range idx.Manifests {
		n := layoutName(d, fallback, as)
		key, err := Canonical(n)
		if err != nil {
			return nil, fmt.Errorf("%w; give a NAME", err)
		}
		platform, err := s.takeBlobs(ctx, l, d, 0, map[v1.Hash]bool{})
		if err != nil {
			return nil, err
		}
		if d.Platform == nil {
			d.Platform = platform
		}
		d.Annotations, d.URLs, d.Data = nil, nil, nil
		if err := s.putRef(key, &d, source); err != nil {
			return nil, err
		}
		names = append(names, key)
	}
	return names, nil
}

// layoutName returns the name of an image in a layout. A ref.name may be a whole reference
// or only a tag.
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

// takeBlobs copies a manifest or index and everything that it references, verified. It skips
// blobs in taken, because indexes can reference each other many times.
func (s *Store) takeBlobs(ctx context.Context, l layout, d v1.Descriptor, depth int, taken map[v1.Hash]bool) (*v1.Platform, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("indexes are nested deeper than %d", maxDepth)
	}
	if err := checkHash(d.Digest); err != nil {
		return nil, err
	}
	if d.Size > maxManifest {
		return nil, fmt.Errorf("manifest %s: larger than %d bytes", d.Digest, maxManifest)
	}
	if err := s.takeBlob(ctx, l, d); err != nil {
		return nil, err
	}
	b, err := s.readBlob(d.Digest)
	if err != nil {
		return nil, err
	}
	if d.MediaType.IsIndex() {
		idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("reading index %s: %w", d.Digest, err)
		}
		for _, m := range idx.Manifests {
			if taken[m.Digest] {
				continue
			}
			if _, err := s.takeBlobs(ctx, l, m, depth+1, taken); err != nil {
				return nil, err
			}
			taken[m.Digest] = true
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
		if err := s.takeBlob(ctx, l, x); err != nil {
			return nil, err
		}
	}
	if b, err = s.readBlob(m.Config.Digest); err != nil {
		return nil, err
	}
	cfg, err := v1.ParseConfigFile(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("reading configuration %s: %w", m.Config.Digest, err)
	}
	return cfg.Platform(), nil
}

func (s *Store) takeBlob(ctx context.Context, l layout, d v1.Descriptor) error {
	if err := checkHash(d.Digest); err != nil {
		return err
	}
	r, err := l(blobName(d.Digest))
	if err != nil {
		return fmt.Errorf("opening blob %s: %w", d.Digest, err)
	}
	defer r.Close()
	return s.writeBlob(ctx, r, d.Digest, d.Size)
}

// loadDocker stores the images of a docker archive.
func (s *Store) loadDocker(ctx context.Context, file, as string) ([]string, error) {
	open := func() (io.ReadCloser, error) { return Uncompressed(file) }
	m, err := tarball.LoadManifest(open)
	if err != nil {
		return nil, fmt.Errorf("reading manifest.json: %w", err)
	}
	if as != "" && len(m) > 1 {
		return nil, fmt.Errorf("the file holds %d images but one name was given; load them by their own names", len(m))
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
			return nil, errors.New("the file holds several images, one of them without a name")
		}
		img, err := tarball.Image(open, tag)
		if err != nil {
			return nil, err
		}
		all := d.RepoTags
		if as != "" || len(all) == 0 {
			all = []string{defaultName(file, as)}
		}
		for _, n := range all {
			if _, err := s.putFrom(ctx, n, img, s.loadedFrom(file, as, nil)); err != nil {
				return nil, err
			}
			key, _ := Canonical(n)
			names = append(names, key)
		}
	}
	return names, nil
}

// loadRoot builds an image with one layer from the tar of a root file system.
func (s *Store) loadRoot(ctx context.Context, file, as string) ([]string, error) {
	key, err := Canonical(defaultName(file, as))
	if err != nil {
		return nil, fmt.Errorf("%w; give a NAME", err)
	}
	r, err := Uncompressed(file)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	img, err := s.RootImage(ctx, func(w io.Writer) error {
		_, err := io.Copy(w, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	_, err = s.putFrom(ctx, key, img, s.loadedFrom(file, as, nil))
	return []string{key}, err
}

// RootImage builds an image with one layer, the tar of a root file system that write writes.
// It stores the layer; the image has no name yet.
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
