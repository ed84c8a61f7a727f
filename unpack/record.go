package unpack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// The methods in this file record requests of a build's programs for which the user has no
// permission; package runtime/fakeroot reports these requests. Symbolic links in file are followed. If
// link is not empty, it is a symbolic link or FIFO in the directory file. The methods do not
// return an error if a note cannot be written, because the program must continue.

// Owner records a chown(2). -1 keeps the user or group.
func (n *Notes) Owner(file, link string, uid, gid int) error {
	orOld := func(id, old int) int {
		if id == -1 {
			return old
		}
		return id
	}
	if link != "" {
		oldUID, oldGID, _ := n.linkOwner(file, link)
		uid, gid = orOld(uid, oldUID), orOld(gid, oldGID)
		if uid != oldUID || gid != oldGID {
			_ = n.chownLink(file, link, uid, gid)
			// Record the change even if the link gets the user's own ID again: an overlay then
			// copies it to its upper directory.
			_ = unix.Fchownat(unix.AT_FDCWD, file+"/"+link, -1, -1, unix.AT_SYMLINK_NOFOLLOW)
		}
		return nil
	}
	noted := n.hasNotes(file)
	oldUID, oldGID := 0, 0
	if noted {
		oldUID, oldGID, _ = parseOwner(n.get(file, ownerAttr))
	}
	uid, gid = orOld(uid, oldUID), orOld(gid, oldGID)
	if uid != oldUID || gid != oldGID {
		_ = n.set(file, ownerAttr, fmt.Sprintf("%d:%d", uid, gid))
	}
	n.dropPrivileges(file, noted)
	return nil
}

// hasNotes reports whether a file may have notes. Most files have none, which one call finds
// out. It follows links.
func (n *Notes) hasNotes(file string) bool {
	if n.table != nil {
		return true
	}
	size, err := unix.Listxattr(file, nil)
	return err == nil && size > 0
}

// dropPrivileges removes set-id bits and capabilities, as the kernel does when an owner
// changes (chown(2), capabilities(7)). noted reports whether the file had notes before.
func (n *Notes) dropPrivileges(file string, noted bool) {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		_ = unix.Chown(file, -1, -1) // the kernel decides what to clear
	}
	if !noted {
		return
	}
	if old, err := strconv.ParseUint(n.get(file, modeAttr), 8, 32); err == nil {
		m := old &^ unix.S_ISUID
		if m&unix.S_IXGRP != 0 {
			m &^= unix.S_ISGID
		}
		if m != old {
			_ = n.set(file, modeAttr, strconv.FormatUint(m, 8))
		}
	}
	_ = n.remove(file, capsAttr)
}

// Mode removes the recorded mode, because the program sets another one.
func (n *Notes) Mode(file string) {
	if n.hasNotes(file) {
		_ = n.remove(file, modeAttr)
	}
}

// SetAttr records capabilities. For an access control list, it sets the equivalent mode, which
// most lists have (acl(5); cp -p and sed -i set modes this way). It also stores notes, so that
// copying a file's extended attributes copies them. Other attributes are not part of an image.
func (n *Notes) SetAttr(file, name string, value []byte) error {
	switch {
	case name == "security.capability":
		_ = n.set(file, capsAttr, string(value))
	case name == "system.posix_acl_access":
		var st unix.Stat_t
		if mode, ok := aclMode(value); ok && unix.Stat(file, &st) == nil {
			n.Mode(file)
			_ = unix.Chmod(file, st.Mode&0o7000|mode)
		}
	case slices.Contains(noteAttrs, name):
		_ = n.set(file, name, string(value))
	}
	return nil
}

// GetAttr returns a recorded attribute as a program sees it. It serves notes in memory,
// which the kernel does not know. It returns ENODATA if there is none.
func (n *Notes) GetAttr(file, name string) ([]byte, error) {
	if slices.Contains(noteAttrs, name) {
		if v := n.get(file, name); v != "" {
			return []byte(v), nil
		}
	}
	return nil, unix.ENODATA
}

// ListAttr returns the names of the attributes that GetAttr returns for a file.
func (n *Notes) ListAttr(file string) []string { return n.list(file) }

// aclMode returns the mode that an access control list is equivalent to: the entries of the
// owner, of the group or the mask, and of others (acl(5), "Correspondence between ACL
// entries and file permission bits"; <linux/posix_acl_xattr.h>).
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

// RemoveAttr removes an extended attribute.
func (n *Notes) RemoveAttr(file, name string) error {
	if name == "security.capability" {
		name = capsAttr
	}
	err := n.remove(file, name)
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return nil
}

// Stat corrects the owner and mode of a file's status to those in the image. owned reports
// whether an owner is noted.
func (n *Notes) Stat(file, link string, st *unix.Stat_t) (owned bool) {
	if !n.hasNotes(file) {
		return false
	}
	var uid, gid int
	if link != "" {
		uid, gid, owned = n.linkOwner(file, link)
	} else {
		uid, gid, owned = parseOwner(n.get(file, ownerAttr))
		st.Mode = n.mode(file, st.Mode)
	}
	if owned {
		st.Uid, st.Gid = uint32(uid), uint32(gid)
	}
	return owned
}

// mode returns the mode of a file in the image. onDisk is its type and mode on disk.
func (n *Notes) mode(file string, onDisk uint32) uint32 {
	m, err := strconv.ParseUint(n.get(file, modeAttr), 8, 32)
	isDir := onDisk&unix.S_IFMT == unix.S_IFDIR
	if err != nil || granted(uint32(m)&0o7777, isDir) != onDisk&0o7777 {
		return onDisk // it has changed since
	}
	return onDisk&unix.S_IFMT | uint32(m)&0o7777
}
