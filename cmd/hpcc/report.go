package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/metrics/report"
	"hpcc/store"
	"hpcc/text"
	"hpcc/text/terminal"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name: "report", Usage: "compare measured runs on several systems", ArgsUsage: "[NAME=]RUN...",
		Description: `Shows how long runs took, what they used of what they requested, how much they vary, what they
cost, and what probably made one system slower. RUN is one system: a resource usage file ("hpcc
run --measure"), a directory of such files, or a job. NAME is its title. The other systems are
compared with the first.

   hpcc report power=main pod=main-261122
   hpcc report --html report.html before.jsonl after.jsonl
   hpcc report --price prices.toml --csv sweep > runs.csv

A file for --price or --power:

   currency = "EUR"
   kwh = 0.28                  # price per kWh
   [node.power]                # a system, or a pattern of host names
   hour = 2.40                 # price per hour of a node, or capital, staff, …
   idle_watts = 400
   max_watts = 900

Exit status: 1 if nothing can be read, or if the images differ and --different is not given.`,
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "csv", Usage: "print one row per run"},
			&cli.BoolFlag{Name: "markdown", Usage: "print Markdown"},
			&cli.StringFlag{Name: "html", Usage: "write a page with charts to `FILE`; - prints it"},
			&cli.StringFlag{Name: "price", Usage: "compute cost and energy with the prices in `FILE`"},
			&cli.StringFlag{Name: "power", Usage: "compute energy with the power figures in `FILE`"},
			&cli.BoolFlag{Name: "different", Usage: "compare runs of different images"},
			&cli.BoolFlag{Name: "attempts", Usage: "include earlier attempts of tasks"},
			onFlag(), storeFlag(),
		}, sweepFlags()...),
		Action: action(parseReport),
	}
}

type reportArgs struct {
	systems   []string // [NAME=]RUN
	find      sourceFinder
	options   report.Options
	form      string // text, json, csv, markdown or html
	html      string // file of the page; - with the form html
	sweep     sweepArgs
	sweepOnly bool // --sweep: only parameters and results
}

func parseReport(c *cli.Context) (*reportArgs, error) {
	signal.Reset(os.Interrupt, syscall.SIGTERM) // reading may wait for file servers, so they end the process
	names, err := parseArguments(c, 1, maxSystems, "[NAME=]RUN...")
	if err != nil {
		return nil, err
	}
	a := &reportArgs{systems: names, find: sourceFinder{scope: parseJobScope(c), store: c.String("store"), attempts: c.Bool("attempts")}, html: c.String("html"), sweepOnly: c.Bool("sweep"), options: report.Options{Different: c.Bool("different")}}
	a.sweep = sweepArgs{wanted: a.sweepOnly || c.IsSet("best") || c.IsSet("metric") || c.IsSet("results"), best: c.String("best"), metrics: c.StringSlice("metric"),
		results: c.String("results"), store: c.String("store")}
	if a.form, err = parseReportForm(c); err != nil {
		return nil, err
	}
	a.options.Prices, err = readAllPrices(c.String("price"), c.String("power"))
	return a, err
}

func (a *reportArgs) run(ctx context.Context) error {
	sources, err := a.find.all(ctx, a.systems)
	if err != nil {
		return err
	}
	r, err := report.Read(sources, a.options)
	if err != nil {
		return reportHint(err)
	}
	for _, s := range r.Systems {
		s.Advice = append(requestAdvice(s), s.Advice...)
	}
	warn(r.Warnings)
	sweeps, err := a.sweep.find(r)
	if err != nil {
		return err
	}
	if a.sweepOnly {
		return a.writeSweeps(sweeps)
	}
	for _, s := range sweeps {
		r.Sections = append(r.Sections, s.Section(a.html != ""))
	}
	return a.write(r)
}

// maxSystems bounds the systems of a report, so that a page can show them.
const maxSystems = 20

// parseReportForm returns the output format.
func parseReportForm(c *cli.Context) (form string, err error) {
	form = "text"
	for _, f := range []string{"json", "csv", "markdown"} {
		if !c.Bool(f) {
			continue
		}
		if form != "text" {
			return "", text.Usagef("--%s and --%s cannot be used together", form, f).Hint("run hpcc report twice; --html can be added to either")
		}
		form = f
	}
	switch html := c.String("html"); {
	case html == "-" && form != "text":
		return "", text.Usagef("--html - and --%s cannot be used together", form).Hint("name a file: --html report.html")
	case html == "-":
		form = "html"
	case html == "" && c.IsSet("html"):
		return "", text.Usagef("--html needs the name of a file")
	}
	return form, nil
}

// write prints the report and writes its page.
func (a *reportArgs) write(r *report.Report) error {
	if err := writePage(a.html, func(f *os.File) error { return r.HTML(f) }); err != nil {
		return err
	}
	defer notePage(a.html)
	switch a.form {
	case "json":
		b, err := r.JSON()
		if err == nil {
			_, err = os.Stdout.Write(b)
		}
		return err
	case "csv":
		return r.CSV(os.Stdout)
	case "markdown":
		return r.Markdown(os.Stdout)
	case "html":
		return r.HTML(os.Stdout)
	}
	return r.Text(os.Stdout)
}

// writePage writes a page to the file of --html, if there is one.
func writePage(file string, page func(*os.File) error) error {
	if file == "" || file == "-" {
		return nil
	}
	if err := store.NewFile(file, page); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// notePage prints the name of the page's file, if there is one.
func notePage(file string) {
	if file != "" && file != "-" {
		say("wrote the page to %s", file)
	}
}

// reportHint adds a hint to the error of runs that cannot be compared.
func reportHint(err error) error {
	switch d := new(report.DigestError); {
	case errors.As(err, &d):
		return text.Hint(err, "--different compares them anyway; builds of one Dockerfile for two architectures have one digest only if --platform named both")
	case errors.Is(err, report.ErrNothing):
		return text.Hint(err, "\"hpcc run --measure\" and \"hpcc submit --measure\" write records; those of jobs are in jobs/ of the store")
	}
	return err
}

// readAllPrices reads the files of --price and --power. The power figures of --power replace those
// of --price. It returns nil without either flag.
func readAllPrices(prices, powers string) (*report.Prices, error) {
	p, err := readPrices("price", prices)
	if err != nil {
		return nil, err
	}
	power, err := readPrices("power", powers)
	if p == nil || err != nil {
		return power, err
	}
	p.Draws = power
	return p, nil
}

// readPrices reads the file of a flag; it returns nil without one.
func readPrices(flag, file string) (*report.Prices, error) {
	if file == "" {
		return nil, nil
	}
	bad := func(err error) error {
		return (&text.Error{Err: fmt.Errorf("--%s: %w", flag, err), Status: text.StatusUsage}).Hint("\"hpcc report --help\" shows an example")
	}
	p := &report.Prices{}
	at, err := dispatch.ReadTables(file, p)
	if err != nil {
		return nil, bad(err)
	}
	if key, err := p.Check(); err != nil {
		return nil, bad(at(key, err))
	}
	return p, nil
}

// requestAdvice advises how much to request. All runs of the system must have ended and must have
// requested the same. The use of processors covers only successful runs, because a failed run may
// have ended early. It gives no advice on a resource whose use does not show the need:
//
//   - processors, if runs waited for them or had fewer;
//   - memory and time, if a run was killed for lack of them;
//   - resources that were measured for one of several processes.
func requestAdvice(s *report.System) []string {
	if s.Endings[report.Open]+s.Missing > 0 {
		return nil
	}
	asked := s.Tasks[0].Header.Asked
	u := &capacity.Use{CPUs: asked.CPUs, Memory: asked.Memory, Time: duration(asked.Time)}
	var wall, cpu, longest float64
	done, killed := false, false
	for _, t := range s.Tasks {
		if t.Header.Asked != asked {
			return nil // the requests differ
		}
		longest = max(longest, t.Figures["wall_s"])
		u.PeakMemory = max(u.PeakMemory, int64(t.Figures["memory_peak_bytes"]))
		killed = killed || t.Footer.Signal == "SIGKILL"
		if oneProcess(t) && (asked.CPUs > 1 || t.Ranks > 1) {
			u.Memory = 0
		}
		firstRank := !t.Measured && t.Ranks > 1 // the processor time is that of the first rank
		if firstRank || t.Confined() {
			u.CPUs = 0
		}
		if t.Ending != report.Done {
			continue
		}
		c, known := t.Figures["cpu_s"]
		done, wall, cpu = true, wall+t.Figures["wall_s"], cpu+c
		u.CPUUnknown = u.CPUUnknown || (!known && t.Figures["wall_s"] > 0)
	}
	if !done {
		return nil
	}
	scale := min(1, maxSeconds/max(wall, cpu, 1)) // of both, to keep the number of busy processors
	u.Wall, u.CPUTime, u.Longest = duration(wall*scale), duration(cpu*scale), duration(longest)
	if s.Contended() {
		u.CPUs = 0
	}
	if killed || s.Endings[report.NoMemory] > 0 {
		u.Memory = 0
	}
	if s.Endings[report.TimeLimit] > 0 {
		u.Time = 0
	}
	return u.Advise()
}

// oneProcess reports whether the memory peak covers only the largest process.
func oneProcess(t *report.Task) bool {
	return t.Footer.MemoryFrom == "" || t.Footer.MemoryFrom == "process"
}

// maxSeconds is the largest number of seconds of a [time.Duration].
const maxSeconds = 9e9

func duration(v float64) time.Duration {
	return time.Duration(max(0, min(v, maxSeconds)) * float64(time.Second))
}

// sweepFlags are the flags of "hpcc report" about the results of tasks.
func sweepFlags() []cli.Flag {
	return inSection(sweepSection,
		&cli.BoolFlag{Name: "sweep", Usage: "show only parameters and results of tasks, best first"},
		&cli.StringFlag{Name: "best", Usage: "rank tasks by result `NAME`, lowest first; +NAME: highest first"},
		&cli.StringSliceFlag{Name: "metric", Usage: "show result `NAME`"},
		&cli.StringFlag{Name: "results", Usage: "read results from `PATH`, such as out/{task} or runs/{lr}"},
	)
}

// sweepArgs select the results of tasks to report.
type sweepArgs struct {
	wanted  bool     // a flag requests results; otherwise only jobs with parameters show them
	best    string   // the result that ranks the tasks
	metrics []string // results to show; empty for a few
	results string   // pattern of the directories with results; "" for usualDirs
	store   string
}

// find reads the results of each system's job, and ranks its tasks.
func (a *sweepArgs) find(r *report.Report) (list []*report.Sweep, err error) {
	for _, system := range r.Systems {
		s, err := a.sweepOf(system)
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		if err := s.Rank(a.best); err != nil {
			return nil, a.resultHint(err)
		}
		if a.results != "" && !hasResults(s.Tasks) {
			say("hint: %s", noResultsAt(a.results))
		}
		list = append(list, s)
	}
	if len(list) == 0 && a.wanted {
		return nil, text.Hint(errors.New("none of these jobs left results"), "a task leaves metrics.json, metrics.jsonl or TensorBoard's event files in $HPCC_TASK_DIR, or in the directory of --results")
	}
	return list, nil
}

// resultHint adds a hint to the error of a missing result.
func (a *sweepArgs) resultHint(err error) error {
	missing := (*report.NoResultError)(nil)
	if !errors.As(err, &missing) || len(missing.Available) > 0 {
		return err
	}
	m := &text.Error{Err: err}
	if a.results != "" {
		return m.Hint("%s", noResultsAt(a.results))
	}
	return m.Hint("write metrics.json, metrics.jsonl or TensorBoard event files to $HPCC_TASK_DIR, or name their directory with --results")
}

// noResultsAt is the hint for a --results without results.
func noResultsAt(pattern string) string {
	return fmt.Sprintf("--results %s matches no results file below the job's directory; {task} and {NAME} of a parameter expand to their values", pattern)
}

// checkPattern refuses an invalid pattern of --results.
func checkPattern(pattern string, params []string) error {
	if slices.Contains(strings.Split(pattern, "/"), "..") {
		return text.Usagef("--results %q: .. leads out of the job's directory", pattern).Hint("use an absolute path without .., such as /path/to/{task}")
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
func (a *sweepArgs) sweepOf(system *report.System) (*report.Sweep, error) {
	s := &report.Sweep{Name: system.Name, Columns: a.metrics}
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
		one := report.SweepTask{Index: k, Attempt: t.Header.Job.Attempt, Params: t.Header.Job.Params, Ending: t.Ending, Start: t.Header.Start}
		if t.Footer != nil {
			one.End = t.Footer.End
		}
		s.Tasks = append(s.Tasks, one)
	}
	s.Params = paramNames(sub.Job, s.Tasks)
	if len(s.Params) == 0 && !a.wanted {
		return nil, nil
	}
	if err := checkPattern(a.results, s.Params); err != nil {
		return nil, err
	}
	warnings, err := readResults(a.results, sub, dir, s.Tasks)
	warn(warnings)
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
func (a *sweepArgs) sweepJob(id string) (*dispatch.Submission, string, error) {
	if id == "" || !filepath.IsLocal(id) || filepath.Base(id) != id {
		return nil, "", nil
	}
	s, err := store.OpenToRead(a.store)
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
var usualDirs = []string{"results/{task}", "out/{task}", "output/{task}", "outputs/{task}", "runs/{task}", "logs/{task}", "task-{task}", "task_{task}", "{task}"}

// A resultsDir locates the results of tasks below a directory. Symbolic links cannot lead out of it.
type resultsDir struct {
	root    *os.Root
	pattern string // of paths, for one task each
	own     bool   // it is HPCC_TASK_DIR
	shared  bool   // other jobs may write to it
}

// findResults locates the results of a job's tasks: in the directory that the user names, else in
// HPCC_TASK_DIR, else in a usual directory.
func findResults(pattern string, sub *dispatch.Submission, dir string, tasks []report.SweepTask) (p resultsDir, err error) {
	if pattern != "" {
		if p, err = openResults(sub.Job.Dir, pattern); err != nil {
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
			say("note: using the results in %s below %s", shared.pattern, sub.Job.Dir)
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
func readResults(pattern string, sub *dispatch.Submission, dir string, tasks []report.SweepTask) (warnings []string, err error) {
	p, err := findResults(pattern, sub, dir, tasks)
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

// writeSweeps writes the output of "hpcc report --sweep": only parameters and results.
func (a *reportArgs) writeSweeps(sweeps []*report.Sweep) error {
	var list report.Sections
	for _, s := range sweeps {
		list = append(list, s.Section(a.html != ""))
	}
	page := func(f *os.File) error { return list.HTML(f, "Results of "+sweeps[0].Name) }
	if err := writePage(a.html, page); err != nil {
		return err
	}
	defer notePage(a.html)
	switch a.form {
	case "html":
		return page(os.Stdout)
	case "markdown":
		return list.Markdown(os.Stdout)
	case "text":
		return list.Text(os.Stdout)
	}
	for _, s := range sweeps {
		write := s.JSON
		if a.form == "csv" {
			write = s.CSV
		}
		if err := write(os.Stdout); err != nil {
			return err
		}
	}
	return nil
}
