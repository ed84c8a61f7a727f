package metrics

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// A reader reads small files of /proc and /sys repeatedly, with three system calls and
// without allocating for each.
type reader struct{ buf []byte }

// maxSmall is the maximum size in bytes of files of /proc and /sys that are read completely.
const maxSmall = 1 << 20

// read returns the file's text, which is valid until the next call.
func (r *reader) read(file string) ([]byte, error) { return r.readSome(file, maxSmall) }

// readSome reads at most about most bytes.
func (r *reader) readSome(file string, most int) ([]byte, error) {
	if r.buf == nil {
		r.buf = make([]byte, 4096)
	}
	fd, err := retry(func() (int, error) { return unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	for n := 0; ; {
		if n == len(r.buf) {
			if n >= most {
				return r.buf[:n], nil
			}
			r.buf = append(r.buf, make([]byte, n)...)
		}
		got, err := retry(func() (int, error) { return unix.Read(fd, r.buf[n:]) })
		if err != nil || got <= 0 {
			return r.buf[:n], err
		}
		n += got
	}
}

// retry repeats f if a signal interrupted it.
func retry(f func() (int, error)) (n int, err error) {
	for n, err = f(); errors.Is(err, unix.EINTR); {
		n, err = f()
	}
	return n, err
}

// tick is the unit of processor time in /proc, in seconds: 1/USER_HZ, the same on all
// supported architectures.
const tick = 0.01

// A stat holds fields of /proc/PID/stat.
type stat struct {
	name                     [16]byte // start of the program's name (TASK_COMM_LEN)
	zombie                   bool
	parent, group, session   int
	user, system             int64 // ticks
	childUser, childSystem   int64 // of children that it waited for
	threads, start, rssPages int64 // start is in ticks since boot
}

// stat reads a process's stat. ok is false if the process has ended.
func (r *reader) stat(pid int) (s stat, ok bool) {
	b, err := r.read(procFile(pid, "stat"))
	if err != nil {
		return s, false
	}
	return parseStat(b)
}

// parseStat parses the name, which may contain blanks and brackets, and the fields after it.
func parseStat(b []byte) (s stat, ok bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 || i+3 >= len(b) || bytes.IndexByte(b[:i], '(') < 0 {
		return s, false
	}
	copy(s.name[:], b[bytes.IndexByte(b, '(')+1:i])
	b = b[i+2:]
	s.zombie = b[0] == 'Z' || b[0] == 'X'
	fields := [...]*int64{11: &s.user, 12: &s.system, 13: &s.childUser, 14: &s.childSystem, 17: &s.threads, 19: &s.start, 21: &s.rssPages}
	ids := [...]*int{1: &s.parent, 2: &s.group, 3: &s.session}
	for n := 0; n < len(fields); n++ {
		var word []byte
		if word, b, ok = bytes.Cut(b, []byte(" ")); !ok && n < len(fields)-1 {
			return s, false
		}
		switch {
		case n < len(ids) && ids[n] != nil:
			*ids[n] = int(number(word))
		case fields[n] != nil:
			*fields[n] = number(word)
		}
	}
	return s, true
}

// number parses an unsigned number at the start of a text. It returns 0 if there is none and
// saturates on overflow.
func number(b []byte) (n int64) {
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		if n > (1<<63-1-9)/10 {
			return 1<<63 - 1
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

// field returns the number after a key at the start of a line, as in "Pss: 12 kB" or
// "usage_usec 12", or 0.
func field(b []byte, key string) int64 {
	n, _ := lookup(b, key)
	return n
}

func lookup(b []byte, key string) (int64, bool) {
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			if rest = bytes.TrimPrefix(rest, []byte(":")); len(rest) > 0 && (rest[0] == ' ' || rest[0] == '\t') {
				return number(bytes.TrimLeft(rest, " \t")), true
			}
		}
	}
	return 0, false
}

// pids parses a list of numbers, such as a thread's children.
func pids(b []byte) (out []int) {
	for w := range bytes.FieldsSeq(b) {
		if n := number(w); n > 0 && n <= 1<<22 { // PID_MAX_LIMIT
			out = append(out, int(n))
		}
	}
	return out
}

func procFile(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
