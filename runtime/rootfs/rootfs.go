// Package rootfs puts the root directory of a run together in a mount namespace of its
// own, and makes it the root.
//
//	OpenSources ─► the image at Base ─► Plan ─► Place + Bind for each mount ─► Seal ─► Pivot
//
// Mount points are resolved inside the new root: no link leads out of it. Missing ones
// are added without changing an image that is read-only. The process must have the right
// to mount in its namespace, such as root of a user namespace has.
package rootfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// Base is the directory where the new root is put together before it becomes the root. It
// exists on every host and nothing below it is bound by default, so that a
// recursive bind (of /tmp, say, when the image lies there) does not show the
// half-made root inside itself. Sources are opened before it is covered.
const Base = "/usr"

// A Root is a new root while it is put together, mounted at Base.
type Root struct {
	FD      int  // its top directory
	Write   bool // mount points may be created in the image itself
	Scratch int  // a tmpfs without a name for overlays; none if it is not positive
	Lowest  bool // the host's root is the lowest mount: pivot moves this one over it
	planned []mountPoint
	rebuilt []int // directories that were rebuilt on a tmpfs to hold mount points
	origins []origin
}

// An origin says whose the content of a path inside is: the host's, where a mount
// must not add names, or the run's.
type origin struct {
	path  string
	host  bool
	below bool // it holds for all that lies below, unless a later origin says otherwise
}

// NoteMount notes that a mount covers a path, with the host's files or not.
func (r *Root) NoteMount(path string, host bool) {
	r.origins = append(r.origins, origin{path, host, true})
}

// Plan makes room for the mounts that come next, whose opened sources are fds. It
// covers the root if that lacks the first name of a mount point.
func (r *Root) Plan(ms []specs.Mount, fds []int) error {
	r.planned = mountPoints(ms, fds)
	return r.coverRoot()
}

// Seal makes the directories read-only that were rebuilt to hold mount points.
func (r *Root) Seal() error {
	for _, fd := range r.rebuilt {
		if err := RemountReadOnly(fd); err != nil {
			return fmt.Errorf("making a directory of mount points read-only: %w", err)
		}
	}
	return nil
}

// CloneSources replaces those of the opened sources that contain Base by copies: what is
// put together there would show up in them.
func CloneSources(ms []specs.Mount, fds []int) error {
	for i, m := range ms {
		if m.Type != "bind" || !Inside(Base, m.Source) {
			continue
		}
		fd, err := unix.OpenTree(fds[i], "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
		if err != nil {
			return fmt.Errorf("copying the mounts below %q: %w; Linux 5.2 or newer can do that: bind the directories in it instead", m.Source, err)
		}
		unix.Close(fds[i])
		fds[i] = fd
	}
	return nil
}

// OpenSources opens the sources of binds, before anything is covered. It returns -1 for
// other mounts.
func OpenSources(ms []specs.Mount) ([]int, error) {
	fds := make([]int, len(ms))
	for i, m := range ms {
		fds[i] = -1
		if m.Type != "bind" {
			continue
		}
		fd, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("opening %q to mount it at %q: %w", m.Source, m.Destination, err)
		}
		fds[i] = fd
	}
	return fds, nil
}

// BindSource binds the opened source of m to the mount point to; rec is MS_REC or 0.
func BindSource(m specs.Mount, from, to int, rec uintptr) error {
	if Inside(Base, m.Source) { // a copy: CloneSources
		return unix.MoveMount(from, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	return Bind(from, to, rec)
}

// Bind binds the file or directory from to the mount point to; rec is MS_REC or 0. A tree
// with mounts that the user did not make can only be bound with all of them
// (mount_namespaces(7)).
func Bind(from, to int, rec uintptr) error {
	err := unix.Mount(rawfile.Path(from), rawfile.Path(to), "", unix.MS_BIND|rec, "")
	if errors.Is(err, unix.EINVAL) && rec == 0 {
		err = unix.Mount(rawfile.Path(from), rawfile.Path(to), "", unix.MS_BIND|unix.MS_REC, "")
	}
	return err
}

// RemountReadOnly makes the mount that fd stands on read-only.
func RemountReadOnly(fd int) error { return Remount(fd, unix.MS_RDONLY) }

// Remount adds flags to the mount that fd stands on. Those that it has must be
// kept: in a user namespace they are locked (mount_namespaces(7)).
func Remount(fd int, flags uintptr) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	const same = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME // as ST_…
	flags |= unix.MS_BIND | unix.MS_REMOUNT | uintptr(st.Flags)&same
	if st.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	return unix.Mount("", rawfile.Path(fd), "", flags, "")
}

// Pivot makes r the root directory and drops the old one.
func (r *Root) Pivot() error {
	if err := unix.Fchdir(r.FD); err != nil {
		return fmt.Errorf("entering the new root: %w", err)
	}
	if r.Lowest {
		return r.moveOver()
	}
	// Old root and new root may share the mount point ".": pivot_root(2), notes.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the old root: %w", err)
	}
	return unix.Chdir("/")
}

// Place opens (O_PATH) the mount point for dst, which is resolved inside the
// new root: links cannot lead out of it, and where says at what path that was.
// What is missing is made: on the image itself when that is writable, else on a
// tmpfs that shows the image's directory with the missing name added.
func (r *Root) Place(dst string, wantDir bool) (at int, where string, err error) {
	// What is there is found in one call, where the kernel has it (Linux 5.6).
	fd, err := unix.Openat2(r.FD, dst, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		return ofKind(fd, path.Join("/", dst), wantDir)
	}
	todo := rawfile.Split(dst)
	var done []string // resolved components, none of them a link
	cur, err := rawfile.Dup(r.FD)
	if err != nil {
		return -1, "", err
	}
	links := 0
	for len(todo) > 0 {
		c := todo[0]
		todo = todo[1:]
		if c == ".." {
			if len(done) > 0 {
				done = done[:len(done)-1]
			}
			if cur, err = r.reopen(cur, done); err != nil {
				return -1, "", err
			}
			continue
		}
		fd, err := unix.Openat(cur, c, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			if cur, err = r.add(cur, done, c, wantDir || len(todo) > 0); err != nil {
				return -1, "", err
			}
			fd, err = unix.Openat(cur, c, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			unix.Close(cur)
			return -1, "", err
		}
		target, isLink, err := rawfile.ReadLink(fd)
		if err != nil {
			unix.Close(fd)
			unix.Close(cur)
			return -1, "", err
		}
		if !isLink {
			unix.Close(cur)
			cur, done = fd, append(done, c)
			continue
		}
		unix.Close(fd)
		if itself := "/" + path.Join(append(done, c)...); path.Clean(target) == itself {
			if cur, err = r.replace(cur, done, c); err != nil {
				return -1, "", fmt.Errorf("making a directory of the link %q, which leads to itself: %w", itself, err)
			}
			todo = append([]string{c}, todo...)
			continue
		}
		if links++; links > rawfile.MaxLinks {
			unix.Close(cur)
			return -1, "", fmt.Errorf("following the image's link %q: %w", "/"+path.Join(append(done, c)...), unix.ELOOP)
		}
		if path.IsAbs(target) {
			done = nil
			if cur, err = r.reopen(cur, nil); err != nil {
				return -1, "", err
			}
		}
		todo = append(rawfile.Split(target), todo...)
	}
	return ofKind(cur, "/"+path.Join(done...), wantDir)
}

// ofKind returns the mount point at, opened at path where. It refuses to mount a
// file on a directory and the other way round, and closes it then.
func ofKind(at int, where string, wantDir bool) (int, string, error) {
	var st unix.Stat_t
	err := unix.Fstat(at, &st)
	if isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR; err == nil && isDir != wantDir {
		err = errors.New("the source is a file, the image has a directory there")
		if wantDir {
			err = errors.New("the source is a directory, the image has a file there")
		}
	}
	if err != nil {
		unix.Close(at)
		return -1, "", err
	}
	return at, where, nil
}

// reopen closes cur and walks from the new root along names that are not links.
func (r *Root) reopen(cur int, names []string) (int, error) {
	unix.Close(cur)
	cur, err := rawfile.Dup(r.FD)
	for _, n := range names {
		if err != nil {
			return -1, err
		}
		var next int
		next, err = unix.Openat(cur, n, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(cur)
		cur = next
	}
	return cur, err
}

// Lookup opens a path of the new root in which no component is a link.
func (r *Root) Lookup(p string) (int, error) {
	root, err := rawfile.Dup(r.FD)
	if err != nil {
		return -1, err
	}
	return r.reopen(root, rawfile.Split(filepath.Clean("/"+p)))
}

// add makes name in directory cur (whose path is done) and returns the
// directory that holds it now.
func (r *Root) add(cur int, done []string, name string, dir bool) (int, error) {
	at := "/" + path.Join(done...)
	where := path.Join(at, name)
	host := r.ofHost(at)
	// What the user may not write to is covered, as the image is; so is /dev,
	// where devices are added. A cover would keep the program out of what it
	// may write to, and would miss what comes later in /proc and /sys.
	if host && (Inside(at, "/proc") || Inside(at, "/sys") || (!Inside(at, "/dev") && unix.Access(rawfile.Path(cur), unix.W_OK) == nil)) {
		return -1, fmt.Errorf("the host's %s, which is shown there, has no %q and a mount shall not make it; make it on the host first", at, name)
	}
	if !host {
		err := create(cur, name, dir)
		if err == nil || errors.Is(err, unix.EEXIST) {
			r.NoteMount(where, false)
			return cur, nil
		}
		if r.Write && !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			return -1, fmt.Errorf("making mount point %q: %w", where, err)
		}
	}
	top, err := r.extend(cur, done, name, dir)
	if err != nil {
		return -1, fmt.Errorf("making room for mount point %q: %w", where, err)
	}
	r.origins = append(r.origins, origin{at, false, false}, origin{where, false, true})
	if err := create(top, name, dir); !errors.Is(err, unix.EEXIST) {
		return top, err
	}
	return top, nil
}

// ofHost says whether what lies at path, inside, is the host's own.
func (r *Root) ofHost(path string) bool {
	for _, s := range slices.Backward(r.origins) {
		if s.path == path || (s.below && Inside(path, s.path)) {
			return s.host
		}
	}
	return false
}

// replace makes a directory of a link that leads to itself: debootstrap leaves
// such a /proc. The image's own link goes only when the image may be written to.
func (r *Root) replace(cur int, done []string, name string) (int, error) {
	if !r.Write {
		var err error
		if cur, err = r.extend(cur, done, name, true); err != nil {
			return -1, err
		}
	}
	if err := unix.Unlinkat(cur, name, 0); err != nil {
		return -1, err
	}
	return cur, create(cur, name, true)
}

// create makes an empty directory or file to mount on.
func create(at int, name string, dir bool) error {
	if dir {
		return unix.Mkdirat(at, name, 0o755)
	}
	fd, err := unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// extend covers directory cur with a tmpfs that shows the same names: bind
// mounts for what is there, copies of the links. Names can then be added
// without touching the image. name, of this kind, will be one of them.
func (r *Root) extend(cur int, done []string, name string, dir bool) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(cur, &st); err != nil {
		return -1, err
	}
	entries, err := os.ReadDir(rawfile.Path(cur))
	if err != nil {
		return -1, err
	}
	// Devices of the host's /dev would not open on an overlay of a user's.
	if len(entries) > fewEntries && !r.Write && r.Scratch > 0 && !r.ofHost("/"+path.Join(done...)) && !holdsMounts(cur) {
		if r.overlay(cur, st.Mode, done, mountPoint{name, dir}) == nil {
			return r.covering(done)
		}
	}
	return r.cover(cur, st.Mode, done, entries, nil)
}

// coverRoot covers the root with a tmpfs, if that lacks the first name of a mount
// point. It does so before anything is mounted: later, every mount would have to
// be shown again.
func (r *Root) coverRoot() error {
	missing := false
	var tops []string
	for _, p := range r.planned {
		name, _, below := strings.Cut(strings.TrimPrefix(p.path, "/"), "/")
		var st unix.Stat_t
		missing = missing || unix.Fstatat(r.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT
		if !below {
			tops = append(tops, name)
		}
	}
	if !missing || r.Write {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.FD, &st); err != nil {
		return err
	}
	entries, err := os.ReadDir(rawfile.Path(r.FD))
	if err != nil {
		return err
	}
	top, err := r.cover(r.FD, st.Mode, nil, entries, tops)
	if err == nil {
		unix.Close(top)
	}
	return err
}

// cover covers directory cur, of this mode and path, with a tmpfs that shows its
// entries; those of hidden are empty, because something is mounted there next.
func (r *Root) cover(cur int, mode uint32, done []string, entries []os.DirEntry, hidden []string) (int, error) {
	data := fmt.Sprintf("size=4m,mode=%o", mode&0o777|0o700)
	if err := unix.Mount("tmpfs", rawfile.Path(cur), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return -1, err
	}
	top, err := r.covering(done)
	if err != nil {
		return -1, err
	}
	if !r.Write {
		fd, err := rawfile.Dup(top)
		if err != nil {
			return -1, err
		}
		r.rebuilt = append(r.rebuilt, fd)
	}
	return top, populate(entries, hidden, cur, top)
}

// covering opens the directory with the path done as it is now that something
// was mounted there.
func (r *Root) covering(done []string) (int, error) {
	if len(done) > 0 {
		root, err := rawfile.Dup(r.FD)
		if err != nil {
			return -1, err
		}
		return r.reopen(root, done)
	}
	// The new root itself was covered: the mount below it is found by name.
	top, err := unix.Open(Base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		r.FD, err = rawfile.Dup(top)
	}
	return top, err
}

// populate shows the entries of the directory from in the directory to; of the
// hidden ones, which are not links, only the name.
func populate(entries []os.DirEntry, hidden []string, from, to int) error {
	for _, e := range entries {
		n := e.Name()
		var err error
		if e.Type()&os.ModeSymlink != 0 {
			var t string
			if t, err = os.Readlink(rawfile.Path(from) + "/" + n); err == nil {
				err = unix.Symlinkat(t, to, n)
			}
		} else if err = create(to, n, e.IsDir()); err == nil && !slices.Contains(hidden, n) {
			err = unix.Mount(rawfile.Path(from)+"/"+n, rawfile.Path(to)+"/"+n, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil {
			return fmt.Errorf("showing %q: %w", n, err)
		}
	}
	return nil
}

// Inside reports whether path is dir or below it; both are clean.
func Inside(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
