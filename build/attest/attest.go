// Package attest describes the content of an image: the packages in its tree, as an SPDX
// document, and in-toto statements in the form in which BuildKit stores them in registries.
//
//	tree ─► records of dpkg, rpm, apk, conda, pip ─► Document ─► Statement ─► Index
//
// It runs no program of the image. A tree is hostile input: no link leads out of it, and
// records are read up to a limit. Files that no package manager installed are not listed.
// Statements contain no times and no image names, so the same image always has the same
// documents and the same index. They are not signed.
package attest

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/store"
)

// Types of statements. Images of BuildKit before 0.31 carry ProvenanceV0.
const (
	Provenance   = "https://slsa.dev/provenance/v1"
	ProvenanceV0 = "https://slsa.dev/provenance/v0.2"
	SPDX         = "https://spdx.dev/Document"
)

// A Statement is an attestation of an image.
type Statement struct {
	Type      string // Provenance, ProvenanceV0 or SPDX
	Predicate any    // the document, to be encoded as JSON
}

// encode returns the statement about an image as JSON (in-toto, "Statement").
func (st Statement) encode(image v1.Hash) ([]byte, error) {
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

// File returns the statement about an image as a file with the name that docker build gives
// it.
func (st Statement) File(image v1.Hash) (name string, data []byte, err error) {
	name = "provenance.json"
	if st.Type == SPDX {
		name = "sbom.spdx.json"
	}
	data, err = st.encode(image)
	return name, data, err
}

// attestation returns a manifest for an index, with the statements about the image with
// this digest (BuildKit, "Image attestation storage"). The platform in its configuration
// is unknown/unknown, so that no runtime selects it.
func attestation(image v1.Hash, statements []Statement) (v1.Image, error) {
	img := noLayers()
	var add []mutate.Addendum
	cfg := &v1.ConfigFile{OS: "unknown", Architecture: "unknown", RootFS: v1.RootFS{Type: "layers"}}
	for _, st := range statements {
		data, err := st.encode(image)
		if err != nil {
			return nil, err
		}
		l := store.StatementLayer(st.Type, data)
		id, err := l.Layer.DiffID()
		if err != nil {
			return nil, err
		}
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, id)
		add = append(add, l)
	}
	img, err := mutate.Append(img, add...)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, cfg)
}

// attach adds the statements about an image to an index, after its images.
func attach(idx v1.ImageIndex, image v1.Image, statements []Statement) (v1.ImageIndex, error) {
	d, err := image.Digest()
	if err != nil {
		return nil, err
	}
	att, err := attestation(d, statements)
	if err != nil {
		return nil, fmt.Errorf("writing the attestations of %s: %w", d, err)
	}
	return mutate.AppendManifests(idx, mutate.IndexAddendum{Add: att, Descriptor: store.AttestationDescriptor(d)}), nil
}
