package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// ByConfig returns a named image with this configuration, of any platform. It returns a
// [NotFoundError] if there is none.
func (s *Store) ByConfig(config v1.Hash) (v1.Image, error) {
	refs, problems := s.refs()
	for _, n := range slices.Sorted(maps.Keys(refs)) {
		img, err := s.withConfig(n, refs[n].Descriptor, config, 0)
		if err != nil {
			problems[n] = err
		} else if img != nil {
			return img, nil
		}
	}
	if len(problems) > 0 { // one of these may be the image
		return nil, errors.Join(slices.Collect(maps.Values(problems))...)
	}
	return nil, &NotFoundError{Name: config.String()}
}

// withConfig returns the image with a configuration below a descriptor, or nil. Parts of an
// index that the store lacks are skipped.
func (s *Store) withConfig(n string, d v1.Descriptor, config v1.Hash, depth int) (v1.Image, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("image %q: indexes are nested deeper than %d", n, maxDepth)
	}
	b, err := s.readAs(d)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", n, err)
	}
	if !d.MediaType.IsIndex() {
		m, err := v1.ParseManifest(bytes.NewReader(b))
		if err != nil {
			return nil, fmt.Errorf("image %q: reading its manifest: %w", n, err)
		}
		if m.Config.Digest != config {
			return nil, nil
		}
		return &image{s, b, d.MediaType}, nil
	}
	idx, err := v1.ParseIndexManifest(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("image %q: reading its index: %w", n, err)
	}
	for _, m := range idx.Manifests {
		if (!m.MediaType.IsImage() && !m.MediaType.IsIndex()) || isAttestation(m) {
			continue
		}
		if img, err := s.withConfig(n, m, config, depth+1); img != nil || (err != nil && len(idx.Manifests) == 1) {
			return img, err
		}
	}
	return nil, nil
}
