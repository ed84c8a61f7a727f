package unpack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What programs of a build ask of files and its user may not do, as runtime
// tells of it: file is followed to its end; of a symbolic link it is the
// directory, and link its name there. What cannot be noted is no error: the
// program is to go on.

// NoteOwner notes what chown(2) asks for; -1 keeps a half.
func NoteOwner(file, link string, uid, gid int) error {
	half := func(new, old int) int {
		if new == -1 {
			return old
		}
		return new
	}
	if link != "" {
		oldUID, oldGID, _ := linkOwner(file, link)
		uid, gid = half(uid, oldUID), half(gid, oldGID)
		if uid != oldUID || gid != oldGID {
			_ = chownLink(file, link, uid, gid)
			// To the user's own again: what is changed is that it was changed.
			_ = unix.Fchownat(unix.AT_FDCWD, file+"/"+link, -1, -1, unix.AT_SYMLINK_NOFOLLOW)
		}
		return nil
	}
	oldUID, oldGID, _ := parseOwner(getAttr(file, ownerAttr))
	uid, gid = half(uid, oldUID), half(gid, oldGID)
	if uid != oldUID || gid != oldGID {
		_ = unix.Setxattr(file, ownerAttr, fmt.Appendf(nil, "%d:%d", uid, gid), 0)
	}
	dropPrivileges(file)
	return nil
}

// dropPrivileges takes from a file what the kernel takes when its owner changes
// (chown(2), capabilities(7)): set-id bits and capabilities.
func dropPrivileges(file string) {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		_ = unix.Chown(file, -1, -1) // the kernel knows when
	}
	if old, err := strconv.ParseUint(getAttr(file, modeAttr), 8, 32); err == nil {
		m := old &^ unix.S_ISUID
		if m&unix.S_IXGRP != 0 {
			m &^= unix.S_ISGID
		}
		if m != old {
			_ = unix.Setxattr(file, modeAttr, strconv.AppendUint(nil, m, 8), 0)
		}
	}
	_ = unix.Removexattr(file, capsAttr)
}

// NoteMode forgets the mode that was noted: the program sets another.
func NoteMode(file string) { _ = unix.Removexattr(file, modeAttr) }

// NoteAttr notes capabilities. Of an access control list it sets the mode, which
// is all that most of them hold (acl(5); cp -p and sed -i set modes so). A
// program that copies a file with its extended attributes copies our notes. No
// other attribute gets into an image.
func NoteAttr(file, name string, value []byte) error {
	switch {
	case name == "security.capability":
		_ = unix.Setxattr(file, capsAttr, value, 0)
	case name == "system.posix_acl_access":
		var st unix.Stat_t
		if mode, ok := aclMode(value); ok && unix.Stat(file, &st) == nil {
			NoteMode(file)
			_ = unix.Chmod(file, st.Mode&0o7000|mode)
		}
	case strings.HasPrefix(name, notePrefix):
		_ = unix.Setxattr(file, name, value, 0)
	}
	return nil
}

// aclMode is the mode that an access control list comes to: of its entries, those
// of the owner, of the group or the mask, and of the others (acl(5), "Correspondence
// between ACL entries and file permission bits"; <linux/posix_acl_xattr.h>).
func aclMode(acl []byte) (mode uint32, ok bool) {
	const version, owner, group, mask, other = 2, 0x01, 0x04, 0x10, 0x20
	if len(acl) < 4 || len(acl)%8 != 4 || binary.LittleEndian.Uint32(acl) != version {
		return 0, false
	}
	perm := map[uint16]uint32{}
	for e := acl[4:]; len(e) > 0; e = e[8:] {
		perm[binary.LittleEndian.Uint16(e)] = uint32(binary.LittleEndian.Uint16(e[2:])) & 7
	}
	middle, masked := perm[mask]
	if !masked {
		middle = perm[group]
	}
	return perm[owner]<<6 | middle<<3 | perm[other], true
}

// ForgetAttr removes an extended attribute.
func ForgetAttr(file, name string) error {
	if name == "security.capability" {
		name = capsAttr
	}
	err := unix.Removexattr(file, name)
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return nil
}
