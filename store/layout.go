package store

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
)

// Layout opens the one image of an OCI layout directory (image-spec,
// "image-layout") where it lies, and of its platforms the one that [Store.Get]
// would choose. Nothing is copied, and nothing in the directory changes. The
// manifest and the configuration are checked against their digests; those of the
// layers' blobs their reader has to check, as [hpcc/unpack] does.
// fs.ErrNotExist when the directory is no layout.
func Layout(dir string, p *v1.Platform) (v1.Image, error) {
	fail := func(err error) (v1.Image, error) { return nil, fmt.Errorf("reading OCI layout %s: %w", dir, err) }
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fail(err)
	}
	if _, err := os.Stat(filepath.Join(abs, "oci-layout")); err != nil {
		return fail(err)
	}
	b, err := readSmall(openRegular(filepath.Join(abs, "index.json")))
	if err != nil {
		return fail(err)
	}
	idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return fail(fmt.Errorf("index.json: %w", err))
	}
	idx.Manifests = slices.DeleteFunc(idx.Manifests, isAttestation)
	switch n := len(idx.Manifests); {
	case n == 0:
		return fail(errors.New("index.json lists no image"))
	case n > 1:
		return fail(fmt.Errorf("it holds %d images; load it, and name one of them", n))
	}
	s := &Store{dir: abs, foreign: true}
	if err := s.announced(idx.Manifests[0]); err != nil {
		return fail(err)
	}
	d, err := s.choose(dir, idx.Manifests[0], p, 0)
	if err == nil {
		err = s.announced(d)
	}
	if err != nil {
		return fail(err)
	}
	if !d.MediaType.IsImage() {
		return fail(fmt.Errorf("%s is of type %q, which is no image", d.Digest, d.MediaType))
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

// announced holds the blob of a manifest or index to the size that it is said
// to have.
func (s *Store) announced(d v1.Descriptor) error {
	if err := checkHash(d.Digest); err != nil {
		return err
	}
	if d.Size > maxManifest {
		return fmt.Errorf("manifest %s: larger than %d bytes", d.Digest, maxManifest)
	}
	fi, err := os.Stat(s.blob(d.Digest))
	if err == nil && fi.Mode().IsRegular() && fi.Size() != d.Size {
		return fmt.Errorf("manifest %s: it has %d bytes where %d were announced", d.Digest, fi.Size(), d.Size)
	}
	return nil // what is missing is told of by its reader
}

// readSmall reads a manifest or its kin, which was opened for it, and closes it.
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

// openRegular opens a regular file: a directory of somebody else's may hold
// pipes and devices under the names of blobs.
func openRegular(file string) (*os.File, error) {
	return regular(os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0))
}

// regular refuses what was opened and is no regular file. Who opens a pipe waits
// for its other end, but for O_NONBLOCK.
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
