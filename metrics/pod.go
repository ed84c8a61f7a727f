package metrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
)

// PodFile is the default file of a pod's record, at a fixed path so that it can be found
// from outside.
const PodFile = "/tmp/hpcc-measured.jsonl"

// terminationLog is the file of a container's termination message (core/v1,
// terminationMessagePath).
const terminationLog = "/dev/termination-log"

// MeasurePod measures a command as the program of a pod; see [Measure]. During the run, it also
// writes the essential part of the record to the container's termination message, if it has one.
// Thus some results survive even if the whole container is killed, or the pod's files are lost.
func MeasurePod(ctx context.Context, cmd *exec.Cmd, o Options) (Run, error) {
	last := &terminationMessage{file: terminationLog}
	o.NoForward = underArgo()
	o.Progress = func(h *Header, f *Footer) { last.write(message(*h, *f, maxMessage)) }
	return Measure(ctx, cmd, o)
}

// underArgo reports whether the container's first process is Argo's, which starts the
// program and forwards its signals to all processes of the container.
func underArgo() bool {
	b, err := new(reader).read("/proc/1/cmdline")
	first, _, _ := bytes.Cut(b, []byte{0})
	return err == nil && path.Base(string(first)) == "argoexec"
}

// A terminationMessage writes a container's termination message. It stops as soon as the program
// writes a message of its own.
type terminationMessage struct {
	file    string // "" once the file cannot be written, or belongs to the program
	written []byte // the file's content, as written last
}

// write replaces the text. It makes a single write, padded to the previous length, because this
// process may be killed at any time.
func (l *terminationMessage) write(text []byte) {
	if l.file == "" || len(text) == 0 {
		return
	}
	f, err := os.OpenFile(l.file, os.O_RDWR, 0)
	if err != nil {
		l.file = ""
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || !l.unchanged(f) {
		l.file = ""
		return
	}
	if n := len(l.written) - len(text); n > 0 {
		text = append(text[:len(text):len(text)], bytes.Repeat([]byte{'\n'}, n)...)
	}
	if n, err := f.WriteAt(text, 0); err != nil {
		text = text[:n]
	}
	l.written = text
}

// unchanged reports whether the file still holds the text that was written last.
func (l *terminationMessage) unchanged(f *os.File) bool {
	now := make([]byte, len(l.written)+1)
	n, err := io.ReadFull(f, now)
	return (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) && bytes.Equal(now[:n], l.written)
}
