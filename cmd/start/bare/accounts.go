package bare

import "golang.org/x/sys/unix"

// planAccounts composes the passwd and group files for the program, as package runtime/accounts
// does.
func (r *run) planAccounts() bool {
	if r.yes(noPasswd) || r.over() != "" {
		return true
	}
	root, e := openAt(unix.AT_FDCWD, r.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if e != 0 {
		return false
	}
	passwd, ok1 := r.readInside(root, "etc/passwd\x00")
	group, ok2 := r.readInside(root, "etc/group\x00")
	closeFD(root)
	if !ok1 || !ok2 {
		return false
	}
	u, g := r.decimal(r.uid), r.decimal(r.gid)
	home := r.vars.value("HOME")
	if find(passwd, u, 2) == "" && r.mountOver("/etc/passwd") == nil {
		name, gecos := "user", ""
		if r.user != "" {
			name = r.user
		}
		if host, e := r.readFile("/etc/passwd\x00", maxPasswd); e != 0 {
			return false
		} else if line := find(host, u, 2); fields(line) > 4 {
			name = fieldOf(line, 0)
			gecos, _ = cut(fieldOf(line, 4), ',')
		}
		if passwd == "" {
			passwd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
		}
		if !isField(name) || !isField(gecos) || !isField(home) || find(passwd, u, 2) != "" {
			return false
		}
		r.passwd = r.withLine(passwd, name, ":x:", u, ":", g, ":", gecos, ":", home, ":/bin/sh")
	}
	if find(group, g, 2) == "" && r.mountOver("/etc/group") == nil {
		name := "group"
		if host, e := r.readFile("/etc/group\x00", maxPasswd); e != 0 {
			return false
		} else if line := find(host, g, 2); line != "" {
			name = fieldOf(line, 0)
		}
		if group == "" {
			group = "root:x:0:\nnogroup:x:65534:\n"
		}
		if !isField(name) || find(group, g, 2) != "" {
			return false
		}
		r.group = r.withLine(group, name, ":x:", g, ":")
	}
	return true
}

// imageHome returns the home directory of the image's USER, by the rules of package runtime.
func (r *run) imageHome() (string, bool) {
	root, e := openAt(unix.AT_FDCWD, r.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if e != 0 {
		return "", false
	}
	passwd, ok := r.readInside(root, "etc/passwd\x00")
	closeFD(root)
	user, _ := cut(r.conf.user, ':')
	if user == "" {
		user = "root"
	}
	field := 2
	for i := range len(user) {
		if user[i] < '0' || user[i] > '9' {
			field = 0
		}
	}
	if line := find(passwd, user, field); fields(line) > 5 && hasPrefix(fieldOf(line, 5), "/") {
		return fieldOf(line, 5), ok
	}
	if (user == "root" || user == "0") && kind(unix.AT_FDCWD, r.join(r.root.text(), "/root"), 0) == unix.S_IFDIR {
		return "/root", ok
	}
	return "/", ok
}

// isField reports whether s can be a field of a passwd line.
func isField(s string) bool { return plain(s) && !contains(s, ':') }

// withLine returns file with one more line, which consists of parts.
func (r *run) withLine(file string, parts ...string) string {
	n := len(file) + 2
	for _, p := range parts {
		n += len(p)
	}
	b := r.alloc(n)
	if b == nil {
		return ""
	}
	n = copy(b, file)
	if n > 0 && b[n-1] != '\n' {
		b[n] = '\n'
		n++
	}
	for _, p := range parts {
		n += copy(b[n:], p)
	}
	b[n] = '\n'
	return text(b[:n+1])
}

// readInside reads a regular file of the image. It returns "" for a missing file.
func (r *run) readInside(root int, name zstring) (string, bool) {
	fd, e := openBelow(root, name, unix.O_RDONLY|unix.O_NONBLOCK, unix.RESOLVE_NO_MAGICLINKS)
	if e == unix.ENOENT {
		return "", true
	}
	if e != 0 {
		return "", false
	}
	if kind(fd, emptyString, unix.AT_EMPTY_PATH) != unix.S_IFREG {
		closeFD(fd)
		return "", false
	}
	s, e := r.readAll(fd, maxFile)
	closeFD(fd)
	return s, e == 0
}

// find returns the first line of a passwd or group file with this value in field n.
func find(file, value string, n int) string {
	for file != "" {
		var line string
		line, file = cut(file, '\n')
		for line != "" && line[len(line)-1] == '\r' {
			line = line[:len(line)-1]
		}
		if fields(line) > n && fieldOf(line, n) == value {
			return line
		}
	}
	return ""
}

// fields returns the number of fields of a line.
func fields(line string) int {
	n := 1
	for i := range len(line) {
		if line[i] == ':' {
			n++
		}
	}
	return n
}

// fieldOf returns field n of a line, counted from 0.
func fieldOf(line string, n int) string {
	for range n {
		_, line = cut(line, ':')
	}
	field, _ := cut(line, ':')
	return field
}
