package measured

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

	"golang.org/x/sync/errgroup"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/metrics/report"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

// Sweeps select the results of tasks to report.
type Sweeps struct {
	Wanted  bool     // a flag requests results; otherwise only jobs with parameters show them
	Best    string   // the result that ranks the tasks
	Metrics []string // results to show; empty for a few
	Results string   // pattern of the directories with results; "" for usualDirs
	Store   string   // directory of the store; "" for the usual one
	Warn    func([]string)
	Note    func(line string) // shows a message to the user
}

// Find reads the results of each system's job, and ranks its tasks.
func (a *Sweeps) Find(r *report.Report) (list []*report.Sweep, err error) {
	for _, system := range r.Systems {
		s, err := a.sweepOf(system)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		if err := s.Rank(a.Best); err != nil {
			return nil, a.resultHint(err)
		}
		if a.Results != "" && !hasResults(s.Tasks) {
			a.Note("hint: " + noResultsAt(a.Results))
		}
		list = append(list, s)
	}
	if len(list) == 0 && a.Wanted {
		return nil, text.Hint(errors.New("none of these jobs left results"),
			"a task leaves metrics.json, metrics.jsonl or TensorBoard's event files in $HPCC_TASK_DIR, or in the directory of --results")
	}
	return list, nil
}

// resultHint adds a hint to the error of a missing result.
func (a *Sweeps) resultHint(err error) error {
	missing := (*report.NoResultError)(nil)
	if !errors.As(err, &missing) || len(missing.Available) > 0 {
		return err
	}
	m := &text.Error{Err: err}
	if a.Results != "" {
		return m.Hint("%s", noResultsAt(a.Results))
	}
	return m.Hint("write metrics.json, metrics.jsonl or TensorBoard event files to $HPCC_TASK_DIR, or name their directory with --results")
}

// noResultsAt is the hint for a --results without results.
func noResultsAt(pattern string) string {
	return fmt.Sprintf("--results %s matches no results file below the job's directory; "+
		"{task} and {NAME} of a parameter expand to their values", pattern)
}

// checkPattern refuses an invalid pattern of --results.
func checkPattern(pattern string, params []string) error {
	if slices.Contains(strings.Split(pattern, "/"), "..") {
		return text.Usagef("--results %q: .. leads out of the job's directory", pattern).
			Hint("use an absolute path without .., such as /path/to/{task}")
	}
	var names, pairs []string
	for _, n := range append([]string{"task", "name", "job"}, params...) {
		names, pairs = append(names, "{"+n+"}"), append(pairs, "{"+n+"}", "")
	}
	_, rest, _ := strings.Cut(strings.NewReplacer(pairs...).Replace(pattern), "{")
	if name, _, ok := strings.Cut(rest, "}"); ok {
		return text.Usagef("--results %q: {%s} is not a parameter", pattern, name).Hint("use one of %s", strings.Join(names, ", "))
	}
	return nil
}

// sweepOf returns the sweep of a system that is a job of this store, or nil for one with neither
// parameters nor results.
func (a *Sweeps) sweepOf(system *report.System) (*report.Sweep, error) {
	s := &report.Sweep{Name: system.Name, Columns: a.Metrics}
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
	sub, dir, err := a.sweepJob(id)
	if err != nil || sub == nil {
		return nil, err
	}
	for _, k := range slices.Sorted(maps.Keys(latest)) {
		t := latest[k]
		one := report.SweepTask{Index: k, Attempt: t.Header.Job.Attempt, Params: t.Header.Job.Params,
			Ending: t.Ending, Start: t.Header.Start}
		if t.Footer != nil {
			one.End = t.Footer.End
		}
		s.Tasks = append(s.Tasks, one)
	}
	s.Params = paramNames(sub.Job, s.Tasks)
	if len(s.Params) == 0 && !a.Wanted {
		return nil, nil
	}
	if err := checkPattern(a.Results, s.Params); err != nil {
		return nil, err
	}
	warnings, err := a.readResults(sub, dir, s.Tasks)
	a.Warn(warnings)
	if len(s.Params) == 0 && !hasResults(s.Tasks) {
		return nil, err
	}
	return s, err
}

// hasResults reports whether a task left results.
func hasResults(tasks []report.SweepTask) bool {
	return slices.ContainsFunc(tasks, func(t report.SweepTask) bool { return t.Results != nil })
}

// sweepJob finds a job by its full ID. It returns nil if the store does not have it.
func (a *Sweeps) sweepJob(id string) (*dispatch.Submission, string, error) {
	if id == "" || !filepath.IsLocal(id) || filepath.Base(id) != id {
		return nil, "", nil
	}
	s, err := store.OpenToRead(a.Store)
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(s.Jobs(), id)
	sub, err := dispatch.ReadJob(dir)
	if err != nil {
		return nil, "", nil // a record of another store
	}
	return sub, dir, nil
}

// paramNames returns the names of the parameters: in the order of the command line if the job has
// lists of values, or else sorted.
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

// usualDirs are the directories below the job's where programs usually leave results. The first
// with results of any task counts for all tasks.
var usualDirs = []string{"results/{task}", "out/{task}", "output/{task}", "outputs/{task}", "runs/{task}", "logs/{task}",
	"task-{task}", "task_{task}", "{task}"}

// A resultsDir locates the results of tasks below a directory. Symbolic links cannot lead out of it.
type resultsDir struct {
	root    *os.Root
	pattern string // of paths, for one task each
	own     bool   // it is HPCC_TASK_DIR
	shared  bool   // other jobs may write to it
}

// findResults locates the results of a job's tasks: in the directory that the user names, else in
// HPCC_TASK_DIR, else in a usual directory.
func (a *Sweeps) findResults(sub *dispatch.Submission, dir string, tasks []report.SweepTask) (p resultsDir, err error) {
	if a.Results != "" {
		if p, err = openResults(sub.Job.Dir, a.Results); err != nil {
			err = text.Hint(err, "use a path below the job's directory, %s, or an absolute path", sub.Job.Dir)
		}
		return p, err
	}
	own, err := openResults(dir, "task.{task}")
	own.own = true
	if err != nil || own.any(sub, tasks) {
		return own, err
	}
	shared, err := openResults(sub.Job.Dir, "") // it may be another user's, and unreadable
	if err != nil || len(tasks) < 2 {
		return own, nil
	}
	shared.shared = true
	for _, shared.pattern = range usualDirs {
		if shared.any(sub, tasks) {
			own.root.Close()
			a.Note(fmt.Sprintf("note: using the results in %s below %s", shared.pattern, sub.Job.Dir))
			return shared, nil
		}
	}
	shared.root.Close()
	return own, nil
}

// openResults opens the directory of a pattern: dir, or the fixed part of an absolute pattern.
func openResults(dir, pattern string) (resultsDir, error) {
	if filepath.IsAbs(pattern) {
		fixed, _, _ := strings.Cut(pattern, "{")
		fixed = fixed[:strings.LastIndexByte(fixed, '/')+1]
		dir, pattern = fixed, strings.TrimPrefix(pattern, fixed)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return resultsDir{}, fmt.Errorf("opening the directory of results: %w", err)
	}
	return resultsDir{root: root, pattern: cmp.Or(pattern, ".")}, nil
}

// path returns the path of one task's results.
func (p resultsDir) path(sub *dispatch.Submission, t *report.SweepTask) string {
	one := job.Task{Index: t.Index, Params: t.Params}
	return one.File(one.Fill([]string{p.pattern})[0], sub.Job.Name, sub.ID)
}

// slack bounds the difference between the clocks of nodes and file servers.
const slack = 10 * time.Second

// read reads the results of one task. In a directory that jobs share, it ignores results that were
// not written while the task ran. It also ignores results of earlier attempts.
func (p resultsDir) read(sub *dispatch.Submission, t *report.SweepTask) (metrics.Results, error) {
	var written func(time.Time) bool
	if p.shared || (p.own && t.Attempt > 0) {
		written = func(at time.Time) bool {
			return at.After(t.Start.Add(-slack)) && (p.own || t.End.IsZero() || at.Before(t.End.Add(slack)))
		}
	}
	return metrics.ReadResults(p.root, p.path(sub, t), written)
}

// maxProbed is the number of tasks that are searched for results in a usual directory.
const maxProbed = 8

// any reports whether one of the first successful tasks has results.
func (p resultsDir) any(sub *dispatch.Submission, tasks []report.SweepTask) bool {
	n := 0
	for i := range tasks {
		if tasks[i].Ending != report.Done && n > 0 {
			continue
		}
		if r, err := p.read(sub, &tasks[i]); r != nil || (err != nil && !p.shared) {
			return true
		}
		if n++; n == maxProbed {
			break
		}
	}
	return false
}

// readers is the number of tasks whose results are read in parallel, because shared file systems
// are slow but serve many requests at the same time.
const readers = 16

// readResults reads the results of the tasks. It returns warnings about unreadable ones.
func (a *Sweeps) readResults(sub *dispatch.Submission, dir string, tasks []report.SweepTask) (warnings []string, err error) {
	p, err := a.findResults(sub, dir, tasks)
	if err != nil {
		return nil, err
	}
	defer p.root.Close()
	failed := make([]error, len(tasks))
	var g errgroup.Group
	g.SetLimit(files.MaxParallel(readers, 2))
	for i := range tasks {
		g.Go(func() error {
			tasks[i].Results, failed[i] = p.read(sub, &tasks[i])
			return nil
		})
	}
	g.Wait()
	for i, err := range failed {
		if err != nil && len(warnings) < 10 {
			warnings = append(warnings, "task "+strconv.Itoa(tasks[i].Index)+": "+terminal.ShortCell(err.Error()))
		}
	}
	return warnings, nil
}
