package bare

import (
	"golang.org/x/sys/unix"

	"hpcc/store/ready"
)

// isChRun reports whether this process was started as ch-run.
func (r *run) isChRun() bool {
	name := r.argv[0].text()
	for contains(name, '/') {
		_, name = cut(name, '/')
	}
	return name == "ch-run"
}

// readChRun records a command line "ch-run [OPTION...] IMAGE -- CMD [ARG...]" as the flags of "hpcc
// run" to which package front translates it. It declines the options that most jobs do not use.
func (r *run) readChRun() bool {
	s := &r.line
	for _, flag := range [...]int{chRun, noConfig} {
		s.used[flag] = true
	}
	for _, word := range r.argv[1:r.argc] {
		option := word.text()
		if option == "--" {
			break
		}
		// A letter can be followed by others, or by its value.
		if len(option) > 2 && option[0] == '-' && option[1] != '-' {
			return false
		}
	}
	rest, ok := r.parse(s, r.argv[1:r.argc])
	for _, flag := range [...]int{gpu, cleanEnv, home, entrypoint, store} {
		ok = ok && !s.has(flag)
	}
	if !ok || len(rest) < 3 || rest[0] == "\x00" || rest[1] != "--\x00" {
		return false
	}
	s.used[noHome] = true
	r.image, r.first = rest[0], r.argc-len(rest)+2
	_, plain := ready.Canonical(r.image.text())
	return plain || hasPrefix(r.image.text(), "/") || hasPrefix(r.image.text(), "./") || hasPrefix(r.image.text(), "../")
}

// addChRunMounts binds files of the host that the image has as well, as package runtime does.
func (r *run) addChRunMounts() bool {
	for _, path := range [...]zstring{
		"/etc/machine-id\x00", "/var/lib/hugetlbfs\x00", "/etc/opt/cray/wlm_detect\x00", "/opt/cray/wlm_detect\x00", "/opt/cray/alps\x00",
		"/opt/cray/udreg\x00", "/opt/cray/ugni\x00", "/opt/cray/xpmem\x00", "/var/opt/cray/alps\x00", "/var/spool/slurmd\x00",
	} {
		if kind(unix.AT_FDCWD, path, 0) != 0 && kind(unix.AT_FDCWD, r.join(r.root.text(), path.text()), 0) != 0 && !r.addBind(path) {
			return false
		}
	}
	return true
}

// planChRunEnv changes the caller's variables as package runtime does for ch-run, and makes the
// changes of the flags.
func (r *run) planChRunEnv() bool {
	v := &r.vars
	path, hasPath := v.value("PATH"), v.find("PATH") >= 0
	for _, name := range [...]string{"PATH", "HOME", "TMPDIR", "HPCC_FOREIGN"} {
		v.remove(name)
	}
	ok := true
	if hasPath {
		listed := hasPrefix(path, "/bin")
		for i := range len(path) {
			listed = listed || hasPrefix(path[i:], ":/bin")
		}
		if !listed {
			path = r.join(path, ":/bin").text()
		}
		ok = v.add(r.join("PATH=", path))
	}
	dir := zstring("HOME=/\x00")
	if kind(unix.AT_FDCWD, r.join(r.root.text(), "/root"), 0) == unix.S_IFDIR {
		dir = "HOME=/root\x00"
	}
	ok = ok && v.add(dir) && r.changeEnv(&r.line, !r.yes(envNoExpand))
	v.remove("CH_RUNNING")
	return ok && v.add("CH_RUNNING=Weird Al Yankovic\x00")
}

// setImageEnv sets the image's variables. It declines an image that only Charliecloud describes.
func (r *run) setImageEnv() bool {
	for i := range r.conf.env.n {
		kv := r.conf.env.of[i]
		if name, _ := cut(kv, '='); name != "" && len(name) < len(kv) && !r.vars.set(r.join(kv)) {
			return false
		}
	}
	return r.conf.env.n > 0 || kind(unix.AT_FDCWD, r.join(r.root.text(), "/ch/environment"), 0) == 0
}
