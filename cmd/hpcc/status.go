package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/store"
)

func statusCommand() *cli.Command {
	return &cli.Command{
		Name: "status", Usage: "show the state of jobs", ArgsUsage: "[JOB...]",
		Description: `Shows the state of jobs from the records of their tasks and one request to the scheduler. JOB is a
job's ID, the beginning of it, or the scheduler's ID. Jobs at other sites are included.

   hpcc status
   hpcc status --json main
   hpcc status --watch main`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object per job, with its tasks"},
			&cli.GenericFlag{Name: "watch", Value: &watchFlag{}, Usage: "repeat until all jobs have ended, every `SECONDS`"},
			&cli.BoolFlag{Name: "here", Usage: "show only this machine's jobs; ask no site by ssh"},
			onFlag(), storeFlag(),
		},
		Action: action(parseStatus),
	}
}

type statusArgs struct {
	ids   []string // of jobs; none for all
	in    jobScope
	store string
	json  bool
	every time.Duration // --watch; 0 without it
}

func parseStatus(c *cli.Context) (*statusArgs, error) {
	ids, err := parseArguments(c, 0, 1000, "[JOB...]")
	if err != nil {
		return nil, err
	}
	return &statusArgs{ids: ids, in: parseJobScope(c), store: c.String("store"), json: c.Bool("json"), every: c.Generic("watch").(*watchFlag).every}, nil
}

func (a *statusArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	if a.every > 0 {
		return a.watch(ctx, s.Jobs())
	}
	list, warnings, err := a.statuses(ctx, s.Jobs())
	if err != nil {
		return err
	}
	warn(warnings)
	if a.json {
		return statusJSON(list)
	}
	return statusTable(os.Stdout, list, len(a.ids) > 0)
}

// statuses asks the schedulers of this machine and the sites, at the same time.
func (a *statusArgs) statuses(ctx context.Context, dir string) (list []*dispatch.Status, warnings []string, err error) {
	sites, here, err := a.in.remote()
	if err != nil {
		return nil, nil, err
	}
	missing := a.ids
	if here {
		if missing, err = dispatch.Missing(dir, a.ids); err != nil {
			return nil, nil, err
		}
	}
	var g sync.WaitGroup
	var far []*dispatch.Status
	var silent []string
	if len(a.ids) == 0 || len(missing) > 0 {
		g.Go(func() { far, silent = dispatch.RemoteStatuses(ctx, dir, sites) })
	}
	if mine := slices.DeleteFunc(slices.Clone(a.ids), func(id string) bool { return slices.Contains(missing, id) }); here && (len(a.ids) == 0 || len(mine) > 0) {
		list, warnings, err = dispatch.Statuses(ctx, dir, mine)
	}
	if g.Wait(); err != nil {
		return nil, nil, err
	}
	if list, err = dispatch.Merge(list, far, missing); err != nil {
		warn(silent)
		return nil, nil, err
	}
	if here && a.in.on != "" {
		list = slices.DeleteFunc(list, func(st *dispatch.Status) bool { return st.Site != a.in.on })
	}
	return list, append(warnings, silent...), nil
}

func statusJSON(list []*dispatch.Status) error {
	type object struct {
		Type  string `json:"type"`
		State string `json:"state"`
		*dispatch.Status
		Tasks []job.Task `json:"tasks"`
	}
	var rows []object
	for _, st := range list {
		shown := *st
		shown.Submission = st.Submission.Redacted()
		rows = append(rows, object{"job", st.State(), &shown, st.Tasks})
	}
	return printObjects(rows)
}

// statusTable shows a line for each job; of jobs that were asked for by name
// also the tasks that did not end well.
func statusTable(out io.Writer, list []*dispatch.Status, detail bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	site := siteColumn(list)
	fmt.Fprintln(w, "JOB\t"+site(nil)+"TARGET\tSTATE\tTASKS\tDONE\tFAILED\tRUNNING\tWAITING\tWHY")
	for _, st := range list {
		why := st.Reason
		if st.Lost > 0 {
			why = fmt.Sprintf("%s left no record", counted(st.Lost, "task", "tasks"))
		}
		if !st.AsOf.IsZero() {
			why = strings.TrimSpace("as of " + st.AsOf.Local().Format(time.DateTime) + " " + why)
		}
		rowf(w, "%s\t%s%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", st.ID, columns(site(st)), st.Target, st.State(), st.Total, st.Done, len(st.Failed), st.Running, st.Waiting, why)
	}
	if err := w.Flush(); err != nil || !detail {
		return err
	}
	for _, st := range list {
		if st.Job.Workflow != nil || len(st.Job.Steps) > 0 {
			stepLines(out, st)
			continue
		}
		for _, t := range st.Tasks {
			if slices.Contains(st.Failed, t.Index) {
				rowf(out, "task %d%s on %s: %s  %s\n", t.Index, params(t.Params), t.Host, t.Ending(), t.Output)
			}
		}
	}
	return nil
}

// siteColumn gives the part of a row of the table of jobs that names the site,
// nil for the head: nothing where there is one site.
func siteColumn(list []*dispatch.Status) func(*dispatch.Status) string {
	several := slices.ContainsFunc(list, func(st *dispatch.Status) bool { return st.Site != list[0].Site })
	return func(st *dispatch.Status) string {
		switch {
		case !several:
			return ""
		case st == nil:
			return "SITE\t"
		case st.Site == "":
			return "-\t"
		}
		return st.Site + "\t"
	}
}

// params formats a task's parameters, in brackets.
func params(p map[string]string) string {
	if len(p) == 0 {
		return ""
	}
	var list []string
	for _, n := range slices.Sorted(maps.Keys(p)) {
		list = append(list, n+"="+p[n])
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// goes says how a task goes, or how it ended.
func goes(t *job.Task) string {
	switch {
	case !t.Ended():
		return "runs on " + t.Host
	case t.OK():
		return "done"
	}
	return t.Ending()
}

// stepLines shows every step of a workflow.
func stepLines(out io.Writer, st *dispatch.Status) {
	for _, t := range st.Tasks {
		took := ""
		if t.Ended() && !t.Start.IsZero() {
			took = "  " + t.End.Sub(t.Start).Round(time.Second).String()
		}
		again := ""
		if t.Attempt > 0 {
			again = fmt.Sprintf("  (attempt %d)", t.Attempt+1)
		}
		rowf(out, "step %d%s: %s%s%s\n", t.Index, stepOf(&t), goes(&t), took, again)
	}
}

// stepOf names the step of a task, in brackets; "" of a job without steps.
func stepOf(t *job.Task) string {
	if t.Step == "" {
		return ""
	}
	return " (" + t.Step + ")"
}

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
		return fmt.Errorf("%q is not a number of seconds", s)
	}
	w.every = max(watchLeast, time.Duration(n*float64(time.Second)))
	return nil
}

func (w *watchFlag) String() string { return "" }

// watch prints jobs until all have ended: on a terminal the table, drawn
// anew; elsewhere a line for each change.
func (a *statusArgs) watch(ctx context.Context, dir string) error {
	before, warned, drawn := map[string]string{}, "", 0
	for {
		list, warnings, err := a.statuses(ctx, dir)
		if err != nil {
			return err
		}
		if term.IsTerminal(int(os.Stdout.Fd())) {
			drawn, err = redraw(drawn, list, warnings, len(a.ids) > 0)
		} else {
			err = a.printChanges(list, before)
			if text := strings.Join(warnings, "\n"); text != warned {
				warn(warnings)
				warned = text
			}
		}
		if err != nil || !open(list) {
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

// open reports whether a job may still change.
func open(list []*dispatch.Status) bool {
	for _, st := range list {
		if st.Running+st.Waiting > 0 {
			return true
		}
	}
	return false
}

// redraw replaces the drawn lines of a table by a new one, and returns its number of lines.
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

// printChanges prints a line, or an object, for each job that has changed since before.
func (a *statusArgs) printChanges(list []*dispatch.Status, before map[string]string) error {
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
		if a.json {
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
