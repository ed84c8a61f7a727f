package metrics

import (
	"encoding/json"
	"fmt"
	"os"
)

// A recorder makes the record of one run. A nil one makes none.
type recorder struct {
	options Options
	header  Header
	out     log
}

// newRecorder begins the record of a run that is about to begin.
func newRecorder(r *Run, o Options) *recorder {
	rec := &recorder{options: o, header: o.Header}
	h := &rec.header
	h.Kind, h.Version, h.Start, h.Command, h.Machine = kindHeader, Version, r.Start, r.Command, thisMachine()
	h.Machine.Host = r.Host
	rec.out.open(o.File)
	rec.out.add(h)
	rec.out.flush()
	return rec
}

// watch looks at the program until it has ended.
func (rec *recorder) watch(int) {}

// end ends the record, of a program that ended or did not run: err says why.
func (rec *recorder) end(r *Run, err error) {
	if rec == nil {
		return
	}
	f := &Footer{Kind: kindFooter, End: r.End, Wall: r.Wall().Seconds(), Exit: r.Exit, Signal: r.Signal, Usage: r.Usage, Memory: r.Usage.MaxRSS, MemoryFrom: "process",
		Read: r.Usage.ReadBlocks * 512, Written: r.Usage.WrittenBlocks * 512}
	if rec.options.Problem != nil {
		f.Problem = rec.options.Problem()
	}
	if f.Problem == "" && err != nil {
		f.Problem = err.Error()
	}
	rec.out.add(f)
	r.Footer, r.Unkept = f, rec.out.close()
}

// A log is the file of a record. Lines are gathered and written in one go: the file may be
// on a file system that many share. The first error ends the writing, not the run.
type log struct {
	file *os.File
	text []byte
	err  error
}

func (l *log) open(file string) {
	if file != "" {
		l.file, l.err = os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o644)
	}
}

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

// flush writes the lines that were added.
func (l *log) flush() {
	if l.file == nil || l.err != nil || len(l.text) == 0 {
		return
	}
	_, l.err = l.file.Write(l.text)
	l.text = l.text[:0]
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
