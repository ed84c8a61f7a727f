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

// A Image is what a run needs of an image's configuration, as JSON
// (image-spec, config.md). The type of image-spec itself would do, but its
// package compiles regular expressions before main begins, a tenth of the
// start of a run.
type Image struct {
	Architecture string      `json:"architecture"`
	Config       ImageConfig `json:"config"`
}

// ImageConfig is the part that says how the image's program runs.
type ImageConfig struct {
	User       string
	Env        []string
	Entrypoint []string
	Cmd        []string
	WorkingDir string
}

// ReadImage reads the image's configuration from file of a tree; a directory
// without one was made otherwise and runs with none.
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
