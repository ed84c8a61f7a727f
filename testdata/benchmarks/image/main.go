// Command image writes an image for benchmarks of unpacking. It has a root
// directory, a layer of many small files, and a layer that changes some of them.
// It writes two OCI layouts, one with gzip layers and one with zstd layers. The
// same arguments give the same image.
//
//	image ROOT.tar SCALE GZIP-DIR ZSTD-DIR
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"log"
	"math/rand"
	"os"
	"strconv"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 5 {
		log.Fatal("usage: image ROOT.tar SCALE GZIP-DIR ZSTD-DIR")
	}
	scale, err := strconv.Atoi(os.Args[2])
	if err != nil || scale < 1 {
		log.Fatalf("scale %q is not a positive number", os.Args[2])
	}
	root, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	layers := [][]byte{root, many(10_000 * scale), changes(1_000 * scale)}
	for dir, zip := range map[string]bool{os.Args[3]: true, os.Args[4]: false} {
		if err := write(dir, layers, zip); err != nil {
			log.Fatal(err)
		}
	}
}

// words are used for text that compresses like source code.
var words = bytes.Fields([]byte("import numpy as np def class return self for in range if not None True lambda x y shape dtype array float64 int32 axis sum mean reshape kernel index batch model layer weights bias ( ) [ ] { } : , = + - * / # \"\"\" assert raise ValueError"))

// many returns a layer of n files, most of them small, some large and hard to compress.
func many(n int) []byte {
	r := rand.New(rand.NewSource(1))
	return tarball(func(w *tar.Writer) {
		for i := range n {
			var data []byte
			if i%50 == 0 {
				data = make([]byte, 200_000+r.Intn(1_000_000))
				r.Read(data[:len(data)/2])
			} else {
				for want := r.Intn(40_000); len(data) < want; {
					data = append(append(data, words[r.Intn(len(words))]...), " \n"[r.Intn(8)/7])
				}
			}
			file(w, fmt.Sprintf("opt/lib/p%d/m%d/f%d.py", i%97, i%11, i), data)
		}
	})
}

// changes returns a layer that replaces some of these files and removes others.
func changes(n int) []byte {
	return tarball(func(w *tar.Writer) {
		for i := range n {
			k := i * 9
			name := fmt.Sprintf("opt/lib/p%d/m%d/f%d.py", k%97, k%11, k)
			if i%2 == 0 {
				name = fmt.Sprintf("opt/lib/p%d/m%d/.wh.f%d.py", k%97, k%11, k)
			}
			file(w, name, nil)
		}
	})
}

func tarball(fill func(*tar.Writer)) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	fill(w)
	w.Close()
	return out.Bytes()
}

func file(w *tar.Writer, name string, data []byte) {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		log.Fatal(err)
	}
	w.Write(data)
}

// write packs the layers and writes an image of them.
func write(dir string, layers [][]byte, zip bool) error {
	img, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		&v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		return err
	}
	for _, l := range layers {
		var out bytes.Buffer
		var w io.WriteCloser = gzip.NewWriter(&out)
		mt := types.OCILayer
		if !zip {
			mt = types.OCILayerZStd
			if w, err = zstd.NewWriter(&out); err != nil {
				return err
			}
		}
		w.Write(l)
		if err := w.Close(); err != nil {
			return err
		}
		diffID, _, err := v1.SHA256(bytes.NewReader(l))
		if err != nil {
			return err
		}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: packed{static.NewLayer(out.Bytes(), mt), diffID}}); err != nil {
			return err
		}
	}
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return p.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "bench"}))
}

// packed is a compressed layer with a known diff ID.
type packed struct {
	v1.Layer
	diffID v1.Hash
}

func (p packed) DiffID() (v1.Hash, error) { return p.diffID, nil }
