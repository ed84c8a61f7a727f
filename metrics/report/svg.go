package report

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
)

// colours is the number of systems with different colours. The page's style has the classes c0
// and so on.
const colours = 6

// colour returns the class of the i-th system.
func colour(i int) string { return "c" + strconv.Itoa(i%colours) }

// A drawing is the content of an SVG. Lengths are in its units, classes are the page's.
type drawing struct{ b strings.Builder }

// num formats a length, rounded to a tenth of a unit.
func num(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&d.b, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`, class, num(x1), num(y1), num(x2), num(y2))
}

func (d *drawing) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(&d.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`, class, num(x), num(y), num(max(w, 0)), num(max(h, 0)))
}

// text writes a text. anchor is start, middle or end.
func (d *drawing) text(anchor string, x, y float64, s string) {
	fmt.Fprintf(&d.b, `<text text-anchor="%s" x="%s" y="%s">%s</text>`, anchor, num(x), num(y), template.HTMLEscapeString(plain(s)))
}

// A point is a position in a drawing.
type point struct{ x, y float64 }

// curve draws a line through points.
func (d *drawing) curve(class string, points []point) {
	fmt.Fprintf(&d.b, `<polyline class="%s" points="%s"/>`, class, coordinates(points))
}

// coordinates returns the points of a polyline.
func coordinates(points []point) string {
	list := make([]string, len(points))
	for i, p := range points {
		list[i] = num(p.x) + "," + num(p.y)
	}
	return strings.Join(list, " ")
}

// mark draws a small shape that depends on the system.
func (d *drawing) mark(i int, p point) {
	const r = 3.2
	x, y := num(p.x), num(p.y)
	switch i % 3 {
	case 0:
		fmt.Fprintf(&d.b, `<circle class="dot %s" cx="%s" cy="%s" r="3"/>`, colour(i), x, y)
	case 1:
		d.rect("dot "+colour(i), p.x-r+.5, p.y-r+.5, 2*r-1, 2*r-1)
	default:
		fmt.Fprintf(&d.b, `<path class="dot %s" d="M%s %sl%s %sh%sz"/>`, colour(i), x, num(p.y-r), num(r), num(2*r-1), num(-2*r))
	}
}

func (d *drawing) done() template.HTML { return template.HTML(d.b.String()) }

// ticks returns round values from 0 on, the last at or above most.
func ticks(most float64, u unit) []float64 {
	const wanted = 4
	step := roundStep(most/wanted, u)
	var list []float64
	for i := 0.0; ; i++ {
		list = append(list, i*step)
		if i*step >= most*0.999 || len(list) > 4*wanted {
			return list
		}
	}
}

// roundStep returns the smallest round step that is at least least.
func roundStep(least float64, u unit) float64 {
	if !(least > 0) {
		return 1
	}
	if u == inBytes {
		return math.Pow(2, math.Ceil(math.Log2(least)))
	}
	if u == inSeconds {
		for _, s := range []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200,
			14400, 21600, 43200, 86400, 172800, 432000, 864000, 1728000, 4320000, 8640000} {
			if least >= 0.5 && s >= least {
				return s
			}
		}
	}
	base := math.Pow(10, math.Floor(math.Log10(least)))
	for _, m := range []float64{1, 2, 5} {
		if m*base >= least*0.999 {
			return m * base
		}
	}
	return 10 * base
}

// tick formats the value of a tick, which is round.
func (u unit) tick(v float64) string {
	switch {
	case u == inSeconds && v >= 0.1 && v < 1:
		return roundDigits(v) + " s"
	case u == inSeconds && v >= 86400:
		return roundDigits(v/86400) + " d"
	case u == inSeconds && v >= 3600:
		return roundDigits(v/3600) + " h"
	case u == inSeconds && v >= 60:
		return roundDigits(v/60) + " min"
	}
	number, unit, _ := strings.Cut(u.format(v, ""), " ")
	return strings.TrimSpace(withoutZeros(number) + " " + unit)
}

func roundDigits(v float64) string { return withoutZeros(digits(v)) }

// withoutZeros removes the zeros at the end of a decimal fraction.
func withoutZeros(number string) string {
	if !strings.Contains(number, ".") {
		return number
	}
	return strings.TrimRight(strings.TrimRight(number, "0"), ".")
}

// A frame is the area of a chart between its axes.
type frame struct {
	left, top, width, height float64
	x, y                     []float64 // ticks
	xUnit, yUnit             unit
}

func (f *frame) at(x, y float64) point {
	return point{f.left + f.width*x/f.x[len(f.x)-1], f.top + f.height*(1-y/f.y[len(f.y)-1])}
}

// drawX draws the ticks of the x axis.
func (f *frame) drawX(d *drawing) {
	for i, v := range f.x {
		p, anchor := f.at(v, 0), "middle"
		if i > 0 && i == len(f.x)-1 { // so that the label ends at the picture's edge
			anchor, p.x = "end", p.x+10
		}
		d.line("grid", f.at(v, 0).x, f.top, f.at(v, 0).x, f.top+f.height)
		d.text(anchor, p.x, f.top+f.height+14, f.xUnit.tick(v))
	}
}

// draw draws both axes with their ticks.
func (f *frame) draw(d *drawing) {
	f.drawX(d)
	for _, v := range f.y {
		p := f.at(0, v)
		d.line("grid", f.left, p.y, f.left+f.width, p.y)
		d.text("end", f.left-5, p.y+4, f.yUnit.tick(v))
	}
}

// chartWidth is the usual width of a chart. Browsers scale charts to columns of half to twice
// this width, in which their text stays readable.
const chartWidth = 440

// A Chart is a picture for the page: the content of an SVG with its width and height, and a
// table with the same data.
type Chart struct {
	Title  string
	About  string // text alternative of the picture
	Width  int
	Height int
	Body   template.HTML // with escaped text and the page's classes as colours
	Table  *Table        // nil: the table is elsewhere on the page
}
