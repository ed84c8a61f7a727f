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

// PodFile is where the record of a pod's program is, unless something else is said: who
// looks from outside has to know.
const PodFile = "/tmp/hpcc-measured.jsonl"

// terminationLog is where the kubelet reads a container's last words (core/v1,
// terminationMessagePath).
const terminationLog = "/dev/termination-log"

// MeasurePod measures a command as the program of a pod, see [Measure]: what matters most
// of the record so far also goes to the kubelet's termination message, where there is one. So
// something is known of a run when all of its container was killed at once, and when the pod's files
// are gone.
func MeasurePod(ctx context.Context, cmd *exec.Cmd, o Options) (Run, error) {
	words := &lastWords{file: terminationLog}
	o.Deaf = underArgo()
	o.Told = func(h *Header, f *Footer) { words.say(message(*h, *f, maxMessage)) }
	return Measure(ctx, cmd, o)
}

// underArgo says whether the container's first process is Argo's, which starts the program: a
// signal that it gets it sends to all processes of the container.
func underArgo() bool {
	b, err := readSmall("/proc/1/cmdline")
	first, _, _ := bytes.Cut(b, []byte{0})
	return err == nil && path.Base(string(first)) == "argoexec"
}

// lastWords are the termination message of a container. The program may write one, too: then
// that stays.
type lastWords struct {
	file string // "" when it is not ours any more
	said []byte
}

// say puts a text in the place of the one before. It is written in one go, and padded to the
// length of that one: this process may be killed at any time.
func (l *lastWords) say(text []byte) {
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
	if err != nil || !st.Mode().IsRegular() || !l.ours(f) {
		l.file = ""
		return
	}
	if n := len(l.said) - len(text); n > 0 {
		text = append(text[:len(text):len(text)], bytes.Repeat([]byte{'\n'}, n)...)
	}
	if n, err := f.WriteAt(text, 0); err != nil {
		text = text[:n]
	}
	l.said = text
}

// ours says whether the file holds what was said last.
func (l *lastWords) ours(f *os.File) bool {
	now := make([]byte, len(l.said)+1)
	n, err := io.ReadFull(f, now)
	return (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) && bytes.Equal(now[:n], l.said)
}
