// Package progress shows the progress of a build: as a log, on a terminal, or as JSON objects for
// programs (docs/build.md).
package progress

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"hpcc/build"
	"hpcc/text"
	"hpcc/text/terminal"
)

// Steps reports the progress of a build in one of three forms. A log has a line for each step that
// ended, and the output of its program. A terminal also shows the running steps, redrawn in place.
// Programs read a JSON object for each event. Its methods may be called from several goroutines.
type Steps struct {
	mu       sync.Mutex // the view is also drawn between events
	out      io.Writer
	json     *json.Encoder // nil unless for programs
	view     *view         // nil unless on a terminal
	running  []*step       // in the order in which they began
	warned   map[string]bool
	begun    time.Time
	ended    int // steps
	cached   int
	saved    time.Duration
	bar      *terminal.Bar // while the image is unpacked; else nil
	unpacked time.Time     // when the last object about unpacking was written
}

// A step is a running step.
type step struct {
	platform      string // "" for a build for one platform
	stage, number int
	head          string // [3/7] RUN make
	begun         time.Time
	printed       transcript
	transfer      *transfer // nil: nothing is downloaded or installed
}

// A transfer is the progress of a download or installation.
type transfer struct {
	verb        string
	done, total int64 // bytes; 0 if the total is unknown
	begun       time.Time
}

// moved records the progress of a transfer of the step.
func (s *step) moved(verb string, done, total int64) {
	if s.transfer == nil || s.transfer.verb != verb {
		s.transfer = &transfer{verb: verb, begun: time.Now()}
	}
	s.transfer.done, s.transfer.total = done, total
}

// New returns the progress of a build that begins now, on standard error. mode is auto, plain, tty or
// json.
func New(mode string) (*Steps, error) {
	t := &Steps{out: os.Stderr, warned: map[string]bool{}, begun: time.Now()}
	dumb := os.Getenv("TERM") == "dumb"
	switch mode {
	case "auto":
		if !dumb && term.IsTerminal(int(os.Stderr.Fd())) {
			t.view = newView(os.Getenv("NO_COLOR") == "")
		}
	case "tty":
		t.view = newView(os.Getenv("NO_COLOR") == "" && !dumb)
	case "plain":
	case "json":
		t.json = json.NewEncoder(t.out)
		t.json.SetEscapeHTML(false)
	default:
		return nil, text.Usagef("--progress %q is not auto, plain, tty or json", mode).Hint("leave it out, or write --progress plain")
	}
	return t, nil
}

// Event reports what happens in a build. Calls do not overlap.
func (t *Steps) Event(e build.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e.Warning != "":
		t.warning(e)
		return
	case e.Note != "":
		t.note(e.Note)
		return
	case len(e.Moves) > 0:
		t.moves(e)
		return
	case e.Unpacking:
		t.unpacking(e)
		return
	}
	s := t.step(e)
	switch {
	case e.Done:
		t.done(s, e)
	case len(e.Output) > 0:
		for _, line := range s.printed.add(e.Output) {
			t.line(s, line)
		}
	case e.Fetched > 0:
		s.moved("download", e.Fetched, e.Size)
		t.object("bytes", s, "fetched", e.Fetched, "size", e.Size)
	case e.Installed > 0:
		s.moved("install", e.Installed, e.Size)
		t.object("bytes", s, "installed", e.Installed, "size", e.Size)
	default:
		t.object("step", s, "total", e.Total, "text", terminal.Clean(e.Text), "done", false)
	}
}

// step returns the running step of an event, which it begins if needed.
func (t *Steps) step(e build.Event) *step {
	for _, s := range t.running {
		if s.stage == e.Stage && s.number == e.Step {
			return s
		}
	}
	s := &step{platform: e.Platform, stage: e.Stage, number: e.Step, begun: time.Now(), head: head(e)}
	t.running = append(t.running, s)
	if t.view != nil {
		t.view.start(t)
	}
	return s
}

// head returns the line of a step: its number and the instruction.
func head(e build.Event) string {
	return fmt.Sprintf("[%s%d/%d] %s", prefix(e.Platform), e.Step, e.Total, terminal.Clean(e.Text))
}

// prefix returns what precedes a text about one of several platforms.
func prefix(platform string) string {
	if platform == "" {
		return ""
	}
	return platform + " "
}

// done ends a step.
func (t *Steps) done(s *step, e build.Event) {
	for _, line := range s.printed.flush() {
		t.line(s, line)
	}
	t.running = slices.DeleteFunc(t.running, func(x *step) bool { return x == s })
	end := fmt.Sprintf(" (%s)", text.Elapsed(e.Took))
	switch {
	case e.Failed:
		end = fmt.Sprintf(" (failed after %s)", text.Elapsed(e.Took))
	case e.Cached:
		t.cached++
		t.saved += e.Saved
		if end = " (cached)"; e.Saved >= 50*time.Millisecond {
			end += " saved " + text.Elapsed(e.Saved)
		}
	}
	t.ended++
	t.object("step", s, "total", e.Total, "text", terminal.Clean(e.Text), "done", true, "cached", e.Cached, "failed", e.Failed,
		"seconds", seconds(e.Took), "saved", seconds(e.Saved))
	if t.json != nil {
		return
	}
	// Triggers of a base image raise the total while the build goes on.
	lines := []string{head(e) + end}
	if t.view != nil {
		lines[0] = terminal.Fit(strings.TrimSuffix(lines[0], end), t.view.columns()-len(end)) + end
		if e.Failed {
			for _, l := range s.printed.last {
				lines = append(lines, "  "+l)
			}
		}
	}
	t.print(lines...)
}

// line reports a complete line of output of a step's program.
func (t *Steps) line(s *step, text string) {
	if t.json != nil {
		t.object("output", s, "line", text)
	} else if t.view == nil { // a terminal shows the last few below the step
		head, _, _ := strings.Cut(s.head, "] ")
		t.print(head + "] | " + text)
	}
}

// warning prints a warning once for all platforms.
func (t *Steps) warning(e build.Event) {
	if t.warned[e.Warning] {
		return
	}
	t.warned[e.Warning] = true
	if t.json != nil {
		t.object("warning", nil, "text", e.Warning, "line", e.Line, "rule", e.Rule, "description", e.Description, "url", e.URL)
		return
	}
	t.print("hpcc: warning: " + terminal.Clean(e.Warning))
}

// Check prints a warning of --check to standard output, because it is a result.
func (t *Steps) Check(e build.Event) {
	if t.warned[e.Warning] {
		return
	}
	fmt.Println(terminal.Clean(e.Warning))
	if t.json != nil {
		t.Event(e)
	}
	t.warned[e.Warning] = true
}

// Note prints a note.
func (t *Steps) Note(text string) { t.Event(build.Event{Note: text}) }

func (t *Steps) note(text string) {
	if t.json != nil {
		t.object("note", nil, "text", text)
		return
	}
	t.print("hpcc: note: " + terminal.Clean(text))
}

// unpacking reports that the built image is unpacked, after the last step.
func (t *Steps) unpacking(e build.Event) {
	switch {
	case e.Done:
		t.end()
	case t.bar == nil:
		t.end()
		t.bar, t.unpacked = terminal.NewBar("unpacking"), time.Now()
	case t.json == nil:
		t.bar.Bytes(e.Unpacked, e.Size)
	case time.Since(t.unpacked) >= time.Second:
		t.unpacked = time.Now()
		t.object("unpack", nil, "done", e.Unpacked, "size", e.Size)
	}
}

// print writes lines above the view, where they stay.
func (t *Steps) print(lines ...string) {
	var b bytes.Buffer
	drawn := t.view != nil && t.view.erase(&b)
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	if drawn {
		t.view.draw(&b, t.running)
	}
	_, _ = t.out.Write(b.Bytes())
}

// object writes a JSON object: its type, the seconds since the build began, its step, and
// alternating names and values.
func (t *Steps) object(kind string, s *step, values ...any) {
	if t.json == nil {
		return
	}
	m := map[string]any{"type": kind, "time": seconds(time.Since(t.begun))}
	if s != nil {
		m["platform"], m["stage"], m["step"] = s.platform, s.stage, s.number
	}
	for i := 0; i < len(values); i += 2 {
		m[values[i].(string)] = values[i+1]
	}
	_ = t.json.Encode(m)
}

// End reports unfinished lines and stops drawing.
func (t *Steps) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end()
}

func (t *Steps) end() {
	if t.bar != nil {
		t.bar.End()
		t.bar = nil
	}
	if t.view == nil {
		for _, s := range t.running {
			for _, line := range s.printed.flush() {
				t.line(s, line)
			}
		}
	}
	t.running = nil
	if t.view != nil {
		t.view.stop()
		t.print()
	}
}

// Built ends a successful build. It prints the time that the build took and the time that the
// cache saved.
func (t *Steps) Built() {
	t.End()
	took := time.Since(t.begun)
	if t.json != nil {
		t.object("built", nil, "seconds", seconds(took), "steps", t.ended, "cached", t.cached, "saved", seconds(t.saved))
		return
	}
	line := fmt.Sprintf("hpcc: built in %s; %d of %s cached", text.Elapsed(took), t.cached, text.Count(t.ended, "step", "steps"))
	if t.saved >= 50*time.Millisecond {
		line += ", saved " + text.Elapsed(t.saved)
	}
	t.print(line)
}

// Failed ends a build with an error, whose hint and exit status the object for programs has. It shows
// the lines of the Dockerfile to people, and reports whether the caller must print the error.
func (t *Steps) Failed(err error, advice string, status int) (print bool) {
	t.End()
	var le *build.LineError
	located := errors.As(err, &le)
	if t.json != nil {
		values := []any{"text", err.Error(), "hint", advice, "status", status}
		if located {
			values = append(values, "file", le.File)
			if le.Line > 0 {
				values = append(values, "line", le.Line, "end", le.End)
			}
		}
		t.object("error", nil, values...)
		return false
	}
	if located {
		t.print(excerpt(le)...)
	}
	return true
}

// Lines of the Dockerfile that are shown with an error.
const (
	linesAround = 2
	linesMarked = 12 // the head of a long instruction
)

// excerpt returns the lines of an error, marked, with some lines before and after.
func excerpt(e *build.LineError) []string {
	lines := strings.Split(strings.TrimRight(string(e.Source), "\n"), "\n")
	if e.Line < 1 || e.Line > len(lines) || len(e.Source) == 0 {
		return nil
	}
	end := min(max(e.End, e.Line), len(lines))
	digits := len(fmt.Sprint(min(end+linesAround, len(lines))))
	var out []string
	for n := max(1, e.Line-linesAround); n <= min(end+linesAround, len(lines)); n++ {
		if skip := end - n; n == e.Line+linesMarked && skip > 0 {
			out = append(out, fmt.Sprintf("  * %*s ... %s", digits, "", text.Count(skip, "more line", "more lines")))
			n = end
		}
		mark := " "
		if n >= e.Line && n <= end {
			mark = "*"
		}
		out = append(out, strings.TrimRight(fmt.Sprintf("  %s %*d  %s", mark, digits, n,
			terminal.Fit(terminal.Clean(lines[n-1]), 160)), " "))
	}
	return out
}

// seconds returns a duration for programs, in seconds.
func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }

// Limits of a program's output that a transcript keeps.
const (
	keptLines = 20
	longLine  = 64 << 10 // bytes
)

// A transcript splits the output of a program into clean lines.
type transcript struct {
	rest []byte   // the beginning of a line that has not ended
	last []string // the newest lines
}

// add appends output and returns the lines that it completes.
func (t *transcript) add(p []byte) (lines []string) {
	t.rest = append(t.rest, p...)
	for {
		i := bytes.IndexByte(t.rest, '\n')
		if i < 0 && len(t.rest) > longLine {
			i = len(t.rest) - 1
		}
		if i < 0 {
			break
		}
		lines = append(lines, terminal.Clean(string(t.rest[:i+1])))
		t.rest = t.rest[i+1:]
	}
	t.rest = bytes.Clone(t.rest)
	t.last = append(t.last, lines...)
	t.last = slices.Clone(t.last[max(0, len(t.last)-keptLines):])
	return lines
}

// flush ends the last line.
func (t *transcript) flush() []string {
	if len(t.rest) == 0 {
		return nil
	}
	return t.add([]byte("\n"))
}

// newest returns the n newest lines, including one that has not ended.
func (t *transcript) newest(n int) []string {
	lines := t.last
	if now := terminal.Clean(string(t.rest)); strings.TrimSpace(now) != "" {
		lines = append(slices.Clone(lines), now)
	}
	return lines[max(0, len(lines)-n):]
}
