package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"hpcc/build"
	"hpcc/job/dispatch"
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
	if !slices.Contains(topColumns(), c.String("sort")) {
		return nil, text.Usagef("--sort %q: unknown column", c.String("sort")).Hint("use one of %s", strings.Join(topColumns(), ", "))
	}
	every := c.Float64("every")
	if !(every >= minWatchInterval.Seconds() && every <= 86400) {
		return nil, text.Usagef("--every %g: not a number of seconds from %g to 86400", every, minWatchInterval.Seconds())
	}
	once := c.Bool("once") || c.Bool("json") || !term.IsTerminal(int(os.Stdout.Fd()))
	return &topArgs{id: args[0], in: parseJobScope(c), store: c.String("store"), sort: c.String("sort"), every: time.Duration(every * float64(time.Second)), once: once, json: c.Bool("json")}, nil
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
	refresh := func() (*dispatch.Usage, error) { return remoteTop(ctx, f.Site, f.ID) }
	if f.Site == nil {
		local := &dispatch.UsageReader{Dir: s.Jobs(), ID: f.ID, All: a.once, Tail: []string{build.EntryFile, "entry", "--tail"}}
		refresh = func() (*dispatch.Usage, error) { return local.Refresh(ctx) }
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
				columns, _ = terminal.Size()
			}
			_, err := os.Stdout.WriteString(topText(now, len(now.Tasks), columns))
			return err
		}
		columns, rows := terminal.Size()
		if drawn, err = terminal.Repaint(drawn, topWarnings(now.Warnings)+topText(now, rows, columns-1)); err != nil || now.Running+now.Waiting == 0 {
			return err
		}
		if err := pause(ctx, a.every); err != nil {
			return err
		}
	}
}

// remoteTop asks hpcc at the site of the job.
func remoteTop(ctx context.Context, site *dispatch.Site, id string) (*dispatch.Usage, error) {
	out, err := hpccAt(site).Ask(ctx, "top", "--json", id)
	if err != nil {
		return nil, err
	}
	now := &dispatch.Usage{}
	if err := json.Unmarshal(out, now); err != nil || now.Type != "top" {
		return nil, fmt.Errorf("site %s: its hpcc answered %q, which is not the state of a job", site.Name, out[:min(len(out), 100)])
	}
	now.Site = site.Name
	return now, nil
}

// topKeys are the values by which tasks are sorted, the largest first.
var topKeys = []struct {
	name  string
	value func(*dispatch.TaskUsage) float64
}{
	{"cpu", func(t *dispatch.TaskUsage) float64 { return t.CPUs }},
	{"mem", func(t *dispatch.TaskUsage) float64 { return float64(t.Memory) }},
	{"peak", func(t *dispatch.TaskUsage) float64 { return float64(t.Peak) }},
	{"read", func(t *dispatch.TaskUsage) float64 { return t.Read }},
	{"write", func(t *dispatch.TaskUsage) float64 { return t.Written }},
	{"threads", func(t *dispatch.TaskUsage) float64 { return float64(t.Threads) }},
	{"gpu", func(t *dispatch.TaskUsage) float64 { busy, _ := t.GPU(); return busy }},
	{"gpu-mem", func(t *dispatch.TaskUsage) float64 { _, m := t.GPU(); return float64(m) }},
	{"throttled", func(t *dispatch.TaskUsage) float64 { return t.Stalled }},
	{"pressure", func(t *dispatch.TaskUsage) float64 { _, part := t.Waits(); return part }},
	{"time", func(t *dispatch.TaskUsage) float64 { return -float64(t.Start.Unix()) }},
	{"task", func(t *dispatch.TaskUsage) float64 { return -float64(t.Task) }},
}

func topColumns() []string {
	var out []string
	for _, k := range topKeys {
		out = append(out, k.name)
	}
	return out
}

// sortTop sorts tasks by a column, and equal ones by their index.
func sortTop(list []dispatch.TaskUsage, by string) {
	value := topKeys[max(0, slices.Index(topColumns(), by))].value
	slices.SortFunc(list, func(a, b dispatch.TaskUsage) int { return cmp.Or(cmp.Compare(value(&b), value(&a)), a.Task-b.Task) })
}

// topStale is the age of a sample from which the table shows the age. Samples are taken every few
// seconds.
const topStale = time.Minute

// topText formats the usage of all tasks and the table of tasks, for a terminal of this size.
// With 0 columns, lines may have any length.
func topText(now *dispatch.Usage, rows, columns int) string {
	var b strings.Builder
	name := now.ID
	if now.Site != "" {
		name += " at " + now.Site
	}
	terminal.Rowf(&b, "%s  %s  %s: %d of %d done, %d failed, %d running, %d waiting\n", name, now.Target, now.State, now.Done, now.Total, now.Failed, now.Running, now.Waiting)
	if now.Silent > 0 {
		fmt.Fprintf(&b, "%s no record yet\n", text.Count(now.Silent, "running task has", "running tasks have"))
	}
	if now.Unseen > 0 {
		fmt.Fprintf(&b, "%s not read yet\n", text.Count(now.Unseen, "record of a running task was", "records of running tasks were"))
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
	cell  func(*dispatch.TaskUsage) string
}

var topTableColumns = []topColumn{
	{"TASK", 0, func(t *dispatch.TaskUsage) string { return strings.TrimSpace(fmt.Sprint(t.Task) + " " + t.Step) }},
	{"HOST", 3, func(t *dispatch.TaskUsage) string { return t.Host }},
	{"TIME", 4, func(t *dispatch.TaskUsage) string { return text.Elapsed(time.Since(t.Start)) }},
	{"CPU", 0, func(t *dispatch.TaskUsage) string { return fmt.Sprintf("%.2f/%s", t.CPUs, number(t.Granted)) }},
	{"MEM", 0, func(t *dispatch.TaskUsage) string { return text.Size(t.Memory) }},
	{"PEAK", 8, func(t *dispatch.TaskUsage) string { return text.Size(t.Peak) }},
	{"LIMIT", 1, func(t *dispatch.TaskUsage) string { return textIf(t.Limit > 0, text.Size(t.Limit)) }},
	{"READ/S", 6, func(t *dispatch.TaskUsage) string { return text.Size(int64(t.Read)) }},
	{"WRITE/S", 7, func(t *dispatch.TaskUsage) string { return text.Size(int64(t.Written)) }},
	{"THREADS", 9, func(t *dispatch.TaskUsage) string { return fmt.Sprint(t.Threads) }},
	{"GPU", 2, func(t *dispatch.TaskUsage) string {
		busy, _ := t.GPU()
		return textIf(len(t.GPUs) > 0, text.Percent(busy, 100))
	}},
	{"GPUMEM", 5, func(t *dispatch.TaskUsage) string {
		_, memory := t.GPU()
		return textIf(len(t.GPUs) > 0, text.Size(memory))
	}},
	{"THROTTLED", 0, func(t *dispatch.TaskUsage) string { return textIf(t.Stalled >= 0.005, fmt.Sprintf("%.2f", t.Stalled)) }},
	{"WAITS", 0, diagnosis},
}

// topTable formats tasks in lines of at most columns characters; 0 means any length.
func topTable(list []dispatch.TaskUsage, gpus bool, columns int) string {
	use := slices.Clone(topTableColumns)
	if !gpus {
		use = slices.DeleteFunc(use, func(c topColumn) bool { return strings.HasPrefix(c.title, "GPU") })
	}
	const gap = 2
	widths, total := map[string]int{}, -gap
	for _, c := range use {
		widths[c.title] = len(c.title)
		for i := range list {
			widths[c.title] = max(widths[c.title], terminal.Width(terminal.Clean(c.cell(&list[i]))))
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
			s := terminal.Clean(cell(c))
			text += s + strings.Repeat(" ", widths[c.title]-terminal.Width(s)+gap)
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
		fmt.Fprintf(&b, "hpcc: warning: %s\n", terminal.ShortCell(w))
	}
	return b.String()
}

// topSum formats the usage of all tasks in one line.
func topSum(now *dispatch.Usage) string {
	s := &now.Sum
	line := fmt.Sprintf("CPU %.1f of %s (%s)  memory %s%s", s.CPUs, number(s.Granted), text.Percent(s.CPUs, s.Granted), text.Size(s.Memory), textIf(s.Limit > 0, " of "+text.Size(s.Limit)))
	if n := len(s.GPUs); n > 0 {
		busy, memory := s.GPU()
		line += fmt.Sprintf("  GPU %s of %d, %s", text.Percent(busy, 100), n, text.Size(memory))
	}
	return line + fmt.Sprintf("  read %s/s  write %s/s\n", text.Size(int64(s.Read)), text.Size(int64(s.Written)))
}

// diagnosis returns the resource that the task waits for most, and the age of an old sample.
func diagnosis(t *dispatch.TaskUsage) string {
	line := ""
	if what, part := t.Waits(); part >= 0.005 {
		line = fmt.Sprintf("%s %.0f%%", what, 100*part)
	}
	if d := time.Duration(t.Age * float64(time.Second)); d > topStale {
		line += "  as of " + text.Elapsed(d) + " ago"
	}
	return line
}

// number formats a number of processors.
func number(n float64) string { return fmt.Sprintf("%.4g", n) }

// textIf returns text if the condition holds, or else "".
func textIf(condition bool, text string) string {
	if condition {
		return text
	}
	return ""
}
