package bare

import (
	"golang.org/x/sys/unix"

	"hpcc/runtime"
)

// over returns the directory of the image that --only mounts over the host's files, or "".
func (r *run) over() string { return r.line.value[only] }

// planOver lists the mounts for --only, as overHost of package runtime does.
func (r *run) planOver() bool {
	for _, f := range [...]int{writeFake, noHome, privateTmp} {
		if r.yes(f) {
			return false
		}
	}
	if !hasPrefix(r.over(), "/") {
		return false
	}
	dir := r.clean(r.over())
	root, e := openAt(unix.AT_FDCWD, r.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if e != 0 || dir == "/\x00" {
		return false
	}
	fd, e := openBelow(root, dir, unix.O_PATH|unix.O_DIRECTORY, unix.RESOLVE_NO_SYMLINKS)
	if e != 0 {
		return false
	}
	source := r.absolute(r.join(r.root.text(), dir.text()).text())
	closeFD(fd)
	closeFD(root)
	if r.nmounts == len(r.mounts) {
		return false
	}
	r.mounts[r.nmounts] = mount{at: dir, source: source, readOnly: true}
	r.nmounts++
	return r.planBinds(&r.file) && r.planBinds(&r.line)
}

// overEnv adds the image's variables to the caller's, as environmentOverHost of package runtime
// does. path is the caller's PATH.
func (r *run) overEnv(path string) bool {
	v := &r.vars
	for _, name := range [...]string{"PATH", "HPCC_RUNNING", "HPCC_FOREIGN"} {
		v.remove(name)
	}
	tail := r.callerPath(path)
	only := r.clean(r.over()).text()
	begin := r.used
	r.put("PATH=")
	for i := range r.conf.env.n {
		name, list := cut(r.conf.env.of[i], '=')
		for name == "PATH" && list != "" {
			var dir string
			if dir, list = cut(list, ':'); inside(dir, only) {
				r.put(dir)
				r.put(":")
			}
		}
	}
	r.put(tail)
	ok := v.add(r.since(begin))
	for i := range r.conf.env.n {
		kv := r.conf.env.of[i]
		if name, _ := cut(kv, '='); name != "" && len(name) < len(kv) && name != "PATH" && name != "HOME" {
			ok = ok && v.set(r.join(kv))
		}
	}
	return ok
}

// callerPath returns the caller's PATH with /bin, or the standard PATH if it is empty.
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

// enterOver makes the planned mounts and keeps the root, as mountOverHost of package runtime does. If
// it fails, it unmounts them, because wrappers notice by a mount whether they are in the container.
func (r *run) enterOver() bool {
	top, e := openAt(unix.AT_FDCWD, "/\x00", unix.O_PATH|unix.O_DIRECTORY, 0)
	r.top, r.scratch = top, -1
	if e != 0 || !r.openSources() || !mountAt(emptyString, "/\x00", emptyString, unix.MS_REC|unix.MS_SLAVE, emptyString) {
		return false
	}
	made, ok := 0, true
	for ; ok && made < r.nmounts; made++ {
		ok = r.mount(made)
	}
	if ok && r.sealCovers() && !r.full {
		return true
	}
	for made--; made >= 0; made-- {
		if at, e := r.openInside(r.mounts[made].at); e == 0 {
			unmount(r.fdPath(at)) // the kernel refuses to unmount mounts of the host
			closeFD(at)
		}
	}
	for i := r.ncovers - 1; i >= 0; i-- {
		unmount(r.fdPath(r.covers[i]))
	}
	return false
}
