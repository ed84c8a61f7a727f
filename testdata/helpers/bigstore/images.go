package bigstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"hpcc/files"
)

// ImageName returns the name of image i.
func ImageName(i int) string {
	if i%3 == 0 {
		return fmt.Sprintf("registry.example.org/lab%d/tool%d:1.%d", i%7, i%40, i)
	}
	return fmt.Sprintf("tool%d:%d", i%40, i)
}

// steps is the number of build steps of an image, each with a record in the cache.
const steps = 20

func makeImages(dir string, size Size, now time.Time) error {
	var g errgroup.Group
	g.SetLimit(4)
	n := size.Images + size.Unused
	for i := range n {
		made := now.Add(-period / time.Duration(n+1) * time.Duration(n-i))
		if i >= size.Images {
			made = now.Add(-30 * 24 * time.Hour)
		}
		g.Go(func() error { return makeImage(dir, i, size, made) })
	}
	return g.Wait()
}

// makeImage writes the blobs, the tree, the names and the cached steps of an image.
func makeImage(dir string, i int, size Size, made time.Time) error {
	var layers []v1.Descriptor
	cfg := v1.ConfigFile{Architecture: "amd64", OS: "linux", Created: v1.Time{Time: made}, RootFS: v1.RootFS{Type: "layers"}}
	for k := range 5 {
		text := fmt.Sprintf("layer %d of image %d", k, i)
		if k < 3 {
			text = fmt.Sprintf("layer %d of base %d", k, i%10)
		}
		d := v1.Descriptor{MediaType: types.OCILayer, Size: size.Layer, Digest: digest([]byte(text))}
		if err := sparse(blob(dir, d.Digest), size.Layer, made); err != nil {
			return err
		}
		layers = append(layers, d)
		cfg.RootFS.DiffIDs = append(cfg.RootFS.DiffIDs, digest([]byte("plain "+text)))
	}
	for k := range steps {
		cfg.History = append(cfg.History, v1.History{Created: v1.Time{Time: made}, CreatedBy: fmt.Sprintf("RUN step-%d --of-tool=%d", k, i), EmptyLayer: k%4 != 0})
		record := fmt.Sprintf(`{"layer":%q,"diff":%q}`, layers[k%5].Digest, cfg.RootFS.DiffIDs[k%5])
		key := digest(fmt.Appendf(nil, "step %d of %d", k, i)).Hex
		if err := writeAt(filepath.Join(dir, "cache", "build", key), files.SealText([]byte(record)), made); err != nil {
			return err
		}
	}
	b, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Layers: layers,
		Config: v1.Descriptor{MediaType: types.OCIConfigJSON, Size: int64(len(b)), Digest: digest(b)}}
	if err := writeAt(blob(dir, m.Config.Digest), b, made); err != nil {
		return err
	}
	if b, err = json.Marshal(m); err != nil {
		return err
	}
	d := v1.Descriptor{MediaType: m.MediaType, Size: int64(len(b)), Digest: digest(b), Platform: cfg.Platform()}
	if err := writeAt(blob(dir, d.Digest), b, made); err != nil {
		return err
	}
	if err := makeTree(filepath.Join(dir, "trees", d.Digest.Hex), size.Files, made); err != nil || i >= size.Images {
		return err
	}
	names := []string{ImageName(i)}
	if i%5 == 0 {
		names = append(names, fmt.Sprintf("alias%d", i))
	}
	for _, name := range names {
		b, err := files.SealJSON(struct {
			v1.Descriptor
			Source string `json:"source"`
		}{d, "pull " + name})
		if err == nil {
			err = writeAt(filepath.Join(dir, "refs", url.QueryEscape(name)), b, made)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// linksOfFile is the number of names that a file gets. ext4 allows 65,000.
const linksOfFile = 60_000

// makeTree writes a tree with a number of files, 20 in each directory.
func makeTree(dir string, files int, made time.Time) error {
	sub, source := "", ""
	for i := range files {
		if i%20 == 0 {
			sub = filepath.Join(dir, fmt.Sprintf("opt/conda/lib/python3.12/site-packages/package%d/sub%d", i/400, i/20%20))
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return err
			}
		}
		file := filepath.Join(sub, fmt.Sprintf("module%d.py", i))
		err := error(nil)
		if i%linksOfFile == 0 {
			source = file
			err = os.WriteFile(file, bytes.Repeat([]byte("x = 1\n"), 700), 0o644)
		} else {
			err = os.Link(source, file)
		}
		if err != nil {
			return err
		}
	}
	mark := filepath.Join(dir, ".hpcc")
	if err := os.MkdirAll(mark, 0o755); err != nil {
		return err
	}
	return os.Chtimes(mark, made, made)
}

func digest(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

func blob(dir string, h v1.Hash) string { return filepath.Join(dir, "blobs", h.Algorithm, h.Hex) }

// sparse creates a file of n bytes without data.
func sparse(file string, n int64, at time.Time) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(n); err != nil {
		return err
	}
	return os.Chtimes(file, at, at)
}

// writeAt writes a file that was last changed at a time.
func writeAt(file string, b []byte, at time.Time) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, bytes.NewReader(b)); err != nil {
		return err
	}
	return os.Chtimes(file, at, at)
}
