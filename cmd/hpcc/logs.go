package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"hpcc/job/display"
	"hpcc/job/quantity"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/text"
)

func logsCommand() *cli.Command {
	return &cli.Command{
		Name: "logs", Usage: "show the output of tasks", ArgsUsage: "JOB [TASK...]",
		Description: `Shows the output of a job's tasks, or of the tasks with the given indices.

   hpcc logs main
   hpcc logs --failed --tail 20 main
   hpcc logs -f main 3`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "follow the output until the task ends"},
			&cli.BoolFlag{Name: "failed", Usage: "show only tasks that did not succeed"},
			&cli.IntFlag{Name: "tail", Aliases: []string{"n"}, Usage: "show only the last `N` lines of each task"},
			&cli.StringFlag{Name: "since", Usage: "show only tasks that wrote within the last `TIME`"},
			onFlag(), storeFlag(),
		},
		Action: action(parseLogs),
	}
}

type logsArgs struct {
	id             string
	tasks          []string // indices, or names of steps of a workflow
	follow, failed bool
	tail           int           // lines; -1 for all
	since          time.Duration // 0 for all tasks
	flags          []string      // the flags above as arguments, for hpcc at a site
	in             site.Scope
	store          string
}

func parseLogs(c *cli.Context) (*logsArgs, error) {
	args, err := parseArguments(c, 1, 1000, "JOB [TASK...]")
	if err != nil {
		return nil, err
	}
	a := &logsArgs{
		id: args[0], tasks: args[1:], follow: c.Bool("follow"), failed: c.Bool("failed"), tail: -1,
		flags: parseSwitches(c, "follow", "failed"), in: parseJobScope(c), store: c.String("store"),
	}
	if c.IsSet("tail") {
		if a.tail = c.Int("tail"); a.tail < 0 {
			return nil, text.Usagef("--tail %d: not a number of lines", a.tail)
		}
		a.flags = append(a.flags, fmt.Sprintf("--tail=%d", a.tail))
	}
	if c.IsSet("since") {
		if a.since, err = parseSince(c.String("since")); err != nil {
			return nil, err
		}
		a.flags = append(a.flags, fmt.Sprintf("--since=%d", int64(a.since.Seconds())))
	}
	return a, nil
}

// parseSince reads the value of --since.
func parseSince(s string) (time.Duration, error) {
	d, err := quantity.ParseTime(s)
	if err != nil || d <= 0 {
		return 0, text.Usagef("--since %q: not a duration", s).Hint("write --since 7d, 36h or 90m")
	}
	return d, nil
}

func (a *logsArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	sub, err := a.in.Find(ctx, s.Jobs(), a.id)
	if err != nil {
		return err
	}
	if sub.Remote != nil {
		return sub.Remote.Run(ctx, nil, os.Stdout, os.Stderr, slices.Concat([]string{"logs"}, a.flags, []string{sub.ID}, a.tasks)...)
	}
	l := display.Logs{Job: sub.Submission, Dir: s.Jobs(), Name: a.id, Tasks: a.tasks, Failed: a.failed, Tail: a.tail,
		Since: a.since, Out: os.Stdout, Note: sayLine, Warn: warn}
	return l.Show(ctx, a.follow)
}
