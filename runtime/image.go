package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// Image holds the part of an image's configuration that a run needs, as JSON (image-spec,
// config.md). It is not image-spec's own type because that package compiles regular
// expressions before main, a tenth of a run's startup time.
type Image struct {
	Architecture string      `json:"architecture"`
	Config       ImageConfig `json:"config"`
}

// ImageConfig holds the settings of an image that describe how its program runs.
type ImageConfig struct {
	User       string
	Env        []string
	Entrypoint []string
	Cmd        []string
	WorkingDir string
}

// ReadImage reads the image's configuration from file in the tree root. A directory without
// that file was not created by hpcc and has an empty configuration.
func ReadImage(root, file string) (Image, error) {
	var img Image
	file = filepath.Join(root, file)
	b, err := rawfile.Read(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return img, nil
	}
	if err != nil {
		return img, fmt.Errorf("reading the image's configuration: %w", err)
	}
	if err := json.Unmarshal(b, &img); err != nil {
		return img, fmt.Errorf("reading the image's configuration %q: %w", file, err)
	}
	return img, nil
}
