package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// A log is the file of a record. Lines are gathered and written in one go: the file may be
// on a file system that many share. The first error ends the writing, not the run.
type log struct {
	file    *os.File
	text    []byte
	err     error
	written time.Time // when lines were last
}

// open begins the file. What is no record is not written over, and nobody is waited for
// to read a pipe.
func (l *log) open(file string) {
	if file == "" {
		return
	}
	if l.err = replaceable(file); l.err == nil {
		l.file, l.err = os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o644)
	}
}

// replaceable says why a file that is there is not written over.
func replaceable(file string) error {
	fi, err := os.Stat(file)
	switch {
	case err != nil: // opening tells
		return nil
	case fi.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0:
		return fmt.Errorf("%s is a pipe", file)
	case !fi.Mode().IsRegular() || fi.Size() == 0:
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, len(headerHead))
	if _, err := io.ReadFull(f, head); err != nil || string(head) != headerHead {
		return fmt.Errorf("%s is there and is no measured run", file)
	}
	return nil
}

// headerHead begins every record that hpcc writes.
const headerHead = `{"kind":"header",`

// add adds a line.
func (l *log) add(v any) {
	if l.file == nil || l.err != nil {
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		l.err = err
		return
	}
	l.text = append(append(l.text, b...), '\n')
}

// first adds a line before all that is not written yet.
func (l *log) first(v any) {
	rest := l.text
	l.text = nil
	l.add(v)
	l.text = append(l.text, rest...)
}

// maxUnwritten bounds the lines that are kept, in bytes.
const maxUnwritten = 64 << 10

// due says whether lines should be written of a run of that age, which may be watched.
func (l *log) due(running time.Duration) bool {
	return len(l.text) > maxUnwritten || time.Since(l.written) > min(max(running/2, time.Second), longPause)
}

// flush writes the lines that were added.
func (l *log) flush() {
	if l.file == nil || l.err != nil || len(l.text) == 0 {
		return
	}
	_, l.err = l.file.Write(l.text)
	l.text, l.written = l.text[:0], time.Now()
}

// close says why not everything is in the file.
func (l *log) close() error {
	l.flush()
	if l.file != nil {
		if err := l.file.Close(); l.err == nil {
			l.err = err
		}
	}
	if l.err != nil {
		return fmt.Errorf("writing the record of a measured run: %w", l.err)
	}
	return nil
}
