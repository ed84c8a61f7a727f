package unpack

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// noSecondName reports whether an error of link(2) means that the file system cannot create
// this hard link: it has no hard links (EPERM, ENOTSUP, ENOSYS), none between these
// directories (EXDEV: AFS, Lustre directories on several servers, project quotas), or too
// many already (EMLINK).
func noSecondName(err error) bool {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case unix.EPERM, unix.ENOTSUP, unix.ENOSYS, unix.EXDEV, unix.EMLINK:
		return true
	}
	return false
}

// maxCopied bounds the total size of copies in a tree, in bytes: an archive needs few bytes
// to request one, however large the file is.
const maxCopied = 32 << 30

// copyName creates a copy of a file or link of the tree instead of a hard link to it.
func (t *tree) copyName(fromDir int, from string, toDir int, to string) error {
	in, err := unix.Openat(fromDir, from, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return t.copyLink(fromDir, from, toDir, to)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(in), from)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(in, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFIFO {
		return t.copyFIFO(fromDir, from, toDir, to, &st)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errors.New("hard link target is not a regular file")
	}
	if st.Size > maxCopied-t.copied {
		return fmt.Errorf("hard link to a file of %d bytes, which the file system cannot create; copies instead of hard links may have %d bytes in total", st.Size, int64(maxCopied))
	}
	t.copied += st.Size
	out, err := unix.Openat(toDir, to, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	n, err := t.copyData(out, f)
	if err == nil {
		err = t.notes.copyTo(procPath(in), t.notes, procPath(out))
	}
	if err == nil {
		err = unix.Fchmod(out, st.Mode&0o7777)
	}
	if err == nil {
		err = t.setTimes(out, st.Mtim)
	}
	if cerr := unix.Close(out); err == nil {
		err = cerr
	}
	t.rep.Bytes += n
	return err
}

// copyLink is copyName for a symbolic link, whose owner its directory records.
func (t *tree) copyLink(fromDir int, from string, toDir int, to string) error {
	b := make([]byte, maxPath)
	n, err := unix.Readlinkat(fromDir, from, b)
	if err != nil {
		return err
	}
	if err := unix.Symlinkat(string(b[:n]), toDir, to); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(fromDir, from, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return t.likeLink(fromDir, from, toDir, to, &st)
}

// copyFIFO is copyName for a FIFO.
func (t *tree) copyFIFO(fromDir int, from string, toDir int, to string, st *unix.Stat_t) error {
	err := unix.Mknodat(toDir, to, unix.S_IFIFO|0o600, 0)
	if err == nil {
		err = unix.Fchmodat(toDir, to, st.Mode&0o7777, 0)
	}
	if err != nil {
		return err
	}
	return t.likeLink(fromDir, from, toDir, to, st)
}

// likeLink copies the owner and the time of a link or FIFO to another one.
func (t *tree) likeLink(fromDir int, from string, toDir int, to string, st *unix.Stat_t) error {
	if uid, gid, ok := t.notes.linkOwner(procPath(fromDir), from); ok {
		_ = t.notes.setLinkOwner(procPath(toDir), to, uid, gid)
	}
	return unix.UtimesNanoAt(toDir, to, []unix.Timespec{st.Mtim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}
