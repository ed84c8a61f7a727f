package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/metrics/report"
	"hpcc/store"
	"hpcc/store/disk"
)

// sweepFlags are those of "hpcc report" about what tasks left as their results.
func sweepFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "sweep", Usage: "tell only the tasks' parameters and results, best first"},
		&cli.StringFlag{Name: "best", Usage: "rank tasks by result `NAME`, the lowest first; +NAME: the highest"},
		&cli.StringSliceFlag{Name: "metric", Usage: "show result `NAME` (repeatable; default: some)"},
		&cli.StringFlag{Name: "results", Usage: "tasks left their results in `PLACE`, such as out/{task} or runs/{lr}-{seed}"},
	}
}

// wantsSweep says whether the command line asks for results.
func wantsSweep(c *cli.Context) bool {
	return c.Bool("sweep") || c.IsSet("best") || c.IsSet("metric") || c.IsSet("results")
}

// addSweeps puts what the tasks of jobs left behind the rest of a report; of jobs with parameters
// unasked.
func addSweeps(c *cli.Context, r *report.Report) error {
	sweeps, err := findSweeps(c, r)
	for _, s := range sweeps {
		r.Sections = append(r.Sections, s.Section(c.String("html") != ""))
	}
	return err
}

// findSweeps reads the results of each system's job, and ranks its tasks.
func findSweeps(c *cli.Context, r *report.Report) (list []*report.Sweep, err error) {
	for _, system := range r.Systems {
		s, err := sweepOf(c, system)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		if err := s.Rank(c.String("best")); err != nil {
			return nil, onResult(c, err)
		}
		if c.IsSet("results") && !left(s.Tasks) {
			say("hint: %s", nowhere(c.String("results")))
		}
		list = append(list, s)
	}
	if len(list) == 0 && wantsSweep(c) {
		return nil, (&message{err: errors.New("none of these is a job that left results")}).hint("a task leaves metrics.json, metrics.jsonl or TensorBoard's event files in $HPCC_TASK_DIR, or where --results says; see \"Parameters\" in docs/jobs.md")
	}
	return list, nil
}

// onResult says what to do about a result that is not there.
func onResult(c *cli.Context, err error) error {
	missing := (*report.NoResultError)(nil)
	if !errors.As(err, &missing) || len(missing.There) > 0 {
		return err
	}
	m := &message{err: err}
	if c.IsSet("results") {
		return m.hint("%s", nowhere(c.String("results")))
	}
	return m.hint("a task leaves metrics.json, metrics.jsonl or TensorBoard's event files in $HPCC_TASK_DIR; --results PLACE names another directory")
}

// nowhere says what to do about a place without results.
func nowhere(place string) string {
	return fmt.Sprintf("--results %s leads to no file of results; {task} and the names of parameters stand for their values, and the place is below the job's directory", place)
}

// checkPlace refuses a place of results that can be none.
func checkPlace(place string, params []string) error {
	if slices.Contains(strings.Split(place, "/"), "..") {
		return usagef("--results %q: .. leads out of the job's directory", place).hint("write the whole path of another one, without .., as in /path/to/{task}")
	}
	var names, pairs []string
	for _, n := range append([]string{"task", "name", "job"}, params...) {
		names, pairs = append(names, "{"+n+"}"), append(pairs, "{"+n+"}", "")
	}
	_, rest, _ := strings.Cut(strings.NewReplacer(pairs...).Replace(place), "{")
	if name, _, ok := strings.Cut(rest, "}"); ok {
		return usagef("--results %q: nothing is known that {%s} stands for", place, name).hint("there are %s", strings.Join(names, ", "))
	}
	return nil
}

// sweepOf makes a sweep of a system that is a job of this store; nil of one that has neither parameters
// nor results.
func sweepOf(c *cli.Context, system *report.System) (*report.Sweep, error) {
	s := &report.Sweep{Name: system.Name, Columns: c.StringSlice("metric")}
	latest := map[int]*report.Task{}
	id := ""
	for _, t := range system.Tasks {
		if t.Header.Job == nil || (id != "" && t.Header.Job.ID != id) {
			return nil, nil
		}
		id = t.Header.Job.ID
		if old := latest[t.Header.Job.Task]; old == nil || t.Header.Job.Attempt >= old.Header.Job.Attempt {
			latest[t.Header.Job.Task] = t
		}
	}
	sub, dir, err := sweepJob(c, id)
	if err != nil || sub == nil {
		return nil, err
	}
	for _, k := range slices.Sorted(maps.Keys(latest)) {
		t := latest[k]
		one := report.SweepTask{Index: k, Attempt: t.Header.Job.Attempt, Params: t.Header.Job.Params, Ending: t.Ending, Start: t.Header.Start}
		if t.Footer != nil {
			one.End = t.Footer.End
		}
		s.Tasks = append(s.Tasks, one)
	}
	s.Params = paramNames(sub.Job, s.Tasks)
	if len(s.Params) == 0 && !wantsSweep(c) {
		return nil, nil
	}
	if err := checkPlace(c.String("results"), s.Params); err != nil {
		return nil, err
	}
	warnings, err := readResults(c.String("results"), sub, dir, s.Tasks)
	warn(warnings)
	if len(s.Params) == 0 && !left(s.Tasks) {
		return nil, err
	}
	return s, err
}

// left says whether a task left results.
func left(tasks []report.SweepTask) bool {
	return slices.ContainsFunc(tasks, func(t report.SweepTask) bool { return t.Results != nil })
}

// sweepJob finds a job by its whole id; nil when the store does not have it.
func sweepJob(c *cli.Context, id string) (*dispatch.Submission, string, error) {
	if id == "" || !filepath.IsLocal(id) || filepath.Base(id) != id {
		return nil, "", nil
	}
	s, err := findStore(c)
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(s.Jobs(), id)
	sub, err := dispatch.ReadJob(dir)
	if err != nil {
		return nil, "", nil // records that came from elsewhere
	}
	return sub, dir, nil
}

// paramNames are those of lists in the order of the command line, else by name.
func paramNames(j *job.Job, tasks []report.SweepTask) (names []string) {
	for _, a := range j.Params.Axes {
		names = append(names, a.Name)
	}
	if len(names) > 0 {
		return names
	}
	seen := map[string]bool{}
	for _, t := range tasks {
		for n := range t.Params {
			seen[n] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// usualPlaces are where programs leave results that name no directory, below the job's; the first
// of them that has some of any task counts for all.
var usualPlaces = []string{"results/{task}", "out/{task}", "output/{task}", "outputs/{task}", "runs/{task}", "logs/{task}", "task-{task}", "task_{task}", "{task}"}

// A resultsPlace is where a task's results may be: below a directory that no link leads out of.
type resultsPlace struct {
	root    *os.Root
	pattern string // filled in for each task
	own     bool   // it is HPCC_TASK_DIR
	shared  bool   // other jobs may leave theirs there, too
}

// findPlace finds out where the tasks of a job left their results: where the user says; else in
// HPCC_TASK_DIR; else in a usual place.
func findPlace(pattern string, sub *dispatch.Submission, dir string, tasks []report.SweepTask) (p resultsPlace, err error) {
	if pattern != "" {
		if p, err = openPlace(sub.Job.Dir, pattern); err != nil {
			err = (&message{err: err}).hint("--results names a place below the job's directory, %s, or a whole path", sub.Job.Dir)
		}
		return p, err
	}
	own, err := openPlace(dir, "task.{task}")
	own.own = true
	if err != nil || own.any(sub, tasks) {
		return own, err
	}
	shared, err := openPlace(sub.Job.Dir, "") // which somebody else's may be, who does not show it
	if err != nil || len(tasks) < 2 {
		return own, nil
	}
	shared.shared = true
	for _, shared.pattern = range usualPlaces {
		if shared.any(sub, tasks) {
			own.root.Close()
			say("note: the results are those in %s below %s", shared.pattern, sub.Job.Dir)
			return shared, nil
		}
	}
	shared.root.Close()
	return own, nil
}

// openPlace opens the directory that a pattern is below: the job's, or, of an absolute one, what stands
// before its first name in braces.
func openPlace(dir, pattern string) (resultsPlace, error) {
	if filepath.IsAbs(pattern) {
		fixed, _, _ := strings.Cut(pattern, "{")
		fixed = fixed[:strings.LastIndexByte(fixed, '/')+1]
		dir, pattern = fixed, strings.TrimPrefix(pattern, fixed)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return resultsPlace{}, fmt.Errorf("opening the place of results: %w", err)
	}
	return resultsPlace{root: root, pattern: cmp.Or(pattern, ".")}, nil
}

// of is the place of one task.
func (p resultsPlace) of(sub *dispatch.Submission, t *report.SweepTask) string {
	one := job.Task{Index: t.Index, Params: t.Params}
	return one.File(one.Fill([]string{p.pattern})[0], sub.Job.Name, sub.ID)
}

// slack is how far the clocks of nodes and of file servers may be apart.
const slack = 10 * time.Second

// read reads the results of one task. In a place that jobs share those count that were written while it
// ran; of a task that was tried again, not those of attempts before.
func (p resultsPlace) read(sub *dispatch.Submission, t *report.SweepTask) (metrics.Results, error) {
	var written func(time.Time) bool
	if p.shared || (p.own && t.Attempt > 0) {
		written = func(at time.Time) bool {
			return at.After(t.Start.Add(-slack)) && (p.own || t.End.IsZero() || at.Before(t.End.Add(slack)))
		}
	}
	return metrics.ReadResults(p.root, p.of(sub, t), written)
}

// tried is of how many tasks a usual place is looked for.
const tried = 8

// any says whether one of the first tasks that ended well has results there.
func (p resultsPlace) any(sub *dispatch.Submission, tasks []report.SweepTask) bool {
	n := 0
	for i := range tasks {
		if tasks[i].Ending != report.Done && n > 0 {
			continue
		}
		if r, err := p.read(sub, &tasks[i]); r != nil || (err != nil && !p.shared) {
			return true
		}
		if n++; n == tried {
			break
		}
	}
	return false
}

// readers is how many tasks' results are read at once: shared file systems answer late, and many at a time.
const readers = 16

// readResults reads what the tasks left, and returns what could not be read.
func readResults(pattern string, sub *dispatch.Submission, dir string, tasks []report.SweepTask) (warnings []string, err error) {
	p, err := findPlace(pattern, sub, dir, tasks)
	if err != nil {
		return nil, err
	}
	defer p.root.Close()
	failed := make([]error, len(tasks))
	var g errgroup.Group
	g.SetLimit(disk.AtOnce(readers, 2))
	for i := range tasks {
		g.Go(func() error {
			tasks[i].Results, failed[i] = p.read(sub, &tasks[i])
			return nil
		})
	}
	g.Wait()
	for i, err := range failed {
		if err != nil && len(warnings) < 10 {
			warnings = append(warnings, "task "+strconv.Itoa(tasks[i].Index)+": "+oneLine(err.Error()))
		}
	}
	return warnings, nil
}

// writeSweeps is "hpcc report --sweep": parameters and results, and nothing else.
func writeSweeps(c *cli.Context, r *report.Report, form string) error {
	sweeps, err := findSweeps(c, r)
	if err != nil {
		return err
	}
	var list report.Sections
	for _, s := range sweeps {
		list = append(list, s.Section(c.String("html") != ""))
	}
	page := func(f *os.File) error { return list.HTML(f, "Results of "+sweeps[0].Name) }
	if file := c.String("html"); file != "" && file != "-" {
		if err := store.NewFile(file, page); err != nil {
			return fmt.Errorf("writing the page: %w", err)
		}
		defer say("the page is in %s", file)
	}
	switch form {
	case "html":
		return page(os.Stdout)
	case "markdown":
		return list.Markdown(os.Stdout)
	case "text":
		return list.Text(os.Stdout)
	}
	for _, s := range sweeps {
		write := s.JSON
		if form == "csv" {
			write = s.CSV
		}
		if err := write(os.Stdout); err != nil {
			return err
		}
	}
	return nil
}
