// Package atomicfile reads and writes the small files of jobs.
//
// A file is written under another name and renamed, so that a reader sees the old
// content or the new one. It is never open to more users than its directory. Read
// accepts regular files of bounded size only, because directories of jobs are passed
// on between users. The package locks nothing: the last writer wins.
package atomicfile

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

// WritePrivate is [WriteSynced] for a file that only its owner can read.
func WritePrivate(file, text string) error { return write(file, []byte(text), 0o600, true) }

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
	return write(file, data, 0o666&Perm(file), false)
}

// WriteSynced is [Write] for a file that cannot be written again: after a power cut it
// has the old content or the new one.
func WriteSynced(file string, data []byte) error {
	return write(file, data, 0o666&Perm(file), true)
}

// write writes a file under another name and renames it into place.
func write(file string, data []byte, mode fs.FileMode, synced bool) error {
	f, err := Temp(file, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
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

// Read returns the content of a regular file of at most [MaxSize] bytes.
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
