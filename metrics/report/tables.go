package report

import (
	"fmt"
	"slices"
	"strings"

	"hpcc/text"
)

// The tables are built once from unescaped text and written by each format.

// systemsTable lists the systems.
func (r *Report) systemsTable() *Table {
	t := &Table{Head: []string{"system", "runs", "hosts", "image"}}
	images := false
	for i, s := range r.Systems {
		hosts := ""
		for _, p := range r.Properties {
			if p.Name == "host" {
				hosts = abbreviate(p.all[i])
			}
		}
		t.Rows = append(t.Rows, []string{s.Name, s.runs(), hosts, s.image()})
		images = images || s.image() != ""
	}
	if !images {
		t.Head = t.Head[:3]
		for i := range t.Rows {
			t.Rows[i] = t.Rows[i][:3]
		}
	}
	return t
}

// runs describes how the system's runs ended.
func (s *System) runs() string {
	var parts []string
	for _, e := range endings {
		if n := s.Endings[e]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, e))
		}
	}
	if s.Missing > 0 {
		parts = append(parts, fmt.Sprintf("%d not started or lost", s.Missing))
	}
	if len(parts) == 1 && s.Endings[Done] > 0 {
		return parts[0]
	}
	return fmt.Sprintf("%d: %s", len(s.Tasks)+s.Missing, strings.Join(parts, ", "))
}

// figuresTable has a row for each measure that a system has.
func (r *Report) figuresTable(detail bool) *Table {
	t := &Table{Caption: r.figuresCaption(), Head: []string{"figure"}}
	for _, s := range r.Systems {
		t.Head = append(t.Head, s.Name)
	}
	ratio := len(r.Systems) == 2
	if ratio {
		t.Head = append(t.Head, r.Systems[1].Name+" ÷ "+r.Systems[0].Name)
	}
	for _, m := range measures {
		row, known := []string{m.title}, false
		for _, s := range r.Systems {
			f, ok := s.Figures[m.name]
			known = known || (ok && (f.Max > 0 || m.name == throttledName))
			row = append(row, s.cell(m, r.Currency))
		}
		if !known || (m.detail && !detail) {
			continue
		}
		if ratio {
			row = append(row, r.Comparisons[0].quotient(m.name))
		}
		t.Rows = append(t.Rows, row)
	}
	return r.addTotals(t)
}

// unknown is the cell of a missing figure.
const unknown = "–"

// quotient formats the ratio of a figure, with its direction.
func (c *comparison) quotient(name string) string {
	r, ok := c.Ratios[name]
	switch {
	case !ok:
		return unknown
	case nearOne(r):
		return significant(r) + " (same)"
	case r < 1:
		return significant(r) + " (less)"
	}
	return significant(r) + " (more)"
}

// addTotals adds the totals of all runs.
func (r *Report) addTotals(t *Table) *Table {
	for _, x := range []struct {
		name, title string
		format      func(float64) string
	}{
		{cpuName, "all runs: processor time", formatCPUTime},
		{energyName, "all runs: energy", formatEnergy},
		{costName, "all runs: cost", func(v float64) string { return inMoney.format(v, r.Currency) }},
	} {
		row, known := []string{x.title}, false
		for _, s := range r.Systems {
			cell := unknown
			if sum, n := s.total(x.name); n > 0 {
				known, cell = true, x.format(sum)
				if open := s.Endings[Open]; n < len(s.Tasks) {
					cell = fmt.Sprintf("at least %s (%d of %d runs)", cell, n, len(s.Tasks))
				} else if open > 0 {
					cell = fmt.Sprintf("at least %s (%s without an end)", cell, text.Count(open, "run", "runs"))
				}
			}
			row = append(row, cell)
		}
		if known {
			t.Rows = append(t.Rows, append(row, "")[:len(t.Head)])
		}
	}
	return t
}

// cell formats a figure with its spread, and with the number of runs that have it if others
// lack it.
func (s *System) cell(m measure, currency string) string {
	f := s.Figures[m.name]
	if f.N == 0 {
		return unknown
	}
	low, high := f.middle()
	text := m.unit.formatRange(f.Median, low, high, currency)
	if f.N < s.included {
		text += fmt.Sprintf(", %d of %d runs", f.N, s.included)
	}
	return text
}

// figuresCaption explains the figures: their spread, their ratios, and the runs that count.
func (r *Report) figuresCaption() string {
	caption := ""
	if slices.ContainsFunc(r.Systems, func(s *System) bool { return s.included > 1 }) {
		caption = fmt.Sprintf("Medians with quartiles; with the range for fewer than %d runs.", enoughForQuartiles)
	}
	if len(r.Comparisons) == 1 {
		what := "quotients of the medians"
		if n := r.Comparisons[0].Pairs; n > 0 {
			what = fmt.Sprintf("medians over %d pairs of equal runs", n)
		}
		caption += fmt.Sprintf(" Ratios are %s; %s stands for too few runs with values that can be divided.", what, unknown)
	}
	var names []string // systems with the same description
	for i, s := range r.Systems {
		names = append(names, s.Name)
		if s.Counted == allRuns {
			names = nil
		} else if i+1 == len(r.Systems) || r.Systems[i+1].Counted != s.Counted {
			caption += fmt.Sprintf(" Counted runs of %s: %s.", strings.Join(names, " and "), s.Counted)
			names = nil
		}
	}
	return strings.TrimSpace(caption)
}

// propertiesTable lists the properties of hosts and requests, all or only different ones.
func (r *Report) propertiesTable(all bool) *Table {
	t := &Table{Head: []string{"property"}}
	for _, s := range r.Systems {
		t.Head = append(t.Head, s.Name)
	}
	for _, p := range r.Properties {
		if !p.Differs && !all {
			continue
		}
		name := p.Name
		if all && p.Differs {
			name += " (differs)"
		}
		row := []string{name}
		for _, v := range p.all {
			if len(v) == 0 {
				v = []string{unknown}
			}
			row = append(row, abbreviate(v))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// maxRows bounds the runs of each system on the page. CSV and JSON have all.
const maxRows = 1000

// runsTable lists the runs of a system.
func (r *Report) runsTable(s *System) *Table {
	t := &Table{Head: []string{"task", "attempt", "ending", "host", "start", "wall clock"}}
	wanted := []string{cpusName, gpuName, "memory_peak_bytes", "queue_s", costName}
	var columns []measure
	for _, m := range measures {
		if _, ok := s.Figures[m.name]; ok && slices.Contains(wanted, m.name) {
			columns = append(columns, m)
			t.Head = append(t.Head, m.title)
		}
	}
	cell := func(x *Task, m measure) string {
		if v, ok := x.Figures[m.name]; ok {
			return m.unit.format(v, r.Currency)
		}
		return unknown
	}
	first := s.firstStart()
	for i, x := range s.Tasks {
		if i == maxRows {
			t.Caption = fmt.Sprintf("The first %d of %d; CSV and JSON have all.", maxRows, len(s.Tasks))
			break
		}
		start := "+" + formatSeconds(max(0, x.Header.Start.Sub(first).Seconds()))
		row := []string{fmt.Sprint(x.index()), fmt.Sprint(x.attempt()), x.how(), plain(x.Header.Machine.Host),
			start, cell(x, *measureOf(wallName))}
		for _, m := range columns {
			row = append(row, cell(x, m))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
