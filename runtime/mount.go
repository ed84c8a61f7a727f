package runtime

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// base is where the new root is put together before it becomes the root. It
// exists on every host and nothing below it is bound by default, so that a
// recursive bind (of /tmp, say, when the image lies there) does not show the
// half-made root inside itself. Sources are opened before it is covered.
const base = "/usr"

// rootfs is a new root while it is put together: fd is its top directory,
// ranches the directories that were rebuilt on tmpfs to hold mount points.
type rootfs struct {
	fd       int
	write    bool
	ranches  []int
	planned  []mountPoint
	scratch  int  // a tmpfs without a name, or -1
	hostProc bool // see HostProc
	lowest   bool // see LowestRoot
	shown    []shown
}

// shown says of a path inside whose what lies there is: the host's, where a
// mount must not add names, or the run's.
type shown struct {
	path  string
	host  bool
	below bool // and of all that lies below, unless a later one says otherwise
}

// enterRoot makes the spec's root, with all its mounts, the root of this
// process's mount namespace. The namespace must be this process's own.
func enterRoot(s *specs.Spec) error {
	src, err := openSources(s.Mounts)
	if err != nil {
		return err
	}
	img, err := unix.Open(s.Root.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening image directory %q: %w", s.Root.Path, err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("detaching from the host's mounts: %w", err)
	}
	if err := cloneSources(s.Mounts, src); err != nil {
		return err
	}
	files, err := accountMounts(s)
	if err != nil {
		return err
	}
	fake := s.Annotations[WriteFake]
	if fake != "" {
		err = forgetful(img, fake)
	} else {
		err = unix.Mount(fdPath(img), base, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("mounting image directory %q: %w", s.Root.Path, err)
	}
	r := &rootfs{write: !s.Root.Readonly || fake != "", scratch: files.scratch, hostProc: s.Annotations[HostProc] != "", lowest: s.Annotations[LowestRoot] != ""}
	if r.fd, err = unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening the new root: %w", err)
	}
	if !r.write {
		if err := remountRO(r.fd); err != nil {
			return fmt.Errorf("making the image read-only: %w", err)
		}
	}
	all := append(s.Mounts[:len(s.Mounts):len(s.Mounts)], files.mounts...)
	src = append(src, files.fds...)
	r.planned = mountPoints(all, src)
	if err := r.coverRoot(); err != nil {
		return fmt.Errorf("making room for mount points in /: %w", err)
	}
	for i, m := range all {
		from := src[i]
		if err := r.mount(m, from); err != nil {
			return fmt.Errorf("mounting %q at %q: %w", m.Source, m.Destination, err)
		}
		if from >= 0 {
			unix.Close(from) // ulimit -n may be small
		}
	}
	for _, fd := range r.ranches {
		if err := remountRO(fd); err != nil {
			return fmt.Errorf("making a directory of mount points read-only: %w", err)
		}
	}
	return r.pivot()
}

// cloneSources takes copies of the sources that base lies in: what is put
// together there would show up in them.
func cloneSources(ms []specs.Mount, fds []int) error {
	for i, m := range ms {
		if m.Type != "bind" || !inside(base, m.Source) {
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

// openSources opens what binds show, before anything is covered; -1 for the rest.
func openSources(ms []specs.Mount) ([]int, error) {
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

// extraFiles are generated files and the mounts that show them. They lie in a
// tmpfs, scratch, which has no name; -1 when there is none.
type extraFiles struct {
	mounts  []specs.Mount
	fds     []int
	scratch int
}

// accountMounts puts generated passwd and group files, where they are needed,
// on a tmpfs below the new root: it is covered next, so no name of them remains.
func accountMounts(s *specs.Spec) (extraFiles, error) {
	x := extraFiles{scratch: -1}
	if s.Annotations[NoPasswd] != "" {
		return x, nil
	}
	uid, gid := visibleIDs(s)
	passwd, group := accounts(s.Root.Path, uid, gid, envValue(s.Process.Env, "HOME"))
	if passwd == nil && group == nil {
		return x, nil
	}
	if err := unix.Mount("tmpfs", base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=4m,mode=755"); err != nil {
		return x, fmt.Errorf("mounting a tmpfs for the passwd entry: %w", err)
	}
	var err error
	if x.scratch, err = unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return x, fmt.Errorf("opening a tmpfs for the passwd entry: %w", err)
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{"passwd", passwd}, {"group", group}} {
		if f.data == nil {
			continue
		}
		p := base + "/" + f.name
		if err := writeSmall(p, f.data, unix.O_CREAT); err != nil {
			return x, fmt.Errorf("writing the user's %s entry: %w", f.name, err)
		}
		fd, err := unix.Open(p, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return x, fmt.Errorf("opening the user's %s entry: %w", f.name, err)
		}
		x.mounts = append(x.mounts, specs.Mount{Destination: "/etc/" + f.name, Type: "bind", Source: f.name})
		x.fds = append(x.fds, fd)
	}
	return x, nil
}

// mount makes one mount of the spec inside r. from is the opened source of a bind.
func (r *rootfs) mount(m specs.Mount, from int) error {
	wantDir := true
	if from >= 0 {
		var st unix.Stat_t
		if err := unix.Fstat(from, &st); err != nil {
			return err
		}
		wantDir = st.Mode&unix.S_IFMT == unix.S_IFDIR
	}
	to, where, err := r.place(m.Destination, wantDir)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	r.shown = append(r.shown, shown{where, m.Type == "bind", true})
	flags, data, ro := mountOptions(m.Options)
	if m.Type != "bind" {
		if ro {
			flags |= unix.MS_RDONLY
		}
		err := unix.Mount(m.Source, fdPath(to), m.Type, flags, data)
		if errors.Is(err, unix.EPERM) && m.Type == "proc" && r.hostProc {
			return showHostProc(to)
		}
		if err != nil && m.Type == "proc" {
			return fmt.Errorf("mounting a /proc of its own: %w; the host's /proc is partly covered, as in a container: run without --pid", err)
		}
		return err
	}
	if err := bindSource(m, from, to, unix.MS_REC); err != nil || !ro {
		return err
	}
	// fd "to" is what was covered; look again for what covers it.
	top, _, err := r.place(m.Destination, wantDir)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	return remountRO(top)
}

// showHostProc shows the host's /proc at to.
func showHostProc(to int) error {
	from, err := unix.Open("/proc", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	return bindFD(from, to, unix.MS_REC)
}

// bindSource shows the opened source of m at to.
func bindSource(m specs.Mount, from, to int, rec uintptr) error {
	if inside(base, m.Source) { // a copy: cloneSources
		return unix.MoveMount(from, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	return bindFD(from, to, rec)
}

// bindFD shows from at to. A tree with mounts that the user did not make can
// only be shown with all of them (mount_namespaces(7)).
func bindFD(from, to int, rec uintptr) error {
	err := unix.Mount(fdPath(from), fdPath(to), "", unix.MS_BIND|rec, "")
	if errors.Is(err, unix.EINVAL) && rec == 0 {
		err = unix.Mount(fdPath(from), fdPath(to), "", unix.MS_BIND|unix.MS_REC, "")
	}
	return err
}

// mountOptions splits OCI mount options into flags and file system data.
func mountOptions(opts []string) (flags uintptr, data string, ro bool) {
	var d []string
	for _, o := range opts {
		switch o {
		case "rbind", "bind", "rw":
		case "ro":
			ro = true
		case "nosuid":
			flags |= unix.MS_NOSUID
		case "nodev":
			flags |= unix.MS_NODEV
		case "noexec":
			flags |= unix.MS_NOEXEC
		default:
			d = append(d, o)
		}
	}
	return flags, strings.Join(d, ","), ro
}

// remountRO makes the mount that fd stands on read-only.
func remountRO(fd int) error { return remount(fd, unix.MS_RDONLY) }

// remount adds flags to the mount that fd stands on. Those that it has must be
// kept: in a user namespace they are locked (mount_namespaces(7)).
func remount(fd int, flags uintptr) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	const same = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME // as ST_…
	flags |= unix.MS_BIND | unix.MS_REMOUNT | uintptr(st.Flags)&same
	if st.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	return unix.Mount("", fdPath(fd), "", flags, "")
}

// pivot makes r the root directory and drops the old one.
func (r *rootfs) pivot() error {
	if err := unix.Fchdir(r.fd); err != nil {
		return fmt.Errorf("entering the new root: %w", err)
	}
	if r.lowest {
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

func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// maxLinks is how many symbolic links one resolution follows, as the kernel's.
const maxLinks = 40

// place opens (O_PATH) the mount point for dst, which is resolved inside the
// new root: links cannot lead out of it, and where says at what path that was.
// What is missing is made: on the image itself when that is writable, else on a
// tmpfs that shows the image's directory with the missing name added.
func (r *rootfs) place(dst string, wantDir bool) (at int, where string, err error) {
	// What is there is found in one call, where the kernel has it (Linux 5.6).
	fd, err := unix.Openat2(r.fd, dst, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS})
	if err == nil {
		return ofKind(fd, path.Join("/", dst), wantDir)
	}
	todo := split(dst)
	var done []string // resolved components, none of them a link
	cur, err := dup(r.fd)
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
		target, isLink, err := readlink(fd)
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
		if links++; links > maxLinks {
			unix.Close(cur)
			return -1, "", fmt.Errorf("following the image's link %q: %w", "/"+path.Join(append(done, c)...), unix.ELOOP)
		}
		if path.IsAbs(target) {
			done = nil
			if cur, err = r.reopen(cur, nil); err != nil {
				return -1, "", err
			}
		}
		todo = append(split(target), todo...)
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

// reopen closes cur and walks from the new root along names that are no links.
func (r *rootfs) reopen(cur int, names []string) (int, error) {
	unix.Close(cur)
	cur, err := dup(r.fd)
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

// add makes name in directory cur (whose path is done) and returns the
// directory that holds it now.
func (r *rootfs) add(cur int, done []string, name string, dir bool) (int, error) {
	at := "/" + path.Join(done...)
	where := path.Join(at, name)
	host := r.ofHost(at)
	// What the user may not write to is covered, as the image is; so is /dev,
	// where devices are added. A cover would keep the program out of what it
	// may write to, and would miss what comes later in /proc and /sys.
	if host && (inside(at, "/proc") || inside(at, "/sys") || (!inside(at, "/dev") && unix.Access(fdPath(cur), unix.W_OK) == nil)) {
		return -1, fmt.Errorf("the host's %s, which is shown there, has no %q and a mount shall not make it; make it on the host first", at, name)
	}
	if !host {
		err := create(cur, name, dir)
		if err == nil || errors.Is(err, unix.EEXIST) {
			r.shown = append(r.shown, shown{where, false, true})
			return cur, nil
		}
		if r.write && !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
			return -1, fmt.Errorf("making mount point %q: %w", where, err)
		}
	}
	top, err := r.ranch(cur, done, name, dir)
	if err != nil {
		return -1, fmt.Errorf("making room for mount point %q: %w", where, err)
	}
	r.shown = append(r.shown, shown{at, false, false}, shown{where, false, true})
	if err := create(top, name, dir); !errors.Is(err, unix.EEXIST) {
		return top, err
	}
	return top, nil
}

// ofHost says whether what lies at path, inside, is the host's own.
func (r *rootfs) ofHost(path string) bool {
	for _, s := range slices.Backward(r.shown) {
		if s.path == path || (s.below && inside(path, s.path)) {
			return s.host
		}
	}
	return false
}

// replace makes a directory of a link that leads to itself: debootstrap leaves
// such a /proc. The image's own link goes only when the image may be written to.
func (r *rootfs) replace(cur int, done []string, name string) (int, error) {
	if !r.write {
		var err error
		if cur, err = r.ranch(cur, done, name, true); err != nil {
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

// ranch covers directory cur with a tmpfs that shows the same names: bind
// mounts for what is there, copies of the links. Names can then be added
// without touching the image. name, of this kind, shall be one of them.
func (r *rootfs) ranch(cur int, done []string, name string, dir bool) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(cur, &st); err != nil {
		return -1, err
	}
	entries, err := os.ReadDir(fdPath(cur))
	if err != nil {
		return -1, err
	}
	// Devices of the host's /dev would not open on an overlay of a user's.
	if len(entries) > fewEntries && !r.write && r.scratch >= 0 && !r.ofHost("/"+path.Join(done...)) && !holdsMounts(cur) {
		if r.overlay(cur, st.Mode, done, mountPoint{name, dir}) == nil {
			return r.covering(done)
		}
	}
	return r.cover(cur, st.Mode, done, entries, nil)
}

// coverRoot covers the root with a tmpfs, if that lacks the first name of a mount
// point. It does so before anything is mounted: later, every mount would have to
// be shown again.
func (r *rootfs) coverRoot() error {
	missing := false
	var tops []string
	for _, p := range r.planned {
		name, _, below := strings.Cut(strings.TrimPrefix(p.path, "/"), "/")
		var st unix.Stat_t
		missing = missing || unix.Fstatat(r.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) == unix.ENOENT
		if !below {
			tops = append(tops, name)
		}
	}
	if !missing || r.write {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.fd, &st); err != nil {
		return err
	}
	entries, err := os.ReadDir(fdPath(r.fd))
	if err != nil {
		return err
	}
	top, err := r.cover(r.fd, st.Mode, nil, entries, tops)
	if err == nil {
		unix.Close(top)
	}
	return err
}

// cover covers directory cur, of this mode and path, with a tmpfs that shows its
// entries; those of hidden are empty, because something is mounted there next.
func (r *rootfs) cover(cur int, mode uint32, done []string, entries []os.DirEntry, hidden []string) (int, error) {
	data := fmt.Sprintf("size=4m,mode=%o", mode&0o777|0o700)
	if err := unix.Mount("tmpfs", fdPath(cur), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return -1, err
	}
	top, err := r.covering(done)
	if err != nil {
		return -1, err
	}
	if !r.write {
		fd, err := dup(top)
		if err != nil {
			return -1, err
		}
		r.ranches = append(r.ranches, fd)
	}
	return top, populate(entries, hidden, cur, top)
}

// covering opens the directory with the path done as it is now that something
// was mounted there.
func (r *rootfs) covering(done []string) (int, error) {
	if len(done) > 0 {
		root, err := dup(r.fd)
		if err != nil {
			return -1, err
		}
		return r.reopen(root, done)
	}
	// The new root itself was covered: the mount below it is found by name.
	top, err := unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		r.fd, err = dup(top)
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
			if t, err = os.Readlink(fdPath(from) + "/" + n); err == nil {
				err = unix.Symlinkat(t, to, n)
			}
		} else if err = create(to, n, e.IsDir()); err == nil && !slices.Contains(hidden, n) {
			err = unix.Mount(fdPath(from)+"/"+n, fdPath(to)+"/"+n, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil {
			return fmt.Errorf("showing %q: %w", n, err)
		}
	}
	return nil
}

func split(p string) []string {
	var out []string
	for _, c := range strings.Split(p, "/") {
		if c != "" && c != "." {
			out = append(out, c)
		}
	}
	return out
}

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }

// readlink returns the target of the link that fd (O_PATH|O_NOFOLLOW) stands on.
func readlink(fd int) (target string, isLink bool, err error) {
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

func envValue(env []string, name string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}
