package build

import (
	"encoding/json"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
)

// v1.HealthConfig lacks HEALTHCHECK --start-interval (Docker 25). The build reads it from the
// JSON of a base image's configuration, and adds it to the JSON of the finished configuration.

// startInterval returns the start interval of an image's health check, or 0.
func startInterval(img v1.Image) (time.Duration, error) {
	raw, err := img.RawConfigFile()
	if err != nil {
		return 0, err
	}
	var c struct {
		Config struct {
			Healthcheck struct{ StartInterval time.Duration }
		} `json:"config"`
	}
	err = json.Unmarshal(raw, &c)
	return c.Config.Healthcheck.StartInterval, err
}

// withStartInterval returns the image with a start interval added to its health check.
func withStartInterval(img v1.Image, d time.Duration) (v1.Image, error) {
	if d == 0 {
		return img, nil
	}
	fail := func(err error) (v1.Image, error) {
		return nil, fmt.Errorf("adding the health check's start interval: %w", err)
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return fail(err)
	}
	var all, config, check map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return fail(err)
	}
	if err := json.Unmarshal(all["config"], &config); err != nil {
		return fail(err)
	}
	if err := json.Unmarshal(config["Healthcheck"], &check); err != nil {
		return fail(err)
	}
	check["StartInterval"] = fmt.Append(nil, int64(d))
	if config["Healthcheck"], err = json.Marshal(check); err != nil {
		return fail(err)
	}
	if all["config"], err = json.Marshal(config); err != nil {
		return fail(err)
	}
	if raw, err = json.Marshal(all); err != nil {
		return fail(err)
	}
	m, err := img.Manifest()
	if err != nil {
		return fail(err)
	}
	return &rawConfig{Image: img, raw: raw, manifest: m.DeepCopy()}, nil
}

// A rawConfig is an image whose configuration is replaced by raw, byte for byte.
type rawConfig struct {
	v1.Image
	raw      []byte
	manifest *v1.Manifest
}

func (r *rawConfig) RawConfigFile() ([]byte, error)      { return r.raw, nil }
func (r *rawConfig) ConfigFile() (*v1.ConfigFile, error) { return partial.ConfigFile(r) }
func (r *rawConfig) ConfigName() (v1.Hash, error)        { return partial.ConfigName(r) }
func (r *rawConfig) RawManifest() ([]byte, error)        { return partial.RawManifest(r) }
func (r *rawConfig) Digest() (v1.Hash, error)            { return partial.Digest(r) }
func (r *rawConfig) Size() (int64, error)                { return partial.Size(r) }

func (r *rawConfig) Manifest() (*v1.Manifest, error) {
	name, err := r.ConfigName()
	if err != nil {
		return nil, err
	}
	m := r.manifest.DeepCopy()
	m.Config.Digest, m.Config.Size = name, int64(len(r.raw))
	return m, nil
}
