package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	oci "github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"hpcc/store/gzip"
	"hpcc/testdata/helpers/testenv"
)

// layoutOf writes a layout with images of two layers each.
func layoutOf(t *testing.T, images int) (string, v1.Image) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "layout")
	p, err := oci.Write(dir, empty.Index)
	testenv.Check(t, err)
	var img v1.Image
	for range images {
		img, err = random.Image(5000, 2)
		testenv.Check(t, err)
		testenv.Check(t, p.AppendImage(img))
	}
	return dir, img
}

// fingerprint describes all contents of a directory, with times.
func fingerprint(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintln(h, p, fi.Size(), fi.Mode(), fi.ModTime())
		return nil
	})
	testenv.Check(t, err)
	return fmt.Sprintf("%x", h.Sum(nil))
}

func TestLayoutInPlace(t *testing.T) {
	dir, want := layoutOf(t, 1)
	old := time.Now().Add(-1000 * time.Hour)
	ls, err := want.Layers()
	testenv.Check(t, err)
	first, _ := ls[0].Digest()
	testenv.Check(t, os.Chtimes(filepath.Join(dir, "blobs/sha256", first.Hex), old, old))
	before := fingerprint(t, dir)
	img, err := Layout(dir, "", nil)
	testenv.Check(t, err)
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	got, _ := img.Digest()
	if d, _ := want.Digest(); got != d {
		t.Errorf("the image is %s; want %s", got, d)
	}
	if fingerprint(t, dir) != before {
		t.Error("reading a layout changed it")
	}
}

func TestLayoutRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		images     int
		do         func(t *testing.T, dir string, m *v1.Manifest)
	}{
		{"no layout", "no such file", 1, func(t *testing.T, dir string, m *v1.Manifest) { os.Remove(filepath.Join(dir, "oci-layout")) }},
		{"several images", "2 images", 2, nil},
		{"no image", "lists no image", 0, nil},
		{"a changed configuration", "changed", 1, func(t *testing.T, dir string, m *v1.Manifest) {
			f := filepath.Join(dir, "blobs/sha256", m.Config.Digest.Hex)
			b, err := os.ReadFile(f)
			testenv.Check(t, err)
			testenv.Check(t, os.WriteFile(f, bytes.Replace(b, []byte("random"), []byte("changd"), 1), 0o644))
		}},
		{"a pipe for a manifest", "not a regular file", 1, func(t *testing.T, dir string, m *v1.Manifest) { pipe(t, filepath.Join(dir, "index.json")) }},
		{"a pipe for a configuration", "not a regular file", 1, func(t *testing.T, dir string, m *v1.Manifest) {
			pipe(t, filepath.Join(dir, "blobs/sha256", m.Config.Digest.Hex))
		}},
		{"a missing layer", "is missing", 1, func(t *testing.T, dir string, m *v1.Manifest) {
			os.Remove(filepath.Join(dir, "blobs/sha256", m.Layers[0].Digest.Hex))
		}},
		{"a layer of another size", "it has 7 bytes instead", 1, func(t *testing.T, dir string, m *v1.Manifest) {
			testenv.Check(t, os.Truncate(filepath.Join(dir, "blobs/sha256", m.Layers[0].Digest.Hex), 7))
		}},
		{"an index of itself", "bytes instead of", 1, func(t *testing.T, dir string, m *v1.Manifest) {
			// An index cannot contain its own digest, so this one is false.
			d := v1.Descriptor{MediaType: "application/vnd.oci.image.index.v1+json", Size: 10, Digest: m.Layers[0].Digest}
			b, _ := json.Marshal(v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{d}})
			for _, f := range []string{"index.json", "blobs/sha256/" + d.Digest.Hex} {
				testenv.Check(t, os.WriteFile(filepath.Join(dir, f), b, 0o644))
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, img := layoutOf(t, c.images)
			if c.do != nil {
				m, err := img.Manifest()
				testenv.Check(t, err)
				c.do(t, dir, m)
			}
			img, err := Layout(dir, "", nil)
			if err == nil {
				_, err = img.Layers()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Layout: %v; want words of %q", err, c.want)
			}
		})
	}
}

func pipe(t *testing.T, file string) {
	t.Helper()
	testenv.Check(t, os.Remove(file))
	testenv.Check(t, syscall.Mkfifo(file, 0o644))
}

// The store's layers decompress with its own decoder.
func TestStoreUsesItsDecoder(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "store"))
	testenv.Check(t, err)
	img, err := random.Image(100, 1)
	testenv.Check(t, err)
	_, err = s.Put(context.Background(), "x", img)
	testenv.Check(t, err)
	img, err = s.Get("x", nil)
	testenv.Check(t, err)
	ls, err := img.Layers()
	testenv.Check(t, err)
	id, _ := ls[0].DiffID()
	byID, err := img.LayerByDiffID(id)
	testenv.Check(t, err)
	for _, l := range []v1.Layer{ls[0], byID} {
		r, err := l.Uncompressed()
		testenv.Check(t, err)
		if rc, ok := r.(readCloser); !ok {
			t.Errorf("a layer unpacks itself with %T", r)
		} else if _, ok := rc.Reader.(*gzip.Reader); !ok {
			t.Errorf("a layer unpacks itself with %T", rc.Reader)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Error(err)
		}
		r.Close()
	}
}
