package runtime

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hpcc/runtime/smallfile"
)

// maxPasswd bounds what is read of an image's /etc/passwd or /etc/group.
const maxPasswd = 1 << 20

// What stands in for the files of an image without.
const (
	passwdRoot = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
	groupRoot  = "root:x:0:\nnogroup:x:65534:\n"
)

// readInside reads a small regular file of the tree root without leaving it
// through links.
func readInside(root, name string) []byte {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOSYS) {
		return readBelow(root, name)
	}
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxPasswd {
		return nil
	}
	b, err := smallfile.ReadAll(fd, name)
	if err != nil {
		return nil
	}
	return b
}

// readBelow is readInside for kernels without openat2 (before Linux 5.6):
// os.Root resolves every component by itself, and refuses absolute links.
func readBelow(root, name string) []byte {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil
	}
	defer r.Close()
	st, err := r.Stat(name)
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	f, err := r.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPasswd))
	if err != nil {
		return nil
	}
	return b
}

// entry finds the line of a passwd or group file whose field n equals value.
func entry(file []byte, n int, value string) []string {
	for line := range bytes.Lines(file) {
		if !bytes.Contains(line, []byte(value)) {
			continue
		}
		f := strings.Split(strings.TrimRight(string(line), "\r\n"), ":")
		if len(f) > n && f[n] == value {
			return f
		}
	}
	return nil
}

// imageHome is the home directory of the image's USER (name or uid, with or
// without group; none means root), as its passwd file has it, else /root or /.
func imageHome(root, usr string) string {
	usr, _, _ = strings.Cut(usr, ":")
	if usr == "" {
		usr = "root"
	}
	field := 0
	if _, err := strconv.Atoi(usr); err == nil {
		field = 2
	}
	if f := entry(readInside(root, "etc/passwd"), field, usr); len(f) > 5 && filepath.IsAbs(f[5]) {
		return f[5]
	}
	if (usr == "root" || usr == "0") && isDir(filepath.Join(root, "root")) {
		return "/root"
	}
	return "/"
}

// accounts returns the passwd and group files that a program with these ids
// should see: the image's own, with a line for the user and one for the group
// where they have none. A nil result means that the image's file will do.
func accounts(root string, uid, gid int, home string) (passwd, group []byte) {
	u, g := strconv.Itoa(uid), strconv.Itoa(gid)
	p, gr := readInside(root, "etc/passwd"), readInside(root, "etc/group")
	if entry(p, 2, u) == nil {
		name, gecos := "user", ""
		if h := entry(hostFile("passwd"), 2, u); len(h) > 4 {
			name = h[0]
			gecos, _, _ = strings.Cut(h[4], ",")
		} else if n := os.Getenv("USER"); n != "" {
			name = n
		}
		name, gecos = field(name), field(gecos)
		if len(p) == 0 {
			p = []byte(passwdRoot)
		}
		if entry(p, 2, u) == nil {
			passwd = appendLine(p, strings.Join([]string{name, "x", u, g, gecos, field(home), "/bin/sh"}, ":"))
		} else {
			passwd = p
		}
	}
	if entry(gr, 2, g) == nil {
		name := "group"
		if h := entry(hostFile("group"), 2, g); h != nil {
			name = h[0]
		}
		if len(gr) == 0 {
			gr = []byte(groupRoot)
		}
		if entry(gr, 2, g) == nil {
			group = appendLine(gr, field(name)+":x:"+g+":")
		} else {
			group = gr
		}
	}
	return passwd, group
}

// hostFile reads the host's passwd or group file; nil when it cannot. Names
// that only a directory service knows are not looked for: that takes C's library.
func hostFile(name string) []byte {
	b, _ := smallfile.Read("/etc/" + name)
	return b
}

// field makes s safe as one field of a passwd line.
func field(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ':' || r < ' ' {
			return '_'
		}
		return r
	}, s)
}

func appendLine(file []byte, line string) []byte {
	out := append([]byte{}, file...)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(append(out, line...), '\n')
}
