package report

import (
	"fmt"
	"slices"
)

// maxDots bounds the runs that a strip shows.
const maxDots = 300

// wallChart draws the distribution of the wall clock, with a strip and a box for each
// system.
func (r *Report) wallChart() (c Chart, ok bool) {
	const width, row, left, right = chartWidth, 54, 12, 20
	longest := 0.0
	for _, s := range r.Systems {
		longest = max(longest, s.Figures[wallName].Max)
	}
	if longest <= 0 {
		return c, false
	}
	f := frame{left: left, top: 6, width: width - left - right, height: float64(row * len(r.Systems)),
		x: ticks(longest, inSeconds), y: []float64{1}, xUnit: inSeconds}
	d := &drawing{}
	f.drawX(d)
	table := &Table{Head: []string{"system", "runs", "minimum", "first quartile", "median", "third quartile", "maximum"}}
	for i, s := range r.Systems {
		x := s.Figures[wallName]
		y := f.top + float64(i*row)
		d.text("start", left+4, y+13, s.Name)
		if x.N == 0 {
			continue
		}
		s.strip(d, &f, i, y+34)
		cells := []string{s.Name, fmt.Sprint(x.N)}
		for _, v := range []float64{x.Min, x.Q1, x.Median, x.Q3, x.Max} {
			cells = append(cells, formatSeconds(v))
		}
		table.Rows = append(table.Rows, cells)
	}
	return Chart{Title: "Wall clock of the runs",
		About: "A row for each system, with a mark for each run, a box from the first to the third quartile, and a bar at the median. The axis begins at 0.",
		Width: width, Height: int(f.top+f.height) + 20, Body: d.done(), Table: table}, true
}

// strip draws a system's runs around a height.
func (s *System) strip(d *drawing, f *frame, i int, y float64) {
	x := s.Figures[wallName]
	at := func(v float64) float64 { return f.at(v, 0).x }
	if x.N >= enoughForQuartiles {
		d.line("whisker "+colour(i), at(x.Min), y, at(x.Max), y)
		d.rect("box "+colour(i), at(x.Q1), y-10, at(x.Q3)-at(x.Q1), 20)
	}
	var values []float64
	for _, t := range s.Tasks {
		if v, ok := t.Figures[wallName]; ok && (t.Ending == Done || s.Endings[Done] == 0) {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	each := (len(values) + maxDots - 1) / maxDots
	for k := 0; k < len(values); k += each {
		off := float64(k/each*7%11) - 5 // side by side if they are equal
		if len(values) == 1 {
			off = 0
		}
		d.mark(i, point{at(values[k]), y + off*1.4})
	}
	d.line("median "+colour(i), at(x.Median), y-13, at(x.Median), y+13)
}
