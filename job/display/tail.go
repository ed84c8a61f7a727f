package display

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"
)

// A stepWriter writes complete lines, with a name before each.
type stepWriter struct {
	out  io.Writer
	lock *sync.Mutex // of out
	name string
	rest []byte
}

// maxLine is the number of bytes of an unfinished line that a stepWriter holds back.
const maxLine = 64 << 10

func (w *stepWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := slices.Index(w.rest, '\n')
		if i < 0 && len(w.rest) < maxLine {
			return len(p), nil
		}
		if i < 0 {
			i = len(w.rest) - 1
		}
		if err := w.line(w.rest[:i+1]); err != nil {
			return 0, err
		}
		w.rest = w.rest[i+1:]
	}
}

func (w *stepWriter) line(text []byte) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	_, err := fmt.Fprintf(w.out, "%s: %s", w.name, text)
	return err
}

func (w *stepWriter) flush() {
	if len(w.rest) > 0 {
		_ = w.line(append(w.rest, '\n'))
	}
}

// lastLines returns the last n lines of b. A final newline does not begin another line.
func lastLines(b []byte, n int) []byte {
	if n <= 0 {
		return nil
	}
	end := len(bytes.TrimSuffix(b, []byte("\n")))
	for ; n > 0; n-- {
		if end = bytes.LastIndexByte(b[:end], '\n'); end < 0 {
			return b
		}
	}
	return b[end+1:]
}

// tailOffset returns the offset of the last n lines of an output; 0 if n is negative.
func tailOffset(f *io.SectionReader, n int) (int64, error) {
	if n < 0 {
		return 0, nil
	}
	for size := int64(64 << 10); ; size *= 4 {
		size = min(size, f.Size(), maxTail)
		b := make([]byte, size)
		if _, err := f.ReadAt(b, f.Size()-size); err != nil && err != io.EOF {
			return 0, err
		}
		last := lastLines(b, n)
		if int64(len(last)) < size || size == f.Size() || size == maxTail {
			return f.Size() - int64(len(last)), nil
		}
	}
}

// maxTail limits the memory of --tail, in bytes. Longer output is cut at its start.
const maxTail = 64 << 20

// A lineTail keeps the last lines that are written to it, until flush writes them to out. If lines
// is negative, it writes everything to out immediately.
type lineTail struct {
	lines int
	out   io.Writer
	size  int64 // bytes that were written
	kept  []byte
}

func (t *lineTail) Write(p []byte) (int, error) {
	t.size += int64(len(p))
	if t.lines < 0 {
		return t.out.Write(p)
	}
	if t.kept = append(t.kept, p...); len(t.kept) > maxTail {
		t.kept = bytes.Clone(lastLines(t.kept[len(t.kept)-maxTail/2:], t.lines))
	}
	return len(p), nil
}

func (t *lineTail) flush() error {
	_, err := t.out.Write(lastLines(t.kept, t.lines))
	return err
}

// A skipWriter drops the first bytes that are written to it.
type skipWriter struct {
	out  io.Writer
	skip int64
}

func (w *skipWriter) Write(p []byte) (int, error) {
	drop := int(min(w.skip, int64(len(p))))
	w.skip -= int64(drop)
	if drop == len(p) {
		return drop, nil
	}
	n, err := w.out.Write(p[drop:])
	return drop + n, err
}
