package store

import (
	"bytes"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// index is a v1.ImageIndex whose parts are files of the store.
type index struct {
	s   *Store
	d   v1.Descriptor
	raw []byte
}

func (s *Store) index(d v1.Descriptor) (v1.ImageIndex, error) {
	b, err := s.readAs(d)
	if err != nil {
		return nil, err
	}
	return &index{s, d, b}, nil
}

func (i *index) MediaType() (types.MediaType, error) { return i.d.MediaType, nil }
func (i *index) Digest() (v1.Hash, error)            { return i.d.Digest, nil }
func (i *index) Size() (int64, error)                { return int64(len(i.raw)), nil }
func (i *index) RawManifest() ([]byte, error)        { return i.raw, nil }
func (i *index) IndexManifest() (*v1.IndexManifest, error) {
	return v1.ParseIndexManifest(bytes.NewReader(i.raw))
}

func (i *index) Image(h v1.Hash) (v1.Image, error) {
	d, err := i.child(h)
	if err != nil {
		return nil, err
	}
	return i.s.open(h.String(), d)
}

func (i *index) ImageIndex(h v1.Hash) (v1.ImageIndex, error) {
	d, err := i.child(h)
	if err != nil {
		return nil, err
	}
	return i.s.index(d)
}

func (i *index) child(h v1.Hash) (v1.Descriptor, error) {
	m, err := i.IndexManifest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	for _, d := range m.Manifests {
		if d.Digest == h {
			return d, nil
		}
	}
	return v1.Descriptor{}, fmt.Errorf("the index does not list %s", h)
}
