package bare

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// base is where the new root is put together (package runtime, mount.go).
const base zstring = "/usr\x00"

// fewEntries is how many bind mounts cost as much as an overlay (ranch.go there).
const fewEntries = 16

// exitFailed is ExitFailed of package runtime.
const exitFailed = 125

// enter makes the image, with the mounts that were planned, the root of this
// process, as enterRoot of package runtime does.
func (r *run) enter() bool {
	image, e := openAt(unix.AT_FDCWD, r.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if e != 0 || !mountAt(none, "/\x00", none, unix.MS_REC|unix.MS_SLAVE, none) || !r.mountAccounts() {
		return false
	}
	if !mountAt(r.fdPath(image), base, none, unix.MS_BIND|unix.MS_REC, none) {
		return false
	}
	r.stacked++
	if r.top, e = openAt(unix.AT_FDCWD, base, unix.O_PATH|unix.O_DIRECTORY, 0); e != 0 || !r.readOnly(r.top) {
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
		(r.passwd == "" || r.made("/usr/passwd\x00", "/etc/passwd\x00", r.passwd)) &&
		(r.group == "" || r.made("/usr/group\x00", "/etc/group\x00", r.group))
}

// made writes a file and plans to show it.
func (r *run) made(file, at zstring, data string) bool {
	if !write(file, data, unix.O_CREAT) || r.nmounts == len(r.mounts) {
		return false
	}
	fd, e := openAt(unix.AT_FDCWD, file, unix.O_PATH, 0)
	r.mounts[r.nmounts] = mount{at, fd}
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
	// The kernel, too, mounts no file on a directory.
	ok := mountAt(r.fdPath(m.from), r.fdPath(at), none, unix.MS_BIND|unix.MS_REC, none)
	closeFD(at)
	return ok
}

// place opens a path inside that leads through no links.
func (r *run) place(path zstring) (int, syscall.Errno) {
	return openBelow(r.top, path, unix.O_PATH, unix.RESOLVE_NO_SYMLINKS)
}

// makeRoom adds the mount point of mount i, which the image lacks, to its directory.
func (r *run) makeRoom(i int) bool {
	dir, name := parent(r.mounts[i].at)
	if dir == "" {
		return false
	}
	at := r.join(dir)
	for j := range i { // what the host shows is not ours to cover
		if inside(dir, r.mounts[j].at.text()) {
			return false
		}
	}
	cur, e := r.place(at)
	if e != 0 {
		return false
	}
	if r.create(cur, r.join(name), r.mounts[i].dir()) { // it was covered before
		return true
	}
	mode, e := modeOf(cur, none, unix.AT_EMPTY_PATH)
	list, e2 := openAt(cur, ".\x00", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if e != 0 || e2 != 0 || mode&unix.S_IFMT != unix.S_IFDIR {
		return false
	}
	l := r.listing(list)
	closeFD(list)
	n := 0
	for count := l; n <= fewEntries; n++ {
		if _, more := count.next(); !more {
			break
		}
	}
	switch {
	case n <= fewEntries && l.ok:
		return r.cover(cur, at, mode, l) && r.create(r.covers[r.ncovers-1], r.join(name), r.mounts[i].dir())
	case n > fewEntries && r.scratch >= 0 && !r.holdsMounts(dir):
		return r.overlay(cur, dir, mode)
	}
	return false
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

// overlay shows the directory cur with all mount points in it that it lacks.
func (r *run) overlay(cur int, dir string, mode uint32) bool {
	layer := r.join("layer", r.decimal(uintptr(cur)))
	mode = mode&0o777 | 0o700
	if !r.create(r.scratch, layer, true) {
		return false
	}
	at, e := openAt(r.scratch, layer, unix.O_PATH, 0)
	// mkdir would have masked the mode, which the overlay shows.
	if _, e2 := call(unix.SYS_FCHMODAT, uintptr(r.scratch), layer.at(), uintptr(mode), 0, 0); e != 0 || e2 != 0 {
		return false
	}
	for i := range r.nmounts {
		d, name := parent(r.mounts[i].at)
		if d != dir {
			continue
		}
		file := r.join(name)
		if _, e := modeOf(cur, file, unix.AT_SYMLINK_NOFOLLOW); e == unix.ENOENT && !r.create(at, file, r.mounts[i].dir()) {
			return false
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
// same few names.
func (r *run) cover(cur int, path zstring, mode uint32, l listing) bool {
	data := r.join("size=4m,mode=", r.digits(uintptr(mode&0o777|0o700), 8))
	if r.ncovers == len(r.covers) || !mountAt("tmpfs\x00", r.fdPath(cur), "tmpfs\x00", unix.MS_NOSUID|unix.MS_NODEV, data) {
		return false
	}
	top, e := r.place(path)
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
		file := zstring(r.join(d.name))
		ok := false
		switch d.kind {
		case unix.DT_LNK:
			ok = r.copyLink(cur, top, file)
		case unix.DT_UNKNOWN:
		default:
			ok = r.create(top, file, d.kind == unix.DT_DIR) &&
				mountAt(r.join(from, "/", d.name), r.join(to, "/", d.name), none, unix.MS_BIND|unix.MS_REC, none)
		}
		if !ok {
			return false
		}
	}
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
		const words = "hpcc: error: leaving the old root: the kernel refuses\n"
		call(unix.SYS_WRITE, 2, uintptr(unsafe.Pointer(unsafe.StringData(words))), uintptr(len(words)), 0, 0)
		call(unix.SYS_EXIT_GROUP, exitFailed, 0, 0, 0, 0)
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
