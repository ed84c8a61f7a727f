package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// A view shows the steps under way at the bottom of a terminal, below what
// stays. No line of it wraps: lines are cut to the terminal's width, and the
// terminal is told not to wrap, as it may be narrower already than it says.
// Terminals wrap what stands there when they become narrower: the rows that it
// takes now are counted.
type view struct {
	size  func() (columns, rows int)
	color bool
	drawn []int // widths of the lines that stand there
	tick  *time.Ticker
	quit  chan struct{}
}

// Private mode 7 of DEC's terminals: wrap at the right margin.
const (
	noWrap = "\x1b[?7l"
	wrap   = "\x1b[?7h"
)

// redrawEvery is how often the view is drawn when nothing ends.
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

// columns is how wide a line may be: terminals differ in what they do after
// writing to the last column.
func (v *view) columns() int {
	w, _ := v.size()
	return max(w-1, 1)
}

// start draws from time to time, until stop. A build whose steps are all cached
// ends before the first time and draws nothing.
func (v *view) start(t *steps) {
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

// refresh draws what is so now.
func (v *view) refresh(t *steps) {
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

// erase takes the view away, and says whether there was one.
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

// draw writes the steps under way.
func (v *view) draw(b *bytes.Buffer, running []*step) {
	columns := v.columns()
	_, rows := v.size()
	rows-- // the cursor stands below
	b.WriteString(noWrap)
	defer b.WriteString(wrap)
	shown, room := running, rows
	if len(running) > rows {
		room = max(0, rows-1) // one for how many there are more
		shown = running[:room]
	}
	below := 4 // lines of output for each
	if len(shown) > 0 {
		below = min(below, room/len(shown)-1)
	}
	for _, s := range shown {
		took := elapsed(time.Since(s.begun))
		head := fit(s.head, columns-len(took)-1)
		v.line(b, head+strings.Repeat(" ", max(1, columns-width(head)-len(took)))+took, false)
		lines := s.printed.newest(below)
		if s.fetched > 0 && below > 0 {
			lines = []string{meter(s.fetched, s.size, columns-2)}
		}
		for _, l := range lines {
			v.line(b, "  "+l, v.color)
		}
	}
	if more := len(running) - len(shown); more > 0 && rows > 0 {
		v.line(b, fmt.Sprintf("and %d more steps", more), v.color)
	}
}

func (v *view) line(b *bytes.Buffer, text string, dim bool) {
	text = fit(text, v.columns())
	v.drawn = append(v.drawn, width(text))
	if dim {
		text = "\x1b[2m" + text + "\x1b[0m"
	}
	b.WriteString(text + "\n")
}

// meter shows how far a download is.
func meter(done, total int64, columns int) string {
	if total <= 0 {
		return size(done)
	}
	done = min(done, total)
	text := fmt.Sprintf("%s of %s", size(done), size(total))
	const length = 30
	if columns < length+3+len(text) {
		return text
	}
	full := int(float64(length) * float64(done) / float64(total))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", length-full) + "] " + text
}
