package store

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/testdata/helpers/testenv"
)

// TestSaveLeavesNothing: after a failed write no partial file remains, and an existing file
// stays.
func TestSaveLeavesNothing(t *testing.T) {
	s, ctx := open(t), context.Background()
	img, err := random.Image(5000, 2)
	testenv.Check(t, err)
	_, err = s.Put(ctx, "x", img)
	testenv.Check(t, err)
	m, err := img.Manifest()
	testenv.Check(t, err)
	testenv.Check(t, os.Remove(s.blob(m.Layers[1].Digest)))
	for name, save := range map[string]func(file string) error{
		"layout": func(file string) error { return s.Save(ctx, "x", file) },
		"docker": func(file string) error { return s.SaveDocker("x", file) },
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.tar")
			testenv.Check(t, os.WriteFile(file, []byte("old"), 0o644))
			err := save(file)
			var damaged *DamagedError
			if !errors.As(err, &damaged) {
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

// TestSavedName: "ctr images import" names an image as a pod's "image:" does.
func TestSavedName(t *testing.T) {
	for _, tt := range []struct{ name, ref, tag string }{
		{"sci", "docker.io/library/sci:latest", "latest"},
		{"lab/sci:2", "docker.io/lab/sci:2", "2"},
		{"localhost/sci:2", "localhost/sci:2", "2"},
		{"10.1.2.3:5000/lab/sci", "10.1.2.3:5000/lab/sci:latest", "latest"},
		{"index.example.org/sci", "index.example.org/sci:latest", "latest"},
	} {
		key, err := Canonical(tt.name)
		testenv.Check(t, err)
		data, err := indexJSON([]string{key}, v1.Descriptor{Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}})
		testenv.Check(t, err)
		var index v1.IndexManifest
		testenv.Check(t, json.Unmarshal(data, &index))
		a := index.Manifests[0].Annotations
		if ref, tag := a["io.containerd.image.name"], a["org.opencontainers.image.ref.name"]; ref != tt.ref || tag != tt.tag {
			t.Errorf("%s is saved as %q, tag %q; want %q, %q", tt.name, ref, tag, tt.ref, tt.tag)
		}
	}
}
