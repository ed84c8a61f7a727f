package report

import (
	"fmt"
	"time"
)

// A Capacity is the allocation of resources over time.
type Capacity struct {
	Name  string
	Steps []time.Time // start of each level
	To    time.Time   // end of the last level
	Lines []CapacityLine
}

// A CapacityLine is the allocation of one resource.
type CapacityLine struct {
	Name  string
	Parts []float64 // share of the total in each step; 1 is all
}

// Chart draws a stepped line for each resource.
func (c *Capacity) Chart() Chart {
	const left, top, width, height = 48.0, 12.0, 760.0, 200.0
	d := &drawing{}
	most := 1.0
	for _, l := range c.Lines {
		for _, p := range l.Parts {
			most = max(most, min(p, 2)) // more than all, if nodes were removed since
		}
	}
	span := max(c.To.Sub(c.Steps[0]).Seconds(), 1)
	x := func(t time.Time) float64 { return left + width*t.Sub(c.Steps[0]).Seconds()/span }
	y := func(part float64) float64 { return top + height*(1-min(part, most)/most) }
	for part := 0.0; part <= most; part += 0.25 {
		d.line("grid", left, y(part), left+width, y(part))
		d.text("end", left-6, y(part)+4, fmt.Sprintf("%.0f%%", 100*part))
	}
	const labels = 6
	layout := "15:04"
	if span > 36*3600 {
		layout = "Jan 2 15:04"
	}
	for i := range labels {
		t := c.Steps[0].Add(c.To.Sub(c.Steps[0]) * time.Duration(i) / (labels - 1))
		anchor := "middle"
		if i == labels-1 {
			anchor = "end"
		}
		d.line("grid", x(t), top, x(t), top+height)
		d.text(anchor, x(t), top+height+15, t.Local().Format(layout))
	}
	table := &Table{Head: []string{"from"}}
	for _, t := range c.Steps {
		table.Rows = append(table.Rows, []string{t.Local().Format("2006-01-02 15:04:05")})
	}
	for k, l := range c.Lines {
		var line []point
		for i, p := range l.Parts {
			end := c.To
			if i+1 < len(c.Steps) {
				end = c.Steps[i+1]
			}
			line = append(line, point{x(c.Steps[i]), y(p)}, point{x(end), y(p)})
			table.Rows[i] = append(table.Rows[i], fmt.Sprintf("%.1f%%", 100*p))
		}
		table.Head = append(table.Head, l.Name)
		d.curve("curve apart "+colour(k), line)
		at := left + 120*float64(k)
		d.line("curve apart "+colour(k), at, top+height+32, at+30, top+height+32)
		d.text("start", at+36, top+height+36, l.Name)
	}
	return Chart{Title: "Allocated by " + c.Name, About: "A line for each resource: the share that jobs had, averaged over each step.",
		Width: left + width + 12, Height: top + height + 42, Body: d.done(), Table: table}
}
