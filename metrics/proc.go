package metrics

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"
)

// A reader reads small files of /proc and /sys again and again: by three system calls
// and without memory of its own for each.
type reader struct{ buf []byte }

// read returns the file's text, until the next call.
func (r *reader) read(file string) ([]byte, error) { return r.readSome(file, maxSmall) }

// readSome reads no more than about so many bytes.
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

// retry calls f again where a signal broke it off.
func retry(f func() (int, error)) (n int, err error) {
	for n, err = f(); errors.Is(err, unix.EINTR); {
		n, err = f()
	}
	return n, err
}

// tick is the unit of processor time in /proc, of a second: USER_HZ, the same on all that we build for.
const tick = 0.01

// A stat is what /proc/PID/stat says of a process.
type stat struct {
	name                    [16]byte // TASK_COMM_LEN: of the program, the head of it
	zombie                  bool
	parent, group, session  int
	user, system            int64 // ticks
	childUser, childSystem  int64 // of the children that it waited for
	threads, start, resides int64 // start is in ticks since the machine's, resides in pages
}

// stat reads that of a process; not ok where it is gone.
func (r *reader) stat(pid int) (s stat, ok bool) {
	b, err := r.read(procFile(pid, "stat"))
	if err != nil {
		return s, false
	}
	return parseStat(b)
}

// parseStat reads the name, which may hold blanks and brackets, and the fields behind it.
func parseStat(b []byte) (s stat, ok bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 || i+3 >= len(b) || bytes.IndexByte(b[:i], '(') < 0 {
		return s, false
	}
	copy(s.name[:], b[bytes.IndexByte(b, '(')+1:i])
	b = b[i+2:]
	s.zombie = b[0] == 'Z' || b[0] == 'X'
	fields := [...]*int64{11: &s.user, 12: &s.system, 13: &s.childUser, 14: &s.childSystem, 17: &s.threads, 19: &s.start, 21: &s.resides}
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

// number reads a number without a sign at the head of a text; 0 where there is none, the
// largest where there is no room for it.
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

// field is the number behind a key at the head of a line, as in "Pss: 12 kB" or
// "usage_usec 12"; 0 where there is none.
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

// pids reads a list of numbers, as that of a thread's children.
func pids(b []byte) (out []int) {
	for w := range bytes.FieldsSeq(b) {
		if n := number(w); n > 0 && n <= 1<<22 { // PID_MAX_LIMIT
			out = append(out, int(n))
		}
	}
	return out
}

func procFile(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
