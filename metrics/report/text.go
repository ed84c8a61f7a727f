package report

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Text writes the report for a terminal.
func (r *Report) Text(out io.Writer) error {
	w := bufio.NewWriter(out)
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", sentence(n))
	}
	for _, c := range r.Comparisons {
		fmt.Fprintln(w, sentence(c.Headline))
	}
	for i, p := range r.parts() {
		if i > 0 || len(r.Notes)+len(r.Comparisons) > 0 {
			fmt.Fprintln(w)
		}
		if p.table == nil {
			fmt.Fprintf(w, "%s:\n", p.label)
			for _, l := range p.list {
				fmt.Fprintf(w, "  * %s\n", sentence(l))
			}
			continue
		}
		if p.label != "" {
			p.table.Head[0] = p.label
		}
		p.table.text(w)
		if p.table.Caption != "" {
			fmt.Fprintln(w, p.table.Caption)
		}
	}
	Sections(r.Sections).text(w)
	return w.Flush()
}

// A part is a part of a report in text and Markdown: a table or a list.
type part struct {
	heading string // in Markdown, or ""
	label   string // in text: the head of the table's first column, if not "", or the line before the list
	table   *Table
	list    []string
}

// parts returns the parts of the report before its sections.
func (r *Report) parts() []part {
	list := []part{{table: r.systemsTable()}, {heading: "Figures", table: r.figuresTable(false)}}
	if t := r.propertiesTable(false); len(r.Systems) > 1 && len(t.Rows) > 0 {
		list = append(list, part{heading: "What differs", label: "what differs", table: t})
	}
	for _, c := range r.Comparisons {
		what := c.Other + " against " + c.Base
		list = append(list, part{heading: what, label: what, list: c.Text})
	}
	for _, s := range r.Systems {
		list = append(list, part{heading: "Advice for " + s.Name, label: "advice for " + s.Name, list: s.Advice})
	}
	return slices.DeleteFunc(list, func(p part) bool { return p.table == nil && len(p.list) == 0 })
}

// text writes a table in columns.
func (t *Table) text(out io.Writer) {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for i, row := range append([][]string{t.Head}, t.Rows...) {
		for k := range t.Head {
			c := ""
			if k < len(row) {
				c = sentence(row[k])
			}
			if i == 0 && k == 0 { // other cells of the head may be names
				c = strings.ToUpper(c)
			}
			fmt.Fprint(w, c, "\t")
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush()
	for line := range strings.Lines(b.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
}
