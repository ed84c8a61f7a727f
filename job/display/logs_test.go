package display

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

// TestStepWriter has whole lines of several steps, each behind its name.
func TestStepWriter(t *testing.T) {
	var out bytes.Buffer
	var lock sync.Mutex
	var g sync.WaitGroup
	for _, name := range []string{"train", "test"} {
		g.Go(func() {
			w := &stepWriter{out: &out, lock: &lock, name: name}
			for range 100 {
				for _, part := range []string{"a", "b\nc", "\n", ""} {
					if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
						t.Errorf("Write(%q) = %d, %v", part, n, err)
					}
				}
			}
			_, _ = w.Write([]byte("end"))
			w.flush()
		})
	}
	g.Wait()
	for _, name := range []string{"train", "test"} {
		for text, n := range map[string]int{"ab": 100, "c": 100, "end": 1} {
			if got := strings.Count("\n"+out.String(), "\n"+name+": "+text+"\n"); got != n {
				t.Errorf("%s: %s stands there %d times; want %d", name, text, got, n)
			}
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 402 {
		t.Errorf("%d lines; want 402", n)
	}
	out.Reset()
	w := &stepWriter{out: &out, lock: &lock, name: "x"}
	if _, err := w.Write(bytes.Repeat([]byte("y"), 3*maxLine)); err != nil || out.Len() < 2*maxLine {
		t.Errorf("of a line without an end %d bytes were written, %v", out.Len(), err)
	}
}

// TestTail compares the tail of files and of streams with the last lines of their text.
func TestTail(t *testing.T) {
	long := strings.Repeat("0123456789abcde\n", 20_000)
	for _, c := range []struct {
		name, text string
		n          int
		want       string
	}{
		{"empty", "", 3, ""},
		{"no lines", "a\nb\n", 0, ""},
		{"fewer", "a\nb\n", 3, "a\nb\n"},
		{"exactly", "a\nb\n", 2, "a\nb\n"},
		{"last", "a\nb\n", 1, "b\n"},
		{"unfinished line", "a\nb", 1, "b"},
		{"empty lines", "a\n\n\n", 2, "\n\n"},
		{"several blocks", "first\n" + long, 15_000, long[5_000*16:]},
		{"all blocks", "first\n" + long, 30_000, "first\n" + long},
	} {
		file := filepath.Join(t.TempDir(), "output")
		testenv.Check(t, os.WriteFile(file, []byte(c.text), 0o600))
		f, err := os.Open(file)
		testenv.Check(t, err)
		defer f.Close()
		if from, err := tailOffset(io.NewSectionReader(f, 0, int64(len(c.text))), c.n); err != nil || c.text[from:] != c.want {
			t.Errorf("%s: the file's tail begins at %d of %d, %v", c.name, from, len(c.text), err)
		}
		var out strings.Builder
		w := &lineTail{lines: c.n, out: &out}
		for i := 0; i < len(c.text); i += 1000 {
			_, err := w.Write([]byte(c.text[i:min(i+1000, len(c.text))]))
			testenv.Check(t, err)
		}
		if err := w.flush(); err != nil || out.String() != c.want || w.size != int64(len(c.text)) {
			t.Errorf("%s: %d bytes of %d, %v; want %d", c.name, out.Len(), w.size, err, len(c.want))
		}
	}
}

// TestSkipWriter drops exactly the first bytes, however they are written.
func TestSkipWriter(t *testing.T) {
	var out strings.Builder
	w := &skipWriter{out: &out, skip: 5}
	for _, s := range []string{"abc", "defg", "hi"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("%q: %d, %v", s, n, err)
		}
	}
	if out.String() != "fghi" {
		t.Errorf("%q", out.String())
	}
}

// TestRecentTasks checks --since with an old output file, a running task and an ended one.
func TestRecentTasks(t *testing.T) {
	old := filepath.Join(t.TempDir(), "old")
	testenv.Check(t, os.WriteFile(old, nil, 0o600))
	testenv.Check(t, os.Chtimes(old, time.Time{}, time.Now().Add(-2*time.Hour)))
	l := &Logs{Since: time.Hour}
	for _, c := range []struct {
		name string
		task job.Task
		want bool
	}{
		{"old output", job.Task{Output: old}, false},
		{"running in a cluster", job.Task{}, true},
		{"ended in a cluster", job.Task{End: time.Now().Add(-2 * time.Hour)}, false},
	} {
		if got := l.recent(&c.task); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
