package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"
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
