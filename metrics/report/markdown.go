package report

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Markdown writes the report for a page of a repository or an issue.
func (r *Report) Markdown(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "# %s\n\n", markdown(r.title()))
	for _, n := range append(append([]string{}, r.Notes...), r.Warnings...) {
		fmt.Fprintf(w, "> %s\n>\n", markdown(n))
	}
	for _, c := range r.Comparisons {
		fmt.Fprintf(w, "**%s**\n\n", markdown(c.Headline))
	}
	r.systemsTable().markdown(w)
	fmt.Fprint(w, "\n## Figures\n\n")
	figures := r.figuresTable(false)
	figures.markdown(w)
	if figures.Caption != "" {
		fmt.Fprintf(w, "\n%s\n", markdown(figures.Caption))
	}
	if t := r.propertiesTable(false); len(r.Systems) > 1 && len(t.Rows) > 0 {
		fmt.Fprint(w, "\n## What differs\n\n")
		t.markdown(w)
	}
	for _, c := range r.Comparisons {
		if len(c.Text) > 0 {
			fmt.Fprintf(w, "\n## %s against %s\n\n", markdown(c.Other), markdown(c.Base))
		}
		for _, l := range c.Text {
			fmt.Fprintf(w, "* %s\n", markdown(l))
		}
	}
	for _, s := range r.Systems {
		if len(s.Advice) > 0 {
			fmt.Fprintf(w, "\n## Advice for %s\n\n", markdown(s.Name))
		}
		for _, l := range s.Advice {
			fmt.Fprintf(w, "* %s\n", markdown(l))
		}
	}
	Sections(r.Sections).markdown(w)
	return w.Flush()
}

// title returns the names of the systems.
func (r *Report) title() string {
	var names []string
	for _, s := range r.Systems {
		names = append(names, s.Name)
	}
	return abbreviate(names)
}

func (t *Table) markdown(w io.Writer) {
	row := func(cells []string) {
		for i := range t.Head {
			c := ""
			if i < len(cells) {
				c = markdown(cells[i])
			}
			fmt.Fprintf(w, "| %s ", c)
		}
		fmt.Fprintln(w, "|")
	}
	row(t.Head)
	fmt.Fprintln(w, strings.Repeat("| --- ", len(t.Head))+"|")
	for _, r := range t.Rows {
		row(r)
	}
}

// markdown escapes text for CommonMark, its tables, and its handling of HTML and addresses.
func markdown(s string) string {
	var b strings.Builder
	for _, r := range sentence(s) {
		switch {
		case r == '<':
			b.WriteString("&lt;")
			continue
		case r == '&':
			b.WriteString("&amp;")
			continue
		case strings.ContainsRune("\\`*_[]|#~$!@", r):
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	// A bare address becomes a link if text follows the colon.
	return strings.NewReplacer("://", ":\u200b//", "www.", "www\u200b.").Replace(b.String())
}
