package progress

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"hpcc/text"
	"hpcc/text/terminal"
)

// A view shows the running steps at the bottom of a terminal, below the lines that stay. It
// cuts lines to the terminal's width and also switches wrapping off, because the terminal may
// become narrower later. Terminals wrap existing lines when they become narrower, so
// erase counts the rows that they take now.
type view struct {
	size  func() (columns, rows int)
	color bool
	drawn []int // widths of the lines on the screen
	tick  *time.Ticker
	quit  chan struct{}
}

// The escape sequences for DEC private mode 7: wrap at the right margin.
const (
	noWrap = "\x1b[?7l"
	wrap   = "\x1b[?7h"
)

// redrawEvery is the interval between redraws while no step ends.
const redrawEvery = 100 * time.Millisecond

func newView(color bool) *view {
	return &view{color: color, size: func() (int, int) {
		w, h, err := term.GetSize(int(os.Stderr.Fd()))
		if err != nil || w < 1 || h < 1 {
			return 80, 24
		}
		return w, h
	}}
}

// columns returns the maximum width of a line. It leaves the last column free, because terminals
// treat that column differently.
func (v *view) columns() int {
	w, _ := v.size()
	return max(w-1, 1)
}

// start redraws the view at intervals until stop. A build whose steps are all cached ends
// before the first interval and draws nothing.
func (v *view) start(t *Steps) {
	if v.tick != nil {
		return
	}
	v.tick, v.quit = time.NewTicker(redrawEvery), make(chan struct{})
	go func(tick *time.Ticker, quit chan struct{}) {
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			t.mu.Lock()
			if v.quit == quit { // not stopped while waiting for the lock
				v.refresh(t)
			}
			t.mu.Unlock()
		}
	}(v.tick, v.quit)
}

// refresh redraws the view.
func (v *view) refresh(t *Steps) {
	var b bytes.Buffer
	v.erase(&b)
	v.draw(&b, t.running)
	_, _ = t.out.Write(b.Bytes())
}

func (v *view) stop() {
	if v.tick != nil {
		v.tick.Stop()
		close(v.quit)
		v.tick, v.quit = nil, nil
	}
}

// erase removes the view from the screen, and reports whether it was drawn.
func (v *view) erase(b *bytes.Buffer) bool {
	if len(v.drawn) == 0 {
		return false
	}
	columns, _ := v.size()
	rows := 0
	for _, w := range v.drawn {
		rows += max(1, (w+columns-1)/columns)
	}
	fmt.Fprintf(b, "\r\x1b[%dA\x1b[J", rows)
	v.drawn = v.drawn[:0]
	return true
}

// draw writes the running steps.
func (v *view) draw(b *bytes.Buffer, running []*step) {
	columns := v.columns()
	_, rows := v.size()
	rows-- // the cursor is below the view
	b.WriteString(noWrap)
	defer b.WriteString(wrap)
	shown, room := running, rows
	if len(running) > rows {
		room = max(0, rows-1) // the last row counts the other steps
		shown = running[:room]
	}
	below := 4 // lines of output per step
	if len(shown) > 0 {
		below = min(below, room/len(shown)-1)
	}
	for _, s := range shown {
		took := text.Elapsed(time.Since(s.begun))
		head := terminal.Fit(s.head, columns-len(took)-1)
		v.line(b, head+strings.Repeat(" ", max(1, columns-terminal.Width(head)-len(took)))+took, false)
		lines := s.printed.newest(below)
		if s.transfer != nil && below > 0 {
			lines = []string{s.transfer.meter(columns - 2)}
		}
		for _, l := range lines {
			v.line(b, "  "+l, v.color)
		}
	}
	if more := len(running) - len(shown); more > 0 && rows > 0 {
		v.line(b, "and "+text.Count(more, "more step", "more steps"), v.color)
	}
}

func (v *view) line(b *bytes.Buffer, s string, dim bool) {
	s = terminal.Fit(s, v.columns())
	v.drawn = append(v.drawn, terminal.Width(s))
	if dim {
		s = "\x1b[2m" + s + "\x1b[0m"
	}
	b.WriteString(s + "\n")
}

// meter formats the progress of a transfer.
func (x *transfer) meter(columns int) string {
	line := x.verb + " " + terminal.TransferText(x.done, x.total, time.Since(x.begun), text.Size)
	const length = 20
	if x.total <= 0 || columns < length+3+len(line) {
		return line
	}
	full := int(float64(length) * float64(min(x.done, x.total)) / float64(x.total))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", length-full) + "] " + line
}
