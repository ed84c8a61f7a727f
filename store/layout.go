package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// SplitTag splits LAYOUT:TAG. The file or directory is the shortest existing part before a
// colon. The tag is "" if the whole path exists, or no part exists.
func SplitTag(arg string) (file, tag string) {
	if _, err := os.Lstat(arg); err == nil {
		return arg, ""
	}
	for i := range arg {
		if arg[i] != ':' || i == 0 {
			continue
		}
		if _, err := os.Stat(arg[:i]); err == nil {
			return arg[:i], arg[i+1:]
		}
	}
	return arg, ""
}

// A selection identifies one image of a layout.
type selection struct {
	tag      string       // empty: any
	platform *v1.Platform // nil: this machine's, if there is a choice
}

// A choiceError reports a layout with several images, one of which must be selected.
type choiceError struct {
	Layout string
	Images []string // available tags with their platforms
	Tag    string   // requested tag that is missing or ambiguous; empty: none was requested
}

func (e *choiceError) Error() string {
	what := fmt.Sprintf("the layout holds %d images", len(e.Images))
	if e.Tag != "" {
		what = fmt.Sprintf("the layout does not hold exactly one image %q", e.Tag)
	}
	return fmt.Sprintf("%s: %s; name one as %s:TAG, or choose with --platform", what, strings.Join(e.Images, ", "), e.Layout)
}

// one selects an image from the list in index.json of the layout in file, which is open as
// l.
func (w selection) one(file string, l layout, list []v1.Descriptor) (v1.Descriptor, error) {
	found := list
	if w.tag != "" {
		found = slices.DeleteFunc(slices.Clone(list), func(d v1.Descriptor) bool { return !hasTag(d, w.tag) })
	}
	if len(found) > 1 {
		want := w.platform
		if want == nil {
			want = &v1.Platform{OS: "linux", Architecture: goruntime.GOARCH}
		}
		if there := slices.DeleteFunc(slices.Clone(found),
			func(d v1.Descriptor) bool { return !l.satisfies(d, *want, 0) }); len(there) > 0 || w.platform != nil {
			found = there
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	e := &choiceError{Layout: file, Tag: w.tag}
	for _, d := range list {
		e.Images = append(e.Images, describeImage(d))
	}
	return v1.Descriptor{}, e
}

// hasTag reports whether tag is an image's digest, its whole reference, or the reference's
// tag.
func hasTag(d v1.Descriptor, tag string) bool {
	if d.Digest.String() == tag {
		return true
	}
	for _, name := range []string{d.Annotations[refAnnotation], d.Annotations[containerdAnnotation]} {
		base := name[strings.LastIndexByte(name, '/')+1:]
		if _, t, _ := strings.Cut(base, ":"); name == tag || t == tag {
			return true
		}
	}
	return false
}

// describeImage describes a listed image for messages: its tag or digest, and its platform.
func describeImage(d v1.Descriptor) string {
	name := d.Annotations[refAnnotation]
	if name == "" {
		name = d.Annotations[containerdAnnotation]
	}
	if name == "" {
		name = d.Digest.String()
	}
	name = strconv.Quote(name)
	if d.Platform != nil {
		name += " (" + d.Platform.String() + ")"
	}
	return name
}

// satisfies reports whether an image of the layout is for a platform. Its reads are not
// verified and only used to choose.
func (l layout) satisfies(d v1.Descriptor, p v1.Platform, depth int) bool {
	if d.Platform != nil {
		return d.Platform.Satisfies(p)
	}
	if depth > maxDepth || checkHash(d.Digest) != nil {
		return false
	}
	b, err := readSmall(l(blobName(d.Digest)))
	if err != nil {
		return false
	}
	if d.MediaType.IsIndex() {
		idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
		return err == nil && slices.ContainsFunc(idx.Manifests, func(m v1.Descriptor) bool { return l.satisfies(m, p, depth+1) })
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil || checkHash(m.Config.Digest) != nil {
		return false
	}
	b, err = readSmall(l(blobName(m.Config.Digest)))
	if err != nil {
		return false
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(b))
	if err != nil || c.Platform() == nil {
		return false
	}
	return c.Platform().Satisfies(p)
}

// Layout opens an image of an OCI layout directory (image-spec, "image-layout") in place,
// selected by tag, unless "", and platform. From an index it takes the platform that
// [Store.Get] would choose. It copies nothing and does not change the directory. It verifies
// the manifest and the configuration; layer blobs must be verified by their reader, as
// [hpcc/unpack] does. The error is fs.ErrNotExist if the directory is not a layout, and a
// [choiceError] if several images match.
func Layout(dir, tag string, p *v1.Platform) (v1.Image, error) {
	fail := func(err error) (v1.Image, error) { return nil, fmt.Errorf("reading OCI layout %s: %w", dir, err) }
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fail(err)
	}
	if _, err := os.Stat(filepath.Join(abs, "oci-layout")); err != nil {
		return fail(err)
	}
	open := layout(func(name string) (*os.File, error) { return openRegular(filepath.Join(abs, name)) })
	b, err := readSmall(open("index.json"))
	if err != nil {
		return fail(err)
	}
	idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return fail(fmt.Errorf("index.json: %w", err))
	}
	idx.Manifests = slices.DeleteFunc(idx.Manifests, isAttestation)
	if len(idx.Manifests) == 0 {
		return fail(errors.New("index.json lists no image"))
	}
	one, err := selection{tag, p}.one(dir, open, idx.Manifests)
	if err != nil {
		return fail(err)
	}
	s := &Store{dir: abs, foreign: true}
	if err := s.announced(one); err != nil {
		return fail(err)
	}
	d, err := s.choose(dir, one, p, 0)
	if err == nil {
		err = s.announced(d)
	}
	if err != nil {
		return fail(err)
	}
	if !d.MediaType.IsImage() {
		return fail(fmt.Errorf("%s is of type %q, which is not an image", d.Digest, d.MediaType))
	}
	img, err := s.open(dir, d)
	if err != nil {
		return fail(err)
	}
	if got, err := img.ConfigFile(); err != nil {
		return fail(err)
	} else if have := got.Platform(); p != nil && have != nil && !have.Satisfies(*p) {
		return fail(&PlatformError{Name: dir, Want: *p, Have: []string{have.String()}})
	}
	return img, nil
}

// announced checks a manifest's or index's blob against its descriptor's size.
func (s *Store) announced(d v1.Descriptor) error {
	if err := checkHash(d.Digest); err != nil {
		return err
	}
	if d.Size > maxManifest {
		return fmt.Errorf("manifest %s: larger than %d bytes", d.Digest, maxManifest)
	}
	fi, err := os.Stat(s.blob(d.Digest))
	if err == nil && fi.Mode().IsRegular() && fi.Size() != d.Size {
		return fmt.Errorf("manifest %s: it has %d bytes instead of %d", d.Digest, fi.Size(), d.Size)
	}
	return nil // the reader reports missing blobs
}

// readSmall reads and closes an opened manifest, index or configuration.
func readSmall(f *os.File, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	if err == nil && len(b) > maxManifest {
		err = fmt.Errorf("%s is larger than %d bytes", filepath.Base(f.Name()), maxManifest)
	}
	return b, err
}

// openRegular opens a regular file. A foreign directory may contain pipes and devices in
// place of blobs.
func openRegular(file string) (*os.File, error) {
	return regular(os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0))
}

// regular refuses an opened file that is not regular. Opening a pipe without O_NONBLOCK
// would block.
func regular(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: f.Name(), Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
