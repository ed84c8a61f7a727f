// Package accounts reads and completes the passwd and group files of images.
//
// Image files are untrusted input: links never lead out of the image, and the size of a read
// is bounded. Accounts in a directory service (LDAP, SSSD) are not found.
package accounts

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hpcc/runtime/rawfile"
)

// maxPasswd bounds the size of an image's /etc/passwd or /etc/group, in bytes.
const maxPasswd = 1 << 20

// DefaultPasswd and DefaultGroup replace missing files of an image.
const (
	DefaultPasswd = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
	DefaultGroup  = "root:x:0:\nnogroup:x:65534:\n"
)

// ReadInside reads a small regular file of the tree root. Links cannot lead out of the tree.
// It returns nil if the file does not exist.
func ReadInside(root, name string) []byte {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
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
	b, err := rawfile.ReadAll(fd, name)
	if err != nil {
		return nil
	}
	return b
}

// readBelow is ReadInside for kernels without openat2 (before Linux 5.6). os.Root resolves
// each path element itself and refuses absolute links.
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

// Entry returns the fields of the first line of a passwd or group file whose field n, counted
// from 0, equals value. It returns nil if no line matches.
func Entry(file []byte, n int, value string) []string {
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

// ImageHome returns the home directory of an image's USER (name or uid, with or without
// group; empty means root) from the passwd file, else /root or /.
func ImageHome(root, usr string) string {
	usr, _, _ = strings.Cut(usr, ":")
	if usr == "" {
		usr = "root"
	}
	field := 0
	if _, err := strconv.Atoi(usr); err == nil {
		field = 2
	}
	if f := Entry(ReadInside(root, "etc/passwd"), field, usr); len(f) > 5 && filepath.IsAbs(f[5]) {
		return f[5]
	}
	if (usr == "root" || usr == "0") && hasDir(filepath.Join(root, "root")) {
		return "/root"
	}
	return "/"
}

// IDs returns the IDs of an image's USER: a name or uid, which may be followed by a colon and a
// group or gid; empty means root. The group is that of the passwd file if none is given.
func IDs(root, usr string) (uid, gid int, err error) {
	usr, group, hasGroup := strings.Cut(usr, ":")
	if usr == "" {
		usr = "0"
	}
	field := 0
	if uid, err = strconv.Atoi(usr); err == nil {
		field = 2
	}
	f := Entry(ReadInside(root, "etc/passwd"), field, usr)
	switch {
	case len(f) > 3:
		uid, err = strconv.Atoi(f[2])
		gid, _ = strconv.Atoi(f[3])
	case field == 0:
		return 0, 0, fmt.Errorf("the image's /etc/passwd does not have the user %q", usr)
	}
	if hasGroup {
		if gid, err = strconv.Atoi(group); err != nil {
			f := Entry(ReadInside(root, "etc/group"), 0, group)
			if len(f) < 3 {
				return 0, 0, fmt.Errorf("the image's /etc/group does not have the group %q", group)
			}
			gid, err = strconv.Atoi(f[2])
		}
	}
	if err != nil || uid < 0 || gid < 0 || int64(max(uid, gid)) > 1<<32-2 {
		return 0, 0, fmt.Errorf("user %q of the image has no valid IDs", usr)
	}
	return uid, gid, nil
}

// Files returns the passwd and group files for a program with these IDs: the image's own,
// with missing lines for the user and the group added. A nil result means that the image's
// file needs no change.
func Files(root string, uid, gid int, home string) (passwd, group []byte) {
	u, g := strconv.Itoa(uid), strconv.Itoa(gid)
	p, gr := ReadInside(root, "etc/passwd"), ReadInside(root, "etc/group")
	if Entry(p, 2, u) == nil {
		name, gecos := "user", ""
		if h := Entry(HostFile("passwd"), 2, u); len(h) > 4 {
			name = h[0]
			gecos, _, _ = strings.Cut(h[4], ",")
		} else if n := os.Getenv("USER"); n != "" {
			name = n
		}
		name, gecos = field(name), field(gecos)
		if len(p) == 0 {
			p = []byte(DefaultPasswd)
		}
		if Entry(p, 2, u) == nil {
			passwd = AppendLine(p, strings.Join([]string{name, "x", u, g, gecos, field(home), "/bin/sh"}, ":"))
		} else {
			passwd = p
		}
	}
	if Entry(gr, 2, g) == nil {
		name := "group"
		if h := Entry(HostFile("group"), 2, g); h != nil {
			name = h[0]
		}
		if len(gr) == 0 {
			gr = []byte(DefaultGroup)
		}
		if Entry(gr, 2, g) == nil {
			group = AppendLine(gr, field(name)+":x:"+g+":")
		} else {
			group = gr
		}
	}
	return passwd, group
}

// HostFile returns the host's passwd or group file, or nil if it cannot be read. It does
// not contain accounts of a directory service, which only the C library can query.
func HostFile(name string) []byte {
	b, _ := rawfile.Read("/etc/" + name)
	return b
}

// field makes s safe for use as one field of a passwd line.
func field(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ':' || r < ' ' {
			return '_'
		}
		return r
	}, s)
}

// AppendLine returns the file with one more line.
func AppendLine(file []byte, line string) []byte {
	out := append([]byte{}, file...)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(append(out, line...), '\n')
}

func hasDir(p string) bool {
	st, err := os.Stat(p)
	return err == nil && st.IsDir()
}
