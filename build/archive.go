package build

import (
	"archive/tar"
	"bufio"
	"compress/bzip2"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// archive opens a file when it is a tar archive, plain or packed with gzip,
// zstd, xz or bzip2: by content, as ADD decides, not by name. An error says that
// ADD would unpack the file and cannot: it is damaged, or packed in a way that
// is not known here.
func archive(file string) (io.ReadCloser, bool, error) {
	r, err := unpacked(file)
	if err != nil {
		return nil, false, err
	}
	_, err = tar.NewReader(r).Next()
	if r.Close(); err != nil {
		return nil, false, nil
	}
	r, err = unpacked(file)
	return r, err == nil, err
}

// unpacked opens a file for reading without its compression.
func unpacked(file string) (io.ReadCloser, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReader(f)
	head, _ := in.Peek(6) // fewer bytes are no archive of any kind
	r := io.Reader(in)
	switch h := string(head); {
	case strings.HasPrefix(h, "BZh"):
		r = bzip2.NewReader(in)
	case strings.HasPrefix(h, "\x1f\x8b"):
		if z, zerr := gzip.NewReader(in); zerr == nil {
			r = z
		}
	case strings.HasPrefix(h, "\x28\xb5\x2f\xfd"):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1)); err == nil { // 1: it needs no Close
			r = z.IOReadCloser()
		}
	case h == "\xfd7zXZ\x00":
		r, err = xz.NewReader(in)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{r, f}, nil
}
