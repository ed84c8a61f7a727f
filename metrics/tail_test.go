package metrics

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func sampleAt(k int) string {
	return fmt.Sprintf(`{"kind":"sample","t":%d,"cpu_s":%d,"rss_bytes":%d}`+"\n", k, 2*k, k<<20)
}

// grow adds text to a file.
func grow(t *testing.T, file, text string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err == nil {
		err = f.Close()
	}
	testenv.Check(t, err)
}

func (t *Tail) summary() string {
	var b strings.Builder
	if t.Header.Kind != "" {
		b.WriteString("head")
	}
	for _, s := range t.Samples {
		fmt.Fprintf(&b, " %g:%g", s.At, s.CPU)
	}
	if t.Footer != nil {
		fmt.Fprintf(&b, " end %d", t.Footer.Exit)
	}
	return b.String()
}

func TestTailGrows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "task.1.jsonl")
	var tail Tail
	if err := tail.Look(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Look without a file: %v; want fs.ErrNotExist", err)
	}
	many := ""
	for k := 5; k < 2000; k++ {
		many += sampleAt(k)
	}
	for _, c := range []struct{ add, want string }{
		{"", ""},
		{head[:40], ""},
		{head[40:], "head"},
		{sampleAt(1), "head 1:2"},
		{sampleAt(2)[:15], "head 1:2"},
		{sampleAt(2)[15:], "head 1:2 2:4"},
		{"", "head 1:2 2:4"},
		{`{"kind":"sample","t":2.5,"cpu_s":5}` + "\n", "head 1:2 2:4 2.5:5"},
		{sampleAt(3) + sampleAt(4), "head 3:6 4:8"},
		{many, "head 1998:3996 1999:3998"},
		{`{"kind":"mark","x":"` + strings.Repeat("y", 3*tailBytes) + `"}` + "\n" + sampleAt(2000), "head 1999:3998 2000:4000"},
		{`{"kind":"footer","exit":3}` + "\n", "head 1999:3998 2000:4000 end 3"},
	} {
		grow(t, file, c.add)
		if err := tail.Look(file); err != nil {
			t.Fatalf("after adding %.20q: %v", c.add, err)
		}
		if got := tail.summary(); got != c.want {
			t.Errorf("after adding %.20q: %q; want %q", c.add, got, c.want)
		}
		var fresh Tail
		if err := fresh.Look(file); err != nil || (c.want != "" && fresh.Header.Start.IsZero()) {
			t.Errorf("first read after adding %.20q: %v", c.add, err)
		}
		var b bytes.Buffer
		err := WriteTail(&b, file)
		copied, rerr := ReadTail(&b)
		if err != nil || rerr != nil {
			t.Errorf("copying after adding %.20q: %v, %v", c.add, err, rerr)
		} else if got := copied.summary(); got != fresh.summary() {
			t.Errorf("copy after adding %.20q: %q; want %q", c.add, got, fresh.summary())
		}
	}
	// Another attempt of the task replaces the record.
	testenv.Check(t, os.WriteFile(file, []byte(head+sampleAt(7)), 0o644))
	if err := tail.Look(file); err != nil || tail.summary() != "head 7:14" {
		t.Errorf("restarted: %q, %v", tail.summary(), err)
	}
}

func TestTailOfInvalidRecord(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"hello\n", "its first line: invalid"},
		{sampleAt(1), "no header"},
		{head + "oh\n", "invalid character"},
		{head + `{"kind":"sample","t":"x"}` + "\n", "cannot unmarshal"},
		{strings.Repeat("x", maxLine+1) + "\n", "a line of more than"},
	} {
		var tail Tail
		if err := tail.Look(written(t, c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q: %v; want %q", c.text, err, c.want)
		}
	}
}

// FuzzTail checks that the tail of a record is the same in one step and in two, and that a
// valid record has a valid tail.
func FuzzTail(f *testing.F) {
	f.Add([]byte(head+sampleAt(1)+sampleAt(2)+`{"kind":"footer"}`+"\n"), 300)
	f.Add([]byte(head+"\n\n"+sampleAt(1)[:9]), 3)
	f.Add([]byte("\r\n"), 1)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		cut = min(max(cut, 0), len(text))
		var tail, once Tail
		err := tail.readFrom(bytes.NewReader(text), int64(cut))
		if err == nil {
			err = tail.readFrom(bytes.NewReader(text), int64(len(text)))
		}
		if len(tail.Samples) > maxTail || tail.read > int64(len(text)) {
			t.Fatalf("%d samples, %d bytes of %d read", len(tail.Samples), tail.read, len(text))
		}
		if onceErr := once.readFrom(bytes.NewReader(text), int64(len(text))); err == nil && onceErr == nil && len(text) < tailBytes && tail.summary() != once.summary() {
			t.Fatalf("read in two steps: %q; in one step: %q", tail.summary(), once.summary())
		}
		if r, rerr := readRecord(bytes.NewReader(text), true); rerr == nil && !r.Torn && text[0] == '{' && err != nil {
			t.Fatalf("a valid record has an invalid tail: %v", err)
		}
	})
}

// TestNoRegularFile checks that files that are not regular, such as pipes, are refused without
// blocking.
func TestNoRegularFile(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "task.2.jsonl")
	testenv.Check(t, syscall.Mkfifo(pipe, 0o666))
	for name, read := range map[string]func(file string) error{
		"Look":       (&Tail{}).Look,
		"WriteTail":  func(file string) error { return WriteTail(io.Discard, file) },
		"ReadRecord": func(file string) error { _, err := ReadRecord(file, true); return err },
	} {
		for _, file := range []string{pipe, "/dev/null", filepath.Dir(pipe)} {
			if err := read(file); err == nil || !strings.Contains(err.Error(), file+": not a regular file") {
				t.Errorf("%s of %s: %v; want a refusal", name, file, err)
			}
		}
	}
}
