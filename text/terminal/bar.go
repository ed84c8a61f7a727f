package terminal

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/term"

	"hpcc/text"
)

// A Bar shows the progress of an operation in bytes or items, its rate and the remaining time. On a
// terminal it is one line, redrawn at most ten times a second and cleared at the end. In a
// log it is a line every 30 seconds.
type Bar struct {
	Quiet bool // it prints nothing

	what  string
	tty   bool
	begun time.Time
	drawn time.Time
	shown bool
}

// NewBar returns a bar for an operation that begins now.
func NewBar(what string) *Bar {
	now := time.Now()
	return &Bar{what: what, tty: term.IsTerminal(int(os.Stderr.Fd())), begun: now, drawn: now}
}

// NewTerminalBar returns a bar that prints nothing in a log.
func NewTerminalBar(what string) *Bar {
	b := NewBar(what)
	b.Quiet = !b.tty
	return b
}

// Bytes reports how many bytes are done of a total; 0 if the total is unknown. Calls do not overlap.
func (b *Bar) Bytes(done, total int64) { b.show(done, total, text.Size) }

// Items is Bytes for a number of jobs or files.
func (b *Bar) Items(done, total int64) {
	b.show(done, total, func(n int64) string { return strconv.FormatInt(n, 10) })
}

func (b *Bar) show(done, total int64, format func(int64) string) {
	every := 30 * time.Second
	if b.tty {
		every = 100 * time.Millisecond
	}
	if b.Quiet || time.Since(b.drawn) < every {
		return
	}
	b.drawn, b.shown = time.Now(), true
	line := TransferText(done, total, time.Since(b.begun), format)
	if b.tty {
		columns, _ := Size()
		fmt.Fprintf(os.Stderr, "\r\x1b[K%s", Fit(b.what+": "+line, columns-1))
	} else {
		fmt.Fprintf(os.Stderr, "hpcc: %s: %s\n", text.Printable(b.what), line)
	}
}

// TransferText formats the number of bytes or items done, of a total, with the mean rate and the
// remaining time.
func TransferText(done, total int64, took time.Duration, format func(int64) string) string {
	text := format(done)
	if total > 0 {
		text = fmt.Sprintf("%s of %s (%d%%)", format(done), format(total), 100*done/total)
	}
	if took < time.Second {
		return text
	}
	rate := float64(done) / took.Seconds()
	text += ", " + format(int64(rate)) + "/s"
	if done > 0 && done < total {
		left := time.Duration(float64(total-done) / rate * float64(time.Second))
		text += ", " + max(left.Round(time.Second), time.Second).String() + " left"
	}
	return text
}

// End removes the bar from the terminal.
func (b *Bar) End() {
	if b.tty && b.shown {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
