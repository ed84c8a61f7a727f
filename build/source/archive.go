package source

import (
	"archive/tar"
	"bufio"
	"compress/bzip2"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"hpcc/store"
)

// Archive opens a file when it is a tar archive, plain or packed with gzip,
// zstd, xz or bzip2: by content, as ADD decides, not by name. An error says that
// ADD would unpack the file and cannot: it is damaged, or packed in a way that
// is not known here.
func Archive(file string) (io.ReadCloser, bool, error) {
	r, err := unpacked(file)
	if err != nil {
		return nil, false, err
	}
	_, err = tar.NewReader(r).Next()
	r.Close()
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return nil, false, fmt.Errorf("%w: pack it again without zstd --long", err)
	}
	if err != nil {
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
	head, _ := in.Peek(6) // every archive has at least 6 bytes
	r := io.Reader(in)
	switch h := string(head); {
	case strings.HasPrefix(h, "BZh"):
		r = bzip2.NewReader(in)
	case h == "\xfd7zXZ\x00":
		r, err = xz.NewReader(in)
	default:
		if z, zerr := store.Uncompressed(file); zerr == nil {
			f.Close()
			return z, nil
		} // else it only begins as one that is packed does
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
