package unpack

import (
	"io/fs"
	"os"
	"path/filepath"
)

// Whose a file is that a program made without saying so cannot be seen on disk.
// It can be told from what the image says of the file's place:
//
// A file that stands in the place of another has that one's owner. Programs that
// renew a file (sed -i, useradd) write a new one, give it the owner that stat
// showed them, which was root, and rename it.
//
// What a user's program made is the user's, where the user may make files at
// all; elsewhere it was made with the help of sudo, and is root's.

// attribute notes the owner of a file that a program made, when it is not root.
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

// mayWrite says whether the image lets the user make files in a directory.
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
