package display

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/metrics"
	"hpcc/metrics/report"
	"hpcc/text"
	"hpcc/text/terminal"
)

// A ClusterReport reports how much of one cluster was allocated.
type ClusterReport struct {
	Type   string     `json:"type"` // "utilisation"
	Target job.Target `json:"target"`
	Site   string     `json:"site,omitempty"`
	*capacity.Utilisation
}

// name returns the name of the site, or else of the scheduler.
func (r *ClusterReport) name() string { return cmp.Or(r.Site, string(r.Target)) }

// A JobWaste reports resources that one of the user's jobs held and did not use.
type JobWaste struct {
	Type string `json:"type"` // "waste"
	Site string `json:"site,omitempty"`
	*capacity.Use
	capacity.Waste
	GPU GPUWaste `json:"gpu,omitzero"`
}

// GPUWaste is in GPU-hours. It excludes unmeasured GPUs, whose use is unknown.
type GPUWaste struct {
	Measured float64 `json:"hours_measured"`
	Idle     float64 `json:"hours_idle"`  // of those measured
	Busy     float64 `json:"utilisation"` // mean of those measured, in percent
}

// A CapacityReport is the content of "hpcc nodes --report".
type CapacityReport struct {
	From, To time.Time
	Clusters []*ClusterReport
	Jobs     []*JobWaste
}

// GPUsOf sums up the GPU use in the records of a job's tasks. It counts last attempts only, and
// skips unreadable records.
func GPUsOf(dir string) GPUWaste {
	files, _ := filepath.Glob(filepath.Join(dir, "task.*.jsonl"))
	var sum metrics.GPUTime
	for _, f := range files {
		if _, attempt, ok := job.TaskOf(strings.TrimSuffix(filepath.Base(f), ".jsonl")); !ok || attempt >= 0 {
			continue
		}
		rec, err := metrics.ReadRecord(f, true)
		if err != nil {
			continue
		}
		g := rec.GPUTime()
		sum.Measured, sum.Busy, sum.Idle = sum.Measured+g.Measured, sum.Busy+g.Busy, sum.Idle+g.Idle
	}
	w := GPUWaste{Measured: sum.Measured / 3600, Idle: sum.Idle / 3600}
	if sum.Measured > 0 {
		w.Busy = 100 * sum.Busy / sum.Measured
	}
	return w
}

// Sections returns the report for people. A page has charts in place of bars.
func (r *CapacityReport) Sections(page bool) report.Sections {
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

// section returns the section of one cluster, with a row for each resource.
func (r *ClusterReport) section(page bool) report.Section {
	s := report.Section{Title: r.name() + ": allocated resources", Text: r.remarks()}
	s.Table = &report.Table{Head: []string{"resource", "total", "mean", "peak", "now"},
		Caption: fmt.Sprintf("%s to %s; means and peaks of intervals of %s", r.From.Local().Format("2006-01-02 15:04"),
			r.To.Local().Format("2006-01-02 15:04"), formatInterval(r.Step))}
	picture := report.Capacity{Name: r.name(), To: r.To}
	for _, l := range r.Levels {
		picture.Steps = append(picture.Steps, l.From)
	}
	if !page {
		s.Table.Head = append(s.Table.Head, "over time")
	}
	for _, row := range r.rows() {
		if row.total <= 0 {
			continue
		}
		cells := []string{row.name, row.text, row.part(row.mean), row.part(row.peak), text.Percent(row.now, row.total)}
		if !page {
			cells = append(cells, row.bars())
		}
		s.Table.Rows = append(s.Table.Rows, cells)
		if row.known {
			picture.Lines = append(picture.Lines, report.CapacityLine{Name: row.name, Parts: row.parts()})
		}
	}
	if len(picture.Steps) > 0 && len(picture.Lines) > 0 {
		s.Charts = []report.Chart{picture.Chart()}
	}
	return s
}

// formatInterval formats an interval: 3h, 15m, 10s.
func formatInterval(d time.Duration) string {
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

// A capacityRow is one resource of a cluster.
type capacityRow struct {
	name                   string
	total, mean, peak, now float64
	known                  bool      // the scheduler reports how much of it is allocated
	text                   string    // the total, formatted
	levels                 []float64 // the allocated amounts over time
}

// rows returns the processors, memory and GPUs of a cluster.
func (r *ClusterReport) rows() []capacityRow {
	row := func(name, text string, amount func(capacity.Amounts) float64) capacityRow {
		c := capacityRow{name: name, total: amount(r.Capacity), mean: amount(r.Mean), peak: amount(r.Peak), now: amount(r.Now), text: text}
		for _, l := range r.Levels {
			c.levels = append(c.levels, amount(l.Amounts))
		}
		c.known = !slices.Contains(r.Unknown, name) && (c.peak > 0 || r.Jobs == 0 || (name == "GPUs" && c.now == 0))
		return c
	}
	return []capacityRow{
		row("processors", fmt.Sprintf("%.0f", r.Capacity.CPUs), func(a capacity.Amounts) float64 { return a.CPUs }),
		row("memory", gigabytes(int64(r.Capacity.Memory)), func(a capacity.Amounts) float64 { return a.Memory }),
		row("GPUs", fmt.Sprintf("%.0f", r.Capacity.GPUs), func(a capacity.Amounts) float64 { return a.GPUs }),
	}
}

// part formats an amount of the resource in percent, or as unknown.
func (c *capacityRow) part(x float64) string {
	if !c.known {
		return "unknown"
	}
	return text.Percent(x, c.total)
}

// parts returns the levels as fractions of the capacity.
func (c *capacityRow) parts() (list []float64) {
	for _, l := range c.levels {
		list = append(list, l/c.total)
	}
	return list
}

// bars draws the levels over time, one character for each.
func (c *capacityRow) bars() string {
	if !c.known {
		return ""
	}
	const marks = "▁▂▃▄▅▆▇█"
	var b strings.Builder
	for _, l := range c.levels {
		if l <= 0 {
			b.WriteByte('.')
			continue
		}
		k := int(min(8*l/c.total, 7)) // limit the float, because a huge one does not convert to int
		b.WriteString(string([]rune(marks)[k]))
	}
	return b.String()
}

// remarks returns notes about the source of the figures and about resources that they leave out.
func (r *ClusterReport) remarks() []string {
	var out []string
	if r.Own {
		out = append(out, fmt.Sprintf("only %s that you submitted with hpcc: %s", text.Count(r.Jobs, "task", "tasks"), r.Why))
	} else {
		out = append(out, fmt.Sprintf("%s of %s; source: %s", text.Count(r.Jobs, "job", "jobs"),
			text.Count(r.Users, "user", "users"), r.By))
	}
	if h := r.Hidden(); h != "" {
		out = append(out, h)
	}
	if r.Off > 0 {
		out = append(out, fmt.Sprintf("%d of %s unavailable now; the totals include them", r.Off,
			text.Count(r.Nodes, "node is", "nodes are")))
	}
	for _, n := range r.Notes {
		out = append(out, "note: "+terminal.ShortCell(n))
	}
	return out
}

// maxJobRows is the maximum number of rows of a table of jobs or nodes.
const maxJobRows = 20

// more returns a caption for the rows that a table leaves out, if any.
func more(n int) string {
	if n <= maxJobRows {
		return ""
	}
	return fmt.Sprintf("and %d more; --json lists all", n-maxJobRows)
}

// gpusSection lists the jobs that held GPUs, those with the most idle GPU-hours first and those
// with unmeasured GPUs last.
func (r *CapacityReport) gpusSection() report.Section {
	list := slices.DeleteFunc(slices.Clone(r.Jobs), func(w *JobWaste) bool { return w.GPUs == 0 })
	if len(list) == 0 {
		return report.Section{}
	}
	slices.SortStableFunc(list, func(a, b *JobWaste) int {
		return cmp.Or(-cmp.Compare(a.GPU.Idle, b.GPU.Idle), -cmp.Compare(a.GPU.Measured, b.GPU.Measured),
			-cmp.Compare(a.AskedGPU, b.AskedGPU))
	})
	s := report.Section{Title: "GPUs that your jobs held",
		Text: []string{fmt.Sprintf("in GPU-hours; idle means a use below %d%%, which is known only for jobs with --measure", metrics.IdleGPU)}}
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

// wasteSection lists the jobs that left most of their allocation unused.
func (r *CapacityReport) wasteSection() report.Section {
	if len(r.Jobs) == 0 {
		return report.Section{}
	}
	s := report.Section{Title: "Allocated to your jobs but not used",
		Text: []string{"worst first; unused memory is a lower bound, computed from the peak of each task"}}
	s.Table = &report.Table{Head: []string{"job", "target", "state", "tasks", "CPU-hours", "unused",
		"GiB-hours", "unused"}, Caption: more(len(r.Jobs))}
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
		s.Table.Rows = append(s.Table.Rows, []string{j.ID, cmp.Or(j.Site, string(j.Target)), j.State,
			strconv.Itoa(j.Tasks), hours(j.AskedCPU), idle, asked, wasted})
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

// freeSection lists the free windows, which a small enough job could use.
func (r *ClusterReport) freeSection(now time.Time) report.Section {
	if r.Target.Pods() || r.Target == job.Local || len(r.Windows) == 0 {
		return report.Section{}
	}
	s := report.Section{Title: r.name() + ": what starts now",
		Text: []string{"the largest flags of \"hpcc submit\" for a job that starts on one of these nodes now"}}
	s.Table = &report.Table{Head: []string{"nodes", "queues", "at most", "free until"}, Caption: more(len(r.Windows))}
	for _, h := range r.Windows[:min(len(r.Windows), maxJobRows)] {
		until := ""
		if !h.Until.IsZero() {
			until = moment(h.Until, now) + ", " + h.For
		}
		s.Table.Rows = append(s.Table.Rows, []string{names(h.Nodes), strings.Join(h.Queues, ","), h.Flags(now), until})
	}
	return s
}
