// Package files writes, reads, copies and removes files on shared file systems.
//
//	files.go    small files that appear complete, by rename; reads of bounded size
//	open.go     files that may be FIFOs, so that a signal ends the wait
//	seal.go     records with a checksum
//	private.go  the user's own directories in shared ones, such as /tmp
//	system.go   what a file system can do and how much of it is free
//	disk.go     copies, removal of trees, the limit of open files
//	toml.go     TOML from outside
//
// It locks nothing: the last writer wins. It is one of the foundations, which every package may
// import.
package files

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Perm returns the permissions of the directory of file, or 0700 if they cannot be read.
func Perm(file string) fs.FileMode {
	fi, err := os.Stat(filepath.Dir(file))
	if err != nil {
		return 0o700
	}
	return fi.Mode().Perm()
}

// Create opens a file for writing. A new file has the mode that the umask leaves,
// without the permissions that its directory does not grant.
func Create(file string, flags int) (*os.File, error) {
	return os.OpenFile(file, flags|os.O_CREATE, 0o666&Perm(file))
}

// MakeDir makes a directory and its parents; the permissions follow the rule of [Create].
func MakeDir(dir string) error {
	if fi, err := os.Stat(dir); err == nil && fi.IsDir() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o777); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o777&Perm(dir)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// Temp creates a sibling of file with a random name, open for reading and writing.
func Temp(file string, mode fs.FileMode) (*os.File, error) {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	name := filepath.Join(filepath.Dir(file), ".new-"+hex.EncodeToString(b[:]))
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
}

// Write replaces the content of file atomically; the mode follows the rule of [Create].
func Write(file string, data []byte) error {
	return Replace(file, data, 0o666&Perm(file))
}

// WriteSynced is [Write] for a file that cannot be written again: after a power cut it
// has the old content or the new one.
func WriteSynced(file string, data []byte) error {
	return replace(file, data, 0o666&Perm(file), true)
}

// WritePrivate is [WriteSynced] for a file that only its owner can read.
func WritePrivate(file, content string) error { return replace(file, []byte(content), 0o600, true) }

// Replace replaces the content of file atomically. A reader sees the old content or the new one. The
// file gets the given mode, less the umask.
func Replace(file string, data []byte, mode fs.FileMode) error {
	return replace(file, data, mode, false)
}

func replace(file string, data []byte, mode fs.FileMode, synced bool) error {
	f, err := Temp(file, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return Commit(f, err, file, synced)
}

// Commit closes a file that [Temp] created, and gives it its final name, unless err is set. With synced,
// the data is on disk before the name. If it fails, it removes the file.
func Commit(f *os.File, err error, file string, synced bool) error {
	if err == nil && synced {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// MaxSize is the largest file that [Read] accepts, in bytes.
const MaxSize = 1 << 20

// Read returns the content of a regular file of at most [MaxSize] bytes. It refuses other files,
// because directories of jobs are passed on between users.
func Read(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // do not block on a FIFO
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+1))
	if err == nil && len(b) > MaxSize {
		err = fmt.Errorf("has more than %d bytes", MaxSize)
	}
	return b, err
}
