// Package input reads untrusted input of packages and users.
//
// Names in archives cannot leave a directory; sizes, numbers of entries and zip directories
// are limited. External text is shortened for messages; lists are in natural order: 1.9 is
// before 1.10.
package input

import (
	"archive/tar"
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"hpcc/text"
)

// MaxFiles limits the entries of an archive.
const MaxFiles = 2_000_000

// WalkTar calls fn for each entry of a tar archive, with its name cleaned and checked. limit is
// the largest size of the archive, in bytes.
func WalkTar(r io.Reader, limit int64, fn func(h *tar.Header, r io.Reader) error) error {
	limited := &io.LimitedReader{R: r, N: limit}
	tooLarge := fmt.Errorf("unpacks to more than %d bytes", limit)
	tr := tar.NewReader(limited)
	sizes := int64(0) // of the files; the archive does not contain the holes of sparse files
	for n := 0; ; n++ {
		h, err := tr.Next()
		if limited.N <= 0 {
			return tooLarge
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n >= MaxFiles {
			return fmt.Errorf("more than %d files", MaxFiles)
		}
		if h.Size > limit-sizes {
			return tooLarge
		}
		sizes += h.Size
		clean, err := CleanPath(h.Name)
		if err != nil {
			return fmt.Errorf("entry %q: %w", text.Short(h.Name), err)
		}
		if clean == "." {
			continue
		}
		h.Name = clean
		if err := fn(h, tr); err != nil {
			if limited.N <= 0 {
				return tooLarge
			}
			return fmt.Errorf("entry %q: %w", text.Short(clean), err)
		}
	}
}

// CleanPath returns the shortest equivalent of p. It refuses paths that leave the prefix, or
// that contain control characters.
func CleanPath(p string) (string, error) {
	if p == "" || len(p) > 4096 || strings.ContainsFunc(p, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return "", errors.New("the name is empty, too long, or has control characters")
	}
	c := path.Clean(p)
	if path.IsAbs(p) || c == ".." || strings.HasPrefix(c, "../") {
		return "", errors.New("path leaves the prefix")
	}
	return c, nil
}

// Lines returns the non-empty lines of a file, without surrounding blanks.
func Lines(b []byte) []string {
	var out []string
	for l := range strings.SplitSeq(string(b), "\n") {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return out
}

// ReadAll reads all of r. It returns an error if r has more than limit bytes.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("larger than %d bytes", limit)
	}
	return b, err
}

// A ZipFile is an open zip archive.
type ZipFile struct {
	*zip.Reader
	*os.File
}

// OpenZip opens a zip archive whose directory has at most limit bytes. The limit is needed
// because archive/zip holds the directory in memory, at several times its size.
func OpenZip(file string, limit int64) (*ZipFile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	d := &directoryReader{f: f, left: limit + 1<<17} // finding the directory takes up to 64 kB more
	z, err := zip.NewReader(d, fi.Size())
	if err != nil {
		f.Close()
		if d.left < 0 {
			err = fmt.Errorf("zip directory larger than %d bytes", limit)
		}
		return nil, err
	}
	d.opened = true
	return &ZipFile{z, f}, nil
}

// A directoryReader reads a file. It limits the number of bytes read until the archive is open.
type directoryReader struct {
	f      *os.File
	left   int64
	opened bool
}

func (d *directoryReader) ReadAt(p []byte, off int64) (int, error) {
	if d.opened {
		return d.f.ReadAt(p, off)
	}
	if d.left -= int64(len(p)); d.left < 0 {
		return 0, zip.ErrFormat
	}
	return d.f.ReadAt(p, off)
}
