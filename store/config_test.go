package store

import (
	"context"
	"errors"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/testdata/helpers/testenv"
)

// ByConfig finds an image below a name, also in an index, whatever its platform.
func TestByConfig(t *testing.T) {
	s, err := Open(t.TempDir())
	testenv.Check(t, err)
	var images []v1.Image
	idx := v1.ImageIndex(empty.Index)
	for _, arch := range []string{"amd64", "ppc64le", "s390x"} {
		img, err := random.Image(100, 1)
		testenv.Check(t, err)
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: arch, RootFS: rootFS(t, img)})
		testenv.Check(t, err)
		images = append(images, img)
		if arch != "s390x" {
			idx = mutate.AppendManifests(idx, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
		}
	}
	_, err = s.PutIndex(context.Background(), "both", idx)
	testenv.Check(t, err)
	_, err = s.Put(context.Background(), "single", images[2])
	testenv.Check(t, err)
	for i, img := range images {
		id, err := img.ConfigName()
		testenv.Check(t, err)
		found, err := s.ByConfig(id)
		if err != nil {
			t.Fatalf("image %d: %v", i, err)
		}
		want, err := img.Digest()
		testenv.Check(t, err)
		if got, err := found.Digest(); err != nil || got != want {
			t.Errorf("image %d: found %s, %v; want %s", i, got, err, want)
		}
	}
	testenv.Check(t, s.Remove("single"))
	id, err := images[2].ConfigName()
	testenv.Check(t, err)
	var missing *NotFoundError
	if _, err := s.ByConfig(id); !errors.As(err, &missing) || !strings.Contains(err.Error(), id.Hex) {
		t.Errorf("a removed image: %v", err)
	}
}
