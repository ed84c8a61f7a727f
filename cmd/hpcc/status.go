package main

import (
	"cmp"
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
	return &statusArgs{
		all: c.Bool("all"), ids: ids, in: parseJobScope(c), store: c.String("store"), running: c.Bool("running"), user: c.String("user"),
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
	list, warnings, err := a.statuses(ctx, s.Jobs())
	if err != nil {
		return err
	}
	warn(warnings)
	list, hidden := a.newest(list)
	if a.json {
		err = statusJSON(s.Jobs(), list)
	} else {
		err = statusTable(os.Stdout, list, len(a.ids) > 0)
	}
	if err != nil || hidden == "" {
		return err
	}
	say("%s: \"hpcc status --all\" shows them, \"hpcc status JOB\" shows one", hidden)
	return nil
}

// shownEnded is the number of jobs that have ended in a list of all jobs without --all.
const shownEnded = 100

// newest returns the jobs to show, and a note about the others: older jobs that have ended.
func (a *statusArgs) newest(list []*dispatch.Status) (shown []*dispatch.Status, hidden string) {
	if a.all || len(a.ids) > 0 {
		return list, ""
	}
	ended, remote := 0, false
	for _, st := range list {
		if !st.Active() {
			ended++
		}
		if st.Active() || ended <= shownEnded {
			shown = append(shown, st)
		}
		remote = remote || st.Site != ""
	}
	switch n := len(list) - len(shown); {
	case remote && ended >= shownEnded: // sites send only the newest
		return shown, "older jobs that have ended are not shown"
	case n > 0:
		return shown, text.Count(n, "older job that has ended is", "older jobs that have ended are") + " not shown"
	}
	return shown, ""
}

// statuses queries the schedulers of this machine and the sites, all at the same time.
func (a *statusArgs) statuses(ctx context.Context, dir string) (list []*dispatch.Status, warnings []string, err error) {
	sites, includeLocal, err := a.in.Remote()
	if err != nil {
		return nil, nil, err
	}
	missing := a.ids
	if includeLocal {
		if missing, err = dispatch.Missing(dir, a.ids); err != nil {
			return nil, nil, err
		}
	}
	var g sync.WaitGroup
	var remote []*dispatch.Status
	var remoteWarnings []string
	if len(a.ids) == 0 || len(missing) > 0 {
		g.Go(func() { remote, remoteWarnings = dispatch.RemoteStatuses(ctx, dir, sites, a.all, missing) })
	}
	local := slices.DeleteFunc(slices.Clone(a.ids), func(id string) bool { return slices.Contains(missing, id) })
	if includeLocal && (len(a.ids) == 0 || len(local) > 0) {
		list, warnings, err = a.local(ctx, dir, local)
	}
	if g.Wait(); err != nil {
		return nil, nil, err
	}
	if list, err = dispatch.Merge(dir, list, remote, missing); err != nil {
		warn(remoteWarnings)
		return nil, nil, err
	}
	list = slices.DeleteFunc(list, func(st *dispatch.Status) bool {
		elsewhere := includeLocal && a.in.On != "" && st.Site != a.in.On
		return elsewhere || (a.running && !st.Active()) || (a.user != "" && st.User != a.user)
	})
	return list, append(warnings, remoteWarnings...), nil
}

// local returns the states of jobs of this machine; of all jobs without tasks.
func (a *statusArgs) local(ctx context.Context, dir string, ids []string) ([]*dispatch.Status, []string, error) {
	if len(ids) > 0 {
		return dispatch.Statuses(ctx, dir, ids)
	}
	show := terminal.NewTerminalBar("reading jobs that have changed since the last status")
	defer show.End()
	return dispatch.Overview(ctx, dir, func(done, total int) { show.Items(int64(done), int64(total)) })
}

// statusJSON prints an object for each job. There can be a million tasks, so it reads the tasks of
// some jobs at a time.
func statusJSON(dir string, list []*dispatch.Status) error {
	show := terminal.NewTerminalBar("reading the records of all tasks")
	if term.IsTerminal(int(os.Stdout.Fd())) { // the objects show the progress
		show = &terminal.Bar{Quiet: true}
	}
	defer show.End()
	done := 0
	for some := range slices.Chunk(list, 64) {
		show.Items(int64(done), int64(len(list)))
		done += len(some)
		var g sync.WaitGroup
		for _, st := range some {
			g.Go(func() { st.Complete(dir) })
		}
		g.Wait()
		if err := printStatuses(some); err != nil {
			return err
		}
		clear(some)
	}
	return nil
}

func printStatuses(list []*dispatch.Status) error {
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

// statusTable prints a line for each job. With detail, it also prints the tasks that failed
// and the steps of workflows.
func statusTable(out io.Writer, list []*dispatch.Status, detail bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	site := optionalColumn(list, "SITE", func(st *dispatch.Status) string { return st.Site })
	user := optionalColumn(list, "USER", func(st *dispatch.Status) string { return st.User })
	fmt.Fprintln(w, "JOB\t"+site(nil)+user(nil)+"TARGET\tSTATE\tTASKS\tDONE\tFAIL\tRUN\tWAIT\tSTART\tELAPSED\tWHY")
	now := time.Now()
	for _, st := range list {
		why := st.Reason
		if st.Lost > 0 && (st.Active() || why == "") {
			why = fmt.Sprintf("%s left no record", text.Count(st.Lost, "task", "tasks"))
		}
		if !st.AsOf.IsZero() {
			why = strings.TrimSpace("as of " + st.AsOf.Local().Format(time.DateTime) + " " + why)
		}
		start, took := "-", "-"
		if !st.Started.IsZero() {
			start, took = shortTime(st.Started.Local(), now), text.Elapsed(st.Elapsed(now))
		}
		terminal.Rowf(w, "%s\t%s%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\n", st.ID, terminal.Columns(site(st)+user(st)), st.Target, st.State(),
			st.Total, st.Done, len(st.Failed), st.Running, st.Waiting, start, took, why)
	}
	if err := w.Flush(); err != nil || !detail {
		return err
	}
	for _, st := range list {
		if st.Job.Workflow != nil || len(st.Job.Steps) > 0 {
			stepLines(out, st)
			continue
		}
		imageLines(out, st)
		shown := 0
		for _, t := range st.Tasks {
			if _, failed := slices.BinarySearch(st.Failed, t.Index); failed && shown < maxFailed {
				shown++
				terminal.Rowf(out, "task %d%s on %s: %s  %s\n", t.Index, params(t.Params), t.Host, t.Ending(), t.Output)
			}
		}
		if n := len(st.Failed) - shown; n > 0 {
			terminal.Rowf(out, "%d more failed; \"hpcc logs --failed %s\" shows the output of all\n", n, st.ID)
		}
		for _, line := range st.Lessons() {
			terminal.Rowf(out, "%s\n", line)
		}
	}
	return nil
}

// imageLines prints the image of a job, and how many of its tasks ran in another version of it.
func imageLines(out io.Writer, st *dispatch.Status) {
	j := st.Imaged()
	if j.Image == "" {
		return
	}
	line := "image " + j.ExactImage()
	if j.ImageFile != "" {
		line += ": " + j.ImageFile
	}
	terminal.Rowf(out, "%s\n", line)
	if st.Target.Pods() || j.Packed() { // nodes may report a part of an index; successful tasks are not listed
		return
	}
	others := map[string]int{}
	for _, t := range st.Tasks {
		if v := cmp.Or(t.ImageDigest, t.ImageFile); t.ImageVersion != j.ImageVersion && v != "" {
			others[v]++
		}
	}
	for _, v := range slices.Sorted(maps.Keys(others)) {
		terminal.Rowf(out, "%s in %s\n", text.Count(others[v], "task ran", "tasks ran"), v)
	}
}

// maxFailed limits the failed tasks of a job in the table.
const maxFailed = 200

// shortTime formats t without spaces: the time of day if it is today, the month and day if it is
// this year, or else the date.
func shortTime(t, now time.Time) string {
	switch {
	case t.Format(time.DateOnly) == now.Format(time.DateOnly):
		return t.Format("15:04")
	case t.Year() == now.Year():
		return t.Format("01-02")
	}
	return t.Format(time.DateOnly)
}

// optionalColumn returns a function that formats one column of the table of jobs, followed
// by a tab; for nil it returns the title. The column is empty if all jobs have the same value.
func optionalColumn(list []*dispatch.Status, title string, value func(*dispatch.Status) string) func(*dispatch.Status) string {
	several := slices.ContainsFunc(list, func(st *dispatch.Status) bool { return value(st) != value(list[0]) })
	return func(st *dispatch.Status) string {
		switch {
		case !several:
			return ""
		case st == nil:
			return title + "\t"
		}
		return cmp.Or(value(st), "-") + "\t"
	}
}

// params formats a task's parameters in parentheses.
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

// progressOf describes the state of a task.
func progressOf(t *job.Task) string {
	switch {
	case !t.Ended():
		return "running on " + t.Host
	case t.OK():
		return "done"
	}
	return t.Ending()
}

// stepLines prints every step of a workflow.
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
		terminal.Rowf(out, "step %d%s: %s%s%s\n", t.Index, stepOf(&t), progressOf(&t), took, again)
	}
}

// stepOf returns the task's step in parentheses; "" if the job has no steps.
func stepOf(t *job.Task) string {
	if t.Step == "" {
		return ""
	}
	return " (" + t.Step + ")"
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
		list, warnings, err := a.statuses(ctx, dir)
		if err != nil {
			return err
		}
		if term.IsTerminal(int(os.Stdout.Fd())) {
			shown, hidden := a.newest(list)
			if hidden != "" {
				warnings = append(warnings, hidden)
			}
			drawn, err = redraw(drawn, shown, warnings, len(a.ids) > 0)
		} else {
			shown, _ := a.newest(list)
			err = a.printChanges(dir, shown, before)
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

// redraw replaces a table of drawn lines and returns the new number of lines.
func redraw(drawn int, list []*dispatch.Status, warnings []string, detail bool) (int, error) {
	var b strings.Builder
	for _, w := range warnings {
		fmt.Fprintf(&b, "hpcc: warning: %s\n", terminal.ShortCell(w))
	}
	if err := statusTable(&b, list, detail); err != nil {
		return 0, err
	}
	return terminal.Repaint(drawn, b.String())
}

// printChanges prints a line or a JSON object for each job that differs from before.
func (a *statusArgs) printChanges(dir string, list []*dispatch.Status, before map[string]string) error {
	for i := len(list) - 1; i >= 0; i-- { // newest last
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
			if err := statusJSON(dir, []*dispatch.Status{st}); err != nil {
				return err
			}
			continue
		}
		name := st.ID
		if st.Site != "" {
			name += " at " + st.Site
		}
		if _, err := terminal.Rowf(os.Stdout, "%s %s %s\n", time.Now().Format(time.TimeOnly), name, now); err != nil {
			return err
		}
	}
	return nil
}
