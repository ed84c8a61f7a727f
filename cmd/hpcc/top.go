package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/build"
	"hpcc/job/dispatch"
	"hpcc/job/display"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func topCommand() *cli.Command {
	return &cli.Command{
		Name: "top", Usage: "show the current resource usage of a job's tasks", ArgsUsage: "JOB",
		Description: `Shows the current resource usage of a job's running tasks: CPUs, memory and its limit, reads and
writes per second, threads, GPUs, throttling by the CPU quota, and the share of time in which tasks
wait for CPU, memory or storage (pressure). The job must have been submitted with --measure.
Refreshes on a terminal until the job ends, and prints once elsewhere.

   hpcc top main
   hpcc top --sort mem main
   hpcc top --json main`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "sort", Value: "cpu", Usage: "sort by `COLUMN`: " + strings.Join(display.Orders(), ", ")},
			&cli.Float64Flag{Name: "every", Value: topInterval, Usage: "refresh every `SECONDS`"},
			&cli.BoolFlag{Name: "once", Usage: "print once and exit"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object and exit"},
			onFlag(), storeFlag(),
		},
		Action: action(parseTop),
	}
}

// topInterval is the default time between refreshes, in seconds.
const topInterval = 2

type topArgs struct {
	id    string
	in    site.Scope
	store string
	sort  string
	every time.Duration
	once  bool
	json  bool
}

func parseTop(c *cli.Context) (*topArgs, error) {
	args, err := parseArguments(c, 1, 1, "JOB")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(display.Orders(), c.String("sort")) {
		return nil, text.Usagef("--sort %q: unknown column", c.String("sort")).Hint("use one of %s", strings.Join(display.Orders(), ", "))
	}
	every := c.Float64("every")
	if !(every >= minWatchInterval.Seconds() && every <= 86400) {
		return nil, text.Usagef("--every %g: not a number of seconds from %g to 86400", every, minWatchInterval.Seconds())
	}
	once := c.Bool("once") || c.Bool("json") || !term.IsTerminal(int(os.Stdout.Fd()))
	return &topArgs{id: args[0], in: parseJobScope(c), store: c.String("store"), sort: c.String("sort"),
		every: time.Duration(every * float64(time.Second)), once: once, json: c.Bool("json")}, nil
}

func (a *topArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	f, err := a.in.Find(ctx, s.Jobs(), a.id)
	if err != nil {
		return err
	}
	refresh := func() (*dispatch.Usage, error) { return f.Remote.Usage(ctx, f.ID) }
	if f.Remote == nil {
		local := &dispatch.UsageReader{Dir: s.Jobs(), ID: f.ID, All: a.once, Tail: []string{build.EntryFile, "entry", "--tail"}}
		refresh = func() (*dispatch.Usage, error) { return local.Refresh(ctx) }
	}
	for drawn := 0; ; {
		now, err := refresh()
		if err != nil {
			return err
		}
		display.SortUsage(now.Tasks, a.sort)
		switch {
		case a.json:
			return json.NewEncoder(os.Stdout).Encode(now)
		case a.once:
			warn(now.Warnings)
			columns := 0
			if term.IsTerminal(int(os.Stdout.Fd())) {
				columns, _ = terminal.Size()
			}
			_, err := os.Stdout.WriteString(display.Usage(now, len(now.Tasks), columns))
			return err
		}
		columns, rows := terminal.Size()
		shown := warningLines(now.Warnings[:min(len(now.Warnings), 3)]) + display.Usage(now, rows, columns-1)
		if drawn, err = terminal.Repaint(drawn, shown); err != nil || now.Running+now.Waiting == 0 {
			return err
		}
		if err := pause(ctx, a.every); err != nil {
			return err
		}
	}
}
