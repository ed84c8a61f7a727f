package charliecloud

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"hpcc/envfile"
	"hpcc/front"
	"hpcc/runtime"
	"hpcc/runtime/process"
	"hpcc/store"
	"hpcc/store/ready"
)

// Image returns the image that ch-run runs: a file with any name, or an image that is written as
// the name of its directory in Charliecloud's storage.
func Image(image string) string {
	if _, err := store.Canonical(image); err == nil || ready.IsPath(image) {
		return image
	}
	if _, err := os.Stat(image); err == nil {
		return "./" + image
	}
	return front.CharliecloudName(image)
}

// variables returns the changes of the environment that set the variables of the image in a
// directory: those of its configuration, or of the file that Charliecloud writes to its images.
func variables(root string, config []string) ([]envfile.Change, error) {
	var out []envfile.Change
	for _, kv := range config {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			c, err := envfile.Exact(name + "=" + value)
			if err != nil {
				return nil, err
			}
			out = append(out, c)
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	tree, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	f, err := tree.Open("ch/environment")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return envfile.Read(f, "/ch/environment", envfile.Options{})
}

// Environment removes the parts of an image's configuration that ch-run ignores, and returns the changes of the
// environment with the variables of the image at the given positions.
func Environment(root string, img *runtime.Image, changes []envfile.Change, at []int) ([]envfile.Change, error) {
	if len(at) > 0 {
		vars, err := variables(root, img.Config.Env)
		if err != nil {
			return nil, err
		}
		for _, i := range slices.Backward(at) {
			changes = slices.Insert(slices.Clone(changes), i, vars...)
		}
	}
	img.Config = runtime.ImageConfig{}
	return changes, nil
}

// Exit statuses of ch-run, from its manual.
const (
	Failed    = 31
	noCommand = 49
)

// Status returns the exit status of ch-run for the error of a run.
func Status(err error) int {
	if re := (*process.Error)(nil); errors.As(err, &re) && re.Status != process.ExitFailed {
		return noCommand
	}
	return Failed
}
