// Package rawfile accesses files through system calls only.
//
// Package os tries to register every file that it opens with epoll(7), which costs five
// system calls for each small file. Read and Write only open, read or write, and close. Path
// and ReadLink use open descriptors, so that no other process can replace the files.
package rawfile

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// Read reads an entire file. It treats a FIFO, which an image may have under any name, as
// empty.
func Read(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	return ReadAll(fd, name)
}

// ReadAll reads the rest of an open file.
func ReadAll(fd int, name string) ([]byte, error) {
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

// Write writes a file in one system call, as files in /proc/self require. flags, such as
// O_CREAT, are added to O_WRONLY.
func Write(name string, data []byte, flags int) error {
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
