package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"hpcc/runtime/usertext"
)

// say writes a message for people. Foreign text in it is made harmless.
func say(format string, a ...any) {
	fmt.Fprintf(os.Stderr, "hpcc: %s\n", usertext.Printable(fmt.Sprintf(format, a...)))
}

// size writes a number of bytes for people, in powers of 1000.
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

// A bar shows how far something is: on a terminal one line, redrawn at most
// ten times a second and cleared at the end; in a log a line every 30 seconds.
type bar struct {
	what  string
	tty   bool
	drawn time.Time
	shown bool
	quiet bool
}

func progress(what string) *bar {
	return &bar{what: what, tty: term.IsTerminal(int(os.Stderr.Fd())), drawn: time.Now()}
}

// progressOnTerminal is progress that prints nothing in a log.
func progressOnTerminal(what string) *bar {
	b := progress(what)
	b.quiet = !b.tty
	return b
}

// bytes is called with what is done of a total (0: not known), one call at a time.
func (b *bar) bytes(done, total int64) {
	every := 30 * time.Second
	if b.tty {
		every = 100 * time.Millisecond
	}
	if b.quiet || time.Since(b.drawn) < every {
		return
	}
	b.drawn, b.shown = time.Now(), true
	text := size(done)
	if total > 0 {
		text = fmt.Sprintf("%s of %s (%d%%)", size(done), size(total), 100*done/total)
	}
	if b.tty {
		fmt.Fprintf(os.Stderr, "\r\x1b[K%s: %s", b.what, text)
	} else {
		say("%s: %s", b.what, text)
	}
}

func (b *bar) end() {
	if b.tty && b.shown {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
