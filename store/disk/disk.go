// Package disk copies, names and removes files, and reports what a file system and the
// limit of open files allow. It knows nothing of a store.
package disk

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CopyFile copies the bytes of a file to a name that does not exist, for the
// user alone to read and write.
func CopyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return err
}

// FileKey names a copy of a file or directory: by its device, inode, size and
// times, so that one that was changed is another.
func FileKey(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("opening %q: %w", path, err)
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()), nil
}

// RemoveAll removes a tree, also one with directories that deny their owner.
func RemoveAll(path string) error {
	if err := os.RemoveAll(path); err == nil {
		return nil
	}
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			if fi, serr := os.Lstat(p); serr == nil && fi.Mode().Perm()&0o700 != 0o700 {
				_ = os.Chmod(p, 0o700)
				if err != nil {
					return RemoveAll(p)
				}
			}
		}
		return nil
	})
	return os.RemoveAll(path)
}

// keptOpen is how many descriptors a command of hpcc uses besides those of the
// work that it divides: standard streams, Go's poller, the store, an archive.
const keptOpen = 12

// AtOnce returns how many pieces of work may go on at the same time when each
// opens up to files descriptors: want, or fewer (at least 1) where the limit of
// open files (ulimit -n) does not allow that many.
func AtOnce(want, files int) int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil || l.Cur > 1<<20 {
		return want
	}
	return max(1, min(want, (int(l.Cur)-keptOpen)/files))
}
