package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"hpcc/build"
	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/store"
	"hpcc/store/disk"
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
			&cli.StringFlag{Name: "sort", Value: "cpu", Usage: "sort by `COLUMN`: " + strings.Join(topColumns(), ", ")},
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

// A topState is the state of a job and its running tasks at a moment.
type topState struct {
	Type     string     `json:"type"` // "top"
	ID       string     `json:"id"`
	Site     string     `json:"site,omitempty"`
	Target   job.Target `json:"target"`
	State    string     `json:"state"`
	Total    int        `json:"total"`
	Done     int        `json:"done"`
	Failed   int        `json:"failed"`
	Running  int        `json:"running"`
	Waiting  int        `json:"waiting"`
	Silent   int        `json:"silent,omitempty"` // running tasks without a record
	Unseen   int        `json:"unseen,omitempty"` // running tasks whose records were not read yet, because there are many
	Sum      topTask    `json:"sum"`
	Tasks    []topTask  `json:"tasks"`
	Warnings []string   `json:"warnings,omitempty"` // about records that could not be read
}

type topArgs struct {
	id    string
	in    jobScope
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
	if !slices.Contains(topColumns(), c.String("sort")) {
		return nil, usagef("--sort %q: unknown column", c.String("sort")).hint("use one of %s", strings.Join(topColumns(), ", "))
	}
	every := c.Float64("every")
	if !(every >= minWatchInterval.Seconds() && every <= 86400) {
		return nil, usagef("--every %g: not a number of seconds from %g to 86400", every, minWatchInterval.Seconds())
	}
	once := c.Bool("once") || c.Bool("json") || !term.IsTerminal(int(os.Stdout.Fd()))
	return &topArgs{id: args[0], in: parseJobScope(c), store: c.String("store"), sort: c.String("sort"), every: time.Duration(every * float64(time.Second)), once: once, json: c.Bool("json")}, nil
}

func (a *topArgs) run(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	f, err := a.in.find(ctx, s.Jobs(), a.id)
	if err != nil {
		return err
	}
	refresh := func() (*topState, error) { return remoteTop(ctx, f.site, f.id) }
	if f.site == nil {
		local := &topReader{sub: f.Submission, dir: s.Jobs(), all: a.once, tasks: map[int]*watchedTask{}}
		refresh = func() (*topState, error) { return local.refresh(ctx) }
	}
	for drawn := 0; ; {
		now, err := refresh()
		if err != nil {
			return err
		}
		sortTop(now.Tasks, a.sort)
		switch {
		case a.json:
			return json.NewEncoder(os.Stdout).Encode(now)
		case a.once:
			warn(now.Warnings)
			columns := 0
			if term.IsTerminal(int(os.Stdout.Fd())) {
				columns, _ = terminalSize()
			}
			_, err := os.Stdout.WriteString(topText(now, len(now.Tasks), columns))
			return err
		}
		columns, rows := terminalSize()
		if drawn, err = repaint(drawn, topWarnings(now.Warnings)+topText(now, rows, columns-1)); err != nil || now.Running+now.Waiting == 0 {
			return err
		}
		if err := pause(ctx, a.every); err != nil {
			return err
		}
	}
}

// remoteTop asks hpcc at the site of the job.
func remoteTop(ctx context.Context, site *dispatch.Site, id string) (*topState, error) {
	out, err := site.Ask(ctx, onTerminal(), answerTime(), "top", "--json", id)
	if err != nil {
		return nil, siteHint(err, site)
	}
	now := &topState{}
	if err := json.Unmarshal(out, now); err != nil || now.Type != "top" {
		return nil, fmt.Errorf("site %s: its hpcc answered %q, which is not the state of a job", site.Name, out[:min(len(out), 100)])
	}
	now.Site = site.Name
	return now, nil
}

// A topReader reads the records of a job on this machine.
type topReader struct {
	sub   *dispatch.Submission
	dir   string // of all jobs
	all   bool   // read the record of every task at each refresh, however many there are
	asked time.Time
	tasks map[int]*watchedTask
}

// A watchedTask keeps the record of one task between refreshes.
type watchedTask struct {
	task job.Task
	tail metrics.Tail
	peak int64     // highest memory use so far, in bytes
	seen time.Time // when the record was last read
	err  error
}

// Limits of one refresh.
const (
	topParallel     = 16 // records that are read at the same time
	topParallelPods = 8  // the same, for pods
	topPods         = 64 // pods whose records are read
)

// Intervals between queries to the scheduler. A cluster that keeps the records is queried more often.
const (
	topQueryInterval     = 10 * time.Second
	topQueryIntervalPods = 4 * time.Second
)

// refresh reads the state of the job, which may have been cancelled or rerun since the last call.
func (p *topReader) refresh(ctx context.Context) (*topState, error) {
	var err error
	if p.sub, err = dispatch.ReadJob(filepath.Join(p.dir, p.sub.ID)); err != nil {
		return nil, err
	}
	interval := topQueryInterval
	if p.sub.Target.Pods() {
		interval = topQueryIntervalPods
	}
	ask := time.Since(p.asked) >= interval
	st, err := p.sub.Look(ctx, p.dir, ask)
	if err != nil {
		return nil, err
	}
	if ask {
		p.asked = time.Now()
	}
	open := st.Total - st.Done - len(st.Failed) - st.Stopped - st.Lost
	st.Waiting = max(0, open-st.Running)
	now := &topState{Type: "top", ID: st.ID, Site: st.Site, Target: st.Target, State: st.State(), Tasks: []topTask{},
		Total: st.Total, Done: st.Done, Failed: len(st.Failed), Running: st.Running, Waiting: st.Waiting}
	if ask && st.Running == 0 { // the tasks without an end are lost
		st.Tasks = nil
	}
	p.keep(st.Tasks)
	p.read(ctx)
	return now, p.fill(now)
}

// keep updates p.tasks to the running tasks in list.
func (p *topReader) keep(list []job.Task) {
	running := map[int]bool{}
	for _, t := range list {
		if t.Ended() {
			continue
		}
		running[t.Index] = true
		if k := p.tasks[t.Index]; k == nil || k.task.Attempt != t.Attempt || k.task.Native != t.Native {
			p.tasks[t.Index] = &watchedTask{}
		}
		p.tasks[t.Index].task = t
	}
	for k := range p.tasks {
		if !running[k] {
			delete(p.tasks, k)
		}
	}
}

// read reads the records of the tasks. To read the record in a pod, it must start a program there,
// so it reads only the topPods pods with the oldest reads, unless p.all is set.
func (p *topReader) read(ctx context.Context) {
	var list []*watchedTask
	for _, k := range p.tasks {
		list = append(list, k)
	}
	var g errgroup.Group
	g.SetLimit(disk.MaxParallel(topParallel, 4))
	if p.sub.Target.Pods() {
		g.SetLimit(topParallelPods)
		slices.SortFunc(list, func(a, b *watchedTask) int { return a.seen.Compare(b.seen) })
		if !p.all {
			list = list[:min(len(list), topPods)]
		}
	}
	for _, k := range list {
		g.Go(func() error {
			k.err = p.readOne(ctx, k)
			k.seen = time.Now()
			return nil
		})
	}
	_ = g.Wait()
}

// readOne reads the record of one task.
func (p *topReader) readOne(ctx context.Context, k *watchedTask) error {
	if !p.sub.Target.Pods() {
		return k.tail.Look(filepath.Join(p.dir, p.sub.ID, k.task.Measured()))
	}
	out, err := p.sub.Read(ctx, &k.task, metrics.MaxTail, build.EntryFile, "entry", "--tail")
	if err != nil {
		return err
	}
	tail, err := metrics.ReadTail(strings.NewReader(string(out)))
	if err == nil {
		k.tail = *tail
	}
	return err
}

// fill builds the rows from the records. A job without any record was not measured.
func (p *topReader) fill(now *topState) error {
	for _, i := range slices.Sorted(maps.Keys(p.tasks)) {
		k := p.tasks[i]
		switch {
		case k.seen.IsZero():
			now.Unseen++
		case errors.Is(k.err, fs.ErrNotExist), k.err == nil && len(k.tail.Samples) == 0:
			now.Silent++
		case k.err != nil:
			now.Silent++
			now.Warnings = append(now.Warnings, fmt.Sprintf("task %d: %v", i, k.err))
		case k.tail.Footer == nil:
			row := k.row(time.Now())
			now.Tasks = append(now.Tasks, row)
			now.Sum.add(&row)
		}
	}
	now.Sum.Limit = max(0, now.Sum.Limit)
	if len(now.Tasks) == 0 && now.Running > 0 && !p.sub.Job.Measure {
		return (&message{err: fmt.Errorf("job %s does not record its resource usage", p.sub.ID)}).hint("submit it with hpcc submit --measure …")
	}
	return nil
}

// A topTask is the current usage of a task. Rates cover the last second, or the time between the
// last two samples.
type topTask struct {
	Task     int                 `json:"task"`
	Step     string              `json:"step,omitempty"`
	Attempt  int                 `json:"attempt,omitempty"`
	Params   map[string]string   `json:"params,omitempty"`
	Host     string              `json:"host,omitempty"`
	Start    time.Time           `json:"start,omitzero"`
	Age      float64             `json:"age_s"`              // age of the last sample, by this machine's clock
	CPUs     float64             `json:"cpus"`               // busy CPUs
	Granted  float64             `json:"cpus_granted"`       // CPUs that the task may use
	Memory   int64               `json:"memory_bytes"`       // of the task's own cgroup without the page cache, or else resident memory
	Peak     int64               `json:"memory_peak_bytes"`  // of the cgroup, or else of the samples
	Limit    int64               `json:"memory_limit_bytes"` // 0 for the machine's memory
	Read     float64             `json:"read_bytes_per_s"`
	Written  float64             `json:"written_bytes_per_s"`
	NetIn    float64             `json:"net_in_bytes_per_s"`
	NetOut   float64             `json:"net_out_bytes_per_s"`
	Threads  int                 `json:"threads"`
	GPUs     []metrics.GPUSample `json:"gpus,omitempty"`
	Stalled  float64             `json:"throttled_cpus"`     // CPUs that the quota holds back
	Pressure *metrics.Pressure   `json:"pressure,omitempty"` // seconds of each second
}

// row returns the usage of a task from its newest samples.
func (k *watchedTask) row(now time.Time) topTask {
	h, list := &k.tail.Header, k.tail.Samples
	last := &list[len(list)-1]
	before := &metrics.Sample{} // the start
	if len(list) > 1 {
		before = &list[0]
	}
	t := topTask{
		Task: k.task.Index, Step: k.task.Step, Attempt: k.task.Attempt, Params: k.task.Params, Host: cmp.Or(k.task.Host, h.Machine.Host), Start: h.Start,
		Granted: h.Limits.CPUs, Limit: h.Limits.Memory, Memory: last.RSS, Threads: last.Threads, GPUs: last.GPUs,
	}
	t.Age = max(0, now.Sub(h.Start).Seconds()-last.At)
	if took := last.At - before.At; took > 0 {
		rate := func(a, b float64) float64 { return min(max(0, b-a)/took, math.MaxInt64) } // samples may be almost simultaneous
		t.CPUs = rate(before.CPU, last.CPU)
		t.Read, t.Written = rate(float64(before.Read), float64(last.Read)), rate(float64(before.Written), float64(last.Written))
		t.NetIn, t.NetOut = rate(float64(before.NetIn), float64(last.NetIn)), rate(float64(before.NetOut), float64(last.NetOut))
		if a, b := before.Pressure, last.Pressure; b != nil {
			if a == nil {
				a = &metrics.Pressure{}
			}
			t.Pressure = &metrics.Pressure{CPU: rate(a.CPU, b.CPU), Memory: rate(a.Memory, b.Memory), IO: rate(a.IO, b.IO), Machine: b.Machine}
		}
		if b := last.Cgroup; b != nil {
			a := before.Cgroup
			if a == nil {
				a = &metrics.CgroupUse{}
			}
			t.Stalled = rate(a.Throttled, b.Throttled)
		}
	}
	peak := last.Peak
	if g := last.Cgroup; g != nil && !h.Limits.Shared && g.Memory > 0 { // the memory controller may be missing
		t.Memory = g.Memory - g.Cache
		if g.Peak > 0 && g.Peak >= 8*g.Cache { // otherwise the peak is mostly page cache
			peak = g.Peak
		}
	}
	k.peak = max(k.peak, peak, t.Memory)
	t.Peak = k.peak
	return t
}

// add adds a task to the sum.
func (s *topTask) add(t *topTask) {
	s.CPUs, s.Granted, s.Stalled = s.CPUs+t.CPUs, s.Granted+t.Granted, s.Stalled+t.Stalled
	if s.Memory, s.Peak = s.Memory+t.Memory, s.Peak+t.Peak; t.Limit == 0 || s.Limit < 0 {
		s.Limit = -1 // a task has no limit
	} else {
		s.Limit += t.Limit
	}
	s.Read, s.Written, s.NetIn, s.NetOut = s.Read+t.Read, s.Written+t.Written, s.NetIn+t.NetIn, s.NetOut+t.NetOut
	s.Threads += t.Threads
	s.GPUs = append(s.GPUs, t.GPUs...)
	s.Age = max(s.Age, t.Age)
}

// gpu returns the mean utilisation of a task's GPUs in percent and their memory in bytes. The
// utilisation is negative if it is unknown for all GPUs, as for parts of GPUs (MIG).
func (t *topTask) gpu() (busy float64, memory int64) {
	known := 0
	for _, g := range t.GPUs {
		if memory += g.Memory; !g.Unknown {
			busy += g.Utilisation
			known++
		}
	}
	if known == 0 {
		return -1, memory
	}
	return busy / float64(known), memory
}

// waits returns the resource that the task waits for most, and the share of the time that it waits.
func (t *topTask) waits() (what string, part float64) {
	if p := t.Pressure; p != nil {
		what, part = "cpu", p.CPU
		if p.Memory > part {
			what, part = "memory", p.Memory
		}
		if p.IO > part {
			what, part = "io", p.IO
		}
	}
	return what, min(part, 1)
}

// topKeys are the values by which tasks are sorted, the largest first.
var topKeys = []struct {
	name  string
	value func(*topTask) float64
}{
	{"cpu", func(t *topTask) float64 { return t.CPUs }},
	{"mem", func(t *topTask) float64 { return float64(t.Memory) }},
	{"peak", func(t *topTask) float64 { return float64(t.Peak) }},
	{"read", func(t *topTask) float64 { return t.Read }},
	{"write", func(t *topTask) float64 { return t.Written }},
	{"threads", func(t *topTask) float64 { return float64(t.Threads) }},
	{"gpu", func(t *topTask) float64 { busy, _ := t.gpu(); return busy }},
	{"gpu-mem", func(t *topTask) float64 { _, m := t.gpu(); return float64(m) }},
	{"throttled", func(t *topTask) float64 { return t.Stalled }},
	{"pressure", func(t *topTask) float64 { _, part := t.waits(); return part }},
	{"time", func(t *topTask) float64 { return -float64(t.Start.Unix()) }},
	{"task", func(t *topTask) float64 { return -float64(t.Task) }},
}

func topColumns() []string {
	var out []string
	for _, k := range topKeys {
		out = append(out, k.name)
	}
	return out
}

// sortTop sorts tasks by a column, and equal ones by their index.
func sortTop(list []topTask, by string) {
	value := topKeys[max(0, slices.Index(topColumns(), by))].value
	slices.SortFunc(list, func(a, b topTask) int { return cmp.Or(cmp.Compare(value(&b), value(&a)), a.Task-b.Task) })
}

// topStale is the age of a sample from which the table shows the age. Samples are taken every few
// seconds.
const topStale = time.Minute

// topText formats the usage of all tasks and the table of tasks, for a terminal of this size.
// With 0 columns, lines may have any length.
func topText(now *topState, rows, columns int) string {
	var b strings.Builder
	name := now.ID
	if now.Site != "" {
		name += " at " + now.Site
	}
	rowf(&b, "%s  %s  %s: %d of %d done, %d failed, %d running, %d waiting\n", name, now.Target, now.State, now.Done, now.Total, now.Failed, now.Running, now.Waiting)
	if now.Silent > 0 {
		fmt.Fprintf(&b, "%s no record yet\n", counted(now.Silent, "running task has", "running tasks have"))
	}
	if now.Unseen > 0 {
		fmt.Fprintf(&b, "%s not read yet\n", counted(now.Unseen, "record of a running task was", "records of running tasks were"))
	}
	if len(now.Tasks) == 0 {
		return b.String()
	}
	b.WriteString(topSum(now))
	shown := now.Tasks[:min(len(now.Tasks), max(1, rows))]
	b.WriteString(topTable(shown, len(now.Sum.GPUs) > 0, columns))
	more := len(now.Tasks) - max(1, rows)
	return b.String() + textIf(more > 0, strings.Repeat("\n", max(0, more)))
}

// A topColumn is a column of the table of tasks. If the terminal is too narrow, columns are
// left out by rank, the highest first; those of rank 0 stay.
type topColumn struct {
	title string
	rank  int
	cell  func(*topTask) string
}

var topTableColumns = []topColumn{
	{"TASK", 0, func(t *topTask) string { return strings.TrimSpace(fmt.Sprint(t.Task) + " " + t.Step) }},
	{"HOST", 3, func(t *topTask) string { return t.Host }},
	{"TIME", 4, func(t *topTask) string { return elapsed(time.Since(t.Start)) }},
	{"CPU", 0, func(t *topTask) string { return fmt.Sprintf("%.2f/%s", t.CPUs, number(t.Granted)) }},
	{"MEM", 0, func(t *topTask) string { return size(t.Memory) }},
	{"PEAK", 8, func(t *topTask) string { return size(t.Peak) }},
	{"LIMIT", 1, func(t *topTask) string { return textIf(t.Limit > 0, size(t.Limit)) }},
	{"READ/S", 6, func(t *topTask) string { return size(int64(t.Read)) }},
	{"WRITE/S", 7, func(t *topTask) string { return size(int64(t.Written)) }},
	{"THREADS", 9, func(t *topTask) string { return fmt.Sprint(t.Threads) }},
	{"GPU", 2, func(t *topTask) string { busy, _ := t.gpu(); return textIf(len(t.GPUs) > 0, percent(busy, 100)) }},
	{"GPUMEM", 5, func(t *topTask) string { _, memory := t.gpu(); return textIf(len(t.GPUs) > 0, size(memory)) }},
	{"THROTTLED", 0, func(t *topTask) string { return textIf(t.Stalled >= 0.005, fmt.Sprintf("%.2f", t.Stalled)) }},
	{"WAITS", 0, (*topTask).diagnosis},
}

// topTable formats tasks in lines of at most columns characters; 0 means any length.
func topTable(list []topTask, gpus bool, columns int) string {
	use := slices.Clone(topTableColumns)
	if !gpus {
		use = slices.DeleteFunc(use, func(c topColumn) bool { return strings.HasPrefix(c.title, "GPU") })
	}
	const gap = 2
	widths, total := map[string]int{}, -gap
	for _, c := range use {
		widths[c.title] = len(c.title)
		for i := range list {
			widths[c.title] = max(widths[c.title], width(cleaned(c.cell(&list[i]))))
		}
		total += widths[c.title] + gap
	}
	for columns > 0 && total > columns {
		last := slices.MaxFunc(use, func(a, b topColumn) int { return cmp.Compare(a.rank, b.rank) })
		if last.rank == 0 {
			break
		}
		use = slices.DeleteFunc(use, func(c topColumn) bool { return c.title == last.title })
		total -= widths[last.title] + gap
	}
	var b strings.Builder
	line := func(cell func(topColumn) string) {
		text := ""
		for _, c := range use {
			s := cleaned(cell(c))
			text += s + strings.Repeat(" ", widths[c.title]-width(s)+gap)
		}
		b.WriteString(strings.TrimRight(text, " ") + "\n")
	}
	line(func(c topColumn) string { return c.title })
	for i := range list {
		line(func(c topColumn) string { return c.cell(&list[i]) })
	}
	return b.String()
}

// topWarnings formats the first few warnings.
func topWarnings(warnings []string) string {
	var b strings.Builder
	for _, w := range warnings[:min(len(warnings), 3)] {
		fmt.Fprintf(&b, "hpcc: warning: %s\n", oneLine(w))
	}
	return b.String()
}

// topSum formats the usage of all tasks in one line.
func topSum(now *topState) string {
	s := &now.Sum
	text := fmt.Sprintf("CPU %.1f of %s (%s)  memory %s%s", s.CPUs, number(s.Granted), percent(s.CPUs, s.Granted), size(s.Memory), textIf(s.Limit > 0, " of "+size(s.Limit)))
	if n := len(s.GPUs); n > 0 {
		busy, memory := s.gpu()
		text += fmt.Sprintf("  GPU %s of %d, %s", percent(busy, 100), n, size(memory))
	}
	return text + fmt.Sprintf("  read %s/s  write %s/s\n", size(int64(s.Read)), size(int64(s.Written)))
}

// diagnosis returns the resource that the task waits for most, and the age of an old sample.
func (t *topTask) diagnosis() string {
	text := ""
	if what, part := t.waits(); part >= 0.005 {
		text = fmt.Sprintf("%s %.0f%%", what, 100*part)
	}
	if d := time.Duration(t.Age * float64(time.Second)); d > topStale {
		text += "  as of " + elapsed(d) + " ago"
	}
	return text
}

// number formats a number of processors.
func number(n float64) string { return fmt.Sprintf("%.4g", n) }

// percent formats part as a percentage of total. It returns a dash if part is negative or total is
// not positive.
func percent(part, total float64) string {
	if total <= 0 || part < 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f%%", 100*part/total)
}

// textIf returns text if the condition holds, or else "".
func textIf(condition bool, text string) string {
	if condition {
		return text
	}
	return ""
}
