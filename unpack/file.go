package unpack

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// putFile writes a regular file.
func (t *tree) putFile(name string, h *tar.Header, r io.Reader) error {
	if err := t.checkSparse(h); err != nil {
		return err
	}
	fd, mode := -1, granted(uint32(h.Mode), false)
	createMode := mode
	if !plain(h) {
		createMode |= 0o200 // setting attributes requires write permission
	}
	parent, err := t.inDir(name, func(d *directory, base string) (err error) {
		fd, err = unix.Openat(d.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, createMode)
		return err
	})
	if err != nil {
		return err
	}
	f := newFile{name: name, fd: fd, head: h, mode: mode, chmod: createMode != mode || mode&t.umask != 0 || !parent.exact(fd, mode)}
	t.mark(name)
	t.rep.Files++
	if h.Mode&0o6000 != 0 {
		t.rep.SetID++
	}
	data, isSmall, err := t.small(h, r)
	if isSmall && err == nil {
		f.data = data
		t.begin(f)
		t.rep.Bytes += int64(len(data))
		return nil
	}
	var n int64
	if err == nil {
		n, err = t.copyData(fd, r)
	}
	t.rep.Bytes += n
	return t.complete(f, err)
}

func (t *tree) setTimes(fd int, m unix.Timespec) error {
	if !t.oldTimes.Load() {
		err := unix.UtimesNanoAt(fd, "", []unix.Timespec{m, m}, unix.AT_EMPTY_PATH)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return err
		}
		t.oldTimes.Store(true) // before Linux 5.8
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), []unix.Timespec{m, m}, 0)
}

// holeSize is the smallest run of zeros, in bytes, that is not written.
const holeSize = 64 << 10

// copyData writes a file's bytes and returns their number. Long runs of zeros become holes,
// including those of sparse entries.
func (t *tree) copyData(fd int, r io.Reader) (int64, error) {
	var size, written int64
	for {
		b, err := t.piece(r)
		if err != nil && !errors.Is(err, io.EOF) {
			return size, err
		}
		for len(b) > 0 {
			k := dataLen(b)
			if err := pwrite(fd, b[:k], size); err != nil {
				return size, err
			}
			if size += int64(k); k > 0 {
				written = size
			}
			hole := holeLen(b[k:])
			b, size = b[k+hole:], size+int64(hole)
		}
		if err != nil {
			break
		}
	}
	if written < size {
		return size, unix.Ftruncate(fd, size)
	}
	return size, nil
}

// piece returns the next bytes of a file, which are valid until the next call.
func (t *tree) piece(r io.Reader) ([]byte, error) {
	if t.content != nil {
		return t.content.piece(r, t.buf)
	}
	n, err := 0, error(nil)
	for n < len(t.buf) && err == nil { // io.ReadFull would report a truncated archive as the file's end
		var m int
		m, err = r.Read(t.buf[n:])
		n += m
	}
	return t.buf[:n], err
}

// dataLen returns the number of bytes of b before its first hole.
func dataLen(b []byte) int {
	for n := 0; ; n += holeSize {
		if n+holeSize > len(b) {
			return len(b)
		}
		if isZero(b[n : n+holeSize]) {
			return n
		}
	}
}

// holeLen returns the length of the hole at the start of b.
func holeLen(b []byte) int {
	n := 0
	for n+holeSize <= len(b) && isZero(b[n:n+holeSize]) {
		n += holeSize
	}
	return n
}

func isZero(b []byte) bool { return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1]) }

func pwrite(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// maxSparse bounds the total size of one layer's sparse files, in bytes: holes take no space
// in an archive but time to process.
const maxSparse = 256 << 30

// checkSparse refuses sparse entries larger than any program needs.
func (t *tree) checkSparse(h *tar.Header) error {
	if h.Typeflag != tar.TypeGNUSparse && !hasSparseRecord(h) {
		return nil
	}
	if h.Size > maxSparse-t.sparse {
		return fmt.Errorf("sparse file of %d bytes; the sparse files of a layer may have at most %d bytes in total",
			h.Size, int64(maxSparse))
	}
	t.sparse += h.Size
	return nil
}

func hasSparseRecord(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// readUmask returns the process's umask. If it cannot be read (before Linux 4.7), readUmask
// returns all bits: umask(2) would change the umask.
func readUmask() uint32 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0o777
	}
	return umaskOf(string(b))
}

// umaskOf parses the umask in the format of /proc/self/status.
func umaskOf(status string) uint32 {
	_, rest, _ := strings.Cut(status, "\nUmask:\t")
	line, _, _ := strings.Cut(rest, "\n")
	m, err := strconv.ParseUint(line, 8, 32)
	if err != nil {
		return 0o777
	}
	return uint32(m)
}
