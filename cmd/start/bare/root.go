package bare

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime/process"
)

// base is where the new root is put together (package runtime, mount.go).
const base zstring = "/usr\x00"

// fewEntries is how many bind mounts cost as much as an overlay (ranch.go there).
const fewEntries = 16

// enter makes the image, with the mounts that were planned, the root of this
// process, as enterRoot of package runtime does.
func (r *run) enter() bool {
	image, e := openAt(unix.AT_FDCWD, r.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if e != 0 || !r.openSources() || !mountAt(none, "/\x00", none, unix.MS_REC|unix.MS_SLAVE, none) || !r.mountAccounts() {
		return false
	}
	if !r.mountImage(image) {
		return false
	}
	if r.top, e = openAt(unix.AT_FDCWD, base, unix.O_PATH|unix.O_DIRECTORY, 0); e != 0 {
		return false
	}
	if r.fake == "" && (!r.readOnly(r.top) || !r.coverRoot()) {
		return false
	}
	for i := range r.nmounts {
		if !r.mount(i) {
			return false
		}
	}
	for _, fd := range r.covers[:r.ncovers] {
		if !r.readOnly(fd) {
			return false
		}
	}
	if r.full {
		return false
	}
	return r.pivot()
}

// openSources opens what the mounts show, before anything is covered.
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

// mountImage mounts the image's directory on base; for --write-fake, below an
// overlay that keeps changes in memory (forgetful of package runtime).
func (r *run) mountImage(image int) bool {
	r.fake = r.value(writeFake)
	if r.fake == "" {
		ok := mountAt(r.fdPath(image), base, none, unix.MS_BIND|unix.MS_REC, none)
		r.stacked++
		return ok
	}
	if !mountAt("tmpfs\x00", base, "tmpfs\x00", unix.MS_NOSUID|unix.MS_NODEV, r.join("mode=755,size=", r.fake)) {
		return false
	}
	r.stacked++
	mode, e := modeOf(image, none, unix.AT_EMPTY_PATH)
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

// mountAccounts puts the generated files on a tmpfs that the image covers next.
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

// generate writes a file and adds the mount that shows it.
func (r *run) generate(file, at zstring, data string) bool {
	if !write(file, data, unix.O_CREAT) || r.nmounts == len(r.mounts) {
		return false
	}
	fd, e := openAt(unix.AT_FDCWD, file, unix.O_PATH, 0)
	r.mounts[r.nmounts] = mount{at: at, from: fd}
	r.nmounts++
	return e == 0
}

// mount makes one mount inside.
func (r *run) mount(i int) bool {
	m := &r.mounts[i]
	at, e := r.place(m.at)
	if e == unix.ENOENT && r.makeRoom(i) {
		at, e = r.place(m.at)
	}
	if e != 0 {
		return false
	}
	var ok bool
	if m.tmpfs {
		ok = mountAt("tmpfs\x00", r.fdPath(at), "tmpfs\x00", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777\x00")
	} else { // the kernel, too, mounts no file on a directory
		ok = mountAt(r.fdPath(m.from), r.fdPath(at), none, unix.MS_BIND|unix.MS_REC, none)
	}
	closeFD(at)
	if !ok || !m.readOnly {
		return ok
	}
	if at, e = r.place(m.at); e != 0 { // what covers it now
		return false
	}
	ok = r.readOnly(at)
	closeFD(at)
	return ok
}

// isDir reports whether the mount is at a directory.
func (m *mount) isDir() bool {
	return m.tmpfs || kind(m.from, none, unix.AT_EMPTY_PATH) == unix.S_IFDIR
}

// place opens a path inside that leads through no links.
func (r *run) place(path zstring) (int, syscall.Errno) {
	return openBelow(r.top, path, unix.O_PATH, unix.RESOLVE_NO_SYMLINKS)
}

// makeRoom adds the names that the mount point of mount i lacks.
func (r *run) makeRoom(i int) bool {
	path := r.mounts[i].at.text()
	for end := 1; end <= len(path); end++ {
		if end < len(path) && path[end] != '/' {
			continue
		}
		dir, name := parent(r.join(path[:end]))
		if dir == "" {
			dir = "/"
		}
		at, e := r.place(r.join(path[:end]))
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

// addName adds a name to the directory dir inside, for the mount point of mount i.
func (r *run) addName(i int, dir string, name zstring, isDir bool) bool {
	if r.ofHost(dir, i) { // what the host shows is not ours to cover
		return false
	}
	cur, e := r.place(r.join(dir))
	if e != 0 {
		return false
	}
	if r.create(cur, name, isDir) { // in a cover, a tmpfs, or a root that may be changed
		closeFD(cur)
		return true
	}
	if r.fake != "" {
		return false
	}
	mode, e := modeOf(cur, none, unix.AT_EMPTY_PATH)
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

// ofHost reports whether what lies at a path inside is the host's own, once the
// first n mounts are made.
func (r *run) ofHost(path string, n int) bool {
	for n--; n >= 0; n-- {
		if m := &r.mounts[n]; inside(path, m.at.text()) {
			return !m.tmpfs
		}
	}
	return false
}

// coverRoot covers the root with a tmpfs, if that lacks the first name of a mount
// point. It does so before anything is mounted: later, every mount would have to
// be shown again.
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
	mode, e := modeOf(r.top, none, unix.AT_EMPTY_PATH)
	l, ok := r.list(r.top)
	if e != 0 || !ok || !r.cover(r.top, "/\x00", mode, l, true) {
		return false
	}
	return true
}

// parent splits a clean path; dir is "" for names in the root.
func parent(path zstring) (dir, name string) {
	p := path.text()
	i := len(p) - 1
	for p[i] != '/' {
		i--
	}
	return p[:i], p[i+1:]
}

// create makes an empty file or directory to mount on.
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

// overlay shows the directory cur with a name, and all mount points in it, that it
// lacks.
func (r *run) overlay(cur int, dir string, name zstring, isDir bool, mode uint32) bool {
	layer := r.join("layer", r.decimal(uintptr(r.used))) // unique: memory is never given back
	mode = mode&0o777 | 0o700
	if !r.create(r.scratch, layer, true) {
		return false
	}
	at, e := openAt(r.scratch, layer, unix.O_PATH, 0)
	// mkdir would have masked the mode, which the overlay shows.
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

// holdsMounts says whether something is mounted below the image's directory
// dir, which an overlay would not show.
func (r *run) holdsMounts(dir string) bool {
	for i := range len(dir) {
		if contains(" \t\n\\", dir[i]) { // mountinfo has them in octal
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
	below := r.join(" ", base.text(), dir, "/").text()
	for rest := text(info); rest != ""; rest = rest[1:] {
		if rest[0] == ' ' && hasPrefix(rest, below) {
			return true
		}
	}
	return false
}

// cover covers the directory cur, at a path inside, with a tmpfs that shows the
// same names. In the root, names at which something is mounted next stay empty.
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
		top, e = r.place(path)
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
		if d.kind == unix.DT_UNKNOWN { // some file systems do not tell
			d.kind = byte(kind(cur, file, unix.AT_SYMLINK_NOFOLLOW) >> 12) // IFTODT of dirent.h
		}
		ok := false
		switch d.kind {
		case unix.DT_LNK:
			ok = r.copyLink(cur, top, file)
		case unix.DT_UNKNOWN:
		default:
			ok = r.create(top, file, d.kind == unix.DT_DIR) && ((root && r.isMountPoint(file)) ||
				mountAt(r.join(from, "/", d.name), r.join(to, "/", d.name), none, unix.MS_BIND|unix.MS_REC, none))
		}
		if !ok {
			return false
		}
	}
}

// isMountPoint reports whether something is to be mounted at a name in the root.
func (r *run) isMountPoint(name zstring) bool {
	for i := range r.nmounts {
		if r.mounts[i].at.text()[1:] == name.text() {
			return true
		}
	}
	return false
}

func (r *run) copyLink(from, to int, name zstring) bool {
	b := r.take(unix.PathMax)
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

// readOnly makes the mount that fd stands on read-only, with the flags that it
// has: in a user namespace they are locked (mount_namespaces(7)).
func (r *run) readOnly(fd int) bool {
	var st unix.Statfs_t
	if _, e := call(unix.SYS_FSTATFS, uintptr(fd), uintptr(unsafe.Pointer(&st)), 0, 0, 0); e != 0 {
		return false
	}
	const same = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME // as ST_…
	flags := uintptr(st.Flags) & same
	if st.Flags&unix.ST_RELATIME != 0 {
		flags |= unix.MS_RELATIME
	}
	return mountAt(none, r.fdPath(fd), none, flags|unix.MS_RDONLY|unix.MS_BIND|unix.MS_REMOUNT, none)
}

// pivot makes the new root the root and drops the old one. The mounts are not
// to be taken back any more when the root was changed.
func (r *run) pivot() bool {
	if _, e := call(unix.SYS_FCHDIR, uintptr(r.top), 0, 0, 0, 0); e != 0 {
		return false
	}
	here := zstring(".\x00")
	if _, e := call(unix.SYS_PIVOT_ROOT, here.at(), here.at(), 0, 0, 0); e != 0 {
		call(unix.SYS_CHDIR, r.cwd.at(), 0, 0, 0, 0)
		return false
	}
	if !unmount(here) { // it cannot be undone, and the host's tree must not stay
		const message = "hpcc: error: leaving the old root: the kernel refuses\n"
		call(unix.SYS_WRITE, 2, uintptr(unsafe.Pointer(unsafe.StringData(message))), uintptr(len(message)), 0, 0)
		call(unix.SYS_EXIT_GROUP, process.ExitFailed, 0, 0, 0, 0)
	}
	return true
}

// A listing is what is left of a directory's entries.
type listing struct {
	rest []byte
	ok   bool // they are all
}

type entry struct {
	name string
	kind byte
}

// list lists the directory cur, opened as a path.
func (r *run) list(cur int) (l listing, ok bool) {
	fd, e := openAt(cur, ".\x00", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if e != 0 {
		return l, false
	}
	l = r.listing(fd)
	closeFD(fd)
	return l, l.ok
}

// listing reads the directory fd, as far as the buffer holds it.
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

// next takes one entry, which is neither "." nor "..".
func (l *listing) next() (entry, bool) {
	for len(l.rest) > 0 {
		d := (*unix.Dirent)(unsafe.Pointer(&l.rest[0]))
		e := entry{pointed((*byte)(unsafe.Pointer(&d.Name[0]))).text(), d.Type}
		l.rest = l.rest[min(int(d.Reclen), len(l.rest)):]
		if e.name != "." && e.name != ".." {
			return e, true
		}
	}
	return entry{}, false
}
