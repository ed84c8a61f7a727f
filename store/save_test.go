package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/random"
)

// TestSaveLeavesNothing: what cannot be written whole is not there in part, and
// what had its name stays.
func TestSaveLeavesNothing(t *testing.T) {
	s, ctx := open(t), context.Background()
	img, err := random.Image(5000, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(ctx, "x", img); err != nil {
		t.Fatal(err)
	}
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.blob(m.Layers[1].Digest)); err != nil {
		t.Fatal(err)
	}
	for name, save := range map[string]func(file string) error{
		"layout": func(file string) error { return s.Save(ctx, "x", file) },
		"docker": func(file string) error { return s.SaveDocker("x", file) },
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.tar")
			if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
				t.Fatal(err)
			}
			err := save(file)
			var missing *NotFoundError
			if !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &missing) {
				t.Errorf("saving without a layer: %v", err)
			}
			entries, err := os.ReadDir(filepath.Dir(file))
			if err != nil || len(entries) != 1 {
				t.Errorf("there are %v, %v; want the old file alone", entries, err)
			}
			if b, err := os.ReadFile(file); err != nil || string(b) != "old" {
				t.Errorf("the old file holds %q, %v", b, err)
			}
		})
	}
}
