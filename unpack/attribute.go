package unpack

import (
	"io/fs"
	"os"
	"path/filepath"
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
