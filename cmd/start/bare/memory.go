package bare

import (
	"syscall"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A zstring is a string that ends with a zero byte, as system calls require.
type zstring string

const emptyString zstring = "\x00"

// text returns z without the zero byte.
func (z zstring) text() string { return string(z[:len(z)-1]) }

// at returns the address of z.
func (z zstring) at() uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(string(z)))) }

// cString returns the string at p up to and including its zero byte.
func cString(p *byte) zstring {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return zstring(unsafe.String(p, n+1))
}

// alloc returns n bytes of the static memory, or nil if it is used up.
func (r *run) alloc(n int) []byte {
	if n > len(r.memory)-r.used {
		r.full = true
		return nil
	}
	b := r.memory[r.used : r.used+n : r.used+n]
	r.used += n
	return b
}

// join concatenates parts.
func (r *run) join(parts ...string) zstring {
	n := 1
	for _, p := range parts {
		n += len(p)
	}
	b := r.alloc(n)
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

// put appends s to the used memory. Several calls build a string, which since returns.
func (r *run) put(s string) { copy(r.alloc(len(s)), s) }

// since returns the text that was put since begin, an earlier value of used.
func (r *run) since(begin int) zstring {
	b := r.alloc(1)
	if b == nil {
		return emptyString
	}
	b[0] = 0
	return zstring(text(r.memory[begin:r.used]))
}

// absolute returns a path as filepath.Abs does, relative to the physical current directory.
func (r *run) absolute(path string) zstring {
	if hasPrefix(path, "/") {
		return r.clean(path)
	}
	return r.clean(r.join(r.cwd.text(), "/", path).text())
}

// clean cleans an absolute path as filepath.Clean does.
func (r *run) clean(path string) zstring {
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

// Maximum sizes of files, in bytes. /etc/passwd of the host is larger on some sites.
const (
	maxFile   = 64 << 10
	maxPasswd = 512 << 10
)

// readFile reads a file of less than limit bytes.
func (r *run) readFile(name zstring, limit int) (string, syscall.Errno) {
	fd, e := openAt(unix.AT_FDCWD, name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if e != 0 {
		return "", e
	}
	s, e := r.readAll(fd, limit)
	closeFD(fd)
	return s, e
}

// readAll reads the rest of fd, which must be shorter than limit bytes, into the static memory.
func (r *run) readAll(fd, limit int) (string, syscall.Errno) {
	b, ok := read(fd, r.memory[r.used:min(r.used+limit, len(r.memory))])
	if !ok {
		return "", unix.EFBIG
	}
	r.used += len(b)
	return text(b), 0
}

// decimal formats n in base 10.
func (r *run) decimal(n uintptr) string { return r.digits(n, 10) }

func (r *run) digits(n, base uintptr) string {
	b := r.alloc(22)
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

// text returns b as a string without copying, so b must not change.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// cut returns the text before and after the first c, or s and "" if s does not contain c.
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

// plain reports whether s is valid UTF-8 without ASCII control characters. Package runtime may
// treat other strings differently.
func plain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return utf8.ValidString(s)
}

// inside reports whether path is dir or below it. Both must be clean.
func inside(path, dir string) bool {
	if dir == "/" || path == dir {
		return true
	}
	return hasPrefix(path, dir) && path[len(dir)] == '/'
}
