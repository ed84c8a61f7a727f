package progress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"hpcc/build"
	"hpcc/testdata/helpers/screen"
	"hpcc/text"
	"hpcc/text/terminal"
)

// watched returns steps with a view on a small screen, which only the test redraws.
func watched(t *testing.T, columns, rows int) (*Steps, *screen.Screen) {
	s := &screen.Screen{Wrong: t.Errorf, Columns: columns, Rows: rows}
	v := &view{color: true, size: func() (int, int) { return s.Columns, s.Rows }, tick: time.NewTicker(time.Hour), quit: make(chan struct{})}
	t.Cleanup(v.stop)
	return &Steps{out: s, view: v, warned: map[string]bool{}, begun: time.Now()}, s
}

func show(t *testing.T, st *Steps, s *screen.Screen, want string) {
	t.Helper()
	if st.view.quit != nil {
		st.view.refresh(st)
	}
	if got := s.Text(); got != strings.Trim(want, "\n") {
		t.Errorf("the screen shows\n%s\nwant\n%s", got, want)
	}
}

func begins(stage, step int, text string) build.Event {
	return build.Event{Stage: stage, Step: step, Total: 4, Text: text}
}

func ends(stage, step int, text string) build.Event {
	return build.Event{Stage: stage, Step: step, Total: 4, Text: text, Done: true, Took: 1200 * time.Millisecond}
}

func prints(stage, step int, text string) build.Event {
	return build.Event{Stage: stage, Step: step, Total: 4, Output: []byte(text)}
}

func TestView(t *testing.T) {
	st, s := watched(t, 40, 12)
	for _, e := range []build.Event{begins(0, 1, "FROM a"), begins(1, 2, "RUN \x1b[2Jmake"), prints(1, 2, "one\ntwo\n\x1b]0;owned\athree\r\n漢字\xe6\xbc"), prints(1, 2, "\xa2 10%\r字 20%\r"),
		{Stage: 0, Step: 1, Total: 4, Fetched: 25e6, Size: 100e6}} {
		st.Event(e)
	}
	show(t, st, s, `
[1/4] FROM a                       TIME
  download 25.0 MB of 100.0 MB (25%)
[2/4] RUN make                     TIME
  one
  two
  three
  字 20%`)
	if s.Dims == 0 {
		t.Error("output is not dimmed")
	}
	st.Event(build.Event{Stage: 0, Step: 1, Total: 4, Text: "FROM a", Done: true, Cached: true, Saved: 3 * time.Second})
	show(t, st, s, `
[1/4] FROM a (cached) saved TIME
[2/4] RUN make                     TIME
  one
  two
  three
  字 20%`)
	st.Event(build.Event{Warning: "Dockerfile:1: Rule: words"})
	st.Event(build.Event{Warning: "Dockerfile:1: Rule: words"}) // repeated for another platform
	st.Event(ends(1, 2, "RUN make"))
	st.Built()
	show(t, st, s, `
[1/4] FROM a (cached) saved TIME
hpcc: warning: Dockerfile:1: Rule: words
[2/4] RUN make (TIME)
hpcc: built in TIME; 1 of 2 steps cached
, saved TIME`)
}

// TestViewNarrow checks a terminal that becomes narrower during a build, and wide characters at its
// edge.
func TestViewNarrow(t *testing.T) {
	st, s := watched(t, 60, 20)
	long := "RUN " + strings.Repeat("漢字", 30)
	st.Event(begins(0, 1, long))
	st.Event(prints(0, 1, strings.Repeat("x", 200)+"\n"))
	st.view.refresh(st)
	for _, columns := range []int{41, 23, 10, 2, 1, 35} {
		s.Resize(columns)
		st.view.refresh(st)
		for _, l := range strings.Split(s.Text(), "\n") {
			if terminal.Width(l) > columns {
				t.Errorf("%d columns: line %q is %d wide", columns, l, terminal.Width(l))
			}
		}
		if n := len(strings.Split(s.Text(), "\n")); n > 2 {
			t.Errorf("%d columns: the view leaves\n%s", columns, s.Text())
		}
	}
	st.Event(ends(0, 1, long))
	st.End()
	show(t, st, s, "[1/4] RUN "+strings.Repeat("漢字", 4)+"… (TIME)")
}

// TestViewLow checks a build with more simultaneous steps than the terminal has rows.
func TestViewLow(t *testing.T) {
	for rows := 1; rows < 30; rows++ {
		st, s := watched(t, 40, rows)
		for i := range 9 {
			st.Event(begins(i, i+1, "RUN x"))
			st.Event(prints(i, i+1, "1\n2\n3\n4\n5\n6\n"))
		}
		for range 3 {
			st.view.refresh(st)
		}
		if n := len(s.Lines); n > rows {
			t.Errorf("%d rows: the view takes %d:\n%s", rows, n, s.Text())
		}
		st.End()
		show(t, st, s, "")
	}
}

// TestViewFailed checks that the failed step stays on the screen with the end of its output, and that
// others are erased.
func TestViewFailed(t *testing.T) {
	st, s := watched(t, 60, 20)
	st.Event(begins(0, 1, "RUN a"))
	st.Event(begins(1, 2, "RUN b"))
	for i := range 40 {
		st.Event(prints(1, 2, fmt.Sprintf("line %d\x1b[2J\n", i)))
	}
	st.Event(prints(1, 2, "no newline"))
	st.view.refresh(st)
	e := ends(1, 2, "RUN b")
	e.Failed = true
	st.Event(e)
	err := &build.LineError{File: "Dockerfile", Line: 2, End: 2, Err: errors.New("bad"), Source: []byte("FROM a\nRUN b\nRUN c\n")}
	if !st.Failed(err, "", 1) {
		t.Error("the error is not to be printed")
	}
	want := "[2/4] RUN b (failed after TIME)\n"
	for i := 21; i < 40; i++ {
		want += fmt.Sprintf("  line %d\n", i)
	}
	want += "  no newline\n    1  FROM a\n  * 2  RUN b\n    3  RUN c\n"
	show(t, st, s, want)
}

func TestPlain(t *testing.T) {
	var out bytes.Buffer
	st := &Steps{out: &out, warned: map[string]bool{}, begun: time.Now()}
	for _, e := range []build.Event{begins(0, 1, "FROM a"), begins(1, 2, "RUN b"), prints(0, 1, "one\x1b[31m\nt"), prints(1, 2, "two\n"), prints(0, 1, "hree"),
		ends(0, 1, "FROM a"), {Stage: 1, Step: 2, Total: 4, Text: "RUN b", Done: true, Cached: true, Took: time.Second, Saved: 75 * time.Minute},
		begins(2, 3, "RUN c"), prints(2, 3, "oops"), {Stage: 2, Step: 3, Total: 4, Text: "RUN c", Done: true, Failed: true, Took: 130 * time.Second}} {
		st.Event(e)
	}
	if !st.Failed(errors.New("bad"), "", 1) {
		t.Error("the error is not to be printed")
	}
	want := `[1/4] | one
[2/4] | two
[1/4] | three
[1/4] FROM a (1.2s)
[2/4] RUN b (cached) saved 1h15m
[3/4] | oops
[3/4] RUN c (failed after 2m10s)
`
	if out.String() != want {
		t.Errorf("the log is\n%s\nwant\n%s", &out, want)
	}
}

func TestObjects(t *testing.T) {
	var out bytes.Buffer
	st := &Steps{out: &out, json: json.NewEncoder(&out), warned: map[string]bool{}, begun: time.Now()}
	for _, e := range []build.Event{{Warning: "D:3: Rule: <words>", Line: 3, Rule: "Rule", URL: "https://example.com"}, begins(1, 2, "RUN b"), prints(1, 2, "a\x1b[1mb\nc"),
		{Stage: 1, Step: 2, Fetched: 5, Size: 10}, ends(1, 2, "RUN b")} {
		e.Platform = "linux/amd64"
		st.Event(e)
	}
	if st.Failed(&build.LineError{File: "D", Line: 4, Text: "RUN b", Err: errors.New("bad")}, "", 1) {
		t.Error("the error is to be printed besides the object")
	}
	st.Built()
	want := []map[string]any{
		{"type": "warning", "text": "D:3: Rule: <words>", "line": 3.0, "rule": "Rule", "description": "", "url": "https://example.com"},
		{"type": "step", "platform": "linux/amd64", "stage": 1.0, "step": 2.0, "total": 4.0, "text": "RUN b", "done": false},
		{"type": "output", "platform": "linux/amd64", "stage": 1.0, "step": 2.0, "line": "ab"},
		{"type": "bytes", "platform": "linux/amd64", "stage": 1.0, "step": 2.0, "fetched": 5.0, "size": 10.0},
		{"type": "output", "platform": "linux/amd64", "stage": 1.0, "step": 2.0, "line": "c"},
		{"type": "step", "platform": "linux/amd64", "stage": 1.0, "step": 2.0, "total": 4.0, "text": "RUN b", "done": true, "cached": false, "failed": false, "seconds": 1.2, "saved": 0.0},
		{"type": "error", "text": "D:4: RUN b: bad", "hint": "", "status": 1.0, "file": "D", "line": 4.0, "end": 0.0},
		{"type": "built", "steps": 1.0, "cached": 0.0, "saved": 0.0},
	}
	d := json.NewDecoder(&out)
	for i, w := range want {
		var got map[string]any
		if err := d.Decode(&got); err != nil {
			t.Fatalf("object %d: %v", i, err)
		}
		if _, ok := got["time"].(float64); !ok {
			t.Errorf("object %d has no time: %v", i, got)
		}
		delete(got, "time")
		if w["type"] == "built" {
			delete(got, "seconds")
		}
		if g, w := fmt.Sprint(got), fmt.Sprint(w); g != w {
			t.Errorf("object %d = %s; want %s", i, g, w)
		}
	}
	if d.More() {
		t.Errorf("more objects: %s", out.String())
	}
}

func TestExcerpt(t *testing.T) {
	var file strings.Builder
	for i := 1; i <= 30; i++ {
		fmt.Fprintf(&file, "L%d\n", i)
	}
	for _, c := range []struct {
		name      string
		source    string
		line, end int
		want      string
	}{
		{"in the middle", file.String(), 10, 11, "     8  L8,     9  L9,  * 10  L10,  * 11  L11,    12  L12,    13  L13"},
		{"at the top", file.String(), 1, 1, "  * 1  L1,    2  L2,    3  L3"},
		{"at the end", file.String(), 30, 30, "    28  L28,    29  L29,  * 30  L30"},
		{"empty lines and control characters", "\n\x1b[2JFROM\ta\n\n", 2, 2, "    1,  * 2  FROM    a"},
		{"no line", file.String(), 0, 0, ""},
		{"beyond", file.String(), 31, 31, ""},
		{"no file", "", 1, 1, ""},
	} {
		if got := strings.Join(excerpt(&build.LineError{Line: c.line, End: c.end, Source: []byte(c.source)}), ","); got != c.want {
			t.Errorf("%s: excerpt = %q; want %q", c.name, got, c.want)
		}
	}
	long := excerpt(&build.LineError{Line: 3, End: 28, Source: []byte(file.String())})
	if got, want := strings.Join(long[len(long)-5:], ","), "  * 14  L14,  *    ... 13 more lines,  * 28  L28,    29  L29,    30  L30"; got != want {
		t.Errorf("the excerpt of a long instruction ends %q; want %q", got, want)
	}
}

// TestViewTicks checks that the view is redrawn between events, and not after the end.
func TestViewTicks(t *testing.T) {
	s := &screen.Screen{Wrong: t.Errorf, Columns: 40, Rows: 12}
	st := &Steps{out: s, view: newView(false), warned: map[string]bool{}, begun: time.Now()}
	st.view.size = func() (int, int) { return 40, 12 }
	st.Event(begins(0, 1, "RUN a"))
	for i := 0; s.Text() == ""; i++ {
		if i > 500 {
			t.Fatal("nothing is drawn")
		}
		time.Sleep(10 * time.Millisecond)
	}
	for i := range 100 {
		st.Event(prints(0, 1, fmt.Sprintln("line", i)))
	}
	st.End()
	time.Sleep(3 * redrawEvery)
	if got := s.Text(); got != "" || s.Dims != 0 {
		t.Errorf("after the end the screen shows %q, dimmed %d times", got, s.Dims)
	}
}

func TestTransferText(t *testing.T) {
	for _, c := range []struct {
		done, total int64
		took        time.Duration
		want        string
	}{
		{5_000_000, 0, time.Millisecond, "5.0 MB"},
		{5_000_000, 20_000_000, time.Millisecond, "5.0 MB of 20.0 MB (25%)"},
		{5_000_000, 20_000_000, 5 * time.Second, "5.0 MB of 20.0 MB (25%), 1.0 MB/s, 15s left"},
		{20_000_000, 20_000_000, 5 * time.Second, "20.0 MB of 20.0 MB (100%), 4.0 MB/s"},
		{0, 20_000_000, 5 * time.Second, "0 B of 20.0 MB (0%), 0 B/s"},
	} {
		if got := terminal.TransferText(c.done, c.total, c.took, text.Size); got != c.want {
			t.Errorf("%d of %d in %v: %q; want %q", c.done, c.total, c.took, got, c.want)
		}
	}
}

// TestMeter checks the bar of a transfer, which begins again when packages are installed.
func TestMeter(t *testing.T) {
	s := &step{}
	s.moved("download", 100e6, 100e6)
	s.moved("install", 50e6, 100e6)
	if got, want := s.transfer.meter(80), "[==========          ] install 50.0 MB of 100.0 MB (50%)"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
	if got, want := s.transfer.meter(40), "install 50.0 MB of 100.0 MB (50%)"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
}
