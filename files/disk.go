package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"hpcc/text"
)

// Copy copies a file. The copy must not exist yet; only its owner can read and write it.
func Copy(from, to string) error {
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

// Key returns a key for a version of a file or directory, from its device, inode, size
// and times.
func Key(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", fmt.Errorf("opening %q: %w", path, err)
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()), nil
}

// Freed counts the bytes that removing files frees. A file with several names counts once, with
// the last of them. The zero value is ready for use.
type Freed struct {
	Each func()           // is called for each file, unless nil
	left map[inode]uint64 // number of names that are not found yet, of files with several
}

type inode struct{ dev, ino uint64 }

// Count returns how many bytes removing path frees after the paths of earlier calls were removed.
// It does not matter whether they already are. Files that cannot be examined do not count.
func (f *Freed) Count(path string) (n int64) {
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			n += f.entry(d)
		}
		return nil
	})
	return n
}

// CountFile is Count for a file that was examined.
func (f *Freed) CountFile(fi fs.FileInfo) int64 { return f.entry(fs.FileInfoToDirEntry(fi)) }

// entry counts one file.
func (f *Freed) entry(d fs.DirEntry) int64 {
	if f.Each != nil {
		f.Each()
	}
	if !d.Type().IsRegular() {
		return 0
	}
	fi, err := d.Info()
	if err != nil {
		return 0
	}
	if f.left == nil {
		f.left = map[inode]uint64{}
	}
	st := fi.Sys().(*syscall.Stat_t)
	key := inode{uint64(st.Dev), st.Ino}
	left, known := f.left[key]
	if !known {
		left = uint64(st.Nlink)
	}
	if left > 1 {
		f.left[key] = left - 1
		return 0
	}
	delete(f.left, key)
	return fi.Size()
}

// RemoveAll is the function [RemoveAll]. It returns what Count would, and reads each directory once.
func (f *Freed) RemoveAll(path string) (n int64, err error) {
	var dirs []string
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		n += f.entry(d)
		if d.IsDir() {
			dirs = append(dirs, p)
		} else {
			_ = os.Remove(p)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir)
	}
	return n, RemoveAll(path) // the rest, and the error
}

// RemoveAll removes a tree, including directories whose mode denies their owner.
func RemoveAll(path string) error {
	if root, err := os.OpenRoot(path); err == nil {
		removeBelow(root)
	}
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

// removeBelow removes what it can below a directory, in several directories at a time, because on a
// network file system each removal waits for a server.
func removeBelow(root *os.Root) {
	var group errgroup.Group
	group.SetLimit(MaxParallel(16, 64)) // each keeps the directories above it open
	var below func(dir *os.Root)
	below = func(dir *os.Root) {
		defer dir.Close()
		var subdirs sync.WaitGroup
		defer subdirs.Wait()
		entries, _ := fs.ReadDir(dir.FS(), ".")
		for _, e := range entries {
			name := e.Name()
			if !e.IsDir() {
				_ = dir.Remove(name)
				continue
			}
			sub, err := dir.OpenRoot(name)
			if err != nil {
				continue
			}
			subdirs.Add(1)
			remove := func() error {
				defer subdirs.Done()
				below(sub)
				return dir.Remove(name)
			}
			if !group.TryGo(remove) {
				_ = remove()
			}
		}
	}
	below(root)
	_ = group.Wait()
}

// reservedFiles is the number of descriptors that an hpcc command uses outside its parallel
// tasks: standard streams, Go's poller, the store, an archive.
const reservedFiles = 12

// MaxParallel returns how many tasks may run in parallel if each opens up to files
// descriptors: want, or fewer (at least 1) if the limit of open files (ulimit -n) requires it.
func MaxParallel(want, files int) int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil || l.Cur > 1<<20 {
		return want
	}
	return max(1, min(want, (int(l.Cur)-reservedFiles)/files))
}

// ReadOnlyHint adds advice to an error that came from writing below dir, if the user cannot write
// there.
func ReadOnlyHint(err error, dir, advice string) error {
	var pe *fs.PathError
	if !errors.As(err, &pe) || !strings.HasPrefix(pe.Path, dir+"/") ||
		(!errors.Is(err, syscall.EROFS) && !errors.Is(err, fs.ErrPermission)) {
		return err
	}
	return text.Hint(err, "%s", advice)
}

// FullDiskHint adds a hint to an error that a full disk or quota caused. dir is a directory on that file system.
func FullDiskHint(err error, dir string) error {
	if (!errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT)) || strings.Contains(err.Error(), "free space") {
		return err
	}
	return text.Hint(err, "free space on the file system of %s, or use a directory on another one; "+
		"\"hpcc doctor\" shows the free space of the store", dir)
}
