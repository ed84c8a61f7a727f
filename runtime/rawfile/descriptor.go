package rawfile

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Path returns a path through which the kernel finds the file of a descriptor.
func Path(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// MaxLinks is the maximum number of symbolic links in one path lookup, as in the kernel.
const MaxLinks = 40

// Split returns the components of a path, without empty ones and ".".
func Split(p string) []string {
	var out []string
	for _, c := range strings.Split(p, "/") {
		if c != "" && c != "." {
			out = append(out, c)
		}
	}
	return out
}

// Dup duplicates a descriptor; exec closes the duplicate.
func Dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// ReadLink returns the target of the symbolic link that fd (O_PATH|O_NOFOLLOW) refers to.
// isLink is false for any other file.
func ReadLink(fd int) (target string, isLink bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", false, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", false, nil
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	if err != nil {
		return "", false, err
	}
	return string(buf[:n]), true, nil
}
