package conda

import (
	"archive/zip"
	"fmt"
	"os"
)

// A zipFile is a zip archive that is open.
type zipFile struct {
	*zip.Reader
	*os.File
}

// openZip opens a zip archive whose directory has at most most bytes: archive/zip
// holds all of it in memory, several times its size, and a file may be nothing else.
func openZip(file string, most int64) (*zipFile, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	d := &directoryReader{f: f, left: most + 1<<17} // to find it takes 64 kB and some
	z, err := zip.NewReader(d, fi.Size())
	if err != nil {
		f.Close()
		if d.left < 0 {
			err = fmt.Errorf("its directory has more than %d bytes", most)
		}
		return nil, err
	}
	d.opened = true
	return &zipFile{z, f}, nil
}

// A directoryReader reads a file, and until it is opened only so much of it.
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
