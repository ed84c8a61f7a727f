package report

import (
	_ "embed"
	"html/template"
	"io"
	"sync"
)

//go:embed page.html
var page string

// parsed parses the page when it is first wanted: hpcc has other commands.
var parsed = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{"plain": plain, "sentence": sentence}).Parse(page))
})

// A pageOf is what the page is made of.
type pageOf struct {
	*Report
	Title           string
	SystemsTable    *Table
	FiguresTable    *Table
	PropertiesTable *Table
	Wall            []Chart
	Times           [][]Chart
	NoSamples       []string // systems of which no curves are to be had
	Timelines       []Chart
	Runs            []namedTable
	AnyAdvice       bool
}

type namedTable struct {
	Name  string
	Table *Table
}

// HTML writes the report as one page that loads nothing: its style and its
// pictures are in it, and it forbids the rest to whoever shows it.
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
