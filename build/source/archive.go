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

// Archive opens a tar archive, plain or compressed with gzip, zstd, xz or bzip2. It returns
// false if the file is not an archive. Like ADD, it decides by content, not by name. An error
// means that the file is an archive, but damaged or compressed with unsupported options.
func Archive(file string) (io.ReadCloser, bool, error) {
	r, err := unpacked(file)
	if err != nil {
		return nil, false, err
	}
	_, err = tar.NewReader(r).Next()
	r.Close()
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return nil, false, fmt.Errorf("%w: compress it again without zstd --long", err)
	}
	if err != nil {
		return nil, false, nil
	}
	r, err = unpacked(file)
	return r, err == nil, err
}

// unpacked opens a file for reading its uncompressed content.
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
		} // else the file only begins like a compressed one
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
