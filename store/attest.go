package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Annotations of statements about images in an index (BuildKit, "Image attestation
// storage"). An attestation manifest, without a platform, has the statements as its layers.
// Its descriptor has the first two annotations, the descriptor of each statement the third.
const (
	referenceType   = "vnd.docker.reference.type"   // attestationManifest
	referenceDigest = "vnd.docker.reference.digest" // of the image's manifest
	predicateType   = "in-toto.io/predicate-type"

	attestationManifest                 = "attestation-manifest"
	inTotoStatement     types.MediaType = "application/vnd.in-toto+json"
)

// AttestationDescriptor returns the descriptor, in an index, of the manifest with an image's
// attestations. The caller adds size and digest.
func AttestationDescriptor(image v1.Hash) v1.Descriptor {
	return v1.Descriptor{
		MediaType:   types.OCIManifestSchema1,
		Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{referenceType: attestationManifest, referenceDigest: image.String()},
	}
}

// StatementLayer returns a statement of a type as a layer of such a manifest.
func StatementLayer(kind string, statement []byte) mutate.Addendum {
	return mutate.Addendum{Layer: static.NewLayer(statement, inTotoStatement), MediaType: inTotoStatement,
		Annotations: map[string]string{predicateType: kind}}
}

// maxStatement bounds a statement, in bytes. It is BuildKit's limit.
const maxStatement = 80 << 20

// NoAttestationError reports that an image has no attestation of the requested types.
type NoAttestationError struct{ Name string }

func (e *NoAttestationError) Error() string {
	return fmt.Sprintf("image %q carries no such attestation", e.Name)
}

// Advice says how to attach one.
func (e *NoAttestationError) Advice() string { return `attach one with "hpcc build --provenance"` }

// isAttestation reports whether a part of an index is an attestation of another part instead
// of an image.
func isAttestation(d v1.Descriptor) bool {
	return d.Annotations[referenceType] != "" || (d.Platform != nil && d.Platform.OS == "unknown")
}

// attestationsOf returns the attestation manifests for one image in an index.
func attestationsOf(idx *v1.IndexManifest, image v1.Hash) []v1.Descriptor {
	var out []v1.Descriptor
	for _, d := range idx.Manifests {
		if d.Annotations[referenceType] == attestationManifest && d.Annotations[referenceDigest] == image.String() &&
			d.MediaType.IsImage() {
			out = append(out, d)
		}
	}
	return out
}

// Attestation returns the predicate of an image's first statement of one of the types. The
// image is chosen as by [Store.Get]. It returns a [NoAttestationError] if there is none.
func (s *Store) Attestation(n string, p *v1.Platform, predicateTypes ...string) (json.RawMessage, error) {
	d, err := s.ref(n)
	if err != nil {
		return nil, err
	}
	for depth := 0; d.MediaType.IsIndex(); depth++ {
		var idx *v1.IndexManifest
		if idx, d, err = s.part(n, d, p, depth); err != nil {
			return nil, err
		}
		for _, a := range attestationsOf(idx, d.Digest) {
			predicate, err := s.predicate(a, predicateTypes)
			if err != nil {
				return nil, fmt.Errorf("image %q: reading attestation %s: %w", n, a.Digest, err)
			}
			if predicate != nil {
				return predicate, nil
			}
		}
	}
	return nil, &NoAttestationError{n}
}

// predicate returns a statement of one of the types from an attestation manifest, or nil.
func (s *Store) predicate(d v1.Descriptor, predicateTypes []string) (json.RawMessage, error) {
	b, err := s.readAs(d)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		if l.MediaType != inTotoStatement || !slices.Contains(predicateTypes, l.Annotations[predicateType]) {
			continue
		}
		r, err := s.openBlob(l.Digest, l.Size)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		text, err := io.ReadAll(io.LimitReader(r, maxStatement))
		if err != nil {
			return nil, err
		}
		var statement struct{ Predicate json.RawMessage }
		if err := json.Unmarshal(text, &statement); err != nil {
			return nil, fmt.Errorf("reading statement %s: %w", l.Digest, err)
		}
		return statement.Predicate, nil
	}
	return nil, nil
}

// keepAttestations fetches a remote index's attestations of a stored image. It returns the
// descriptor for the image's name: an index of the image and its attestations, which is the
// remote index itself if that holds no other image. A mirror may lack attestations; the
// image is then stored without them.
func (s *Store) keepAttestations(ctx context.Context, idx v1.ImageIndex, image *v1.Descriptor) (*v1.Descriptor, error) {
	m, err := idx.IndexManifest()
	if err != nil {
		return nil, err
	}
	about := attestationsOf(m, image.Digest)
	for _, a := range about {
		img, err := idx.Image(a.Digest)
		if err == nil {
			_, err = s.putImage(ctx, img)
		}
		if err != nil {
			return image, ctx.Err()
		}
	}
	if len(about) == 0 {
		return image, nil
	}
	raw, err := idx.RawManifest()
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) > 1+len(about) {
		m = m.DeepCopy()
		m.Manifests = slices.DeleteFunc(m.Manifests, func(d v1.Descriptor) bool {
			return d.Digest != image.Digest && d.Annotations[referenceDigest] != image.Digest.String()
		})
		if raw, err = json.Marshal(m); err != nil {
			return nil, err
		}
	}
	mt, err := idx.MediaType()
	if err != nil {
		return nil, err
	}
	return s.putManifest(ctx, raw, mt)
}
