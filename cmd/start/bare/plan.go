package bare

import (
	goruntime "runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/store/ready"
)

// A mount shows a file or directory, opened as from, at a path inside.
type mount struct {
	at   zstring
	from int
}

func (m *mount) dir() bool { return kind(m.from, none, unix.AT_EMPTY_PATH) == unix.S_IFDIR }

// standardPath is that of package runtime.
const standardPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// plan works out the run, as Spec of package runtime does.
func (r *run) plan() bool {
	if !r.defaults() || !r.findRoot() || !r.readConfig() || !r.findDirectory() {
		return false
	}
	if kind(unix.AT_FDCWD, r.home, 0) != unix.S_IFDIR {
		return false
	}
	return r.planMounts() && r.planStart() && r.planArgs() && r.planEnv() && r.planAccounts() && !r.full
}

// findRoot finds the image's directory.
func (r *run) findRoot() bool {
	image := r.image.text()
	switch {
	case clean(image) && image != "/":
		r.root = r.image
		return true
	case hasPrefix(image, "./") && clean(image[1:]):
		r.root = r.image
		return true
	}
	dir := r.vars.value("HPCC_STORE")
	if data := r.vars.value("XDG_DATA_HOME"); dir == "" && hasPrefix(data, "/") {
		dir = r.join(data, "/hpcc").text()
	} else if dir == "" {
		dir = r.join(r.home.text(), "/.local/share/hpcc").text()
	}
	if !ready.Short(image) || !clean(dir) {
		return false
	}
	if mode, e := modeOf(unix.AT_FDCWD, r.join(dir), 0); e == 0 && mode&ready.Shared != 0 {
		return false // package store refuses it, with the cure
	}
	version, e := r.readFile(r.join(dir, "/version"))
	if e == unix.ENOENT {
		if _, e := modeOf(unix.AT_FDCWD, r.join(dir), 0); e == unix.ENOENT {
			return r.directory()
		}
	}
	if e != 0 || version != ready.Version {
		return false
	}
	name, tag := cut(image, ':')
	if tag != "" {
		name = r.join(name, "%3A", tag).text()
	}
	ref, e := r.readFile(r.join(dir, "/refs/", name))
	if e == unix.ENOENT {
		return r.directory()
	}
	if e != 0 {
		return false
	}
	hex, ok := ready.Manifest(ref)
	r.root = r.join(dir, "/trees/", hex)
	return ok
}

// directory takes IMAGE for that of a directory, since no image has that name.
func (r *run) directory() bool {
	r.root = r.image
	return !ready.DigestLike(r.image.text()) && kind(unix.AT_FDCWD, r.image, 0) == unix.S_IFDIR
}

// readConfig reads the image's configuration; a directory without one was made otherwise.
func (r *run) readConfig() bool {
	s, e := r.readFile(r.join(r.root.text(), "/.hpcc/image.json"))
	if e == unix.ENOENT {
		return true
	}
	return e == 0 && r.conf.read(s) && (r.conf.architecture == "" || r.conf.architecture == goruntime.GOARCH)
}

// findDirectory finds the physical path of the current directory, as package
// os: by $PWD, where that names it.
func (r *run) findDirectory() bool {
	b := r.buffer[:unix.PathMax]
	n, e := call(unix.SYS_GETCWD, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	if e != 0 || n < 2 || b[0] != '/' {
		return false
	}
	r.cwd = r.join(text(b[:n-1]))
	pwd := r.vars.value("PWD")
	if pwd != "" && pwd != r.cwd.text() {
		physical, ok := r.physical(r.join(pwd))
		if !ok || physical != r.cwd {
			return false
		}
	}
	return access(r.cwd, unix.X_OK)
}

// physical is the path of what lies at path, with all links resolved.
func (r *run) physical(path zstring) (zstring, bool) {
	fd, e := openAt(unix.AT_FDCWD, path, unix.O_PATH, 0)
	if e != 0 {
		return "", false
	}
	b := r.buffer[:unix.PathMax]
	n, e := call(unix.SYS_READLINKAT, uintptr(atCWD), r.fdPath(fd).at(), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
	closeFD(fd)
	if e != 0 || int(n) == len(b) {
		return "", false
	}
	return r.join(text(b[:n])), true
}

func (r *run) fdPath(fd int) zstring {
	return r.join("/proc/self/fd/", r.decimal(uintptr(fd)))
}

// planMounts lists the default mounts.
func (r *run) planMounts() bool {
	if !r.show("/proc\x00") {
		return false
	}
	if fd := r.mounts[0].from; fd <= 2 { // a standard stream is closed, and Go opens it
		closeFD(fd)
		return false
	}
	if !r.show("/sys\x00") || !r.show("/dev\x00") || !r.show("/tmp\x00") {
		return false
	}
	for _, file := range [...]zstring{"/etc/hosts\x00", "/etc/resolv.conf\x00"} {
		if kind(unix.AT_FDCWD, file, 0) != 0 && !r.show(file) {
			return false
		}
	}
	if !r.shown(r.home) {
		physical, ok := r.physical(r.home)
		if !ok || !r.show(r.home) {
			return false
		}
		if !r.shown(physical) {
			empty, ok := r.vacant(physical)
			if !ok || empty && !r.show(physical) {
				return false
			}
		}
	}
	if r.cwd != "/\x00" && !r.shown(r.cwd) {
		empty, ok := r.vacant(r.cwd)
		if !ok || empty && !r.show(r.cwd) {
			return false
		}
	}
	return true
}

// show mounts path of the host at the same path inside.
func (r *run) show(path zstring) bool {
	if inside(base.text(), path.text()) || r.nmounts == len(r.mounts) {
		return false
	}
	fd, e := openAt(unix.AT_FDCWD, path, unix.O_PATH, 0)
	if e != 0 {
		return false
	}
	r.mounts[r.nmounts] = mount{path, fd}
	r.nmounts++
	return true
}

// shown says whether path lies in what is mounted.
func (r *run) shown(path zstring) bool {
	for i := range r.nmounts {
		if inside(path.text(), r.mounts[i].at.text()) {
			return true
		}
	}
	return false
}

// vacant says whether a mount at path would hide nothing of the image; not ok
// where that cannot be seen.
func (r *run) vacant(path zstring) (empty, ok bool) {
	fd, e := openAt(unix.AT_FDCWD, r.join(r.root.text(), path.text()), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if e == unix.ENOENT {
		return true, true
	}
	if e != 0 {
		return false, false
	}
	l := r.listing(fd)
	closeFD(fd)
	if !l.ok {
		return false, false
	}
	_, any := l.next()
	return !any, true
}

// planStart says where the program starts: in the caller's directory where it
// is shown, else in the image's.
func (r *run) planStart() bool {
	switch dir := r.conf.dir; {
	case r.shown(r.cwd):
		r.start = r.cwd
	case dir == "":
		r.start = "/\x00"
	case !clean(dir):
		return false
	default:
		r.start = r.join(dir)
	}
	return true
}

// planArgs puts the image's words and those of the command line together.
func (r *run) planArgs() bool {
	for i := range r.conf.entrypoint.n {
		r.arg(r.join(r.conf.entrypoint.of[i]))
	}
	first := 3
	if first < r.argc && r.words[first] == "--\x00" {
		first++
	}
	for i := first; i < r.argc; i++ {
		r.arg(r.words[i])
	}
	if first == r.argc {
		for i := range r.conf.command.n {
			r.arg(r.join(r.conf.command.of[i]))
		}
	}
	return r.nargs > 0 && r.nargs < len(r.args)
}

func (r *run) arg(word zstring) {
	if r.nargs < len(r.args) {
		r.args[r.nargs] = unsafe.StringData(string(word))
		r.nargs++
	}
}

// planEnv puts the image's variables over the caller's.
func (r *run) planEnv() bool {
	v := &r.vars
	for _, name := range [...]string{"PATH", "HOME", "HPCC_RUNNING", "HPCC_FOREIGN", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"} {
		v.remove(name)
	}
	if tmp := v.value("TMPDIR"); tmp != "" && !clean(tmp) {
		return false
	} else if !r.shown(r.join(tmp)) {
		v.remove("TMPDIR")
	}
	ok := v.add("PATH="+standardPath+"\x00") && v.add(r.join("HOME=", r.home.text()))
	for i := range r.conf.env.n {
		kv := r.conf.env.of[i]
		if name, _ := cut(kv, '='); name != "" && len(name) < len(kv) {
			ok = ok && v.set(r.join(kv))
		}
	}
	v.remove("HPCC_RUNNING")
	if !ok || !v.add("HPCC_RUNNING=1\x00") {
		return false
	}
	for i := range v.n {
		r.env[i] = unsafe.StringData(string(v.list[i]))
	}
	r.env[v.n] = nil
	return true
}
