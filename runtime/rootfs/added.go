package rootfs

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// addedFile is the file of a tree that lists the mount points that runs created in it, one
// path per line. "hpcc commit" keeps them out of images. Programs of the image may change it.
const addedFile = ".hpcc/mountpoints"

// RecordAdded appends the mount points that this run created in the image to addedFile, if
// the directory of hpcc's own files exists. The list is not needed to run: a failure only
// leaves empty directories in an image made from the tree.
func (r *Root) RecordAdded() {
	var text strings.Builder
	for _, p := range r.added {
		if !strings.Contains(p, "\n") {
			text.WriteString(p + "\n")
		}
	}
	if text.Len() == 0 {
		return
	}
	dir, err := unix.Openat(r.FD, path.Dir(addedFile), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(dir)
	// The file may be a link or FIFO of the image's program.
	fd, err := unix.Openat(dir, path.Base(addedFile),
		unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		_, _ = unix.Write(fd, []byte(text.String()))
	}
}
