package job

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The records of a packed job are lines of one file for each worker, packed.RUN.RANK. RUN names the
// attempt to run the job: the job, or a rerun. The first line names the worker's host and native ID.
// Every other line is the record of one attempt of one task, in fields that a blank separates:
//
//	INDEX ATTEMPT START TOOK EXIT SIGNAL SLOT FROM SIZE USER SYSTEM RSS ["PROBLEM"] SUM
//
// START, TOOK, USER and SYSTEM are in microseconds, START since 1970, and RSS is in bytes. A task
// that runs has TOOK -1, and the ID of its process as RSS; a worker writes such a line only if the task
// runs for some time. The output
// is the SIZE bytes at FROM of the file output.RUN.RANK.SLOT, if SLOT is not -1. SIGNAL is - without
// a signal. SUM is the CRC-32 of all before it. So the records of a million tasks have some 80 MB,
// and are read in a second.
//
// One write(2) appends lines, and begins with a line break, so that it does not continue a line
// that a crash cut off.

// packedPrefix begins the names of the files with records of packed jobs.
const packedPrefix = "packed."

// PackedFile returns the path of the records of a worker, and the prefix of the paths of its output
// files, which end with the slot's number.
func (*Task) PackedFile(dir, run string, rank int) (records, outputs string) {
	name := run + "." + strconv.Itoa(rank)
	return filepath.Join(dir, packedPrefix+name), filepath.Join(dir, "output."+name+".")
}

// A part is the part of a file that has the output of one task.
type part struct {
	From int64 `json:"from"` // in bytes
	Size int64 `json:"size"` // -1: to the end of the file, because the task runs
	slot int
}

// SetPart records that the task's output is a part of the file of a worker's slot. A negative size
// means that the task runs.
func (t *Task) SetPart(slot int, from, size int64) { t.Part = &part{from, size, slot} }

// PackedHeader returns the first line of a worker's records: what they have in common. params are the
// flags that define the parameters of the job. The task's Output is the pattern of the output files,
// in which {task} is left to replace, or "".
func (t *Task) PackedHeader(params []string) []byte {
	b, _ := json.Marshal(packedHeader{t.Host, t.Native, t.Output, params, t.ImageVersion})
	return fmt.Appendf(nil, "#%s %08x\n", b, crc32.ChecksumIEEE(append([]byte("#"), b...)))
}

type packedHeader struct {
	Host   string   `json:"host"`
	Native string   `json:"native,omitempty"`
	Output string   `json:"output,omitempty"`
	Params []string `json:"params,omitempty"`
	ImageVersion
}

// AppendPacked appends the record as a line to b.
func (t *Task) AppendPacked(b []byte, user, system time.Duration, rss int64) []byte {
	begin, took, slot, from, size := len(b), int64(-1), -1, int64(0), int64(0)
	if t.Ended() {
		took = max(0, t.End.Sub(t.Start).Microseconds())
	}
	if t.Part != nil {
		slot, from, size = t.Part.slot, t.Part.From, t.Part.Size
	}
	number := func(n int64) { b = append(strconv.AppendInt(b, n, 10), ' ') }
	number(int64(t.Index))
	number(int64(t.Attempt))
	number(t.Start.UnixMicro())
	number(took)
	number(int64(t.Exit))
	if t.Signal == "" {
		b = append(b, '-')
	}
	b = append(append(b, t.Signal...), ' ')
	for _, n := range [...]int64{int64(slot), from, size, user.Microseconds(), system.Microseconds(), rss} {
		number(n)
	}
	if t.Problem != "" {
		b = append(strconv.AppendQuote(b, t.Problem[:min(len(t.Problem), maxProblem)]), ' ')
	}
	return fmt.Appendf(b, "%08x\n", crc32.ChecksumIEEE(b[begin:]))
}

// Limits of the records of packed jobs.
const (
	maxProblem    = 1 << 10 // bytes of a problem
	maxPackedLine = 8 << 10 // bytes of a line
	maxPackedFile = 4 << 30 // bytes of a file
	maxAttempt    = 1 << 15
)

// A packedLine is a parsed line, without its problem and sum.
type packedLine struct {
	index, attempt    int
	start, took       int64
	exit              int
	signal            string
	slot              int
	from, size        int64
	user, system, rss int64
	problem           []byte // quoted
}

func (l *packedLine) ended() bool { return l.took >= 0 }
func (l *packedLine) ok() bool {
	return l.took >= 0 && l.exit == 0 && l.signal == "" && len(l.problem) == 0
}

var errPacked = errors.New("damaged")

// parse reads a line without its line break.
func (l *packedLine) parse(b []byte) error {
	i := bytes.LastIndexByte(b, ' ')
	if i < 0 || len(b)-i != 9 {
		return errPacked
	}
	sum, err := strconv.ParseUint(string(b[i+1:]), 16, 32)
	if err != nil || uint32(sum) != crc32.ChecksumIEEE(b[:i+1]) {
		return errPacked
	}
	b = b[:i+1]
	ok := true
	field := func() (f []byte) {
		n := bytes.IndexByte(b, ' ')
		if n <= 0 {
			ok = false
			return nil
		}
		f, b = b[:n], b[n+1:]
		return f
	}
	number := func(least, most int64) int64 {
		n, valid := parseInt(field())
		ok = ok && valid && n >= least && n <= most
		return n
	}
	l.index, l.attempt = int(number(0, maxIndex)), int(number(0, maxAttempt))
	l.start, l.took, l.exit = number(0, math.MaxInt64/1000), number(-1, math.MaxInt64/1000), int(number(-1, 255))
	l.signal = ""
	if f := field(); len(f) != 1 || f[0] != '-' {
		l.signal = string(f)
	}
	l.slot, l.from, l.size = int(number(-1, maxIndex)), number(0, math.MaxInt64), number(-1, math.MaxInt64)
	l.user, l.system, l.rss = number(0, math.MaxInt64), number(0, math.MaxInt64), number(0, math.MaxInt64)
	l.problem = bytes.TrimSuffix(b, []byte(" "))
	if !ok {
		return errPacked
	}
	return nil
}

// parseInt is strconv.ParseInt for the decimal numbers of records, without an allocation.
func parseInt(b []byte) (n int64, ok bool) {
	negative := len(b) > 1 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	for _, c := range b {
		if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	if negative {
		n = -n
	}
	return n, len(b) > 0
}

// task returns the record of the line. params are those of the header.
func (l *packedLine) task(h *packedHeader, params *Params, outputs string) Task {
	t := Task{Index: l.index, Attempt: l.attempt, Host: h.Host, Native: h.Native, Start: time.UnixMicro(l.start),
		Exit: l.exit, Signal: l.signal, ImageVersion: h.ImageVersion, packed: true}
	if l.ended() {
		t.End = t.Start.Add(time.Duration(l.took) * time.Microsecond)
		t.Usage = fmt.Appendf(nil, `{"user_s":%g,"system_s":%g,"max_rss_bytes":%d}`, float64(l.user)/1e6, float64(l.system)/1e6, l.rss)
	}
	t.Params = params.Row(l.index)
	if !l.ended() {
		t.PID = int(l.rss)
	}
	if l.slot >= 0 {
		t.Output, t.Part = outputs+strconv.Itoa(l.slot), &part{l.from, l.size, l.slot}
	} else if h.Output != "" {
		t.Output = strings.ReplaceAll(h.Output, Placeholder, strconv.Itoa(l.index))
	}
	if len(l.problem) > 0 {
		var err error
		if t.Problem, err = strconv.Unquote(string(l.problem)); err != nil {
			t.Problem = string(l.problem)
		}
	}
	return t
}

// packedRecords are the records of a packed job's directory. A first reading finds the line that
// counts for each task: that of its last attempt.
type packedRecords struct {
	files []string
	runs  map[string]bool
	last  []packedMark // by index
	bad   []error

	sum successes // of the times and of the memory
}

// A packedMark is the line that counts for a task.
type packedMark struct {
	at      int64 // offset of the line
	file    uint16
	attempt uint16
	state   packedState
}

type packedState uint8

const (
	packedNone packedState = iota
	packedOpen
	packedFailed
	packedOK
)

// readPacked reads the files with records of packed tasks among those of a directory.
func readPacked(dir string, names []string) *packedRecords {
	p := &packedRecords{runs: map[string]bool{}}
	for _, name := range names {
		if !strings.HasPrefix(name, packedPrefix) || strings.Count(name, ".") != 2 || len(p.files) > math.MaxUint16 {
			continue
		}
		p.files = append(p.files, filepath.Join(dir, name))
		p.runs[strings.Split(name, ".")[1]] = true
		n := uint16(len(p.files) - 1)
		bad, err := eachPacked(p.files[n], func(_ *packedHeader, at int64, l *packedLine) { p.mark(n, at, l) })
		if p.bad = append(p.bad, bad...); err != nil {
			p.bad = append(p.bad, &RecordError{p.files[n], err})
		}
	}
	return p
}

// mark notes a line if it counts more than the task's other lines so far: a later attempt, or the
// end of the same one. A success counts most, because a task that succeeded does not run again.
func (p *packedRecords) mark(file uint16, at int64, l *packedLine) {
	for len(p.last) <= l.index {
		p.last = append(p.last, packedMark{})
	}
	now := packedMark{at, file, uint16(l.attempt), packedOpen}
	switch {
	case l.ok():
		now.state = packedOK
		p.sum.add(l)
	case l.ended():
		now.state = packedFailed
	}
	m := &p.last[l.index]
	if m.state == packedNone || now.state == packedOK ||
		(m.state != packedOK && (now.attempt > m.attempt || (now.attempt == m.attempt && now.state >= m.state))) {
		*m = now
	}
}

// tasks returns the records of tasks, in no order: of each the line that counts if want is true for
// it, and with before all the other lines with an end, as earlier.
func (p *packedRecords) tasks(want func(index int, ok bool) bool, before bool) (last, earlier []Task) {
	wanted := func(file int) bool {
		for k := range p.last {
			if m := &p.last[k]; before || (int(m.file) == file && m.state != packedNone && want(k, m.state == packedOK)) {
				return true
			}
		}
		return false
	}
	var flags []string
	var params Params
	for n, file := range p.files {
		if !wanted(n) {
			continue
		}
		outputs := filepath.Join(filepath.Dir(file), "output."+strings.TrimPrefix(filepath.Base(file), packedPrefix)+".")
		_, _ = eachPacked(file, func(h *packedHeader, at int64, l *packedLine) { // readPacked reports errors
			if !slices.Equal(h.Params, flags) {
				flags, params = h.Params, Params{}
				_ = params.Parse(flags) // else the file of --params has changed
			}
			if l.index >= len(p.last) { // the file has grown
				return
			}
			m := &p.last[l.index]
			switch counts := int(m.file) == n && m.at == at; {
			case counts && want(l.index, m.state == packedOK):
				last = append(last, l.task(h, &params, outputs))
			case !counts && before && l.ended():
				earlier = append(earlier, l.task(h, &params, outputs))
			}
		})
	}
	return last, earlier
}

// successes are the successful tasks of a packed job.
type successes struct {
	Count      int
	Start, End time.Time // when the first started, and the last ended

	Wall, Longest, CPU time.Duration // of all, of one, and the processor time of all
	Peak               int64         // the most memory of a process, in bytes

	marks []packedMark
	left  bool // Count and Has are about tasks that Last leaves out
}

// add adds the times and the memory of a task.
func (s *successes) add(l *packedLine) {
	start, took := time.UnixMicro(l.start), time.Duration(l.took)*time.Microsecond
	if s.Start.IsZero() || start.Before(s.Start) {
		s.Start = start
	}
	if end := start.Add(took); end.After(s.End) {
		s.End = end
	}
	s.Wall, s.Longest = s.Wall+took, max(s.Longest, took)
	s.CPU += time.Duration(l.user+l.system) * time.Microsecond
	s.Peak = max(s.Peak, l.rss)
}

// Has reports whether a task is one of them.
func (s *successes) Has(index int) bool {
	return s.left && index >= 0 && index < len(s.marks) && s.marks[index].state == packedOK
}

// readPacked adds the records of a packed job.
func (r *Records) readPacked(dir string, names []string, before bool, want selection) {
	p := readPacked(dir, names)
	r.Runs = len(p.runs)
	if r.Bad = append(r.Bad, p.bad...); len(p.last) == 0 {
		return
	}
	all := want == nil
	if all {
		want = func(int, bool) bool { return true }
	}
	r.Last, r.Earlier = p.tasks(want, before)
	if all {
		return
	}
	r.Succeeded = p.sum
	r.Succeeded.marks, r.Succeeded.left = p.last, true
	for i := range p.last {
		if p.last[i].state == packedOK {
			r.Succeeded.Count++
		}
	}
}

// eachPacked calls each for every line of a worker's records, with its offset. bad lists the lines
// that are damaged.
func eachPacked(file string, each func(h *packedHeader, at int64, l *packedLine)) (bad []error, err error) {
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0) // do not block on a FIFO
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !fi.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case fi.Size() > maxPackedFile:
		return nil, fmt.Errorf("has more than %d bytes", int64(maxPackedFile))
	}
	lines := bufio.NewReaderSize(f, 1<<20)
	var h packedHeader
	var l packedLine
	damaged := 0
	for n, at := 1, int64(0); ; n++ {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) { // a line without an end is being written, or was cut off
			break
		}
		if err != nil || len(line) > maxPackedLine {
			return bad, fmt.Errorf("line %d has more than %d bytes", n, maxPackedLine)
		}
		here := at
		at += int64(len(line))
		if len(line) == 1 {
			continue
		}
		line = line[:len(line)-1]
		if line[0] == '#' {
			err = h.parse(line)
		} else if err = l.parse(line); err == nil {
			each(&h, here, &l)
		}
		if err == nil {
			continue
		}
		if damaged++; damaged <= maxDamaged {
			bad = append(bad, &RecordError{fmt.Sprintf("%s:%d", file, n), err})
		}
	}
	if damaged > maxDamaged {
		bad = append(bad, &RecordError{file, fmt.Errorf("%d more lines are damaged", damaged-maxDamaged)})
	}
	return bad, nil
}

// maxDamaged is the number of damaged lines of a file that are reported one by one.
const maxDamaged = 10

func (h *packedHeader) parse(line []byte) error {
	i := bytes.LastIndexByte(line, ' ')
	if i < 0 || fmt.Sprintf("%08x", crc32.ChecksumIEEE(line[:i])) != string(line[i+1:]) {
		return errPacked
	}
	return json.Unmarshal(line[1:i], h)
}
