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

// A directory to which names must be added may have many entries: Debian's
// /etc has seventy, and each bind mount costs ten microseconds, half of them
// when the program ends. Where the kernel lets users have overlays (Linux
// 5.11), one overlay shows directory and new names together instead.

// fewEntries is how many bind mounts cost as much as an overlay.
const fewEntries = 16

// A mountPoint is where a mount of the spec goes, as the spec says it.
type mountPoint struct {
	path string
	dir  bool
}

// mountPoints lists where the mounts with the opened sources fds go; fd -1 is
// one without a source, at a directory.
func mountPoints(ms []specs.Mount, fds []int) []mountPoint {
	out := make([]mountPoint, len(ms))
	for i, m := range ms {
		var st unix.Stat_t
		dir := fds[i] < 0 || (unix.Fstat(fds[i], &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR)
		out[i] = mountPoint{path.Clean(m.Destination), dir}
	}
	return out
}

// overlay covers directory cur, of this mode and path, with an overlay of it and
// of a directory that holds one more name, and all that the spec mounts there
// and cur has not. It has no place for changes: it is read-only.
func (r *Root) overlay(cur int, mode uint32, done []string, more mountPoint) error {
	layer := "etc" + strconv.Itoa(cur) // descriptors stay open: the name is free
	if err := unix.Mkdirat(r.Scratch, layer, 0o755); err != nil {
		return err
	}
	at, err := unix.Openat(r.Scratch, layer, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	// The first layer's mode is what the overlay shows; mkdir would have masked it.
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
			_ = create(at, name, p.dir) // what this misses is added one by one
		}
	}
	data := fmt.Sprintf("lowerdir=%s:%s,userxattr", rawfile.Path(at), rawfile.Path(cur))
	return unix.Mount("overlay", rawfile.Path(cur), "overlay", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, data)
}

// holdsMounts says whether something is mounted below the directory fd, which
// an overlay would not show. When it cannot tell, it says so too.
func holdsMounts(fd int) bool {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink(rawfile.Path(fd), buf)
	if err != nil || n == len(buf) {
		return true
	}
	// mountinfo writes blanks and the like as octal (proc(5)).
	dir := string(buf[:n])
	if strings.ContainsAny(dir, " \t\n\\") {
		return true
	}
	info, err := rawfile.Read("/proc/self/mountinfo")
	return err != nil || strings.Contains(string(info), " "+dir+"/")
}
