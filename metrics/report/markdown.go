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
	for _, p := range r.parts() {
		if p.heading != "" {
			fmt.Fprintf(w, "\n## %s\n\n", markdown(p.heading))
		}
		if p.table != nil {
			p.table.markdown(w)
			if p.table.Caption != "" {
				fmt.Fprintf(w, "\n%s\n", markdown(p.table.Caption))
			}
		}
		for _, l := range p.list {
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
