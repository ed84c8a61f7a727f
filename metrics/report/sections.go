package report

import (
	"bytes"
	"fmt"
	"io"
)

// Sections are a report without a comparison. Each format writes them like the additional
// sections of a [Report].
type Sections []Section

// brief returns the table for text and Markdown.
func (s *Section) brief() *Table {
	if s.Brief != nil {
		return s.Brief
	}
	return s.Table
}

// Text writes the sections for a terminal.
func (list Sections) Text(out io.Writer) error {
	var b bytes.Buffer
	list.text(&b)
	_, err := out.Write(bytes.TrimPrefix(b.Bytes(), []byte("\n")))
	return err
}

func (list Sections) text(w io.Writer) {
	for _, s := range list {
		fmt.Fprintf(w, "\n%s:\n", plain(s.Title)) // unchanged, because names of systems and jobs keep their case
		for _, p := range s.Text {
			fmt.Fprintln(w, sentence(p))
		}
		if t := s.brief(); t != nil {
			t.text(w)
			if t.Caption != "" {
				fmt.Fprintln(w, sentence(t.Caption))
			}
		}
	}
}

// Markdown writes each section with a heading.
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
		if t := s.brief(); t != nil {
			t.markdown(w)
			if t.Caption != "" {
				fmt.Fprintf(w, "\n%s\n", markdown(t.Caption))
			}
		}
	}
}

// HTML writes a self-contained page with a title, as [Report.HTML] does.
func (list Sections) HTML(out io.Writer, title string) error {
	return parsed().Execute(out, &pageOf{Report: &Report{Sections: list}, Title: title})
}
