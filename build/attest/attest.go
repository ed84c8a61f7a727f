// Package attest publishes what an image was built from: as in-toto statements in the form in
// which BuildKit stores them in registries, with package URLs of the inputs. It also removes
// credentials from texts that others may see, such as instructions and messages.
//
// Statements contain no times and no image names, so the same inputs always give the same
// index. They are not signed.
package attest

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/store"
)

// Types of statements. Images of BuildKit before 0.31 carry ProvenanceV0.
const (
	Provenance   = "https://slsa.dev/provenance/v1"
	ProvenanceV0 = "https://slsa.dev/provenance/v0.2"
)

// A Statement is an attestation of an image.
type Statement struct {
	Type      string // such as Provenance
	Predicate any    // the document, to be encoded as JSON
}

// Encode returns the statement about an image as JSON (in-toto, "Statement").
func (st Statement) Encode(image v1.Hash) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // package URLs have "&"
	// The subject has no name, so that the attestation does not depend on the image's name.
	err := enc.Encode(map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       []any{map[string]any{"name": "_", "digest": map[string]string{image.Algorithm: image.Hex}}},
		"predicateType": st.Type,
		"predicate":     st.Predicate,
	})
	return b.Bytes(), err
}

// Index returns an index of the images of one name for several platforms, together with a
// statement about each. A nil about means no statements.
func Index(imgs []v1.Image, about []Statement) (v1.ImageIndex, error) {
	idx := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range imgs {
		cfg, err := img.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("assembling the index: %w", err)
		}
		mt, err := img.MediaType()
		if err != nil {
			return nil, fmt.Errorf("assembling the index: %w", err)
		}
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{MediaType: mt, Platform: cfg.Platform()}})
	}
	for i, st := range about {
		d, err := imgs[i].Digest()
		if err != nil {
			return nil, err
		}
		att, err := attestation(d, st)
		if err != nil {
			return nil, fmt.Errorf("writing the attestation of %s: %w", d, err)
		}
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: att, Descriptor: store.AttestationDescriptor(d)})
	}
	return idx, nil
}

// attestation returns a manifest for an index, with the statement about the image with this
// digest (BuildKit, "Image attestation storage"). The platform in its configuration is
// unknown/unknown, so that no runtime selects it.
func attestation(image v1.Hash, st Statement) (v1.Image, error) {
	data, err := st.Encode(image)
	if err != nil {
		return nil, err
	}
	layer := store.StatementLayer(st.Type, data)
	id, err := layer.Layer.DiffID()
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if img, err = mutate.Append(img, layer); err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, &v1.ConfigFile{OS: "unknown", Architecture: "unknown",
		RootFS: v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{id}}})
}
