package store_test

import (
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"hpcc/store"
	"hpcc/testdata/helpers/bigstore"
	"hpcc/testdata/helpers/testenv"
)

// manyImages is the size of the stores of the tests below. Four of the images have a second name.
var manyImages = bigstore.Size{Images: 20, Unused: 2, Files: 60, Layer: 1 << 20}

func storeOfImages(t *testing.T) *store.Store {
	t.Helper()
	dir := t.TempDir()
	testenv.Check(t, bigstore.Make(dir, manyImages, time.Now()))
	s, err := store.Open(dir)
	testenv.Check(t, err)
	return s
}

// TestImagesOpens counts the files that are read to list images.
func TestImagesOpens(t *testing.T) {
	s := storeOfImages(t)
	names := 0
	opened := bigstore.Opened(t, s.Dir(), func() {
		list, err := s.Images()
		if names = len(list); err != nil || names != 24 {
			t.Errorf("%d images, %v; want 24", names, err)
		}
	})
	if n := bigstore.Count(opened, "????????????????????????????????????????????????????????????????"); n > 2*names { // blobs
		t.Errorf("it reads %d manifests and configurations of %d images; want 2 of each", n, names)
	}
	opened = bigstore.Opened(t, s.Dir(), func() {
		list, err := s.Names()
		if err != nil || len(list) != names || !slices.IsSorted(list) {
			t.Errorf("names: %q, %v", list, err)
		}
		var none *store.NotFoundError
		if _, err = s.Get("alais10", nil); !errors.As(err, &none) || none.Advice() != `did you mean "alias10"?` {
			t.Errorf("Get(alais10): %v; want the suggestion alias10", err)
		}
	})
	delete(opened, "refs")
	if len(opened) > 0 {
		t.Errorf("names and suggestions read files: %v", opened)
	}
}

// TestGCOpens checks that a collection reads no directory of a tree that is in use, and each of another
// tree once.
func TestGCOpens(t *testing.T) {
	for _, dryRun := range []bool{true, false} {
		s := storeOfImages(t)
		used := map[string]bool{}
		list, err := s.Images()
		testenv.Check(t, err)
		for _, e := range list {
			used[e.Digest.Hex] = true
		}
		all, err := s.Trees()
		testenv.Check(t, err)
		var last int64
		opened := bigstore.Opened(t, s.Dir(), func() {
			rep, err := s.GC(t.Context(), store.GCOptions{DryRun: dryRun, Progress: func(n int64) {
				if n <= last {
					t.Errorf("the number of files goes from %d to %d", last, n)
				}
				last = n
			}})
			if err != nil || rep.Trees != 2 || rep.Blobs != 8 {
				t.Errorf("GC: %+v, %v; want 2 trees and 8 blobs", rep, err)
			}
		})
		if last < 400 {
			t.Errorf("it reports %d files", last)
		}
		for _, hex := range all {
			for path, n := range opened {
				below := bigstore.Below(map[string]int{path: n}, filepath.Join("trees", hex))
				if below > 0 && (used[hex] || n > 1) {
					t.Errorf("dry run %v: it opens %s %d times; used: %v", dryRun, path, n, used[hex])
				}
			}
		}
	}
}

// TestPullOpens checks that a pull reads the layers that are in the store once, and shows how far it is.
func TestPullOpens(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/lab/tool:1"
	img, err := random.Image(4<<20, 2)
	testenv.Check(t, err)
	layers, err := img.Layers()
	testenv.Check(t, err)
	var size int64
	for _, l := range layers {
		n, err := l.Size()
		testenv.Check(t, err)
		size += n
	}
	to, err := name.ParseReference(ref)
	testenv.Check(t, err)
	testenv.Check(t, remote.Write(to, img))
	s, err := store.Open(t.TempDir())
	testenv.Check(t, err)
	for _, when := range []string{"the first", "the second"} {
		var calls, last int64
		opened := bigstore.Opened(t, s.Dir(), func() {
			_, err := s.Pull(t.Context(), ref, store.Remote{PlainHTTP: true, Progress: func(done, total int64) {
				if calls++; done < last || total != size {
					t.Errorf("%s pull: %d after %d of %d bytes", when, done, last, total)
				}
				last = done
			}})
			testenv.Check(t, err)
		})
		if last != size || calls < 50 {
			t.Errorf("%s pull: %d of %d bytes in %d steps", when, last, size, calls)
		}
		for _, l := range layers {
			h, err := l.Digest()
			testenv.Check(t, err)
			if n := opened[filepath.Join("blobs", "sha256", h.Hex)]; n > 1 || (n > 0 && when == "the first") {
				t.Errorf("%s pull opens a layer %d times", when, n)
			}
		}
	}
}
