package bare

import (
	"syscall"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A zstring ends with a zero byte, as the kernel wants it.
type zstring string

const none zstring = "\x00"

// text is z without the zero.
func (z zstring) text() string { return string(z[:len(z)-1]) }

// at is z's address.
func (z zstring) at() uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(string(z)))) }

// pointed is the string that ends with the first zero at or behind p.
func pointed(p *byte) zstring {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return zstring(unsafe.String(p, n+1))
}

// take returns n bytes of the static memory; nil when that has no more.
func (r *run) take(n int) []byte {
	if n > len(r.memory)-r.used {
		r.full = true
		return nil
	}
	b := r.memory[r.used : r.used+n : r.used+n]
	r.used += n
	return b
}

// join puts parts behind each other.
func (r *run) join(parts ...string) zstring {
	n := 1
	for _, p := range parts {
		n += len(p)
	}
	b := r.take(n)
	if b == nil {
		return "\x00"
	}
	n = 0
	for _, p := range parts {
		n += copy(b[n:], p)
	}
	b[n] = 0
	return zstring(unsafe.String(&b[0], len(b)))
}

// put adds s to what was taken last: several calls, and since, build a string.
func (r *run) put(s string) { copy(r.take(len(s)), s) }

// since returns what was put from begin on.
func (r *run) since(begin int) zstring {
	b := r.take(1)
	if b == nil {
		return none
	}
	b[0] = 0
	return zstring(text(r.memory[begin:r.used]))
}

// absolute returns a path as filepath.Abs does, by the physical path of the
// current directory.
func (r *run) absolute(path string) zstring {
	if hasPrefix(path, "/") {
		return r.tidy(path)
	}
	return r.tidy(r.join(r.cwd.text(), "/", path).text())
}

// tidy returns an absolute path as filepath.Clean does.
func (r *run) tidy(path string) zstring {
	begin := r.used
	for path != "" {
		var part string
		switch part, path = cut(path, '/'); part {
		case "", ".":
		case "..":
			for r.used > begin {
				r.used--
				if r.memory[r.used] == '/' {
					break
				}
			}
		default:
			r.put("/")
			r.put(part)
		}
	}
	if r.used == begin {
		r.put("/")
	}
	return r.since(begin)
}

// Bounds of a file that is read, in bytes. The host's own list of users is larger
// than others on some sites.
const (
	maxFile   = 64 << 10
	maxPasswd = 512 << 10
)

// readFile reads a file of at most limit bytes.
func (r *run) readFile(name zstring, limit int) (string, syscall.Errno) {
	fd, e := openAt(unix.AT_FDCWD, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if e != 0 {
		return "", e
	}
	s, e := r.readAll(fd, limit)
	closeFD(fd)
	return s, e
}

// readAll reads what fd has left into the static memory, at most limit bytes.
func (r *run) readAll(fd, limit int) (string, syscall.Errno) {
	b, ok := read(fd, r.memory[r.used:min(r.used+limit, len(r.memory))])
	if !ok {
		return "", unix.EFBIG
	}
	r.used += len(b)
	return text(b), 0
}

// decimal writes n.
func (r *run) decimal(n uintptr) string { return r.digits(n, 10) }

func (r *run) digits(n, base uintptr) string {
	b := r.take(22)
	if b == nil {
		return ""
	}
	i := len(b)
	for {
		i--
		b[i] = '0' + byte(n%base)
		if n /= base; n == 0 {
			return unsafe.String(&b[i], len(b)-i)
		}
	}
}

// text is b as a string; b must not change.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// cut returns what stands before and behind the first c; s and "" without one.
func cut(s string, c byte) (before, after string) {
	for i := range len(s) {
		if s[i] == c {
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

func contains(s string, c byte) bool {
	for i := range len(s) {
		if s[i] == c {
			return true
		}
	}
	return false
}

func hasPrefix(s, head string) bool { return len(s) >= len(head) && s[:len(head)] == head }

func hasSuffix(s, tail string) bool { return len(s) >= len(tail) && s[len(s)-len(tail):] == tail }

// plain reports whether s has only printable characters of ASCII and others of
// UTF-8: of the rest package runtime may make something else.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}

// inside says whether path is dir or below it; both are clean.
func inside(path, dir string) bool {
	if dir == "/" || path == dir {
		return true
	}
	return hasPrefix(path, dir) && path[len(dir)] == '/'
}
