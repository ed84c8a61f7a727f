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
)

// MaxFiles limits the entries of an archive.
const MaxFiles = 2_000_000

// WalkTar reads one archive within limits, with names cleaned and checked.
func WalkTar(r io.Reader, limit int64, fn func(h *tar.Header, r io.Reader) error) error {
	limited := &io.LimitedReader{R: r, N: limit}
	tooLarge := fmt.Errorf("unpacks to more than %d bytes", limit)
	tr := tar.NewReader(limited)
	sizes := int64(0) // holes of sparse files are not in the archive
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
			return fmt.Errorf("entry %q: %w", Text(h.Name), err)
		}
		if clean == "." {
			continue
		}
		h.Name = clean
		if err := fn(h, tr); err != nil {
			if limited.N <= 0 {
				return tooLarge
			}
			return fmt.Errorf("entry %q: %w", Text(clean), err)
		}
	}
}

// CleanPath refuses paths that leave the prefix, or that contain control characters.
func CleanPath(p string) (string, error) {
	if p == "" || len(p) > 4096 || strings.ContainsFunc(p, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return "", errors.New("empty or too long name, or control characters in it")
	}
	c := path.Clean(p)
	if path.IsAbs(p) || c == ".." || strings.HasPrefix(c, "../") {
		return "", errors.New("path leaves the prefix")
	}
	return c, nil
}

// Lines returns the non-empty lines of a file, without blanks around them.
func Lines(b []byte) []string {
	var out []string
	for l := range strings.SplitSeq(string(b), "\n") {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return out
}

// ReadAll reads a file of at most the given size.
func ReadAll(r io.Reader, most int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("larger than %d bytes", most)
	}
	return b, err
}

// A ZipFile is an open zip archive.
type ZipFile struct {
	*zip.Reader
	*os.File
}

// OpenZip opens a zip archive whose directory has at most most bytes, because archive/zip
// holds the directory in memory, at several times its size.
func OpenZip(file string, most int64) (*ZipFile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	d := &directoryReader{f: f, left: most + 1<<17} // finding the directory takes up to 64 kB more
	z, err := zip.NewReader(d, fi.Size())
	if err != nil {
		f.Close()
		if d.left < 0 {
			err = fmt.Errorf("zip directory larger than %d bytes", most)
		}
		return nil, err
	}
	d.opened = true
	return &ZipFile{z, f}, nil
}

// A directoryReader reads a file, with a limit until the archive is open.
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
