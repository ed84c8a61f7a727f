package report

import (
	"fmt"
	"slices"
	"time"

	"hpcc/text"
)

// Limits of a timeline. With more runs, it shows the number of concurrent runs instead.
const (
	maxBars  = 2000
	maxLanes = 120
)

// A bar is a run from its start to its end, in seconds since the first start.
type bar struct {
	from, to float64
	bad      bool
}

// firstStart returns the start of the system's first run.
func (s *System) firstStart() (first time.Time) {
	for _, t := range s.Tasks {
		if start := t.Header.Start; !start.IsZero() && (first.IsZero() || start.Before(first)) {
			first = start
		}
	}
	return first
}

// bars returns the ended runs, sorted by start.
func (s *System) bars() (list []bar) {
	first := s.firstStart()
	for _, t := range s.Tasks {
		end := t.end()
		from, to := t.Header.Start.Sub(first).Seconds(), end.Sub(first).Seconds()
		if end.IsZero() || !(to >= from) || t.Header.Start.IsZero() {
			continue
		}
		list = append(list, bar{from, to, t.Ending != Done})
	}
	slices.SortStableFunc(list, func(a, b bar) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return 0
	})
	return list
}

// lanes assigns bars to lanes without overlap.
func lanes(bars []bar) (list [][]bar) {
next:
	for _, b := range bars {
		for i, l := range list {
			if l[len(l)-1].to <= b.from {
				list[i] = append(l, b)
				continue next
			}
		}
		if list = append(list, []bar{b}); len(list) > maxLanes {
			return list
		}
	}
	return list
}

// timelines returns a chart of each system's runs, all with one axis.
func (r *Report) timelines() (charts []Chart) {
	longest := 0.0
	for _, s := range r.Systems {
		for _, b := range s.bars() {
			longest = max(longest, b.to)
		}
	}
	for i, s := range r.Systems {
		if bars := s.bars(); len(bars) > 1 && longest > 0 {
			charts = append(charts, timeline(s, i, bars, longest))
		}
	}
	return charts
}

func timeline(s *System, i int, bars []bar, longest float64) Chart {
	const width, left, right = chartWidth, 34, 20
	d := &drawing{}
	f := frame{left: left, top: 6, width: width - left - right, x: ticks(longest, inSeconds), xUnit: inSeconds}
	var table *Table // the table of runs serves as the table of bars
	bad := 0
	for _, b := range bars {
		if b.bad {
			bad++
		}
	}
	about := fmt.Sprintf("%s, %d of them failed, over %s.", text.Count(len(bars), "run", "runs"), bad, formatSeconds(longest))
	if stacked := lanes(bars); len(bars) <= maxBars && len(stacked) <= maxLanes {
		f.y = []float64{float64(len(stacked))}
		thick := min(14, max(2.5, 180/float64(len(stacked))))
		f.height = thick * float64(len(stacked))
		f.drawX(d)
		for k, lane := range stacked {
			y := f.top + float64(k)*thick
			for _, b := range lane {
				class := "bar " + colour(i)
				if b.bad {
					class = "bar bad"
				}
				x := f.at(b.from, 0).x
				d.rect(class, x, y, max(f.at(b.to, 0).x-x-0.5, 0.8), thick-min(1, thick/4))
			}
		}
		about = "A bar for each run, from its start to its end; failed runs are outlined. " + about
	} else {
		f.height = 120
		running := atOnce(bars)
		top := 1.0
		for _, p := range running {
			top = max(top, p.y)
		}
		f.y, f.yUnit = ticks(top, inNumber), inNumber
		f.draw(d)
		points := make([]point, len(running))
		for k, p := range running {
			points[k] = f.at(p.x, p.y)
		}
		d.curve("curve "+colour(i), points)
		about = "The number of concurrent runs. " + about
		table = (&series{points: running}).table("concurrent runs", inNumber)
	}
	return Chart{Title: "Runs of " + s.Name, About: about, Width: width, Height: int(f.top+f.height) + 20, Body: d.done(), Table: table}
}

// atOnce returns the number of concurrent runs, averaged over each step.
func atOnce(bars []bar) []point {
	last := 1e-3 // seconds; also if no run took any time
	for _, b := range bars {
		last = max(last, b.to)
	}
	step := last / maxPoints
	points := make([]point, maxPoints)
	for k := range points {
		points[k].x = step * (float64(k) + 0.5)
	}
	for _, b := range bars {
		for k := int(b.from / step); k < maxPoints && step*float64(k) < b.to; k++ {
			begin := step * float64(k)
			points[k].y += max(min(b.to, begin+step)-max(b.from, begin), 0) / step
		}
	}
	return points
}
