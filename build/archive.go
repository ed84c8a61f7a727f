package build

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// archive opens a file as a layer when it is a tar archive, plain or packed
// with gzip, zstd or bzip2: by content, as ADD decides, not by name.
func archive(file string) (v1.Layer, bool) {
	f, err := os.Open(file)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil {
		return nil, false
	}
	open := func() (io.ReadCloser, error) { return os.Open(file) }
	if bytes.HasPrefix(head, []byte("BZh")) {
		open = func() (io.ReadCloser, error) {
			f, err := os.Open(file)
			if err != nil {
				return nil, err
			}
			return struct {
				io.Reader
				io.Closer
			}{bzip2.NewReader(bufio.NewReader(f)), f}, nil
		}
	}
	layer, err := tarball.LayerFromOpener(open)
	if err != nil {
		return nil, false
	}
	r, err := layer.Uncompressed()
	if err != nil {
		return nil, false
	}
	defer r.Close()
	_, err = tar.NewReader(r).Next()
	return layer, err == nil
}
