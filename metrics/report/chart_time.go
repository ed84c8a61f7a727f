package report

import (
	"fmt"
	"iter"

	"hpcc/metrics"
)

// A series holds the values of a figure during one run, and its limits.
type series struct {
	suffix string  // appended to the figure's name; may be empty
	points []point // x is in seconds
	limits []limit
}

type limit struct {
	name  string
	value float64
}

// overTime lists the figures that are charted over time.
var overTime = []struct {
	title string
	unit  unit
	of    func(r *metrics.Record) series
}{
	{"Processors busy", inNumber, cpuSeries},
	{"Memory", inBytes, memorySeries},
	{"GPUs busy", inPercent, gpuSeries},
}

// timeCharts returns, for each figure, a chart of each system. The charts of a figure have the
// same axes.
func (r *Report) timeCharts() (figures [][]Chart) {
	for _, x := range overTime {
		all := make([]series, len(r.Systems))
		longest, highest := 0.0, 0.0
		for i, s := range r.Systems {
			if s.chosen == nil {
				continue
			}
			all[i] = x.of(s.chosen)
			all[i].points = thin(all[i].points)
			for _, p := range all[i].points {
				longest, highest = max(longest, p.x), max(highest, p.y)
			}
		}
		if longest <= 0 || highest <= 0 {
			continue
		}
		top := highest
		for _, a := range all {
			for _, l := range a.limits {
				if l.value <= farLimit*highest {
					top = max(top, l.value)
				}
			}
		}
		var charts []Chart
		for i, s := range r.Systems {
			if len(all[i].points) > 1 {
				charts = append(charts, all[i].chart(x.title, x.unit, s, i, longest, top))
			}
		}
		if len(charts) > 0 {
			figures = append(figures, charts)
		}
	}
	return figures
}

// farLimit is the multiple of the maximum above which a limit is written as text instead of
// drawn, because it would flatten the curve.
const farLimit = 4

// chart draws one system's series.
func (a *series) chart(title string, u unit, s *System, i int, longest, top float64) Chart {
	const width, height = chartWidth, 210
	f := frame{left: 62, top: 18, width: width - 62 - 14, height: height - 18 - 22, x: ticks(longest, inSeconds),
		y: ticks(top, u), xUnit: inSeconds, yUnit: u}
	if u == inPercent {
		f.y = []float64{0, 0.25, 0.5, 0.75, 1}
	}
	title += a.suffix
	d := &drawing{}
	f.draw(d)
	about, far := "", ""
	for _, l := range a.limits {
		about += fmt.Sprintf(" %s: %s.", l.name, u.format(l.value, ""))
		if l.value > f.y[len(f.y)-1] {
			far += fmt.Sprintf("%s %s ↑ ", l.name, u.format(l.value, ""))
			continue
		}
		p := f.at(0, l.value)
		d.line("limit", f.left, p.y, f.left+f.width, p.y)
		d.text("end", f.left+f.width, p.y-5, l.name)
	}
	if far != "" {
		d.text("end", f.left+f.width, 11, far)
	}
	points := make([]point, len(a.points))
	for k, p := range a.points {
		points[k] = f.at(p.x, min(p.y, f.y[len(f.y)-1]))
	}
	d.curve("curve "+colour(i), points)
	run := "one run"
	if job := s.chosen.Header.Job; job != nil && len(s.Tasks) > 1 {
		run = fmt.Sprintf("task %d", job.Task)
	}
	return Chart{Title: fmt.Sprintf("%s: %s, %s", title, s.Name, run),
		About: fmt.Sprintf("%s over the %s of the run.%s", title, formatSeconds(a.points[len(a.points)-1].x), about),
		Width: width, Height: height, Body: d.done(), Table: a.table(title, u)}
}

// table returns the curve as a table with fewer points.
func (a *series) table(title string, u unit) *Table {
	t := &Table{Head: []string{"after", title}}
	const rows = 12
	for k := range rows {
		p := a.points[k*(len(a.points)-1)/(rows-1)]
		row := []string{formatSeconds(p.x), u.format(p.y, "")}
		if n := len(t.Rows); n == 0 || t.Rows[n-1][0] != row[0] {
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// maxPoints bounds the points of a curve. A screen cannot show more.
const maxPoints = 240

// thin keeps the highest of neighbouring points, so that no peak is lost.
func thin(points []point) []point {
	if len(points) <= maxPoints {
		return points
	}
	out := make([]point, 0, maxPoints)
	for k := range maxPoints {
		part := points[k*len(points)/maxPoints : (k+1)*len(points)/maxPoints]
		best := part[0]
		for _, p := range part {
			if p.y > best.y {
				best = p
			}
		}
		out = append(out, best)
	}
	return out
}

// samples yields the samples of a record that are later than the one before, which was at the time previous for the first,
// and not impossibly late.
func samples(r *metrics.Record, previous float64) iter.Seq[*metrics.Sample] {
	return func(yield func(*metrics.Sample) bool) {
		for i := range r.Samples {
			s := &r.Samples[i]
			if s.At <= previous || s.At >= most {
				continue
			}
			if previous = s.At; !yield(s) {
				return
			}
		}
	}
}

// cpuSeries returns the mean number of busy processors between samples.
func cpuSeries(r *metrics.Record) (a series) {
	at, cpu := 0.0, 0.0
	for s := range samples(r, 0) {
		now := max(s.CPU, cpu) // the sum may shrink, because it excludes children that ended
		a.points = append(a.points, point{s.At, min((now-cpu)/(s.At-at), most)})
		at, cpu = s.At, now
	}
	if g := granted(&r.Header); g > 0 {
		a.limits = append(a.limits, limit{"granted", g})
	}
	return a
}

// memorySeries returns the memory from the same source as the peak, if samples have it. Only some
// samples have proportional set sizes; those of the others are estimated from the resident set
// size and the last known ratio.
func memorySeries(r *metrics.Record) (a series) {
	part, peak := 1.0, most
	if r.Footer != nil && r.Footer.MemoryFrom == "pss" {
		a.suffix, peak = ", proportional (PSS)", float64(r.Footer.Memory)
	}
	for s := range samples(r, -1) {
		v := float64(s.RSS)
		if s.Cgroup != nil && s.Cgroup.Memory > 0 && !r.Header.Limits.Shared && (r.Footer == nil || r.Footer.MemoryFrom == "cgroup") {
			v = float64(s.Cgroup.Memory - s.Cgroup.Cache)
		} else if a.suffix != "" {
			if s.PSS > 0 && s.RSS > 0 {
				part = float64(s.PSS) / v
			}
			v = min(v*part, peak)
		}
		a.points = append(a.points, point{s.At, max(v, 0)})
	}
	if n := r.Header.Asked.Memory; n > 0 {
		a.limits = append(a.limits, limit{"requested", float64(n)})
	}
	if n := r.Header.Limits.Memory; n > 0 && n != r.Header.Asked.Memory {
		a.limits = append(a.limits, limit{"limit", float64(n)})
	}
	return a
}

// gpuSeries returns the mean utilisation of the GPUs, as a fraction of 1.
func gpuSeries(r *metrics.Record) (a series) {
	for s := range samples(r, -1) {
		var parts []float64
		for _, g := range s.GPUs {
			if !g.Unknown {
				parts = append(parts, min(max(g.Utilisation, 0), 100)/100)
			}
		}
		if len(parts) > 0 {
			a.points = append(a.points, point{s.At, busiest(parts, r.Header.Asked.GPUs)})
		}
	}
	return a
}
