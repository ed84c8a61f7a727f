package report

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// Sections are a report that compares nothing: each format writes them as it does
// those behind the rest of a [Report].
type Sections []Section

// Text writes them for a terminal.
func (list Sections) Text(out io.Writer) error {
	var b bytes.Buffer
	list.text(&b)
	_, err := out.Write(bytes.TrimPrefix(b.Bytes(), []byte("\n")))
	return err
}

func (list Sections) text(w io.Writer) {
	for _, s := range list {
		fmt.Fprintf(w, "\n%s\n", strings.ToUpper(plain(s.Title)))
		for _, p := range s.Text {
			fmt.Fprintln(w, sentence(p))
		}
		if s.Table != nil {
			s.Table.text(w)
			if s.Table.Caption != "" {
				fmt.Fprintln(w, sentence(s.Table.Caption))
			}
		}
	}
}

// Markdown writes them with a heading for each.
func (list Sections) Markdown(out io.Writer) error {
	var b bytes.Buffer
	list.markdown(&b)
	_, err := out.Write(bytes.TrimPrefix(b.Bytes(), []byte("\n")))
	return err
}

func (list Sections) markdown(w io.Writer) {
	for _, s := range list {
		fmt.Fprintf(w, "\n## %s\n\n", markdown(s.Title))
		for _, p := range s.Text {
			fmt.Fprintf(w, "%s\n\n", markdown(p))
		}
		if s.Table != nil {
			s.Table.markdown(w)
			if s.Table.Caption != "" {
				fmt.Fprintf(w, "\n%s\n", markdown(s.Table.Caption))
			}
		}
	}
}

// HTML writes a page of a title that loads nothing, as [Report.HTML] does.
func (list Sections) HTML(out io.Writer, title string) error {
	return parsed().Execute(out, &pageOf{Report: &Report{Sections: list}, Title: title})
}
