// Package report compares measured runs of the same program on several systems: on two clusters,
// on a cluster and in a cloud, before and after a change.
//
//	sources ── [Read] ──► Report ──► Text, Markdown, CSV, JSON, HTML
//
// A [Source] describes a system: files of measured runs, and data from the job's records. Read
// keeps headers and footers, and the samples of one run of each system for the charts. The same
// input gives the same bytes.
//
// Names, hosts, commands and numbers come from untrusted files: text is printed without
// control characters, truncated and escaped for the format; impossible numbers are dropped.
package report

import (
	"encoding/json"
	"io"

	"hpcc/metrics"
)

// A Source is a system to compare.
type Source struct {
	Name     string // the system's name in the report
	Runs     []Run
	Missing  int      // tasks that have not started or left no files
	Warnings []string // about files that could not be read
}

// A Run is one execution of the program on a system.
type Run struct {
	File string // the record of the measured run; empty if there is none
	// Known is the job's record. The file takes precedence over it.
	Known metrics.Record
	Ranks int // processes that the task requested on all its nodes; 0 means 1
}

// Options control the comparison.
type Options struct {
	Different bool    // compare runs of different images, with a note
	Prices    *Prices // nil: no costs
}

// A Report compares systems with the first one.
type Report struct {
	Type        string       `json:"type"` // "report"
	Version     int          `json:"version"`
	Different   bool         `json:"different_images,omitempty"`
	Notes       []string     `json:"notes,omitempty"` // notes to read first
	Warnings    []string     `json:"warnings,omitempty"`
	Currency    string       `json:"currency,omitempty"`
	Systems     []*System    `json:"systems"`
	Properties  []property   `json:"properties"` // properties of hosts and runs, and whether they differ
	Comparisons []comparison `json:"comparisons,omitempty"`
	Sections    []Section    `json:"sections,omitempty"` // the caller's sections, after all others
}

// version is the version of the report's JSON. A version may gain members, but never loses one.
const version = 1

// A System holds the runs of one system.
type System struct {
	Name    string            `json:"name"`
	Missing int               `json:"missing,omitempty"`
	Endings map[Ending]int    `json:"endings"`
	Counted string            `json:"counted"` // description of the runs that the figures include
	Figures map[string]spread `json:"figures"` // by the name of the measure
	Advice  []string          `json:"advice,omitempty"`
	Tasks   []*Task           `json:"tasks"` // sorted by index and attempt

	included int             // number of runs that the figures include
	chosen   *metrics.Record // record of the median task, with its samples
}

// A Section is an additional part of the report: text, charts and a table, all optional.
type Section struct {
	Title  string   `json:"title"`
	Text   []string `json:"text,omitempty"` // paragraphs
	Charts []Chart  `json:"-"`              // only in HTML
	Table  *Table   `json:"table,omitempty"`
	Brief  *Table   `json:"-"` // replaces a long table in text and Markdown
}

// A Table has a title for each column and any number of rows. Rows may be shorter than the
// head.
type Table struct {
	Caption string     `json:"caption,omitempty"`
	Head    []string   `json:"head"`
	Rows    [][]string `json:"rows"`
}

// JSON encodes the report as one object on one line.
func (r *Report) JSON() ([]byte, error) {
	b, err := json.Marshal(r)
	return append(b, '\n'), err
}

// Write writes the report in a form: text, json, csv, markdown or html.
func (r *Report) Write(w io.Writer, form string) error {
	switch form {
	case "json":
		b, err := r.JSON()
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	case "csv":
		return r.CSV(w)
	case "markdown":
		return r.Markdown(w)
	case "html":
		return r.HTML(w)
	}
	return r.Text(w)
}
