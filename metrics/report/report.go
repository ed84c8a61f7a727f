// Package report compares measured runs of systems: the same program on two
// clusters, on a cluster and in a cloud, before a change and after.
//
//	sources ── [Read] ──► Report ──► Text, Markdown, CSV, JSON, HTML
//
// A [Source] is a system as the caller found it: files of measured runs, and what
// the records of a job know of them. Read keeps headers and footers; samples are read
// of one run of each system, for the charts. The same input gives the same bytes.
//
// Names, hosts, commands and numbers come from strangers' files: text is shown
// without control characters, cut, and escaped for where it stands; a number that
// cannot be is not there.
package report

import (
	"encoding/json"

	"hpcc/metrics"
)

// A Source is a system to compare, as it was found.
type Source struct {
	Name     string // in the report
	Runs     []Run
	Missing  int      // tasks that have not begun, or left no trace
	Warnings []string // about files that were not read
}

// A Run is one execution of a system.
type Run struct {
	File string // of the measured run; "" where there is none
	// Known is what the job's record says. What the file says goes before it.
	Known metrics.Record
	Ranks int // processes that the task asked for, over all its nodes; 0: one
}

// Options say how to compare.
type Options struct {
	Different bool    // compare runs of different images, and say so
	Prices    *Prices // nil: no costs
}

// A Report compares systems, of which the first is the one that the others are
// compared with.
type Report struct {
	Type        string       `json:"type"` // "report"
	Version     int          `json:"version"`
	Different   bool         `json:"different_images,omitempty"`
	Notes       []string     `json:"notes,omitempty"` // what to know before reading on
	Warnings    []string     `json:"warnings,omitempty"`
	Currency    string       `json:"currency,omitempty"`
	Systems     []*System    `json:"systems"`
	Properties  []property   `json:"properties"` // of hosts and runs, and whether they differ
	Comparisons []comparison `json:"comparisons,omitempty"`
	Sections    []Section    `json:"sections,omitempty"` // of the caller, behind the rest
}

// version is that of the report's JSON; what it says stays, and more may come.
const version = 1

// A System is what was run in one place.
type System struct {
	Name    string            `json:"name"`
	Missing int               `json:"missing,omitempty"`
	Endings map[Ending]int    `json:"endings"`
	Counted string            `json:"counted"` // which tasks the figures are of
	Figures map[string]spread `json:"figures"` // by the name of the measure
	Advice  []string          `json:"advice,omitempty"`
	Tasks   []*Task           `json:"tasks"` // by index and attempt

	chosen *metrics.Record // of the task in the middle, with its samples
}

// A Section is something more to show: text, pictures and a table, each where
// there is one.
type Section struct {
	Title  string   `json:"title"`
	Text   []string `json:"text,omitempty"` // paragraphs
	Charts []Chart  `json:"-"`              // in HTML alone
	Table  *Table   `json:"table,omitempty"`
	Brief  *Table   `json:"-"` // in the place of a long one, in text and Markdown
}

// A Table has a row for each of something, and a title for each column. Rows may
// be shorter than the head.
type Table struct {
	Caption string     `json:"caption,omitempty"`
	Head    []string   `json:"head"`
	Rows    [][]string `json:"rows"`
}

// JSON writes the report as one object on one line.
func (r *Report) JSON() ([]byte, error) {
	b, err := json.Marshal(r)
	return append(b, '\n'), err
}
