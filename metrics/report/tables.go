package report

import (
	"fmt"
	"strings"
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
				hosts = few(p.all[i])
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
		parts = append(parts, fmt.Sprintf("%d not begun or lost", s.Missing))
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
		t.Head = append(t.Head, "ratio to "+r.Systems[0].Name)
	}
	for _, m := range measures {
		row, known := []string{m.title}, false
		for _, s := range r.Systems {
			f, ok := s.Figures[m.name]
			known = known || (ok && (f.Max > 0 || m.name == "throttled"))
			row = append(row, cell(m, f, r.Currency))
		}
		if !known || (m.detail && !detail) {
			continue
		}
		if ratio {
			if v, ok := r.Comparisons[0].Ratios[m.name]; ok {
				row = append(row, "× "+times(v))
			} else {
				row = append(row, "")
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return r.addTotals(t)
}

// addTotals adds the totals of all runs.
func (r *Report) addTotals(t *Table) *Table {
	for _, x := range []struct {
		name, title string
		say         func(float64) string
	}{
		{cpuName, "all runs: processor time", func(v float64) string { return digits(v/3600) + " CPU-hours" }},
		{energyName, "all runs: energy", func(v float64) string { return inEnergy.say(v, "") }},
		{costName, "all runs: cost", func(v float64) string { return inMoney.say(v, r.Currency) }},
	} {
		row, known := []string{x.title}, false
		for _, s := range r.Systems {
			v, ok := s.total(x.name)
			known = known || ok
			if ok {
				row = append(row, x.say(v))
			} else {
				row = append(row, "-")
			}
		}
		if known {
			t.Rows = append(t.Rows, append(row, "")[:len(t.Head)])
		}
	}
	return t
}

// cell formats a figure with its spread.
func cell(m measure, f spread, currency string) string {
	if f.N == 0 {
		return "-"
	}
	middle := m.unit.say(f.Median, currency)
	low, high := f.middle()
	if a, b := m.unit.say(low, currency), m.unit.say(high, currency); f.N > 1 && (a != middle || b != middle) {
		return fmt.Sprintf("%s (%s – %s)", middle, a, b)
	}
	return middle
}

func (r *Report) figuresCaption() string {
	caption := "Medians, with quartiles; of fewer than 4 runs the least and the most."
	var whose []string // systems with the same description
	for i, s := range r.Systems {
		whose = append(whose, s.Name)
		if s.Counted == allRuns {
			whose = nil
		} else if i+1 == len(r.Systems) || r.Systems[i+1].Counted != s.Counted {
			caption += fmt.Sprintf(" Runs of %s: %s.", strings.Join(whose, " and "), s.Counted)
			whose = nil
		}
	}
	return caption
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
				v = []string{"-"}
			}
			row = append(row, few(v))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// maxRows bounds the runs of each system on the page. CSV and JSON have all.
const maxRows = 1000

// runsTable lists the runs of a system.
func (r *Report) runsTable(s *System) *Table {
	t := &Table{Head: []string{"task", "attempt", "ended", "host", "from the first start", "wall clock"}}
	shown := []string{cpusName, "gpu_efficiency", "memory_peak_bytes", "queue_s", costName}
	var columns []measure
	for _, m := range measures {
		for _, name := range shown {
			if _, ok := s.Figures[name]; ok && m.name == name {
				columns = append(columns, m)
				t.Head = append(t.Head, m.title)
			}
		}
	}
	first := s.firstStart()
	for i, x := range s.Tasks {
		if i == maxRows {
			t.Caption = fmt.Sprintf("The first %d of %d; CSV and JSON have all.", maxRows, len(s.Tasks))
			break
		}
		row := []string{fmt.Sprint(x.index()), fmt.Sprint(x.attempt()), x.how(), plain(x.Header.Machine.Host), saySeconds(max(0, x.Header.Start.Sub(first).Seconds())), "-"}
		if v, ok := x.Figures[wallName]; ok {
			row[5] = saySeconds(v)
		}
		for _, m := range columns {
			v, ok := x.Figures[m.name]
			if ok {
				row = append(row, m.unit.say(v, r.Currency))
			} else {
				row = append(row, "-")
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
