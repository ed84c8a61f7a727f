package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/metrics/report"
	"hpcc/store"
)

// A clusterReport is how much of one cluster was given out.
type clusterReport struct {
	Type   string     `json:"type"` // "utilisation"
	Target job.Target `json:"target"`
	Site   string     `json:"site,omitempty"`
	*capacity.Utilisation
}

// name is what people call the cluster.
func (r *clusterReport) name() string { return cmp.Or(r.Site, string(r.Target)) }

// A jobWaste is what one of the user's jobs held and did not use.
type jobWaste struct {
	Type string `json:"type"` // "waste"
	Site string `json:"site,omitempty"`
	*capacity.Use
	capacity.Waste
	GPU gpuWaste `json:"gpu,omitzero"`
}

// gpuWaste is in GPU-hours. Unmeasured GPUs are unknown.
type gpuWaste struct {
	Measured float64 `json:"hours_measured"`
	Idle     float64 `json:"hours_idle"`  // of those measured
	Busy     float64 `json:"utilisation"` // mean of those measured, in percent
}

// A capacityReport is the content of "hpcc nodes --report".
type capacityReport struct {
	From, To time.Time
	Clusters []*clusterReport
	Jobs     []*jobWaste
}

// printReport is "hpcc nodes --report".
func (a *nodesArgs) printReport(ctx context.Context) error {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return err
	}
	r := &capacityReport{To: time.Now().Truncate(time.Second)}
	r.From = r.To.Add(-a.since)
	here, remote, err := a.clusters(ctx)
	if err != nil {
		return err
	}
	if err := r.clusters(ctx, s.Jobs(), here, remote); err != nil {
		return err
	}
	if len(here) > 0 {
		warnings, err := r.jobs(ctx, s.Jobs(), a.at.to)
		if err != nil {
			return err
		}
		warn(warnings)
	}
	slices.SortStableFunc(r.Jobs, func(a, b *jobWaste) int {
		return cmp.Or(-cmp.Compare(a.WastedCPU, b.WastedCPU), -cmp.Compare(a.WastedMemory, b.WastedMemory))
	})
	return r.print(a.html, a.json)
}

// print prints the report, and writes its page to the file html; - is standard output.
func (r *capacityReport) print(html string, asJSON bool) error {
	page := func(f *os.File) error { return r.sections(true).HTML(f, "Allocated and idle") }
	if html == "-" {
		return page(os.Stdout)
	}
	if err := writePage(html, page); err != nil {
		return err
	}
	defer notePage(html)
	if asJSON {
		if err := printObjects(r.Clusters); err != nil {
			return err
		}
		return printObjects(r.Jobs)
	}
	return r.sections(false).Text(os.Stdout)
}

// clusters asks clusters and sites, and adds their answers to the report.
func (r *capacityReport) clusters(ctx context.Context, dir string, here []dispatch.Cluster, remote []*dispatch.Site) error {
	answers, err := askAll(here, remote, func(to dispatch.Cluster) (x capacityReport, err error) {
		u, err := dispatch.Utilise(ctx, dir, to, r.From)
		x.Clusters = []*clusterReport{{"utilisation", to.Target, to.Site, u}}
		return x, err
	}, func(t *dispatch.Site) (x capacityReport, err error) {
		out, err := t.Ask(ctx, onTerminal(), greetTime, "nodes", "--report", "--here", "--json", "--since="+r.To.Sub(r.From).String())
		if err != nil {
			return x, siteHint(err, t)
		}
		return x, eachObject(t, out, func(line []byte) error { return x.take(line, t.Name) })
	})
	for _, x := range answers {
		r.Clusters, r.Jobs = append(r.Clusters, x.Clusters...), append(r.Jobs, x.Jobs...)
	}
	return err
}

// take adds one object that hpcc of a site printed.
func (r *capacityReport) take(line []byte, site string) error {
	var of struct{ Type string }
	if err := json.Unmarshal(line, &of); err != nil {
		return err
	}
	c, w := &clusterReport{Utilisation: &capacity.Utilisation{}}, &jobWaste{Use: &capacity.Use{}}
	switch of.Type {
	case "utilisation":
		r.Clusters = append(r.Clusters, c)
		err := json.Unmarshal(line, c)
		c.Site = site
		return err
	case "waste":
		r.Jobs = append(r.Jobs, w)
		err := json.Unmarshal(line, w)
		w.Site = site
		return err
	}
	return fmt.Errorf("%q is not a section of the report", of.Type)
}

// jobs adds the user's own jobs that ended in the report's time span, or still run. A target
// limits it to the jobs of that target.
func (r *capacityReport) jobs(ctx context.Context, dir string, to job.Target) (warnings []string, err error) {
	uses, warnings, err := dispatch.Uses(ctx, dir, nil)
	if err != nil {
		return nil, err
	}
	for _, u := range uses {
		if (!u.Ended.IsZero() && u.Ended.Before(r.From)) || (to != "" && u.Target != to) {
			continue
		}
		w := &jobWaste{Type: "waste", Use: u, Waste: u.Waste()}
		if u.GPUs > 0 {
			w.GPU = gpusOf(filepath.Join(dir, u.ID))
		}
		r.Jobs = append(r.Jobs, w)
	}
	return warnings, nil
}

// gpusOf adds up what the records of a job's tasks say of their GPUs, of the last attempts, which are what the
// job held them for. A record that cannot be read says nothing.
func gpusOf(dir string) gpuWaste {
	files, _ := filepath.Glob(filepath.Join(dir, "task.*.jsonl"))
	var sum metrics.GPUTime
	for _, f := range files {
		if _, attempt, ok := job.TaskOf(strings.TrimSuffix(filepath.Base(f), recordEnd)); !ok || attempt >= 0 {
			continue
		}
		rec, err := metrics.ReadRecord(f, true)
		if err != nil {
			continue
		}
		g := rec.GPUTime()
		sum.Measured, sum.Busy, sum.Idle = sum.Measured+g.Measured, sum.Busy+g.Busy, sum.Idle+g.Idle
	}
	w := gpuWaste{Measured: sum.Measured / 3600, Idle: sum.Idle / 3600}
	if sum.Measured > 0 {
		w.Busy = 100 * sum.Busy / sum.Measured
	}
	return w
}

// sections are the report for people: on a page with charts in the place of bars.
func (r *capacityReport) sections(page bool) report.Sections {
	var list report.Sections
	for _, c := range r.Clusters {
		list = append(list, c.section(page))
	}
	list = append(list, r.gpusSection(), r.wasteSection())
	for _, c := range r.Clusters {
		list = append(list, c.freeSection(r.To))
	}
	return slices.DeleteFunc(list, func(s report.Section) bool { return s.Table == nil })
}

// section shows one cluster: a line for each thing that it gives out.
func (r *clusterReport) section(page bool) report.Section {
	s := report.Section{Title: r.name() + ": what was given out", Text: r.remarks()}
	s.Table = &report.Table{Head: []string{"of", "there is", "mean", "peak", "now"},
		Caption: fmt.Sprintf("%s to %s; means and peaks are of steps of %s", r.From.Local().Format("2006-01-02 15:04"), r.To.Local().Format("2006-01-02 15:04"), spanWord(r.Step))}
	picture := report.Capacity{Name: r.name(), To: r.To}
	for _, l := range r.Levels {
		picture.Steps = append(picture.Steps, l.From)
	}
	if !page {
		s.Table.Head = append(s.Table.Head, "over time")
	}
	for _, row := range r.rows() {
		if row.of <= 0 {
			continue
		}
		cells := []string{row.name, row.text, row.part(row.mean), row.part(row.peak), percent(row.now, row.of)}
		if !page {
			cells = append(cells, row.bars())
		}
		s.Table.Rows = append(s.Table.Rows, cells)
		if row.told {
			picture.Lines = append(picture.Lines, report.CapacityLine{Name: row.name, Parts: row.parts()})
		}
	}
	if len(picture.Steps) > 0 && len(picture.Lines) > 0 {
		s.Charts = []report.Chart{picture.Chart()}
	}
	return s
}

// spanWord formats a step: 3h, 15m, 10s.
func spanWord(d time.Duration) string {
	for _, u := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= u.size && d%u.size == 0 {
			return fmt.Sprintf("%d%s", d/u.size, u.name)
		}
	}
	return d.String()
}

// A row is one kind of thing that a cluster gives out.
type capacityRow struct {
	name                string
	of, mean, peak, now float64
	told                bool   // what jobs have of it is told
	text                string // how much there is
	levels              []float64
}

// rows are processors, memory and GPUs.
func (r *clusterReport) rows() []capacityRow {
	row := func(name, text string, of func(capacity.Amounts) float64) capacityRow {
		c := capacityRow{name: name, of: of(r.Capacity), mean: of(r.Mean), peak: of(r.Peak), now: of(r.Now), text: text}
		for _, l := range r.Levels {
			c.levels = append(c.levels, of(l.Amounts))
		}
		c.told = !slices.Contains(r.Untold, name) && (c.peak > 0 || r.Jobs == 0 || (name == "GPUs" && c.now == 0))
		return c
	}
	return []capacityRow{
		row("processors", fmt.Sprintf("%.0f", r.Capacity.CPUs), func(a capacity.Amounts) float64 { return a.CPUs }),
		row("memory", gigabytes(int64(r.Capacity.Memory)), func(a capacity.Amounts) float64 { return a.Memory }),
		row("GPUs", fmt.Sprintf("%.0f", r.Capacity.GPUs), func(a capacity.Amounts) float64 { return a.GPUs }),
	}
}

// part formats an amount of the row in percent. An unknown amount is not zero.
func (c *capacityRow) part(x float64) string {
	if !c.told {
		return "not told"
	}
	return percent(x, c.of)
}

// parts returns the levels as fractions of the capacity.
func (c *capacityRow) parts() (list []float64) {
	for _, l := range c.levels {
		list = append(list, l/c.of)
	}
	return list
}

// bars draws the levels.
func (c *capacityRow) bars() string {
	if !c.told {
		return ""
	}
	const marks = "▁▂▃▄▅▆▇█"
	var b strings.Builder
	for _, l := range c.levels {
		if l <= 0 {
			b.WriteByte('.')
			continue
		}
		k := int(min(8*l/c.of, 7)) // a wild level is not a whole number
		b.WriteString(string([]rune(marks)[k]))
	}
	return b.String()
}

// remarks say what the figures are of, and what they leave out.
func (r *clusterReport) remarks() []string {
	var out []string
	if r.Own {
		out = append(out, fmt.Sprintf("these are %s that you submitted with hpcc: %s", counted(r.Jobs, "task", "tasks"), r.Why))
	} else {
		out = append(out, fmt.Sprintf("%s of %s, says %s", counted(r.Jobs, "job", "jobs"), counted(r.Users, "user", "users"), r.By))
	}
	if h := r.Hidden(); h != "" {
		out = append(out, h)
	}
	if r.Off > 0 {
		out = append(out, fmt.Sprintf("%d of %s no jobs now; what they have counts", r.Off, counted(r.Nodes, "node takes", "nodes take")))
	}
	for _, n := range r.Notes {
		out = append(out, "note: "+oneLine(n))
	}
	return out
}

// maxJobRows is how many jobs or kinds of nodes a table has.
const maxJobRows = 20

// more says how many rows a table left out.
func more(n int) string {
	if n <= maxJobRows {
		return ""
	}
	return fmt.Sprintf("and %d more; --json has all", n-maxJobRows)
}

// gpusSection lists the jobs that held GPUs: first those with the longest idle GPUs, last those
// with unmeasured GPUs.
func (r *capacityReport) gpusSection() report.Section {
	list := slices.DeleteFunc(slices.Clone(r.Jobs), func(w *jobWaste) bool { return w.GPUs == 0 })
	if len(list) == 0 {
		return report.Section{}
	}
	slices.SortStableFunc(list, func(a, b *jobWaste) int {
		return cmp.Or(-cmp.Compare(a.GPU.Idle, b.GPU.Idle), -cmp.Compare(a.GPU.Measured, b.GPU.Measured), -cmp.Compare(a.AskedGPU, b.AskedGPU))
	})
	s := report.Section{Title: "GPUs that your jobs held", Text: []string{fmt.Sprintf("in GPU-hours; idle is below %d%% of use, and known only where a job ran with --measure", metrics.IdleGPU)}}
	s.Table = &report.Table{Head: []string{"job", "state", "held", "measured", "idle", "busy"}, Caption: more(len(list))}
	for _, j := range list[:min(len(list), maxJobRows)] {
		idle, busy := "unknown", "unknown"
		if j.GPU.Measured > 0 {
			idle, busy = hours(j.GPU.Idle), fmt.Sprintf("%.0f%%", j.GPU.Busy)
		}
		s.Table.Rows = append(s.Table.Rows, []string{j.ID, j.State, hours(j.AskedGPU), hours(j.GPU.Measured), idle, busy})
	}
	return s
}

// wasteSection lists the jobs that kept most from others.
func (r *capacityReport) wasteSection() report.Section {
	if len(r.Jobs) == 0 {
		return report.Section{}
	}
	s := report.Section{Title: "What your jobs were allocated and did not use", Text: []string{"worst first; of memory at least so much, as if the most that was used had been used all the time"}}
	s.Table = &report.Table{Head: []string{"job", "target", "state", "tasks", "CPU-hours", "unused", "GiB-hours", "unused"}, Caption: more(len(r.Jobs))}
	for _, j := range r.Jobs[:min(len(r.Jobs), maxJobRows)] {
		idle := hours(j.WastedCPU)
		if j.CPUUnknown {
			idle = "unknown"
		}
		asked, wasted := "", ""
		if j.AskedMemory > 0 {
			asked, wasted = hours(j.AskedMemory), "unknown"
		}
		if j.MemoryKnown {
			wasted = hours(j.WastedMemory)
		}
		s.Table.Rows = append(s.Table.Rows, []string{j.ID, cmp.Or(j.Site, string(j.Target)), j.State, strconv.Itoa(j.Tasks), hours(j.AskedCPU), idle, asked, wasted})
	}
	return s
}

// hours formats a number of hours.
func hours(x float64) string {
	if x < 0.1 {
		return fmt.Sprintf("%.3f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

// freeSection lists the free windows, which a small enough job fills.
func (r *clusterReport) freeSection(now time.Time) report.Section {
	if r.Target.Pods() || r.Target == job.Local || len(r.Windows) == 0 {
		return report.Section{}
	}
	s := report.Section{Title: r.name() + ": what starts now", Text: []string{"flags of \"hpcc submit\" that a job on one of these nodes may have at most; what it asks for, it has until then"}}
	s.Table = &report.Table{Head: []string{"nodes", "queues", "at most", "taken again"}, Caption: more(len(r.Windows))}
	for _, h := range r.Windows[:min(len(r.Windows), maxJobRows)] {
		until := ""
		if !h.Until.IsZero() {
			until = moment(h.Until, now) + ", " + h.For
		}
		s.Table.Rows = append(s.Table.Rows, []string{names(h.Nodes), strings.Join(h.Queues, ","), h.Flags(now), until})
	}
	return s
}
