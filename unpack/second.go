package unpack

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// noSecondName says whether an error of link(2) means that the file system does
// not give this file another name: it knows no hard links (EPERM, ENOTSUP,
// ENOSYS), none between these directories (EXDEV: AFS, directories of Lustre on
// several servers, quotas of projects), or not so many (EMLINK).
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

// maxCopied bounds what the copies in a tree come to, in bytes: an archive needs
// few bytes to ask for one, however large the file is.
const maxCopied = 32 << 30

// copyName makes a file or link that looks like another one of the tree, in
// place of a second name for it.
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
		return fmt.Errorf("it is a hard link to a file of %d bytes, which the file system cannot have; copies in their place may have %d in all", st.Size, int64(maxCopied))
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

// copyLink is copyName of a symbolic link, whose owner its directory notes.
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

// copyFIFO is copyName of a FIFO.
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

// likeLink gives a link or FIFO the owner and the time of another one.
func (t *tree) likeLink(fromDir int, from string, toDir int, to string, st *unix.Stat_t) error {
	if uid, gid, ok := t.notes.linkOwner(procPath(fromDir), from); ok {
		_ = t.notes.setLinkOwner(procPath(toDir), to, uid, gid)
	}
	return unix.UtimesNanoAt(toDir, to, []unix.Timespec{st.Mtim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}
