package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job/dispatch"
	"hpcc/job/display"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "show the state of jobs", ArgsUsage: "[JOB...]",
		Description: `Shows the state of jobs from the records of their tasks and one request to the scheduler. JOB is a
job's name, its ID or the beginning of it, or the scheduler's ID. Jobs at other sites are included.
Without JOB, it shows all jobs that have not ended and the 100 newest others.

   hpcc status
   hpcc status --running
   hpcc status --watch main`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "show all jobs that have ended, too"},
			&cli.BoolFlag{Name: "running", Usage: "show only jobs that have not ended"},
			&cli.StringFlag{Name: "user", Aliases: []string{"u"}, Usage: "show only the jobs of user `NAME`, in a shared store"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per job, with its tasks"},
			&cli.BoolFlag{Name: "explain", Usage: "print what is known of the tasks of JOB, and the states that follow"},
			&cli.GenericFlag{Name: "watch", Value: &watchFlag{}, Usage: "repeat until all jobs have ended, every `SECONDS`"},
			&cli.BoolFlag{Name: "here", Usage: "show only this machine's jobs; ask no site by ssh"},
			onFlag(), storeFlag(),
		},
		Action: action(parseStatus),
	}
}

type statusArgs struct {
	ids     []string // of jobs; empty for all jobs
	in      site.Scope
	store   string
	all     bool   // all jobs that have ended, not only the newest
	running bool   // only jobs that have not ended
	user    string // only jobs of this user; "" for all users
	json    bool
	explain bool          // print the facts about the tasks
	every   time.Duration // interval of --watch; 0 without it
}

func parseStatus(c *cli.Context) (*statusArgs, error) {
	ids, err := parseArguments(c, 0, 1000, "[JOB...]")
	if err != nil {
		return nil, err
	}
	if c.Bool("all") && len(ids) > 0 {
		return nil, text.Usagef("--all cannot be used with JOB").Hint("hpcc status --all, or hpcc status %s", ids[0])
	}
	if c.Bool("explain") {
		if len(ids) == 0 {
			return nil, text.Usagef("--explain needs JOB").Hint("hpcc status --explain JOB")
		}
		for _, name := range []string{"json", "watch", "on"} {
			if c.IsSet(name) {
				return nil, text.Usagef("--explain cannot be used with --%s", name).
					Hint("hpcc status --explain %s, on the machine that submitted the job", ids[0])
			}
		}
	}
	return &statusArgs{
		all: c.Bool("all"), explain: c.Bool("explain"), ids: ids, in: parseJobScope(c), store: c.String("store"), running: c.Bool("running"), user: c.String("user"),
		json: c.Bool("json"), every: c.Generic("watch").(*watchFlag).every,
	}, nil
}

func (a *statusArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	if a.every > 0 {
		return a.watch(ctx, s.Jobs())
	}
	list, hidden, warnings, err := a.statuses(ctx, s.Jobs())
	warn(warnings)
	if err != nil {
		return err
	}
	switch {
	case a.json:
		err = statusJSON(s.Jobs(), list)
	case a.explain:
		err = display.Explain(os.Stdout, list)
	default:
		err = display.Jobs(os.Stdout, list, len(a.ids) > 0)
	}
	if err != nil || hidden == "" {
		return err
	}
	say("%s: \"hpcc status --all\" shows them, \"hpcc status JOB\" shows one", hidden)
	return nil
}

// statuses queries the schedulers of this machine and the sites.
func (a *statusArgs) statuses(ctx context.Context, dir string) (list []*dispatch.Status, hidden string, warnings []string, err error) {
	q := &dispatch.Selection{IDs: a.ids, All: a.all, Running: a.running, User: a.user}
	if q.Sites, q.Local, err = a.in.Sites(); err != nil {
		return nil, "", nil, err
	}
	if q.Local {
		q.Site = a.in.On
	}
	if a.explain { // a site sends the states only
		q.Sites = nil
	}
	bar := terminal.NewTerminalBar("reading jobs that have changed since the last status")
	defer bar.End()
	q.Progress = func(done, total int) { bar.Items(int64(done), int64(total)) }
	return q.Statuses(ctx, dir)
}

// statusJSON prints an object for each job.
func statusJSON(dir string, list []*dispatch.Status) error {
	bar := terminal.NewTerminalBar("reading the records of all tasks")
	bar.Quiet = bar.Quiet || term.IsTerminal(int(os.Stdout.Fd())) // the objects show the progress
	defer bar.End()
	return dispatch.WriteStatuses(os.Stdout, dir, list, func(done, total int) { bar.Items(int64(done), int64(total)) })
}

// Intervals of "status --watch".
const (
	watchInterval    = 10 * time.Second // the default
	minWatchInterval = time.Second      // the minimum, to spare the scheduler
)

// watchFlag is the flag --watch or --watch=SECONDS.
type watchFlag struct{ every time.Duration }

func (w *watchFlag) IsBoolFlag() bool { return true }

func (w *watchFlag) Set(s string) error {
	if s == "true" {
		w.every = watchInterval
		return nil
	}
	var n float64
	if _, err := fmt.Sscanf(s, "%g", &n); err != nil || n <= 0 || n > 86400 {
		return fmt.Errorf("%q is not a number of seconds", s)
	}
	w.every = max(minWatchInterval, time.Duration(n*float64(time.Second)))
	return nil
}

func (w *watchFlag) String() string { return "" }

// watch prints jobs until all have ended. On a terminal it redraws the table; elsewhere it
// prints a line for each change.
func (a *statusArgs) watch(ctx context.Context, dir string) error {
	before, warned, drawn := map[string]string{}, "", 0
	for {
		list, hidden, warnings, err := a.statuses(ctx, dir)
		if err != nil {
			warn(warnings)
			return err
		}
		if term.IsTerminal(int(os.Stdout.Fd())) {
			if hidden != "" {
				warnings = append(warnings, hidden)
			}
			table := &strings.Builder{}
			table.WriteString(warningLines(warnings))
			if err = display.Jobs(table, list, len(a.ids) > 0); err == nil {
				drawn, err = terminal.Repaint(drawn, table.String())
			}
		} else {
			err = a.printChanges(dir, list, before)
			if text := strings.Join(warnings, "\n"); text != warned {
				warn(warnings)
				warned = text
			}
		}
		if err != nil || !slices.ContainsFunc(list, (*dispatch.Status).Active) {
			return err
		}
		if err := pause(ctx, a.every); err != nil {
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

// warningLines formats warnings for a terminal that is redrawn.
func warningLines(warnings []string) string {
	var b strings.Builder
	for _, w := range warnings {
		fmt.Fprintf(&b, "hpcc: warning: %s\n", terminal.ShortCell(w))
	}
	return b.String()
}

// printChanges prints a line or a JSON object for each job that differs from before.
func (a *statusArgs) printChanges(dir string, list []*dispatch.Status, before map[string]string) error {
	for _, st := range slices.Backward(list) { // newest last
		now, key := display.Counts(st), st.Site+"\x00"+st.ID
		if before[key] == now {
			continue
		}
		before[key] = now
		var err error
		if a.json {
			err = statusJSON(dir, []*dispatch.Status{st})
		} else {
			_, err = terminal.Rowf(os.Stdout, "%s %s %s\n", time.Now().Format(time.TimeOnly), display.Name(st.ID, st.Site), now)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
