package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job/dispatch"
)

// How often "status --watch" looks, unless its flag says how often.
const (
	watchEvery = 10 * time.Second
	watchLeast = time.Second // schedulers serve others too
)

// watchFlag is --watch and --watch=SECONDS.
type watchFlag struct{ every time.Duration }

func (w *watchFlag) IsBoolFlag() bool { return true }

func (w *watchFlag) Set(s string) error {
	if s == "true" {
		w.every = watchEvery
		return nil
	}
	var n float64
	if _, err := fmt.Sscanf(s, "%g", &n); err != nil || n <= 0 || n > 86400 {
		return fmt.Errorf("%q is no number of seconds", s)
	}
	w.every = max(watchLeast, time.Duration(n*float64(time.Second)))
	return nil
}

func (w *watchFlag) String() string { return "" }

// watchStatus shows jobs until all have ended: on a terminal the table, drawn
// anew; elsewhere a line for each change.
func watchStatus(c *cli.Context, dir string, ids []string, every time.Duration) error {
	before, warned, drawn := map[string]string{}, "", 0
	for {
		list, warnings, err := allStatuses(c, dir, ids)
		if err != nil {
			return err
		}
		if term.IsTerminal(int(os.Stdout.Fd())) {
			drawn, err = redraw(drawn, list, warnings, len(ids) > 0)
		} else {
			err = tellChanges(c, list, before)
			if text := strings.Join(warnings, "\n"); text != warned {
				warn(warnings)
				warned = text
			}
		}
		if err != nil || !open(list) {
			return err
		}
		if err := pause(c.Context, every); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// open says whether a job may still change.
func open(list []*dispatch.Status) bool {
	for _, st := range list {
		if st.Running+st.Waiting > 0 {
			return true
		}
	}
	return false
}

// redraw puts the table in the place of the one that stands there, of some lines, and
// returns how many it has.
func redraw(drawn int, list []*dispatch.Status, warnings []string, detail bool) (int, error) {
	var b strings.Builder
	for _, w := range warnings {
		fmt.Fprintf(&b, "hpcc: warning: %s\n", oneLine(w))
	}
	if err := statusTable(&b, list, detail); err != nil {
		return 0, err
	}
	return repaint(drawn, b.String())
}

// repaint puts lines in the place of those that stand there, and returns how many there
// are. What does not fit the terminal is left out below.
func repaint(drawn int, text string) (int, error) {
	columns, rows := terminalSize()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(lines) > rows-1 {
		lines = append(lines[:rows-2], fmt.Sprintf("… %d more", len(lines)-rows+2))
	}
	var b strings.Builder
	if drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", min(drawn, rows-1))
	}
	for _, l := range lines {
		b.WriteString(fit(cleaned(l), columns-1) + "\n")
	}
	_, err := os.Stdout.WriteString(b.String())
	return len(lines), err
}

// terminalSize is that of standard output, or a usual one.
func terminalSize() (columns, rows int) {
	columns, rows, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || columns < 2 || rows < 3 {
		return 80, 24
	}
	return columns, rows
}

// tellChanges prints a line, or an object, for each job of which something has changed.
func tellChanges(c *cli.Context, list []*dispatch.Status, before map[string]string) error {
	for i := len(list) - 1; i >= 0; i-- { // the newest last
		st := list[i]
		now := fmt.Sprintf("%s: %d of %d done, %d failed, %d running, %d waiting", st.State(), st.Done, st.Total, len(st.Failed), st.Running, st.Waiting)
		if st.Reason != "" {
			now += ": " + st.Reason
		}
		key := st.Site + "\x00" + st.ID
		if before[key] == now {
			continue
		}
		before[key] = now
		if c.Bool("json") {
			if err := statusJSON([]*dispatch.Status{st}); err != nil {
				return err
			}
			continue
		}
		name := st.ID
		if st.Site != "" {
			name += " at " + st.Site
		}
		if _, err := rowf(os.Stdout, "%s %s %s\n", time.Now().Format(time.TimeOnly), name, now); err != nil {
			return err
		}
	}
	return nil
}

// warn prints warnings, each on one line.
func warn(warnings []string) {
	for _, w := range warnings {
		say("warning: %s", strings.NewReplacer("\n", " ", "\r", " ").Replace(w))
	}
}
