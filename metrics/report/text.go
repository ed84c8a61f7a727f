package report

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
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
	if len(r.Notes)+len(r.Comparisons) > 0 {
		fmt.Fprintln(w)
	}
	r.systemsTable().text(w)
	figures := r.figuresTable(false)
	fmt.Fprintln(w)
	figures.text(w)
	if figures.Caption != "" {
		fmt.Fprintln(w, figures.Caption)
	}
	if t := r.propertiesTable(false); len(r.Systems) > 1 && len(t.Rows) > 0 {
		t.Head[0] = "what differs"
		fmt.Fprintln(w)
		t.text(w)
	}
	for _, c := range r.Comparisons {
		if len(c.Text) > 0 {
			fmt.Fprintf(w, "\n%s against %s:\n", c.Other, c.Base)
			list(w, c.Text)
		}
	}
	for _, s := range r.Systems {
		if len(s.Advice) > 0 {
			fmt.Fprintf(w, "\nadvice for %s:\n", s.Name)
			list(w, s.Advice)
		}
	}
	Sections(r.Sections).text(w)
	return w.Flush()
}

func list(w io.Writer, lines []string) {
	for _, l := range lines {
		fmt.Fprintf(w, "  * %s\n", sentence(l))
	}
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
