package metrics

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// A log is the file of a record. A goroutine writes the collected lines, because the file
// system may be slow, shared or hanging, and no run waits for it. The first error ends the
// writing, not the run.
type log struct {
	name    string
	text    []byte // not yet passed to the writer
	err     error  // why nothing is written
	dropped int    // number of dropped samples
	flushed time.Time
	lines   chan []byte // to the writer; nil: there is none
	wrote   chan error  // the writer's result after lines is closed
}

// open creates the file.
func (l *log) open(file string) {
	if file == "" {
		return
	}
	f, err := create(file)
	if l.err = err; err != nil {
		return
	}
	l.name, l.lines, l.wrote = file, make(chan []byte, 1), make(chan error, 1)
	go func() { l.wrote <- writeLines(f, file, l.lines) }()
}

// create creates a record file. It replaces only records and never blocks on a pipe. An
// existing record is replaced by a new file: another writer, such as another rank of the
// program, continues in its own file, and no file mixes lines of two runs.
func create(file string) (*os.File, error) {
	if at, err := filepath.EvalSymlinks(file); err == nil {
		file = at
	}
	flags, mode := os.O_WRONLY|os.O_APPEND|unix.O_NOCTTY, newMode(file)
	fi, err := os.Stat(file)
	switch {
	case err != nil: // opening reports it
		flags |= os.O_CREATE | os.O_EXCL
	case fi.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0:
		return nil, fmt.Errorf("%s is a pipe", file)
	case fi.Mode().IsRegular():
		if err := replaceable(file, fi); err != nil {
			return nil, err
		}
		if os.Remove(file) != nil { // its directory is not ours, or it is a mount point
			return empty(file)
		}
		flags, mode = flags|os.O_CREATE|os.O_EXCL, fi.Mode().Perm()
	}
	return os.OpenFile(file, flags, mode)
}

// newMode returns the mode of a new record, before the umask. It never grants access to more
// users than its directory.
func newMode(file string) fs.FileMode {
	fi, err := os.Stat(filepath.Dir(file))
	if err != nil {
		return 0o600
	}
	return 0o666 & fi.Mode().Perm()
}

// empty opens and truncates a record, unless another run holds its lock. File systems
// without locks cannot detect that.
func empty(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	_, err = retry(func() (int, error) { return 0, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return nil, fmt.Errorf("another run writes to %s: each run needs its own file", file)
	}
	if err := f.Truncate(0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// replaceable returns why an existing file is not overwritten. An empty one may be the
// program's output.
func replaceable(file string, fi fs.FileInfo) error {
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		if own, err := f.Stat(); err == nil && os.SameFile(own, fi) {
			return fmt.Errorf("%s is the program's own %s", file, filepath.Base(f.Name()))
		}
	}
	if fi.Size() == 0 {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, len(headerHead))
	if _, err := io.ReadFull(f, head); err != nil || string(head) != headerHead {
		return fmt.Errorf("%s exists and is not a measured run", file)
	}
	return nil
}

// headerHead is the start of every record that hpcc writes.
const headerHead = `{"kind":"header",`

// writeLines writes the lines and returns why the file of that name is incomplete.
func writeLines(f *os.File, name string, lines <-chan []byte) (err error) {
	for text := range lines {
		if err == nil {
			_, err = f.Write(text)
		}
	}
	if err == nil {
		err = replaced(f, name)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// replaced returns why a file no longer has its name.
func replaced(f *os.File, name string) error {
	own, err := f.Stat()
	if err != nil || !own.Mode().IsRegular() {
		return err
	}
	now, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s was removed while the program ran", name)
	case err == nil && !os.SameFile(own, now):
		return fmt.Errorf("%s was replaced by another run: each run needs its own file", name)
	}
	return err
}

// add adds a line.
func (l *log) add(v any) {
	if l.lines == nil || l.err != nil {
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		l.err = err
		return
	}
	l.text = append(append(l.text, b...), '\n')
}

// first adds a line before all unwritten ones.
func (l *log) first(v any) {
	rest := l.text
	l.text = nil
	l.add(v)
	l.text = append(l.text, rest...)
}

// maxUnwritten is the number of bytes from which lines are written, and maxBehind the number
// from which samples are dropped, because the writer does not accept them.
const (
	maxUnwritten = 64 << 10
	maxBehind    = 1 << 20
)

// due reports whether lines of a run of that age should be written. The file may be watched.
func (l *log) due(running time.Duration) bool {
	return len(l.text) > maxUnwritten || time.Since(l.flushed) > min(max(running/2, time.Second), longPause)
}

// sample adds a sample, unless the writer is too far behind.
func (l *log) sample(s *Sample) {
	if len(l.text) > maxBehind {
		l.dropped++
		return
	}
	l.add(s)
}

// flush passes the lines to the writer once earlier ones are written.
func (l *log) flush() {
	l.flushed = time.Now()
	if l.lines == nil || len(l.text) == 0 {
		return
	}
	select {
	case l.lines <- l.text:
		l.text = nil
	default:
	}
}

// writeGrace is how long the end of a run waits for its record to be written.
const writeGrace = 5 * time.Second

// close returns why the file is incomplete.
func (l *log) close() error {
	err := l.finish()
	if err == nil && l.dropped > 0 {
		err = fmt.Errorf("%d samples were dropped because writing to %s was slow", l.dropped, l.name)
	}
	return unwritten(err)
}

func unwritten(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("writing the record of a measured run: %w", err)
}

func (l *log) finish() error {
	if l.lines == nil {
		return l.err
	}
	late := time.After(writeGrace)
	select {
	case l.lines <- l.text:
	case <-late:
		return fmt.Errorf("%s accepted no data for %v", l.name, writeGrace)
	}
	close(l.lines)
	select {
	case err := <-l.wrote:
		return errors.Join(l.err, err)
	case <-late:
		return fmt.Errorf("%s was not written within %v", l.name, writeGrace)
	}
}
