package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Limits of a sweep's charts.
const (
	maxSteps = 12   // values of a parameter with individual positions
	maxCells = 40   // rows and columns of a heat map
	maxLines = 2000 // tasks shown individually: the best
)

// A scale maps the values of a parameter or a result to positions from 0 to 1.
type scale struct {
	name     string
	steps    []string // values with individual positions, in order; nil: numbers between low and high
	position map[string]int
	low      float64
	high     float64
	inPower  bool // logarithmic
}

// parameterScale gives each value its own position if there are few, or they are not
// numbers.
func (s *Sweep) parameterScale(name string) scale {
	c := scale{name: name}
	seen := map[string]bool{}
	var numbers []float64
	for i := range s.Tasks {
		v := s.Tasks[i].Params[name]
		if seen[v] {
			continue
		}
		seen[v] = true
		c.steps = append(c.steps, v)
		if x, err := strconv.ParseFloat(v, 64); err == nil && !math.IsNaN(x) && !math.IsInf(x, 0) {
			numbers = append(numbers, x)
		}
	}
	if len(numbers) < len(c.steps) {
		slices.Sort(c.steps)
		c.settle()
		return c
	}
	slices.SortStableFunc(c.steps, func(a, b string) int {
		x, _ := strconv.ParseFloat(a, 64)
		y, _ := strconv.ParseFloat(b, 64)
		return cmp.Compare(x, y)
	})
	if len(c.steps) > maxSteps {
		c.steps = nil
		c.between(numbers)
	}
	c.settle()
	return c
}

// settle computes the positions of the steps.
func (c *scale) settle() {
	c.position = make(map[string]int, len(c.steps))
	for i, v := range c.steps {
		c.position[v] = i
	}
}

// resultScale returns the scale of the successful tasks' results, and their number.
func (s *Sweep) resultScale() (c scale, n int) {
	list := s.ranks()
	c.name = s.Best
	c.between(list)
	return c, len(list)
}

// charted returns the result of a task in charts.
func (s *Sweep) charted(t *SweepTask) (float64, bool) {
	x, ok := t.result(s.Best)
	return x, ok && t.Ending == Done && !math.IsNaN(x) && !math.IsInf(x, 0)
}

// between sets the range of the scale for numbers. It is logarithmic if they span many
// powers of ten.
func (c *scale) between(list []float64) {
	if len(list) == 0 {
		return
	}
	c.low, c.high = slices.Min(list), slices.Max(list)
	c.inPower = c.low > 0 && c.high/c.low >= 500
	if c.low == c.high {
		wider := max(math.Abs(c.low)/10, 1) // relative to a large number 1 is nothing
		c.low, c.high = max(c.low-wider, -math.MaxFloat64), min(c.high+wider, math.MaxFloat64)
	}
}

// at returns the position of a number.
func (c *scale) at(x float64) float64 {
	if c.inPower {
		return (math.Log(x) - math.Log(c.low)) / (math.Log(c.high) - math.Log(c.low))
	}
	p := x/2/(c.high/2-c.low/2) - c.low/2/(c.high/2-c.low/2) // halves, so that no sum overflows
	if math.IsNaN(p) || math.IsInf(p, 0) {                   // the range of numbers next to zero is too small
		return 0.5
	}
	return p
}

// of returns the position of a parameter's value.
func (c *scale) of(v string) float64 {
	if c.steps == nil {
		x, _ := strconv.ParseFloat(v, 64)
		return c.at(x)
	}
	if len(c.steps) == 1 {
		return 0.5
	}
	return float64(c.position[v]) / float64(len(c.steps)-1)
}

// ticks returns the labels of the scale with their positions.
func (c *scale) ticks() (at []float64, text []string) {
	if c.steps != nil {
		each := (len(c.steps) + maxSteps - 1) / maxSteps
		for i := 0; i < len(c.steps); i += each {
			at, text = append(at, c.of(c.steps[i])), append(text, c.steps[i])
		}
		return at, text
	}
	for i := range 5 {
		p := float64(i) / 4
		x := c.low*(1-p) + c.high*p
		if c.inPower {
			x = math.Exp(math.Log(c.low)*(1-p) + math.Log(c.high)*p)
		}
		at, text = append(at, p), append(text, strconv.FormatFloat(x, 'g', 4, 64))
	}
	return at, text
}

// varying returns the parameters with several values.
func (s *Sweep) varying() (list []scale) {
	for _, p := range s.Params {
		if slices.ContainsFunc(s.Tasks, func(t SweepTask) bool { return t.Params[p] != s.Tasks[0].Params[p] }) {
			list = append(list, s.parameterScale(p))
		}
	}
	return list
}

// chart returns a curve over one parameter, a heat map of two, or parallel coordinates.
func (s *Sweep) chart() (Chart, bool) {
	if s.Best == "" || len(s.Tasks) == 0 {
		return Chart{}, false
	}
	result, n := s.resultScale()
	params := s.varying()
	if n == 0 || len(params) == 0 {
		return Chart{}, false
	}
	if len(params) == 1 {
		return s.curve(params[0], result), true
	}
	if len(params) == 2 && params[0].steps != nil && params[1].steps != nil && len(params[0].steps) <= maxCells &&
		len(params[1].steps) <= maxCells {
		return s.heat(params[0], params[1]), true
	}
	return s.parallel(params, result), true
}

// A mean is the mean of n numbers, computed without sums that could overflow.
type mean struct{ n, x float64 }

func (m mean) with(x float64) mean {
	n := m.n + 1
	return mean{n, m.x*(m.n/n) + x/n}
}

// curve draws the result over one parameter, with a mark for each task and a line through
// the means.
func (s *Sweep) curve(param, result scale) Chart {
	const left, top, width, height = 84.0, 14.0, 540.0, 240.0
	d := &drawing{}
	position := func(v string, x float64) point { return point{left + width*param.of(v), top + height*(1-result.at(x))} }
	at, text := result.ticks()
	for i := range at {
		y := top + height*(1-at[i])
		d.line("grid", left, y, left+width, y)
		d.text("end", left-6, y+4, text[i])
	}
	at, text = param.ticks()
	for i := range at {
		x := left + width*at[i]
		d.line("grid", x, top, x, top+height)
		d.text("middle", x, top+height+15, text[i])
	}
	d.text("middle", left+width/2, top+height+32, param.name)
	means := map[string]mean{}
	for i := range s.Tasks {
		t := &s.Tasks[i]
		if x, ok := s.charted(t); ok {
			v := t.Params[param.name]
			means[v] = means[v].with(x)
			if i < maxLines {
				d.mark(0, position(v, x))
			}
		}
	}
	var line []point
	for v, m := range means {
		line = append(line, position(v, m.x))
	}
	slices.SortFunc(line, func(a, b point) int { return cmp.Compare(a.x, b.x) })
	d.curve("curve c0", thinned(line))
	about := "A mark for each successful task, and a line through the means."
	if len(s.Tasks) > maxLines {
		about = fmt.Sprintf("A mark for each of the best %d tasks, and a line through the means of all successful tasks.", maxLines)
	}
	return Chart{Title: s.Best + " over " + param.name, About: about,
		Width: left + width + 30, Height: top + height + 40, Body: d.done()}
}

// thinned removes invisible details from a line.
func thinned(line []point) []point {
	each := (len(line) + maxLines - 1) / maxLines
	if each < 2 {
		return line
	}
	var some []point
	for i := 0; i < len(line); i += each {
		some = append(some, line[i])
	}
	return some
}

// heat draws two parameters as rows and columns. The better the mean of a cell's tasks, the
// darker the cell.
func (s *Sweep) heat(across, down scale) Chart {
	cell := point{max(min(560/float64(len(across.steps)), 90), 14), max(min(400/float64(len(down.steps)), 34), 14)}
	const left, top = 90.0, 34.0
	type key struct{ x, y string }
	means, tried := map[key]mean{}, map[key]bool{}
	for i := range s.Tasks {
		t := &s.Tasks[i]
		k := key{t.Params[across.name], t.Params[down.name]}
		tried[k] = true
		if x, ok := s.charted(t); ok {
			means[k] = means[k].with(x)
		}
	}
	d := &drawing{}
	ranks := s.ranks()
	d.text("start", left, 12, across.name)
	d.text("end", left-6, 28, down.name)
	for i, v := range across.steps {
		if cell.x >= 30 || i%3 == 0 {
			d.text("middle", left+cell.x*(float64(i)+0.5), 28, v)
		}
	}
	for j, w := range down.steps {
		y := top + cell.y*float64(j)
		d.text("end", left-6, y+cell.y/2+4, w)
		for i, v := range across.steps {
			k, x := key{v, w}, left+cell.x*float64(i)
			switch {
			case means[k].n > 0:
				mean := means[k].x
				d.shade(x, y, cell, max(s.good(ranks, mean), 0))
				if cell.x >= 44 {
					d.text("middle", x+cell.x/2, y+cell.y/2+4, strconv.FormatFloat(mean, 'g', 4, 64))
				}
			case tried[k]: // all its tasks failed or are in progress
				d.rect("bad", x+2, y+2, cell.x-4, cell.y-4)
			}
		}
	}
	return Chart{Title: fmt.Sprintf("%s by %s and %s (the stronger the colour, the better)", s.Best, across.name, down.name),
		About: "A column and a row for each value. A cell has the mean of its successful tasks; a dashed outline means that there are none.",
		Width: int(left + cell.x*float64(len(across.steps)) + 10), Height: int(top + cell.y*float64(len(down.steps)) + 8), Body: d.done()}
}

// ranks returns the results in a chart, the best first.
func (s *Sweep) ranks() (list []float64) {
	for i := range s.Tasks {
		if x, ok := s.charted(&s.Tasks[i]); ok {
			list = append(list, x)
		}
	}
	return list
}

// good returns the quality of a result from 0 to 1, by its rank, so that a few very bad
// results do not make all others look alike.
func (s *Sweep) good(ranks []float64, x float64) float64 {
	worse, _ := slices.BinarySearchFunc(ranks, x, func(a, x float64) int {
		if s.Highest {
			a, x = x, a
		}
		return cmp.Compare(a, x)
	})
	return 1 - float64(worse)/float64(max(len(ranks)-1, 1))
}

// shade fills a rectangle, darker for better results; text on it stays readable.
func (d *drawing) shade(x, y float64, size point, good float64) {
	fmt.Fprintf(&d.b, `<rect class="c0" fill="currentColor" fill-opacity="%s" x="%s" y="%s" width="%s" height="%s"/>`,
		strconv.FormatFloat(0.04+0.51*good, 'f', 2, 64), num(x+0.5), num(y+0.5), num(size.x-1), num(size.y-1))
}

// parallel draws each task as a line across an axis for each parameter and one for the
// result.
func (s *Sweep) parallel(params []scale, result scale) Chart {
	const left, top, height = 50.0, 30.0, 280.0
	apart := max(min(760/float64(len(params)), 180), 70)
	axes := append(slices.Clone(params), result)
	d := &drawing{}
	ranks := s.ranks()
	tasks := s.Tasks[:min(len(s.Tasks), maxLines)]
	for i := len(tasks) - 1; i >= 0; i-- { // the best on top
		t := &tasks[i]
		x, ok := s.charted(t)
		if !ok {
			continue
		}
		var line []point
		for k := range params {
			line = append(line, point{left + apart*float64(k), top + height*(1-params[k].of(t.Params[params[k].name]))})
		}
		line = append(line, point{left + apart*float64(len(params)), top + height*(1-result.at(x))})
		d.thread(line, s.good(ranks, x), i == 0)
	}
	for k := range axes {
		x := left + apart*float64(k)
		d.line("whisker", x, top, x, top+height)
		d.text("middle", x, 14, axes[k].name)
		at, text := axes[k].ticks()
		for i := range at {
			y := top + height*(1-at[i])
			d.line("whisker", x-3, y, x+3, y)
			d.text("start", x+6, y+4, text[i])
		}
	}
	return Chart{Title: "Parameters and " + s.Best + " (the stronger the colour, the better; the best task is wide)",
		About: "An axis for each parameter, and one for the result. Each line is a successful task.",
		Width: int(left + apart*float64(len(params)) + 80), Height: top + height + 16, Body: d.done()}
}

// thread draws the line of a task. The best one has another colour and is wide.
func (d *drawing) thread(line []point, good float64, best bool) {
	class, width, full := "c0", "1", 0.08+0.6*good*good
	if best {
		class, width, full = "c1", "3", 1
	}
	fmt.Fprintf(&d.b, `<polyline class="%s" fill="none" stroke="currentColor" stroke-width="%s" stroke-opacity="%s" points="%s"/>`,
		class, width, strconv.FormatFloat(full, 'f', 2, 64), coordinates(line))
}
