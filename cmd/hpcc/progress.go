package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/term"

	"hpcc/text"
)

// say prints a message to standard error. It escapes control characters, because messages
// contain text of other programs.
func say(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "hpcc: %s\n", text.Printable(fmt.Sprintf(format, a...)))
}

// size formats a number of bytes in powers of 1000.
func size(n int64) string {
	for _, u := range []struct {
		unit string
		n    float64
	}{{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}} {
		if float64(n) >= u.n {
			return fmt.Sprintf("%.1f %s", float64(n)/u.n, u.unit)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// A bar shows the progress of an operation in bytes or items, its rate and the remaining time. On a
// terminal it is one line, redrawn at most ten times a second and cleared at the end. In a
// log it is a line every 30 seconds.
type bar struct {
	what  string
	tty   bool
	begun time.Time
	drawn time.Time
	shown bool
	quiet bool
}

// progress returns a bar for an operation that begins now.
func progress(what string) *bar {
	now := time.Now()
	return &bar{what: what, tty: term.IsTerminal(int(os.Stderr.Fd())), begun: now, drawn: now}
}

// progressOnTerminal returns a bar that prints nothing in a log.
func progressOnTerminal(what string) *bar {
	b := progress(what)
	b.quiet = !b.tty
	return b
}

// bytes reports how many bytes are done of a total; 0 if the total is unknown. Calls do not overlap.
func (b *bar) bytes(done, total int64) { b.show(done, total, size) }

// items is bytes for a number of jobs or files.
func (b *bar) items(done, total int64) {
	b.show(done, total, func(n int64) string { return strconv.FormatInt(n, 10) })
}

func (b *bar) show(done, total int64, format func(int64) string) {
	every := 30 * time.Second
	if b.tty {
		every = 100 * time.Millisecond
	}
	if b.quiet || time.Since(b.drawn) < every {
		return
	}
	b.drawn, b.shown = time.Now(), true
	text := transferText(done, total, time.Since(b.begun), format)
	if b.tty {
		columns, _ := terminalSize()
		fmt.Fprintf(os.Stderr, "\r\x1b[K%s", fit(b.what+": "+text, columns-1))
	} else {
		say("%s: %s", b.what, text)
	}
}

// transferText formats the number of bytes or items done, of a total, with the mean rate and the
// remaining time.
func transferText(done, total int64, took time.Duration, format func(int64) string) string {
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

// end removes the bar from the terminal.
func (b *bar) end() {
	if b.tty && b.shown {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
