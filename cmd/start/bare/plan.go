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

// A mount binds a file or directory of the host at a path of the container, or is a private tmpfs.
type mount struct {
	at, source zstring
	readOnly   bool
	tmpfs      bool
	from       int // descriptor of source
}

// plan computes all settings of the run, as Spec of package runtime does. It changes nothing and
// leaves no descriptor open.
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

// findHome finds the user's home directory and decides whether to bind it.
func (r *run) findHome() bool {
	dir := r.vars.value("HOME")
	if dir == "" {
		passwd, e := r.readFile("/etc/passwd\x00", maxPasswd)
		if e != 0 {
			return false
		}
		if line := find(passwd, r.decimal(r.uid), 2); fields(line) > 5 {
			dir = fieldOf(line, 5)
		}
	}
	if hasPrefix(dir, "/") {
		dir = r.clean(dir).text()
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

// hasNoHome reports whether flags exclude the home directory.
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
	name, named := ready.Canonical(image)
	hex, byDigest := ready.Digest(image)
	if (!named && !byDigest) || dir == "" {
		return false
	}
	// Package store refuses a store that other users may write to, with a hint. A store without
	// the name may be missing or of another format.
	mode, e := modeOf(unix.AT_FDCWD, r.join(dir), 0)
	if e == unix.ENOENT {
		return r.directory()
	}
	if e != 0 || mode&ready.Shared != 0 {
		return false
	}
	var ref string
	if e = unix.ENOENT; named {
		ref, e = r.readFile(r.refFile(dir, name), maxFile)
	}
	if e == unix.ENOENT {
		version, e := r.readFile(r.join(dir, "/version"), maxFile)
		if e != 0 || version != ready.Version {
			return false
		}
		if byDigest { // an index has no tree
			r.root = r.join(dir, "/trees/", hex)
			return kind(unix.AT_FDCWD, r.root, 0) == unix.S_IFDIR
		}
		return r.directory()
	}
	if e != 0 {
		return false
	}
	hex, named = ready.Manifest(ref)
	r.root = r.join(dir, "/trees/", hex)
	return named
}

// refFile returns the store's file for a canonical image name (escape of package store).
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

// storeDir returns the store's directory (Default of package ready), or "" if it is unknown.
func (r *run) storeDir() string {
	dir := r.line.value[store]
	if storage := r.vars.value("CH_IMAGE_STORAGE"); storage != "" && r.isChRun() {
		dir = r.join(storage, "/hpcc").text()
	}
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

// directory uses IMAGE as the path of a directory, because no image has that name.
func (r *run) directory() bool {
	r.root = r.image
	return !ready.DigestLike(r.image.text()) && kind(unix.AT_FDCWD, r.image, 0) == unix.S_IFDIR
}

// readConfig reads the image's configuration. A directory that hpcc did not create has none.
func (r *run) readConfig() bool {
	s, e := r.readFile(r.join(r.root.text(), "/.hpcc/image.json"), maxFile)
	if e != unix.ENOENT && (e != 0 || !r.conf.read(r, s) || (r.conf.architecture != "" && r.conf.architecture != goruntime.GOARCH)) {
		return false
	}
	if r.over() != "" {
		r.conf.entrypoint.n = 0
	}
	if r.line.has(entrypoint) {
		r.conf.entrypoint.n = 0
		if program := r.line.value[entrypoint]; program != "" {
			r.conf.entrypoint.of[0], r.conf.entrypoint.n, r.conf.command.n = program, 1, 0
		}
	}
	if r.line.has(chRun) {
		r.conf.entrypoint.n, r.conf.command.n, r.conf.dir, r.conf.user = 0, 0, "", ""
	}
	return true
}

// physical resolves all symbolic links of a path.
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

// planMounts lists the default mounts and then the user's.
func (r *run) planMounts() bool {
	if r.over() != "" {
		return r.planOver()
	}
	ok := r.addBind("/proc\x00") && r.addBind("/sys\x00") && r.addBind("/dev\x00")
	if r.yes(privateTmp) {
		ok = ok && r.add(mount{at: "/tmp\x00", tmpfs: true})
	} else if tmp := r.vars.value("TMPDIR"); tmp != "" && r.line.has(chRun) {
		ok = ok && hasPrefix(tmp, "/") && r.add(mount{at: "/tmp\x00", source: r.join(tmp)})
	} else {
		ok = ok && r.addBind("/tmp\x00")
	}
	for _, file := range [...]zstring{"/etc/hosts\x00", "/etc/resolv.conf\x00"} {
		ok = ok && (kind(unix.AT_FDCWD, file, 0) == 0 || r.addBind(file))
	}
	if r.line.has(chRun) {
		ok = ok && r.addChRunMounts()
	}
	if home := r.join(r.home); ok && r.home != "" && !r.isBound(home) {
		ok = r.addBind(home)
		if physical, found := r.physical(home); found {
			ok = ok && r.addVacant(physical)
		}
	}
	if !r.line.has(chRun) && !r.inHiddenHome() {
		ok = ok && r.addVacant(r.cwd)
	}
	if dir := r.vars.value("HPCC_TASK_DIR"); ok && hasPrefix(dir, "/") {
		if at := r.clean(dir); kind(unix.AT_FDCWD, at, 0) == unix.S_IFDIR {
			ok = r.addVacant(at)
		}
	}
	return ok && r.planBinds(&r.file) && r.planBinds(&r.line)
}

// inHiddenHome reports whether the current directory is in a home directory that flags exclude.
func (r *run) inHiddenHome() bool {
	if r.userHome == "" || !r.hasNoHome() {
		return false
	}
	physical, ok := r.physical(r.join(r.userHome))
	return inside(r.cwd.text(), r.userHome) || (ok && inside(r.cwd.text(), physical.text()))
}

// addBind binds a path of the host at the same path of the container.
func (r *run) addBind(path zstring) bool { return r.add(mount{at: path, source: path}) }

// addVacant binds a path of the host, unless it is already bound or would hide files of the image.
func (r *run) addVacant(path zstring) bool {
	if path == "/\x00" || r.isBound(path) {
		return true
	}
	empty, ok := r.vacant(path)
	return ok && (!empty || r.addBind(path))
}

// add records a mount. It refuses a source that contains base, where the new root would appear.
func (r *run) add(m mount) bool {
	if r.nmounts == len(r.mounts) || (m.source != "" && inside(base.text(), m.source.text())) {
		return false
	}
	r.mounts[r.nmounts] = m
	r.nmounts++
	return true
}

// isBound reports whether path shows the host's file of the same path (Visible of runtime/rootfs).
func (r *run) isBound(path zstring) bool {
	m := r.mountOver(path.text())
	return m != nil && m.source == m.at
}

// mountOver returns the last planned mount that covers a path, or nil.
func (r *run) mountOver(path string) *mount {
	for i := r.nmounts - 1; i >= 0; i-- {
		if m := &r.mounts[i]; inside(path, m.at.text()) {
			return m
		}
	}
	return nil
}

// vacant reports whether a mount at path would hide no file of the image. ok is false if the
// directory cannot be read.
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
		at := r.clean(target)
		physical, ok := r.physical(r.absolute(source))
		if !ok || at == "/\x00" || !r.add(mount{at: at, source: physical, readOnly: option == "ro"}) {
			return false
		}
	}
	return true
}

// planStart computes the directory in which the program starts: the caller's if it is bound, or
// else the image's WORKDIR. --cd is relative to it.
func (r *run) planStart() bool {
	from := r.clean(r.conf.dir)
	if r.over() != "" || (r.isBound(r.cwd) && !r.line.has(chRun)) {
		from = r.cwd
	}
	if dir := r.value(cd); hasPrefix(dir, "/") {
		r.start = r.clean(dir)
	} else {
		r.start = r.clean(r.join(from.text(), "/", dir).text())
	}
	return true
}

// planArgs joins the arguments of the image and of the command line.
func (r *run) planArgs() bool {
	for i := range r.conf.entrypoint.n {
		r.arg(r.join(r.conf.entrypoint.of[i]))
	}
	for i := r.first; i < r.argc; i++ {
		r.arg(r.argv[i])
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

// planEnv replaces the caller's variables with the image's, and makes the changes of the flags.
func (r *run) planEnv() bool {
	if r.line.has(chRun) {
		return r.planChRunEnv() && r.exportEnv()
	}
	v := &r.vars
	path, tmp := v.value("PATH"), v.value("TMPDIR")
	clean := r.yes(cleanEnv)
	if clean {
		path = ""
	}
	if !r.filterEnv(clean) {
		return false
	}
	if r.over() != "" {
		return r.overEnv(path) && r.finishEnv()
	}
	for _, name := range [...]string{"PATH", "HOME", "HPCC_RUNNING", "HPCC_FOREIGN"} {
		v.remove(name)
	}
	if !hasPrefix(tmp, "/") || !r.isBound(r.clean(tmp)) {
		v.remove("TMPDIR")
	}
	home := r.home
	if home == "" {
		var ok bool
		if home, ok = r.imageHome(); !ok {
			return false
		}
	}
	ok := v.add(r.join("PATH=", runtime.StandardPath)) && v.add(r.join("HOME=", home))
	for i := range r.conf.env.n {
		kv := r.conf.env.of[i]
		if name, _ := cut(kv, '='); name != "" && len(name) < len(kv) {
			ok = ok && v.set(r.join(kv))
		}
	}
	return ok && r.finishEnv()
}

// filterEnv keeps the caller's variables that the program may see, and keeps the program from the
// packages in the user's home, as callerEnv of package runtime does.
func (r *run) filterEnv(clean bool) bool {
	v := &r.vars
	n := 0
	for i := range v.n {
		if name, _ := cut(v.list[i].text(), '='); runtime.PassesVariable(name, clean, r.over() != "") {
			v.list[n] = v.list[i]
			n++
		}
	}
	v.n = n
	return (r.home == "" && r.over() == "") || (v.set("PYTHONNOUSERSITE=1\x00") && v.set("R_LIBS_USER=NULL\x00"))
}

// finishEnv makes the changes of the flags and prepares the environment for execve.
func (r *run) finishEnv() bool {
	v := &r.vars
	v.remove("HPCC_RUNNING")
	expand := !r.yes(envNoExpand)
	ok := r.changeEnv(&r.file, expand) && r.changeEnv(&r.line, expand)
	v.remove("HPCC_RUNNING")
	if !ok || (r.over() == "" && !v.add("HPCC_RUNNING=1\x00")) {
		return false
	}
	return r.exportEnv()
}

// exportEnv fills env, the program's environment.
func (r *run) exportEnv() bool {
	v := &r.vars
	for i := range v.n {
		r.env[i] = unsafe.StringData(string(v.list[i]))
	}
	r.env[v.n] = nil
	return true
}

// planGPU handles --gpu. It declines a machine with GPUs or CDI specifications. On other machines
// it ends this process with an error.
func (r *run) planGPU() bool {
	if !r.yes(gpu) || r.over() != "" {
		return true
	}
	for _, name := range [...]string{"HPCC_CDI_DIRS", "NVIDIA_DRIVER_ROOT", "NVIDIA_DEV_ROOT"} {
		if r.vars.value(name) != "" {
			return false
		}
	}
	for _, sign := range [...]zstring{"/etc/cdi\x00", "/var/run/cdi\x00", "/dev/nvidiactl\x00",
		"/dev/dxg\x00", "/dev/kfd\x00", "/dev/dri\x00"} {
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
