package build

import (
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// editConfig returns img with another configuration: raw, after edit changed its fields. It keeps fields
// that v1.ConfigFile does not know.
func editConfig(img v1.Image, raw []byte, edit func(fields map[string]json.RawMessage) error) (v1.Image, error) {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, fmt.Errorf("reading the image's configuration: %w", err)
	}
	if err := edit(fields); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	return &editedImage{Image: img, raw: raw, manifest: m.DeepCopy()}, nil
}

// An editedImage is an image whose configuration is replaced by raw, byte for byte.
type editedImage struct {
	v1.Image
	raw      []byte
	manifest *v1.Manifest
}

func (r *editedImage) RawConfigFile() ([]byte, error)      { return r.raw, nil }
func (r *editedImage) ConfigFile() (*v1.ConfigFile, error) { return partial.ConfigFile(r) }
func (r *editedImage) ConfigName() (v1.Hash, error)        { return partial.ConfigName(r) }
func (r *editedImage) RawManifest() ([]byte, error)        { return partial.RawManifest(r) }
func (r *editedImage) Digest() (v1.Hash, error)            { return partial.Digest(r) }
func (r *editedImage) Size() (int64, error)                { return partial.Size(r) }

func (r *editedImage) Manifest() (*v1.Manifest, error) {
	name, err := r.ConfigName()
	if err != nil {
		return nil, err
	}
	m := r.manifest.DeepCopy()
	m.Config.Digest, m.Config.Size = name, int64(len(r.raw))
	return m, nil
}
