package report

import (
	_ "embed"
	"html/template"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
)

//go:embed page.html
var page string

// parsed parses the page on first use, because other hpcc commands do not need it.
var parsed = sync.OnceValue(func() *template.Template {
	// Cells that begin with a number of the report. Browsers may break other cells anywhere,
	// because foreign names may be long.
	cell := regexp.MustCompile(`^(at least )?[+<]?[0-9.]+([ %:hmsd]|$)|^` + unknown + `$`)
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"plain":    plain,
		"sentence": func(s string) string { return unbroken(sentence(s)) },
		"number":   cell.MatchString,
		"large":    func(c Chart) bool { return c.Width > 1.2*chartWidth },
	}).Parse(page))
})

// quantities matches a number with its unit, and what joins it with a word or with the end of
// a range: "1.07 × less", "8.60 –".
var quantities = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[0-9][%hms]?( (B|[KMGTP]iB|s|ms|µs|days|[kM]?Wh|CPU-[a-z]+|[A-Z]{3})\b)?( –| × [a-z]+)?`)
})

// unbroken joins the parts of quantities with no-break spaces.
func unbroken(s string) string {
	return quantities().ReplaceAllStringFunc(s, func(q string) string { return strings.ReplaceAll(q, " ", "\u00a0") })
}

// A pageOf is the data of the page.
type pageOf struct {
	*Report
	Title           string
	SystemsTable    *Table
	FiguresTable    *Table
	PropertiesTable *Table
	Wall            []Chart
	Times           [][]Chart
	NoSamples       []string // systems without samples for curves
	Timelines       []Chart
	Runs            []namedTable
	AnyAdvice       bool
}

type namedTable struct {
	Name  string
	Table *Table
}

// HTML writes the report as one self-contained page: it includes its style and pictures and
// forbids loading anything else.
func (r *Report) HTML(out io.Writer) error {
	p := &pageOf{Report: r, Title: r.title(), SystemsTable: r.systemsTable(), FiguresTable: r.figuresTable(true),
		PropertiesTable: r.propertiesTable(true),
		Times:           r.timeCharts(), Timelines: r.timelines()}
	if len(r.Systems) == 1 && len(p.Times) > 0 { // side by side
		p.Times = [][]Chart{slices.Concat(p.Times...)}
	}
	if c, ok := r.wallChart(); ok {
		p.Wall = []Chart{c}
	}
	for _, s := range r.Systems {
		if s.chosen == nil {
			p.NoSamples = append(p.NoSamples, s.Name)
		}
		p.AnyAdvice = p.AnyAdvice || len(s.Advice) > 0
		p.Runs = append(p.Runs, namedTable{s.Name, r.runsTable(s)})
	}
	return parsed().Execute(out, p)
}
