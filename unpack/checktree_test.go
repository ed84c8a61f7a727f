package unpack

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// checkTree finds every kind of difference that it documents, and none in a tree as it was
// unpacked.
func TestCheckTree(t *testing.T) {
	for what, change := range map[string]func(dir string) error{
		"": func(string) error { return nil },
		"etc/conf has different content": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "etc/conf"), []byte("COnf\n"), 0o644)
		},
		"etc/conf has 0 bytes where the image has 5": func(dir string) error {
			return os.Truncate(filepath.Join(dir, "etc/conf"), 0)
		},
		"etc/conf is missing":          func(dir string) error { return os.Remove(filepath.Join(dir, "etc/conf")) },
		"etc/more is not in the image": func(dir string) error { return os.WriteFile(filepath.Join(dir, "etc/more"), nil, 0o644) },
		"etc/link has a different target": func(dir string) error {
			p := filepath.Join(dir, "etc/link")
			return errors.Join(os.Remove(p), os.Symlink("elsewhere", p))
		},
		"etc has a different type": func(dir string) error {
			p := filepath.Join(dir, "etc")
			return errors.Join(os.RemoveAll(p), os.WriteFile(p, nil, 0o644))
		},
		".hpcc/image.json is not the image's configuration": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, ConfigFile), []byte("{}"), 0o644)
		},
	} {
		t.Run(what, func(t *testing.T) {
			img := imageOf(t, layerOf(t, "d etc", "f etc/conf old", "f etc/gone x", "l etc/link conf", "c etc/null", "p etc/pipe", "f0 etc/closed x"),
				layerOf(t, "d etc", "f etc/conf conf:", "f etc/.wh.gone", "h etc/same etc/conf", "f etc/x x"))
			dir := filepath.Join(t.TempDir(), "tree")
			_, err := Image(t.Context(), img, dir, Options{})
			testenv.Check(t, err)
			testenv.Check(t, change(dir))
			err = checkTree(t.Context(), img, dir)
			var differs *treeError
			switch {
			case what == "" && err != nil:
				t.Error(err)
			case what != "" && (!errors.As(err, &differs) || !strings.Contains(err.Error(), what)):
				t.Errorf("%v; want %q", err, what)
			}
		})
	}
}
