package attest

import (
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Index returns an index of the images of one name for several platforms, together with
// the statements about each. A nil about means no statements.
func Index(imgs []v1.Image, about [][]Statement) (v1.ImageIndex, error) {
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
		idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{MediaType: mt, Platform: cfg.Platform()}})
	}
	for i, st := range about {
		var err error
		if idx, err = attach(idx, imgs[i], st); err != nil {
			return nil, err
		}
	}
	return idx, nil
}

// noLayers returns an image without layers, with the media types of OCI.
func noLayers() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}
