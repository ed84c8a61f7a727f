package rootfs

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// A directory that needs new names may have many entries: Debian's /etc has seventy. Each
// bind mount costs ten microseconds, half of them at the program's end. If users can mount
// overlays (Linux 5.11), one overlay shows the directory together with the new names
// instead.

// fewEntries is the number of bind mounts that cost as much as an overlay.
const fewEntries = 16

// A mountPoint is the destination of one of the spec's mounts.
type mountPoint struct {
	path string
	dir  bool
}

// mountPoints returns the destinations of the mounts ms, whose open sources are fds. A mount
// with fd -1 has no source and covers a directory.
func mountPoints(ms []specs.Mount, fds []int) []mountPoint {
	out := make([]mountPoint, len(ms))
	for i, m := range ms {
		var st unix.Stat_t
		dir := fds[i] < 0 || (unix.Fstat(fds[i], &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR)
		out[i] = mountPoint{path.Clean(m.Destination), dir}
	}
	return out
}

// overlay covers directory cur, which has the given mode and the path done, with a read-only
// overlay that adds names to it: more, and all of the spec's mount points that cur lacks.
func (r *Root) overlay(cur int, mode uint32, done []string, more mountPoint) error {
	layer := "etc" + strconv.Itoa(cur) // descriptors stay open, so the name is unique
	if err := unix.Mkdirat(r.Scratch, layer, 0o755); err != nil {
		return err
	}
	at, err := unix.Openat(r.Scratch, layer, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	// The overlay shows the first layer's mode, and mkdir applies the umask.
	if err := unix.Fchmodat(r.Scratch, layer, mode&0o777|0o700, 0); err != nil {
		return err
	}
	if err := create(at, more.path, more.dir); err != nil {
		return err
	}
	for _, p := range r.planned {
		dir, name := path.Split(p.path)
		var st unix.Stat_t
		if path.Clean(dir) == "/"+path.Join(done...) && unix.Fstatat(cur, name, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
			_ = create(at, name, p.dir) // a name that fails here is added individually later
		}
	}
	data := fmt.Sprintf("lowerdir=%s:%s,userxattr", rawfile.Path(at), rawfile.Path(cur))
	return unix.Mount("overlay", rawfile.Path(cur), "overlay", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, data)
}

// holdsMounts is hasMountsBelow for an open directory, whose mounts an overlay would hide.
func holdsMounts(fd int) bool {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink(rawfile.Path(fd), buf)
	return err != nil || n == len(buf) || hasMountsBelow(string(buf[:n]))
}

// hasMountsBelow reports whether anything is mounted below the directory dir, a physical path. It also
// returns true if it cannot find out.
func hasMountsBelow(dir string) bool {
	// mountinfo escapes blanks and other characters as octal (proc(5)).
	if strings.ContainsAny(dir, " \t\n\\") {
		return true
	}
	info, err := rawfile.Read("/proc/self/mountinfo")
	return err != nil || strings.Contains(string(info), " "+dir+"/")
}
