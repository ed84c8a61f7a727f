package build

import (
	"encoding/json"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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
	raw, err := img.RawConfigFile()
	if err == nil {
		img, err = editConfig(img, raw, func(fields map[string]json.RawMessage) (err error) {
			var config, check map[string]json.RawMessage
			if err := json.Unmarshal(fields["config"], &config); err != nil {
				return err
			}
			if err := json.Unmarshal(config["Healthcheck"], &check); err != nil {
				return err
			}
			check["StartInterval"] = fmt.Append(nil, int64(d))
			if config["Healthcheck"], err = json.Marshal(check); err != nil {
				return err
			}
			fields["config"], err = json.Marshal(config)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("adding the health check's start interval: %w", err)
	}
	return img, nil
}
