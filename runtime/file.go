package runtime

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// Package os asks the kernel to poll every file that it opens, which costs five
// calls for each of the small files that a start reads and writes. These
// functions open, read or write, and close.

// readSmall reads a whole file. A FIFO, which images may have under any name,
// is empty.
func readSmall(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	return readAll(fd, name)
}

// readAll reads what is left of an opened file.
func readAll(fd int, name string) ([]byte, error) {
	b := make([]byte, 0, 4096)
	for {
		n, err := unix.Read(fd, b[len(b):cap(b)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "read", Path: name, Err: err}
		}
		if n == 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

// writeSmall writes a small file in one call, as those of /proc/self want it;
// with flags O_CREAT, say.
func writeSmall(name string, data []byte, flags int) error {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC|flags, 0o644)
	if err != nil {
		return &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	n, err := unix.Write(fd, data)
	if err == nil && n < len(data) {
		err = unix.EIO
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}
