package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
	"hpcc/runtime/rootfs"
)

// If users cannot mount an overlay (before Linux 5.11), -W gives the program a copy of the
// image on the tmpfs that would have kept the changes. The copy may be as large as the
// changes; a larger image is refused before copying. If overlays work only in part (before
// Linux 6.6), small images are copied.

// smallCopy is the size in bytes up to which a copy is preferred to such an overlay.
const smallCopy = 256 << 20

// copyWriteFake copies an image of at most most bytes to the tmpfs at base, because an
// overlay does not work (why). It reports the copy on standard error, since this process is
// about to become the program. copied is false for a larger image.
func copyWriteFake(img int, why error, most int64) (copied bool, err error) {
	begun := time.Now()
	from := rawfile.Path(img) + "/." // the descriptor's path alone is a symbolic link
	var st unix.Statfs_t
	if err := unix.Statfs(rootfs.Base, &st); err != nil {
		return false, fmt.Errorf("reading the size of the tmpfs for changes: %w", err)
	}
	available := int64(st.Bavail) * int64(st.Bsize)
	need, err := memorySize(from)
	if err != nil {
		return false, fmt.Errorf("measuring the image: %w", err)
	}
	const mega = 1 << 20
	switch {
	case need > most || (need > available && most < math.MaxInt64):
		return false, nil
	case need > available:
		return false, fmt.Errorf("mounting an overlay for changes: %w; a copy of the image instead needs %d MB of memory, more than the %d MB that -W may take: allow more with -W=SIZE, or change a copy on disk: hpcc unpack IMAGE DIR; hpcc run --write ./DIR",
			why, need/mega+1, available/mega)
	}
	for _, d := range []string{"/upper", "/work"} {
		if err := os.RemoveAll(rootfs.Base + d); err != nil {
			return false, fmt.Errorf("clearing the tmpfs for a copy of the image: %w", err)
		}
	}
	if err := copyMemory(from, rootfs.Base); err != nil {
		return false, fmt.Errorf("copying the image to memory: %w", err)
	}
	fmt.Fprintf(os.Stderr, "hpcc: -W: copied the image to memory (%d MB, %.1f s), because overlays do not work here: %v\n", need/mega+1, time.Since(begun).Seconds(), why)
	return true, nil
}

// memorySize returns how many bytes of memory a tmpfs takes for a tree.
func memorySize(dir string) (sum int64, err error) {
	page := int64(os.Getpagesize())
	linked := map[uint64]bool{}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: p, Err: err}
		}
		if st.Nlink == 1 || !linked[st.Ino] {
			sum += (st.Size + page - 1) / page * page
		}
		linked[st.Ino] = st.Nlink > 1
		return nil
	})
	return sum, err
}

// copyMemory copies the tree from to the directory to, with modes, times, links and FIFOs.
// It skips extended attributes, which a run does not use.
func copyMemory(from, to string) error {
	type dirTime struct {
		path string
		st   unix.Stat_t
	}
	var dirs []dirTime
	linked := map[uint64]string{}
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return &fs.PathError{Op: "stat", Path: p, Err: err}
		}
		dst := filepath.Join(to, strings.TrimPrefix(p, filepath.Clean(from)))
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			dirs = append(dirs, dirTime{dst, st})
			if err := os.Mkdir(dst, 0o700); err != nil && !(errors.Is(err, fs.ErrExist) && dst == to) {
				return err
			}
			return nil
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return os.Symlink(target, dst)
		case unix.S_IFIFO:
			return unix.Mkfifo(dst, st.Mode&0o7777)
		case unix.S_IFREG:
			if first := linked[st.Ino]; st.Nlink > 1 && first != "" {
				return os.Link(first, dst)
			}
			linked[st.Ino] = dst
			return copyMemoryFile(p, dst, &st)
		}
		return nil // sockets do not work in a copy
	})
	for i := len(dirs) - 1; i >= 0 && err == nil; i-- { // parents after their contents
		if err = unix.Chmod(dirs[i].path, dirs[i].st.Mode&0o7777); err == nil {
			err = unix.UtimesNanoAt(unix.AT_FDCWD, dirs[i].path, []unix.Timespec{dirs[i].st.Atim, dirs[i].st.Mtim}, 0)
		}
	}
	return err
}

// CopyUp copies the files of the directory from, which a tmpfs covers, to the tmpfs's directory to.
// Both are open. The tmpfs gets the mode of the directory, unless its options o set one.
func CopyUp(from, to int, o *rootfs.Options) error {
	var st unix.Stat_t
	err := unix.Fstat(to, &st)
	if err == nil {
		err = copyMemory(rawfile.Path(from)+"/.", rawfile.Path(to))
	}
	if err == nil && slices.ContainsFunc(o.Data, func(d string) bool { return strings.HasPrefix(d, "mode=") }) {
		err = unix.Chmod(rawfile.Path(to), st.Mode&0o7777)
	}
	if err != nil {
		return fmt.Errorf("copying the files that the tmpfs covers: %w", err)
	}
	return nil
}

// copyMemoryFile copies a regular file to a new name.
func copyMemoryFile(from, to string, st *unix.Stat_t) error {
	in, err := unix.Open(from, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: from, Err: err}
	}
	defer unix.Close(in)
	out, err := unix.Open(to, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &fs.PathError{Op: "create", Path: to, Err: err}
	}
	defer unix.Close(out)
	for {
		n, err := unix.Sendfile(out, in, nil, 1<<30)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return &fs.PathError{Op: "copy", Path: from, Err: err}
		}
		if n == 0 && err == nil {
			break
		}
	}
	if err := unix.Fchmod(out, st.Mode&0o7777); err != nil {
		return &fs.PathError{Op: "chmod", Path: to, Err: err}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{st.Atim, st.Mtim}, 0)
}
