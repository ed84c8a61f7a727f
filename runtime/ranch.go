package runtime

import (
	"fmt"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
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
		dir := fds[i] < 0 || unix.Fstat(fds[i], &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
		out[i] = mountPoint{path.Clean(m.Destination), dir}
	}
	return out
}

// addPlanned makes, in the empty directory top, what the spec mounts in the
// directory whose path is done and cur, which holds the image's part, has not.
// What it misses is added one by one later.
func (r *rootfs) addPlanned(cur, top int, done []string) {
	for _, p := range r.planned {
		dir, name := path.Split(p.path)
		var st unix.Stat_t
		if path.Clean(dir) == "/"+path.Join(done...) && unix.Fstatat(cur, name, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT {
			_ = create(top, name, p.dir)
		}
	}
}

// overlay covers directory top with one that shows what top and below hold. It
// has no place for changes: it is read-only.
func overlay(top, below int) error {
	data := fmt.Sprintf("lowerdir=%s:%s,userxattr", fdPath(top), fdPath(below))
	return unix.Mount("overlay", fdPath(top), "overlay", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, data)
}

// holdsMounts says whether something is mounted below the directory fd, which
// an overlay would not show. When it cannot tell, it says so too.
func holdsMounts(fd int) bool {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlink(fdPath(fd), buf)
	if err != nil || n == len(buf) {
		return true
	}
	// mountinfo writes blanks and the like as octal (proc(5)).
	dir := string(buf[:n])
	if strings.ContainsAny(dir, " \t\n\\") {
		return true
	}
	info, err := readFile("/proc/self/mountinfo")
	return err != nil || strings.Contains(string(info), " "+dir+"/")
}
