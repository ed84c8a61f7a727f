package bare

import (
	goruntime "runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"hpcc/runtime"
	"hpcc/runtime/devices"
	"hpcc/runtime/process"
	"hpcc/store/ready"
)

// A mount shows a file or directory of the host at a path inside, or is a private
// tmpfs.
type mount struct {
	at, source zstring
	readOnly   bool
	tmpfs      bool
	from       int // source, opened
}

// plan works out the run, as Spec of package runtime does. Nothing is changed, and
// what is opened is closed again.
func (r *run) plan() bool {
	r.user = r.vars.value("USER")
	return r.findDirectory() && r.readDefaults() && r.findHome() && r.findRoot() && r.readConfig() && r.planMounts() && r.planStart() &&
		r.planArgs() && r.planEnv() && r.planAccounts() && !r.full && r.planGPU()
}

// findDirectory finds the physical path of the current directory.
func (r *run) findDirectory() bool {
	b := r.buffer[:unix.PathMax]
	n, e := call(unix.SYS_GETCWD, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
	if e != 0 || n < 2 || b[0] != '/' {
		return false
	}
	r.cwd = r.join(text(b[:n-1]))
	return access(r.cwd, unix.X_OK)
}

// findHome finds the user's home directory, and whether it is shown.
func (r *run) findHome() bool {
	dir := r.vars.value("HOME")
	if dir == "" {
		passwd, e := r.readFile("/etc/passwd\x00", maxPasswd)
		if e != 0 {
			return false
		}
		if line := find(passwd, r.decimal(r.uid), 2); fields(line) > 5 {
			dir = nth(line, 5)
		}
	}
	if hasPrefix(dir, "/") {
		dir = r.tidy(dir).text()
	}
	if !hasPrefix(dir, "/") || dir == "/" {
		return true
	}
	r.userHome = dir
	if !r.hasNoHome() && kind(unix.AT_FDCWD, r.join(dir), 0) == unix.S_IFDIR {
		r.home = dir
	}
	return true
}

// hasNoHome reports whether the home directory shall not be shown.
func (r *run) hasNoHome() bool {
	return r.line.has(noHome) || (r.file.has(noHome) && !r.line.has(home))
}

// findRoot finds the image's directory.
func (r *run) findRoot() bool {
	image := r.image.text()
	if hasPrefix(image, "/") || image == "." || image == ".." || hasPrefix(image, "./") || hasPrefix(image, "../") {
		r.root = r.image
		return r.absolute(image) != "/\x00"
	}
	dir := r.storeDir()
	name, ok := ready.Canonical(image)
	if !ok || dir == "" {
		return false
	}
	version, e := r.readFile(r.join(dir, "/version"), maxFile)
	mode, e2 := modeOf(unix.AT_FDCWD, r.join(dir), 0)
	if e == unix.ENOENT && e2 == unix.ENOENT {
		return r.directory()
	}
	// Package store refuses a store that others may write to, with the cure.
	if e != 0 || version != ready.Version || e2 != 0 || mode&ready.Shared != 0 {
		return false
	}
	ref, e := r.readFile(r.refFile(dir, name), maxFile)
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

// refFile is the store's file for an image's canonical name (escape of package store).
func (r *run) refFile(dir, name string) zstring {
	begin := r.used
	r.put(dir)
	r.put("/refs/")
	for i := range len(name) {
		switch name[i] {
		case '/':
			r.put("%2F")
		case ':':
			r.put("%3A")
		default:
			r.put(name[i : i+1])
		}
	}
	return r.since(begin)
}

// storeDir returns the store's directory (Default of package ready), "" where that
// is not known.
func (r *run) storeDir() string {
	dir := r.line.value[store]
	if dir == "" {
		dir = r.vars.value("HPCC_STORE")
	}
	if dir != "" {
		return r.absolute(dir).text()
	}
	if data := r.vars.value("XDG_DATA_HOME"); hasPrefix(data, "/") {
		return r.join(data, "/hpcc").text()
	}
	if home := r.vars.value("HOME"); hasPrefix(home, "/") {
		return r.join(home, "/.local/share/hpcc").text()
	}
	return ""
}

// directory takes IMAGE for that of a directory, since no image has that name.
func (r *run) directory() bool {
	r.root = r.image
	return !ready.DigestLike(r.image.text()) && kind(unix.AT_FDCWD, r.image, 0) == unix.S_IFDIR
}

// readConfig reads the image's configuration; a directory without one was made otherwise.
func (r *run) readConfig() bool {
	s, e := r.readFile(r.join(r.root.text(), "/.hpcc/image.json"), maxFile)
	if e != unix.ENOENT && (e != 0 || !r.conf.read(r, s) || (r.conf.architecture != "" && r.conf.architecture != goruntime.GOARCH)) {
		return false
	}
	if r.line.has(entrypoint) {
		r.conf.entrypoint.n = 0
		if program := r.line.value[entrypoint]; program != "" {
			r.conf.entrypoint.of[0], r.conf.entrypoint.n, r.conf.command.n = program, 1, 0
		}
	}
	return true
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

// planMounts lists the default mounts, then the user's own.
func (r *run) planMounts() bool {
	ok := r.show("/proc\x00") && r.show("/sys\x00") && r.show("/dev\x00")
	if r.yes(privateTmp) {
		ok = ok && r.add(mount{at: "/tmp\x00", tmpfs: true})
	} else {
		ok = ok && r.show("/tmp\x00")
	}
	for _, file := range [...]zstring{"/etc/hosts\x00", "/etc/resolv.conf\x00"} {
		ok = ok && (kind(unix.AT_FDCWD, file, 0) == 0 || r.show(file))
	}
	if home := r.join(r.home); ok && r.home != "" && !r.shown(home) {
		ok = r.show(home)
		if physical, found := r.physical(home); found {
			ok = ok && r.showVacant(physical)
		}
	}
	if !r.hidesHome() {
		ok = ok && r.showVacant(r.cwd)
	}
	if dir := r.vars.value("HPCC_TASK_DIR"); ok && hasPrefix(dir, "/") {
		if at := r.tidy(dir); kind(unix.AT_FDCWD, at, 0) == unix.S_IFDIR {
			ok = r.showVacant(at)
		}
	}
	return ok && r.planBinds(&r.file) && r.planBinds(&r.line)
}

// hidesHome reports whether the current directory lies in a home directory that
// shall not be shown.
func (r *run) hidesHome() bool {
	if r.userHome == "" || !r.hasNoHome() {
		return false
	}
	physical, ok := r.physical(r.join(r.userHome))
	return inside(r.cwd.text(), r.userHome) || (ok && inside(r.cwd.text(), physical.text()))
}

// show shows path of the host at the same path inside.
func (r *run) show(path zstring) bool { return r.add(mount{at: path, source: path}) }

// showVacant shows a path of the host, unless it is shown or would hide something
// of the image.
func (r *run) showVacant(path zstring) bool {
	if path == "/\x00" || r.shown(path) {
		return true
	}
	empty, ok := r.vacant(path)
	return ok && (!empty || r.show(path))
}

// add notes a mount. What base lies in is declined: the new root would show up there.
func (r *run) add(m mount) bool {
	if r.nmounts == len(r.mounts) || (m.source != "" && inside(base.text(), m.source.text())) {
		return false
	}
	r.mounts[r.nmounts] = m
	r.nmounts++
	return true
}

// shown reports whether path lies in what is shown at its own path.
func (r *run) shown(path zstring) bool {
	for i := range r.nmounts {
		if m := &r.mounts[i]; m.source == m.at && inside(path.text(), m.at.text()) {
			return true
		}
	}
	return false
}

// vacant reports whether a mount at path would hide nothing of the image; not ok
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

// planBinds adds the binds of one source: SRC[:DST[:ro|rw]].
func (r *run) planBinds(s *settings) bool {
	for _, spec := range s.binds[:s.nbinds] {
		source, rest := cut(spec, ':')
		target, option := cut(rest, ':')
		switch {
		case source == "" || (option != "" && option != "ro" && option != "rw"):
			return false
		case len(source) == len(spec):
			target = source
			if !hasPrefix(target, "/") {
				target = r.absolute(target).text()
			}
		case !hasPrefix(target, "/") || (option == "" && len(target) != len(rest)):
			return false
		}
		for dots := target; dots != ""; {
			var part string
			if part, dots = cut(dots, '/'); part == ".." && len(source) != len(spec) {
				return false
			}
		}
		at := r.tidy(target)
		physical, ok := r.physical(r.absolute(source))
		if !ok || at == "/\x00" || !r.add(mount{at: at, source: physical, readOnly: option == "ro"}) {
			return false
		}
	}
	return true
}

// planStart says where the program starts: in the caller's directory where it
// is shown, else in the image's; --cd is relative to that.
func (r *run) planStart() bool {
	from := r.tidy(r.conf.dir)
	if r.shown(r.cwd) {
		from = r.cwd
	}
	if dir := r.value(cd); hasPrefix(dir, "/") {
		r.start = r.tidy(dir)
	} else {
		r.start = r.tidy(r.join(from.text(), "/", dir).text())
	}
	return true
}

// planArgs puts the image's arguments and those of the command line together.
func (r *run) planArgs() bool {
	for i := range r.conf.entrypoint.n {
		r.arg(r.join(r.conf.entrypoint.of[i]))
	}
	for i := r.first; i < r.argc; i++ {
		r.arg(r.words[i])
	}
	if r.first == r.argc {
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

// planEnv puts the image's variables over the caller's, and makes the changes that
// the flags ask for.
func (r *run) planEnv() bool {
	v := &r.vars
	path, tmp := v.value("PATH"), v.value("TMPDIR")
	if r.yes(cleanEnv) {
		n := 0
		for i := range v.n {
			if name, _ := cut(v.list[i].text(), '='); name == "USER" || name == "LOGNAME" || name == "TERM" {
				v.list[n] = v.list[i]
				n++
			}
		}
		v.n, path = n, ""
	}
	for _, name := range [...]string{"PATH", "HOME", "HPCC_RUNNING", "HPCC_FOREIGN", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"} {
		v.remove(name)
	}
	if !hasPrefix(tmp, "/") || !r.shown(r.tidy(tmp)) {
		v.remove("TMPDIR")
	}
	home := r.home
	if home == "" {
		var ok bool
		if home, ok = r.imageHome(); !ok {
			return false
		}
	}
	ok := v.add(r.join("PATH=", r.callerPath(path))) && v.add(r.join("HOME=", home))
	for i := range r.conf.env.n {
		kv := r.conf.env.of[i]
		if name, _ := cut(kv, '='); name != "" && len(name) < len(kv) {
			ok = ok && v.set(r.join(kv))
		}
	}
	v.remove("HPCC_RUNNING")
	expand := !r.yes(envNoExpand)
	ok = ok && r.changeEnv(&r.file, expand) && r.changeEnv(&r.line, expand)
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

// callerPath is the caller's PATH as the program gets it.
func (r *run) callerPath(path string) string {
	if path == "" {
		return runtime.StandardPath
	}
	for rest := path; rest != ""; {
		var dir string
		if dir, rest = cut(rest, ':'); dir == "/bin" {
			return path
		}
	}
	return r.join(path, ":/bin").text()
}

// planGPU ends this process with the message for a machine without GPUs, if the
// run asks for them. A machine that has some, or has descriptions of devices, is
// declined.
func (r *run) planGPU() bool {
	if !r.yes(gpu) {
		return true
	}
	for _, name := range [...]string{"HPCC_CDI_DIRS", "NVIDIA_DRIVER_ROOT", "NVIDIA_DEV_ROOT"} {
		if r.vars.value(name) != "" {
			return false
		}
	}
	for _, sign := range [...]zstring{"/etc/cdi\x00", "/var/run/cdi\x00", "/dev/nvidiactl\x00", "/dev/dxg\x00", "/dev/kfd\x00", "/dev/dri\x00"} {
		if _, e := modeOf(unix.AT_FDCWD, sign, 0); e != unix.ENOENT {
			return false
		}
	}
	if r.ndefaults > 0 || !plain(r.image.text()) {
		return false
	}
	message := r.join("hpcc: error: running ", r.image.text(), ": ", devices.NoGPU, "\n")
	if r.full {
		return false
	}
	call(unix.SYS_WRITE, 2, message.at(), uintptr(len(message)-1), 0, 0)
	call(unix.SYS_EXIT_GROUP, process.ExitFailed, 0, 0, 0, 0)
	return false
}
