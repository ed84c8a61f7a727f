package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"hpcc/testdata/helpers/testenv"
)

// The age of a tree counts from the removal or reassignment of its last name, because
// programs may run in it on other nodes.
func TestTreesAgeFromTheirLastName(t *testing.T) {
	for _, how := range []string{"removed", "moved"} {
		s, err := Open(t.TempDir())
		testenv.Check(t, err)
		ctx := context.Background()
		img, err := random.Image(100, 1)
		testenv.Check(t, err)
		d, err := s.Put(ctx, "img", img)
		testenv.Check(t, err)
		mark := s.path("trees", d.Hex, ".hpcc")
		testenv.Check(t, os.MkdirAll(mark, 0o755))
		long := time.Now().Add(-100 * 24 * time.Hour)
		testenv.Check(t, os.Chtimes(mark, long, long))
		if how == "removed" {
			err = s.Remove("img")
		} else if img, err = random.Image(100, 1); err == nil {
			_, err = s.Put(ctx, "img", img)
		}
		testenv.Check(t, err)
		if rep, err := s.GC(ctx, GCOptions{}); err != nil || rep.Trees != 0 {
			t.Errorf("%s: gc removes %d trees, %v; want none for a week", how, rep.Trees, err)
		}
		if rep, err := s.GC(ctx, GCOptions{Age: -1}); err != nil || rep.Trees != 1 {
			t.Errorf("%s: gc of what has no name removes %d trees, %v; want 1", how, rep.Trees, err)
		}
	}
}

// TestGCKeepsImagesInUse checks that a kept image survives without a name, also one of several platforms,
// and that it can be used by its digest.
func TestGCKeepsImagesInUse(t *testing.T) {
	s, err := Open(t.TempDir())
	testenv.Check(t, err)
	img, err := random.Image(100, 2)
	testenv.Check(t, err)
	one, err := s.Put(t.Context(), "one", img)
	testenv.Check(t, err)
	idx, err := random.Index(100, 1, 1)
	testenv.Check(t, err)
	many, err := s.PutIndex(t.Context(), "many", idx)
	testenv.Check(t, err)
	img, err = random.Image(100, 1)
	testenv.Check(t, err)
	other, err := s.Put(t.Context(), "other", img)
	testenv.Check(t, err)
	var trees []string
	for _, d := range []string{one.String(), many.String(), other.String()} {
		img, err := s.Get(d, nil)
		testenv.Check(t, err)
		h, err := img.Digest()
		testenv.Check(t, err)
		trees = append(trees, h.Hex)
		testenv.Check(t, os.MkdirAll(s.path("trees", h.Hex, ".hpcc"), 0o755))
	}
	for _, n := range []string{"one", "many", "other"} {
		testenv.Check(t, s.Remove(n))
	}
	lost := "sha256:" + strings.Repeat("0", 64) // of a job whose image is gone
	keep := func(context.Context) ([]string, error) {
		return []string{one.String(), many.String(), lost, "nonsense"}, nil
	}
	rep, err := s.GC(t.Context(), GCOptions{Age: -1, Keep: keep})
	if err != nil || rep.Trees != 1 || rep.Blobs != 3 {
		t.Errorf("GC: %+v, %v; want the tree and the 3 blobs of the other image removed", rep, err)
	}
	for i, n := range []string{"one@" + one.String(), many.String()} {
		img, err := s.Get(n, nil)
		if err == nil {
			err = validate.Image(img)
		}
		if err != nil {
			t.Errorf("%s: %v", n, err)
		}
		if dir, err := s.TreeOf(n); err != nil || filepath.Base(dir) != trees[i] {
			t.Errorf("the tree of %s: %s, %v; want %s", n, dir, err, trees[i])
		}
	}
	failed := errors.New("no answer")
	if rep, err := s.GC(t.Context(), GCOptions{Age: -1, Keep: func(context.Context) ([]string, error) { return nil, failed }}); !errors.Is(err, failed) || rep.Blobs+rep.Trees != 0 {
		t.Errorf("GC that does not know what to keep: %+v, %v; want nothing removed", rep, err)
	}
	testenv.Check(t, os.Truncate(s.blob(one), 1))
	if rep, err := s.GC(t.Context(), GCOptions{Age: -1, Keep: keep}); err == nil || rep.Blobs+rep.Trees != 0 {
		t.Errorf("GC with a damaged image to keep: %+v, %v; want nothing removed", rep, err)
	}
	if rep, err := s.GC(t.Context(), GCOptions{Age: -1}); err != nil || rep.Trees != 2 {
		t.Errorf("GC without images to keep: %+v, %v; want both trees removed", rep, err)
	}
	if _, err := s.Get(many.String(), nil); !errors.As(err, new(*NotFoundError)) {
		t.Errorf("Get of a removed image: %v; want a NotFoundError", err)
	}
	last, err := s.Put(t.Context(), "last", img)
	testenv.Check(t, err)
	testenv.Check(t, s.Remove("last"))
	ls, err := img.Layers()
	testenv.Check(t, err)
	layer, err := ls[0].Digest()
	testenv.Check(t, err)
	testenv.Check(t, os.Remove(s.blob(layer)))
	if _, err := s.Get(last.String(), nil); !errors.As(err, new(*NotFoundError)) {
		t.Errorf("Get of an image without a layer and a name: %v; want a NotFoundError, so that it is pulled again", err)
	}
}

// TestNotAnImage checks digests of blobs that are not manifests, and manifests without a media type.
func TestNotAnImage(t *testing.T) {
	s, err := Open(t.TempDir())
	testenv.Check(t, err)
	img, err := random.Image(100, 1)
	testenv.Check(t, err)
	_, err = s.Put(t.Context(), "a", img)
	testenv.Check(t, err)
	ls, err := img.Layers()
	testenv.Check(t, err)
	layer, err := ls[0].Digest()
	testenv.Check(t, err)
	config, err := img.ConfigName()
	testenv.Check(t, err)
	for _, h := range []v1.Hash{layer, config} {
		if _, err := s.Get(h.String(), nil); err == nil || !strings.Contains(err.Error(), "is not the digest of an image") {
			t.Errorf("Get of a blob: %v; want that it is not an image", err)
		}
	}
	raw, err := img.RawManifest()
	testenv.Check(t, err)
	plain := regexp.MustCompile(`"mediaType":"application/vnd\.[a-z.]*manifest[^"]*",`).ReplaceAll(raw, nil)
	d, err := s.putManifest(t.Context(), plain, "")
	testenv.Check(t, err)
	if got, err := s.Get(d.Digest.String(), nil); err != nil || validate.Image(got) != nil || bytes.Equal(plain, raw) {
		t.Errorf("a manifest without a media type: %v", err)
	}
}
