package unpack

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The disk does not show the owner of a file that a program created without chown. It
// follows from the image's information about the file's path:
//
// A file that replaces another keeps that file's owner. Programs that update a file (sed -i,
// useradd) write a new one, chown it to the owner that stat reported, which was root, and
// rename it.
//
// A file that a user's program created belongs to the user if the user may write to the
// directory. Otherwise it was created through sudo and belongs to root.

// attribute records the owner of a file that a program created, unless it is root.
func (d *differ) attribute(up string, fi, lower fs.FileInfo, from lowerFile) {
	carried := fi.Mode().IsRegular() || fi.IsDir() || notedByDir(fi.Mode())
	if !carried || d.o.Notes.of(up, fi.Mode()).owned {
		return
	}
	switch {
	case lower == nil:
		if by := d.o.By; by.UID != 0 && by.mayWrite(d.o.Notes, filepath.Dir(up)) {
			_ = d.o.Notes.setOwner(up, by.UID, by.GID)
		}
	case fi.Mode().IsRegular() && lower.Mode().IsRegular():
		if n := from.notes.of(from.path, lower.Mode()); n.owned {
			_ = d.o.Notes.setOwner(up, n.uid, n.gid)
		}
	}
}

// mayWrite reports whether the image lets the user create files in a directory.
func (u *User) mayWrite(notes *Notes, dir string) bool {
	fi, err := os.Stat(dir)
	if err != nil {
		return false
	}
	n, mode := notes.of(dir, fs.ModeDir), fi.Mode().Perm()
	switch {
	case n.uid == u.UID:
		return mode&0o200 != 0
	case n.gid == u.GID:
		return mode&0o020 != 0
	}
	return mode&0o002 != 0
}

// Stat returns a function that corrects the status of files in dir, the changed tree, to the
// owner and mode that the layer will have. lowers are as for [Upper]. The function's file is an
// open file (/proc/self/fd/N), or the directory of a link or FIFO.
func (o DiffOptions) Stat(dir string, lowers []string) func(file, link string, st *unix.Stat_t) {
	return func(file, link string, st *unix.Stat_t) {
		if o.Notes.Stat(file, link, st) || o.By == nil || o.By.UID == 0 {
			return
		}
		at, err := os.Readlink(file)
		if err != nil || !filepath.IsAbs(at) {
			return // a pipe or socket
		}
		rel := filepath.Join(at, link)[1:]
		if rel != "" && !isLower(lowers, rel) && o.By.mayWrite(o.Notes, filepath.Dir(filepath.Join(dir, rel))) {
			st.Uid, st.Gid = uint32(o.By.UID), uint32(o.By.GID)
		}
	}
}

// isLower reports whether a file existed before the changes.
func isLower(lowers []string, rel string) bool {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
	for _, dir := range lowers {
		root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return true
		}
		fd, err := unix.Openat2(root, rel, &how)
		unix.Close(root)
		if err == nil {
			unix.Close(fd)
			return true
		}
		if errors.Is(err, unix.ENOSYS) {
			return true // before Linux 5.6: the owner is shown after the step
		}
	}
	return false
}
