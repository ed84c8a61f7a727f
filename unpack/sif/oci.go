package sif

import (
	"errors"
	"fmt"

	format "github.com/apptainer/sif/v2/pkg/sif"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// squashLayer is the media type of the layers of an OCI-SIF file, which SingularityCE 4
// writes: an OCI image whose blobs are the objects.
const squashLayer = "application/vnd.sylabs.image.layer.v1.squashfs"

// findOCI finds the root file system of an OCI-SIF file: the layer, if there is only one.
func (img *Image) findOCI(all []format.Descriptor) error {
	blobs := map[v1.Hash]format.Descriptor{}
	var root *format.Descriptor
	for _, d := range all {
		if h, err := d.OCIBlobDigest(); err == nil {
			blobs[h] = d
		}
		if d.DataType() == format.DataOCIRootIndex {
			root = &d
		}
	}
	if root == nil {
		return nil
	}
	var index v1.IndexManifest
	if err := readJSON(*root, &index); err != nil {
		return fmt.Errorf("reading the index of the OCI image: %w", err)
	}
	if len(index.Manifests) != 1 {
		img.unusable = fmt.Errorf("it holds %d OCI images; hpcc reads files with one", len(index.Manifests))
		return nil
	}
	var m v1.Manifest
	var config v1.ConfigFile
	d, ok := blobs[index.Manifests[0].Digest]
	if !ok {
		return errors.New("the manifest of the OCI image is missing")
	}
	if err := readJSON(d, &m); err != nil {
		return fmt.Errorf("reading the manifest of the OCI image: %w", err)
	}
	if d, ok = blobs[m.Config.Digest]; !ok {
		return errors.New("the configuration of the OCI image is missing")
	}
	if err := readJSON(d, &config); err != nil {
		return fmt.Errorf("reading the configuration of the OCI image: %w", err)
	}
	img.full, img.Arch = &config, config.Architecture
	if len(m.Layers) != 1 || m.Layers[0].MediaType != squashLayer {
		img.unusable = fmt.Errorf("it is an OCI-SIF file with %d layers, of which the first is of type %q; hpcc reads those with one SquashFS layer: push it to a registry with singularity, then use hpcc pull", len(m.Layers), mediaType(m))
		return nil
	}
	if d, ok = blobs[m.Layers[0].Digest]; !ok {
		return errors.New("the layer of the OCI image is missing")
	}
	img.offset, img.size, img.unusable = d.Offset(), d.Size(), nil
	return nil
}

// mediaType returns the type of the first layer.
func mediaType(m v1.Manifest) string {
	if len(m.Layers) == 0 {
		return ""
	}
	return string(m.Layers[0].MediaType)
}
