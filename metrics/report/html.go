package report

import (
	_ "embed"
	"html/template"
	"io"
	"sync"
)

//go:embed page.html
var page string

// parsed parses the page on first use, because other hpcc commands do not need it.
var parsed = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{"plain": plain, "sentence": sentence}).Parse(page))
})

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
	p := &pageOf{Report: r, Title: r.title(), SystemsTable: r.systemsTable(), FiguresTable: r.figuresTable(true), PropertiesTable: r.propertiesTable(true),
		Times: r.timeCharts(), Timelines: r.timelines()}
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
