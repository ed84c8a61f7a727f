// Package rootfs assembles the root directory of a run in a private mount namespace and
// makes it the root.
//
//	OpenSources ─► the image at Base ─► Plan ─► OpenMountPoint + Bind for each mount ─► Seal ─► Pivot
//
// Mount points are resolved inside the new root: links cannot lead out of it. Missing mount
// points are added without changing a read-only image. The process must be allowed to mount
// in its namespace, as root of a user namespace is.
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

// Base is the directory in which the new root is assembled. It exists on every host and
// nothing below it is bound by default. A recursive bind (of /tmp, for example, if it holds
// the image) therefore does not contain the unfinished root. Sources are opened before Base
// is covered.
const Base = "/usr"

// A Root is a new root during its assembly, mounted at Base.
type Root struct {
	FD      int  // its top directory
	Write   bool // mount points may be created in the image
	Scratch int  // descriptor of a tmpfs without a path for overlays; none if not positive
	Lowest  bool // the host's root is the lowest mount: Pivot moves this root over it
	// Over is a mount point that is added even below directories of the host that the user could
	// change. It is for a Root that is the host's own.
	Over    string
	planned []mountPoint
	rebuilt []int // directories replaced with a tmpfs to hold mount points
	origins []origin
	added   []string // mount points created where the image is writable
}

// An origin records whether a path in the new root shows the host's files or the run's. Mount
// points must not be created among the host's files.
type origin struct {
	path  string
	host  bool
	below bool // applies to everything below, unless a later origin overrides it
}

// NoteMount records that a mount covers a path. host reports whether it shows the host's
// files.
func (r *Root) NoteMount(path string, host bool) {
	r.origins = append(r.origins, origin{path, host, true})
}

// Plan prepares the root for the next mounts, whose open sources are fds. It covers the root
// if the first name of a mount point is missing.
func (r *Root) Plan(ms []specs.Mount, fds []int) error {
	r.planned = mountPoints(ms, fds)
	return r.coverRoot()
}

// Seal makes the directories that were replaced to hold mount points read-only. The mounts in them
// have their own options.
func (r *Root) Seal() error {
	for _, fd := range r.rebuilt {
		if err := setAttr(fd, unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}, false); err != nil {
			return fmt.Errorf("making a directory of mount points read-only: %w", err)
		}
	}
	return nil
}

// CloneSources replaces the open sources that contain Base with copies of their mounts,
// because the unfinished root would be visible in the originals.
func CloneSources(ms []specs.Mount, fds []int) error {
	for i, m := range ms {
		if m.Type != "bind" || !Inside(Base, m.Source) {
			continue
		}
		fd, err := unix.OpenTree(fds[i], "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
		if err != nil {
			return fmt.Errorf("copying the mounts below %q: %w; this needs Linux 5.2 or newer: bind the directories in it instead", m.Source, err)
		}
		unix.Close(fds[i])
		fds[i] = fd
	}
	return nil
}

// OpenSources opens the sources of binds, before anything is covered. The descriptor of
// other mounts is -1.
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

// BindSource binds the open source of m to the mount point to. rec is MS_REC or 0.
func BindSource(m specs.Mount, from, to int, rec uintptr) error {
	if Inside(Base, m.Source) { // a copy: CloneSources
		return unix.MoveMount(from, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	return Bind(from, to, rec)
}

// Bind binds the file or directory from to the mount point to. rec is MS_REC or 0. A tree
// with mounts that the user did not create can only be bound with all of them
// (mount_namespaces(7)).
func Bind(from, to int, rec uintptr) error {
	err := unix.Mount(rawfile.Path(from), rawfile.Path(to), "", unix.MS_BIND|rec, "")
	if errors.Is(err, unix.EINVAL) && rec == 0 {
		err = unix.Mount(rawfile.Path(from), rawfile.Path(to), "", unix.MS_BIND|unix.MS_REC, "")
	}
	return err
}

// MountSysfs mounts a sysfs at the open mount point to, whose path is dst. It shows the network
// devices of this process's network namespace. In a container whose /sys is partly covered the
// kernel refuses it (mount_too_revealing). The host's /sys then appears, with the directories of
// network devices empty.
func (r *Root) MountSysfs(dst string, to int, flags uintptr) error {
	err := unix.Mount("sysfs", rawfile.Path(to), "sysfs", flags, "")
	if errors.Is(err, unix.EPERM) { // a host's that is read-only must stay so
		err = unix.Mount("sysfs", rawfile.Path(to), "sysfs", flags|unix.MS_RDONLY, "")
	}
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	from, err := unix.Open("/sys", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if err := Bind(from, to, unix.MS_REC); err != nil {
		return err
	}
	for _, dir := range hostNetwork(rawfile.Path(from)) {
		fd, err := r.Lookup(path.Join(dst, dir))
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = unix.Mount("tmpfs", rawfile.Path(fd), "tmpfs", flags|unix.MS_RDONLY, "size=4k")
			unix.Close(fd)
		}
		if err != nil {
			return fmt.Errorf("hiding the host's network devices in %q: %w", dir, err)
		}
	}
	return nil
}

// hostNetwork returns the directories of the sysfs at sys that hold network devices, relative to sys.
func hostNetwork(sys string) []string {
	dirs := []string{"class/net"}
	links, _ := os.ReadDir(sys + "/class/net")
	for _, l := range links {
		target, err := os.Readlink(sys + "/class/net/" + l.Name())
		if dir := path.Join("class/net", target, ".."); err == nil && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
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

// OpenMountPoint opens (O_PATH) the mount point for dst, resolved inside the new root, and
// returns its resolved path. It creates a missing mount point: in the image if that is
// writable, else on a tmpfs that shows the image's directory with the missing name added.
func (r *Root) OpenMountPoint(dst string, wantDir bool) (at int, where string, err error) {
	// An existing path needs one system call, if the kernel supports it (Linux 5.6).
	fd, err := unix.Openat2(r.FD, dst, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		return checkKind(fd, path.Join("/", dst), wantDir)
	}
	todo := rawfile.Split(dst)
	var done []string // resolved path elements, without links
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
				return -1, "", fmt.Errorf("replacing the link %q, which points to itself, with a directory: %w", itself, err)
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
	return checkKind(cur, "/"+path.Join(done...), wantDir)
}

// checkKind returns the open mount point at, whose path is where. If only one of source and
// mount point is a directory, it closes the mount point and returns an error.
func checkKind(at int, where string, wantDir bool) (int, string, error) {
	var st unix.Stat_t
	err := unix.Fstat(at, &st)
	if isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR; err == nil && isDir != wantDir {
		err = errors.New("the source is a file, but the destination is a directory in the image")
		if wantDir {
			err = errors.New("the source is a directory, but the destination is a file in the image")
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

// Lookup opens a path of the new root. No path element may be a link.
func (r *Root) Lookup(p string) (int, error) {
	root, err := rawfile.Dup(r.FD)
	if err != nil {
		return -1, err
	}
	return r.reopen(root, rawfile.Split(filepath.Clean("/"+p)))
}

// add creates name in directory cur, whose path is done, and returns the directory that now
// contains it.
func (r *Root) add(cur int, done []string, name string, dir bool) (int, error) {
	at := "/" + path.Join(done...)
	where := path.Join(at, name)
	host := r.fromHost(at)
	if host && !r.mayCover(cur, at) {
		return -1, fmt.Errorf("the host's %s does not contain %q, and hpcc does not create files on the host; create it on the host first", at, name)
	}
	if !host {
		err := create(cur, name, dir)
		if err == nil && r.Write {
			r.added = append(r.added, where)
		}
		if err == nil || errors.Is(err, unix.EEXIST) {
			r.NoteMount(where, false)
			return cur, nil
		}
		if r.Write && !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			return -1, fmt.Errorf("creating mount point %q: %w", where, err)
		}
	}
	top, err := r.extend(cur, done, name, dir)
	if err != nil {
		return -1, fmt.Errorf("adding mount point %q: %w", where, err)
	}
	r.origins = append(r.origins, origin{at, false, false}, origin{where, false, true})
	if err := create(top, name, dir); !errors.Is(err, unix.EEXIST) {
		return top, err
	}
	return top, nil
}

// mayCover reports whether the directory cur of the host, whose path is at, may be covered to add a
// mount point. A directory that the user cannot write is covered, as the image is. /dev is covered
// to add devices. Covering a writable directory would keep the program's files from the host, and
// covering /proc or /sys would hide later entries.
func (r *Root) mayCover(cur int, at string) bool {
	switch {
	case r.Over != "" && at == "/", Inside(at, "/proc"), Inside(at, "/sys"):
		return false
	case r.Over != "" && Inside(r.Over, at), Inside(at, "/dev"):
		return true
	}
	return unix.Access(rawfile.Path(cur), unix.W_OK) != nil
}

// fromHost reports whether a path in the new root shows the host's files.
func (r *Root) fromHost(path string) bool {
	for _, s := range slices.Backward(r.origins) {
		if s.path == path || (s.below && Inside(path, s.path)) {
			return s.host
		}
	}
	return false
}

// replace replaces a link that points to itself with a directory. debootstrap creates such a
// link at /proc. It removes the image's link only if the image is writable.
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

// create creates an empty directory or file as a mount point.
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

// extend covers directory cur with a tmpfs that shows the same names: bind mounts for
// entries and copies of links. Names can then be added without changing the image. name and
// dir describe the first of them.
func (r *Root) extend(cur int, done []string, name string, dir bool) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(cur, &st); err != nil {
		return -1, err
	}
	entries, err := os.ReadDir(rawfile.Path(cur))
	if err != nil {
		return -1, err
	}
	// Devices of the host's /dev cannot be opened on a user's overlay.
	if len(entries) > fewEntries && !r.Write && r.Scratch > 0 && !r.fromHost("/"+path.Join(done...)) && !holdsMounts(cur) {
		if r.overlay(cur, st.Mode, done, mountPoint{name, dir}) == nil {
			return r.covering(done)
		}
	}
	return r.cover(cur, st.Mode, done, entries, nil)
}

// coverRoot covers the root with a tmpfs if the first name of a mount point is missing. It
// runs before all mounts, because later every mount would have to be bound again.
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

// cover covers directory cur, which has the given mode and the path done, with a tmpfs that
// shows its entries. Entries in hidden stay empty, because other mounts cover them next.
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

// covering opens the mount that now covers the directory with the path done.
func (r *Root) covering(done []string) (int, error) {
	if len(done) > 0 {
		root, err := rawfile.Dup(r.FD)
		if err != nil {
			return -1, err
		}
		return r.reopen(root, done)
	}
	// If the new root itself was covered, the mount is found by path.
	top, err := unix.Open(Base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		r.FD, err = rawfile.Dup(top)
	}
	return top, err
}

// populate shows the entries of the directory from in the directory to. For hidden entries,
// which are not links, it only creates the name.
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
			return fmt.Errorf("binding %q: %w", n, err)
		}
	}
	return nil
}

// Visible reports whether path shows the host's file of the same path: the last mount that covers it
// binds the file, or a directory above it, at its own path.
func Visible(ms []specs.Mount, path string) bool {
	for _, m := range slices.Backward(ms) {
		if Inside(path, m.Destination) {
			return m.Type == "bind" && m.Source == m.Destination
		}
	}
	return false
}

// Inside reports whether path is dir or below it; both are clean.
func Inside(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
