package bare

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime/process"
)

// base is the mount point of the new root (package runtime/rootfs).
const base zstring = "/usr\x00"

// fewEntries is the number of bind mounts that cost as much as an overlay (runtime/rootfs).
const fewEntries = 16

// enter makes the image, with the planned mounts, the root of this process, as enterRoot of package
// runtime does.
func (r *run) enter() bool {
	if r.over() != "" {
		return r.enterOver()
	}
	image, e := openAt(unix.AT_FDCWD, r.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	r.device = device(image)
	if e != 0 || !r.openSources() || !mountAt(emptyString, "/\x00", emptyString, unix.MS_REC|unix.MS_SLAVE,
		emptyString) || !r.mountAccounts() {
		return false
	}
	if !r.mountImage(image) {
		return false
	}
	if r.top, e = openAt(unix.AT_FDCWD, base, unix.O_PATH|unix.O_DIRECTORY, 0); e != 0 {
		return false
	}
	if r.fake == "" && (!r.readOnly(r.top, "") || !r.coverRoot()) {
		return false
	}
	for i := range r.nmounts {
		if !r.mount(i) {
			return false
		}
	}
	if !r.sealCovers() {
		return false
	}
	if r.full {
		return false
	}
	return r.pivot()
}

// openSources opens the sources of the mounts before other mounts cover them.
func (r *run) openSources() bool {
	for i := range r.nmounts {
		m := &r.mounts[i]
		if m.tmpfs {
			continue
		}
		var e syscall.Errno
		if m.from, e = openAt(unix.AT_FDCWD, m.source, unix.O_PATH, 0); e != 0 {
			return false
		}
	}
	return true
}

// mountImage mounts the image's directory on base. For --write-fake it adds an overlay that keeps
// changes in memory (mountWriteFake of package runtime).
func (r *run) mountImage(image int) bool {
	r.fake = r.value(writeFake)
	if r.fake == "" {
		ok := mountAt(r.fdPath(image), base, emptyString, unix.MS_BIND|unix.MS_REC, emptyString)
		r.stacked++
		return ok
	}
	if !mountAt("tmpfs\x00", base, "tmpfs\x00", unix.MS_NOSUID|unix.MS_NODEV, r.join("mode=755,size=", r.fake)) {
		return false
	}
	r.stacked++
	mode, e := modeOf(image, emptyString, unix.AT_EMPTY_PATH)
	if e != 0 || !r.create(atCWD, "/usr/upper\x00", true) || !r.create(atCWD, "/usr/work\x00", true) {
		return false
	}
	upper := zstring("/usr/upper\x00")
	call(unix.SYS_FCHMODAT, uintptr(atCWD), upper.at(), uintptr(mode&0o777), 0, 0)
	data := r.join("lowerdir=", r.fdPath(image).text(), ",upperdir=/usr/upper,workdir=/usr/work,userxattr")
	if !mountAt("overlay\x00", base, "overlay\x00", 0, data) {
		return false
	}
	r.stacked++
	return true
}

// mountAccounts writes the generated files to a tmpfs on base, which the image covers later.
func (r *run) mountAccounts() bool {
	r.scratch = -1
	if r.passwd == "" && r.group == "" {
		return true
	}
	if limitsFiles() {
		return false
	}
	if !mountAt("tmpfs\x00", base, "tmpfs\x00", unix.MS_NOSUID|unix.MS_NODEV, "size=4m,mode=755\x00") {
		return false
	}
	r.stacked++
	fd, e := openAt(unix.AT_FDCWD, base, unix.O_PATH|unix.O_DIRECTORY, 0)
	r.scratch = fd
	return e == 0 &&
		(r.passwd == "" || r.generate("/usr/passwd\x00", "/etc/passwd\x00", r.passwd)) &&
		(r.group == "" || r.generate("/usr/group\x00", "/etc/group\x00", r.group))
}

// generate writes a file and adds the mount that binds it at a path of the container.
func (r *run) generate(file, at zstring, data string) bool {
	if !write(file, data, unix.O_CREAT) || r.nmounts == len(r.mounts) {
		return false
	}
	fd, e := openAt(unix.AT_FDCWD, file, unix.O_PATH, 0)
	r.mounts[r.nmounts] = mount{at: at, from: fd}
	r.nmounts++
	return e == 0
}

// mount makes mount i in the new root.
func (r *run) mount(i int) bool {
	m := &r.mounts[i]
	at, e := r.openInside(m.at)
	if e == unix.ENOENT && r.makeMountPoint(i) {
		at, e = r.openInside(m.at)
	}
	if e != 0 {
		return false
	}
	var ok bool
	if m.tmpfs {
		ok = mountAt("tmpfs\x00", r.fdPath(at), "tmpfs\x00", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777\x00")
	} else { // the kernel refuses to mount a file on a directory
		ok = mountAt(r.fdPath(m.from), r.fdPath(at), emptyString, unix.MS_BIND|unix.MS_REC, emptyString)
	}
	closeFD(at)
	if !ok || !m.readOnly {
		return ok
	}
	if at, e = r.openInside(m.at); e != 0 { // the new mount, which covers it now
		return false
	}
	ok = r.readOnly(at, m.at.text())
	closeFD(at)
	return ok
}

// isDir reports whether the mount needs a directory as mount point.
func (m *mount) isDir() bool {
	return m.tmpfs || kind(m.from, emptyString, unix.AT_EMPTY_PATH) == unix.S_IFDIR
}

// openInside opens a path of the new root. It refuses symbolic links.
func (r *run) openInside(path zstring) (int, syscall.Errno) {
	return openBelow(r.top, path, unix.O_PATH, unix.RESOLVE_NO_SYMLINKS)
}

// makeMountPoint creates the missing directories or file for the mount point of mount i.
func (r *run) makeMountPoint(i int) bool {
	path := r.mounts[i].at.text()
	for end := 1; end <= len(path); end++ {
		if end < len(path) && path[end] != '/' {
			continue
		}
		dir, name := parent(r.join(path[:end]))
		if dir == "" {
			dir = "/"
		}
		at, e := r.openInside(r.join(path[:end]))
		if e == 0 {
			closeFD(at)
			continue
		}
		if e != unix.ENOENT || !r.addName(i, dir, r.join(name), end < len(path) || r.mounts[i].isDir()) {
			return false
		}
	}
	return true
}

// addName creates a name in the directory dir of the new root, for the mount point of mount i.
func (r *run) addName(i int, dir string, name zstring, isDir bool) bool {
	if r.isHostPath(dir, i) { // never cover directories of the host
		return false
	}
	// Over the host's files, only the mount point of the image may be missing: a name in the root is
	// added in Go.
	if r.over() != "" && (i > 0 || dir == "/") {
		return false
	}
	cur, e := r.openInside(r.join(dir))
	if e != 0 {
		return false
	}
	if !r.isReadOnly(cur) && r.create(cur, name, isDir) { // in a cover, a tmpfs or a writable root
		closeFD(cur)
		return true
	}
	if r.fake != "" {
		return false
	}
	mode, e := modeOf(cur, emptyString, unix.AT_EMPTY_PATH)
	l, ok := r.list(cur)
	if e != 0 || !ok || mode&unix.S_IFMT != unix.S_IFDIR {
		return false
	}
	many := l
	for range fewEntries {
		many.next()
	}
	if _, more := many.next(); more && dir != "/" && r.scratch >= 0 {
		if !r.holdsMounts(dir) && r.overlay(cur, dir, name, isDir, mode) {
			return true
		}
		if l, ok = r.list(cur); !ok {
			return false
		}
	}
	return r.cover(cur, r.join(dir), mode, l, false) && r.create(r.covers[r.ncovers-1], name, isDir)
}

// isReadOnly reports whether no name can be created in the directory cur, because it belongs to the
// read-only image. Trying it would cost a lookup in a network file system.
func (r *run) isReadOnly(cur int) bool {
	if r.over() != "" {
		return r.ncovers == 0
	}
	return r.fake == "" && device(cur) == r.device
}

// isHostPath reports whether a path of the new root belongs to the host, with only the first n
// mounts made.
func (r *run) isHostPath(path string, n int) bool {
	for n--; n >= 0; n-- {
		if m := &r.mounts[n]; inside(path, m.at.text()) {
			return !m.tmpfs
		}
	}
	return false
}

// coverRoot covers the root with a tmpfs if the first name of a mount point is missing in it. This
// must precede the other mounts, which would otherwise have to be bound again.
func (r *run) coverRoot() bool {
	missing := false
	for i := range r.nmounts {
		name, _ := cut(r.mounts[i].at.text()[1:], '/')
		_, e := modeOf(r.top, r.join(name), unix.AT_SYMLINK_NOFOLLOW)
		missing = missing || e == unix.ENOENT
	}
	if !missing {
		return true
	}
	mode, e := modeOf(r.top, emptyString, unix.AT_EMPTY_PATH)
	l, ok := r.list(r.top)
	if e != 0 || !ok || !r.cover(r.top, "/\x00", mode, l, true) {
		return false
	}
	return true
}

// parent splits a clean path into directory and name. dir is "" for names in the root.
func parent(path zstring) (dir, name string) {
	p := path.text()
	i := len(p) - 1
	for p[i] != '/' {
		i--
	}
	return p[:i], p[i+1:]
}

// create creates an empty file or directory as a mount point.
func (r *run) create(at int, name zstring, dir bool) bool {
	if dir {
		_, e := call(unix.SYS_MKDIRAT, uintptr(at), name.at(), 0o755, 0, 0)
		return e == 0
	}
	fd, e := openAt(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
	if e == 0 {
		closeFD(fd)
	}
	return e == 0
}

// overlay covers the directory cur with an overlay that adds a name and all missing mount points.
func (r *run) overlay(cur int, dir string, name zstring, isDir bool, mode uint32) bool {
	layer := r.join("layer", r.decimal(uintptr(r.used))) // unique, because memory is never freed
	mode = mode&0o777 | 0o700
	if !r.create(r.scratch, layer, true) {
		return false
	}
	at, e := openAt(r.scratch, layer, unix.O_PATH, 0)
	// Set the mode, which the overlay shows, because mkdir applied the umask.
	if _, e2 := call(unix.SYS_FCHMODAT, uintptr(r.scratch), layer.at(), uintptr(mode), 0, 0); e != 0 || e2 != 0 {
		return false
	}
	if !r.create(at, name, isDir) {
		return false
	}
	for i := range r.nmounts {
		d, name := parent(r.mounts[i].at)
		if d != dir {
			continue
		}
		file := r.join(name)
		if _, e := modeOf(cur, file, unix.AT_SYMLINK_NOFOLLOW); e == unix.ENOENT {
			r.create(at, file, r.mounts[i].isDir())
		}
	}
	data := r.join("lowerdir=", r.fdPath(at).text(), ":", r.fdPath(cur).text(), ",userxattr")
	return mountAt("overlay\x00", r.fdPath(cur), "overlay\x00", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, data)
}

// holdsMounts reports whether there are mounts below the path dir of the new root. Mounts that a later
// mount at dir covers do not count. It returns true if it cannot find out.
func (r *run) holdsMounts(dir string) bool {
	for i := range len(dir) {
		if contains(" \t\n\\", dir[i]) { // mountinfo escapes these characters
			return true
		}
	}
	fd, e := openAt(unix.AT_FDCWD, "/proc/self/mountinfo\x00", unix.O_RDONLY, 0)
	if e != 0 {
		return true
	}
	info, ok := read(fd, r.buffer[:])
	closeFD(fd)
	if !ok {
		return true
	}
	if r.over() == "" {
		dir = r.join(base.text(), dir).text()
	}
	found := false
	for rest := text(info); rest != ""; {
		var point string
		point, rest = cut(rest, '\n')
		for range 4 { // the fields before the mount point
			_, point = cut(point, ' ')
		}
		if point, _ = cut(point, ' '); point == dir {
			found = false
		} else if inside(point, dir) {
			found = true
		}
	}
	return found
}

// cover covers the directory cur, at a path of the new root, with a tmpfs that binds all of its
// entries. In the root, it leaves mount points of the planned mounts empty.
func (r *run) cover(cur int, path zstring, mode uint32, l listing, root bool) bool {
	data := r.join("size=4m,mode=", r.digits(uintptr(mode&0o777|0o700), 8))
	if r.ncovers == len(r.covers) || !mountAt("tmpfs\x00", r.fdPath(cur), "tmpfs\x00", unix.MS_NOSUID|unix.MS_NODEV, data) {
		return false
	}
	var top int
	var e syscall.Errno
	if root {
		r.stacked++
		top, e = openAt(unix.AT_FDCWD, base, unix.O_PATH|unix.O_DIRECTORY, 0)
		r.top = top
	} else {
		top, e = r.openInside(path)
	}
	if e != 0 {
		return false
	}
	r.covers[r.ncovers] = top
	r.ncovers++
	from, to := r.fdPath(cur).text(), r.fdPath(top).text()
	for {
		d, more := l.next()
		if !more {
			return true
		}
		file := r.join(d.name)
		if d.kind == unix.DT_UNKNOWN { // some file systems do not report types
			d.kind = byte(kind(cur, file, unix.AT_SYMLINK_NOFOLLOW) >> 12) // IFTODT of dirent.h
		}
		ok := false
		switch d.kind {
		case unix.DT_LNK:
			ok = r.copyLink(cur, top, file)
		case unix.DT_UNKNOWN:
		default:
			ok = r.create(top, file, d.kind == unix.DT_DIR) && ((root && r.isMountPoint(file)) ||
				mountAt(r.join(from, "/", d.name), r.join(to, "/", d.name), emptyString, unix.MS_BIND|unix.MS_REC, emptyString))
		}
		if !ok {
			return false
		}
	}
}

// isMountPoint reports whether a planned mount is at a name in the root.
func (r *run) isMountPoint(name zstring) bool {
	for i := range r.nmounts {
		if r.mounts[i].at.text()[1:] == name.text() {
			return true
		}
	}
	return false
}

func (r *run) copyLink(from, to int, name zstring) bool {
	b := r.alloc(unix.PathMax)
	if b == nil {
		return false
	}
	n, e := call(unix.SYS_READLINKAT, uintptr(from), name.at(), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)-1), 0)
	if e != 0 || int(n) == len(b)-1 {
		return false
	}
	_, e = call(unix.SYS_SYMLINKAT, zstring(text(b[:n+1])).at(), uintptr(to), name.at(), 0, 0)
	return e == 0
}

// readOnly makes the mount of fd, at the path dir of the new root, and all mounts below it read-only
// (ReadOnly of runtime/rootfs). Before Linux 5.12 it declines mounts below.
func (r *run) readOnly(fd int, dir string) bool {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE}
	return setAttr(fd, &attr, unix.AT_RECURSIVE) ||
		(!r.holdsMounts(dir) && mountAt(emptyString, r.fdPath(fd), emptyString, unix.MS_PRIVATE, emptyString) && r.remount(fd))
}

// sealCovers makes the covers read-only, without the mounts in them.
func (r *run) sealCovers() bool {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	for _, fd := range r.covers[:r.ncovers] {
		if !setAttr(fd, &attr, 0) && !r.remount(fd) {
			return false
		}
	}
	return true
}

// remount makes the mount of fd read-only before Linux 5.12. It has to repeat the mount's other
// flags, which are locked in a user namespace (mount_namespaces(7)); a network file system asks its
// servers for them.
func (r *run) remount(fd int) bool {
	var st unix.Statfs_t
	if _, e := call(unix.SYS_FSTATFS, uintptr(fd), uintptr(unsafe.Pointer(&st)), 0, 0, 0); e != 0 {
		return false
	}
	const same = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME // these have the values of ST_…
	flags := uintptr(st.Flags) & same
	if st.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	return mountAt(emptyString, r.fdPath(fd), emptyString, flags|unix.MS_RDONLY|unix.MS_BIND|unix.MS_REMOUNT, emptyString)
}

// pivot changes the root of this process to the new one and unmounts the old one. If it returns
// true, the mounts cannot be undone any more.
func (r *run) pivot() bool {
	if _, e := call(unix.SYS_FCHDIR, uintptr(r.top), 0, 0, 0, 0); e != 0 {
		return false
	}
	dot := zstring(".\x00")
	if _, e := call(unix.SYS_PIVOT_ROOT, dot.at(), dot.at(), 0, 0, 0); e != 0 {
		call(unix.SYS_CHDIR, r.cwd.at(), 0, 0, 0, 0)
		return false
	}
	if !unmount(dot) { // the host's tree must not stay visible
		const message = "hpcc: error: unmounting the old root: the kernel refused it\n"
		call(unix.SYS_WRITE, 2, uintptr(unsafe.Pointer(unsafe.StringData(message))), uintptr(len(message)), 0, 0)
		call(unix.SYS_EXIT_GROUP, process.ExitFailed, 0, 0, 0, 0)
	}
	return true
}

// A listing holds the remaining entries of a directory.
type listing struct {
	rest []byte
	ok   bool // the buffer held all entries
}

type entry struct {
	name string
	kind byte
}

// list lists the directory cur, a descriptor opened with O_PATH.
func (r *run) list(cur int) (l listing, ok bool) {
	fd, e := openAt(cur, ".\x00", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if e != 0 {
		return l, false
	}
	l = r.listing(fd)
	closeFD(fd)
	return l, l.ok
}

// listing reads the entries of the directory fd that fit into the buffer.
func (r *run) listing(fd int) listing {
	var l listing
	n := 0
	for n < len(r.buffer) {
		got, e := call(unix.SYS_GETDENTS64, uintptr(fd), uintptr(unsafe.Pointer(&r.buffer[n])), uintptr(len(r.buffer)-n), 0, 0)
		if e != 0 || got == 0 {
			l.ok = e == 0
			break
		}
		n += int(got)
	}
	l.rest = r.buffer[:n]
	return l
}

// next consumes one entry and skips "." and "..".
func (l *listing) next() (entry, bool) {
	for len(l.rest) > 0 {
		d := (*unix.Dirent)(unsafe.Pointer(&l.rest[0]))
		e := entry{cString((*byte)(unsafe.Pointer(&d.Name[0]))).text(), d.Type}
		l.rest = l.rest[min(int(d.Reclen), len(l.rest)):]
		if e.name != "." && e.name != ".." {
			return e, true
		}
	}
	return entry{}, false
}
