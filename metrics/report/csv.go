package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/text"
)

// maxParams bounds the columns of parameters.
const maxParams = 64

// CSV writes a header and a row for each run. Figures are plain numbers; an empty cell is
// unknown.
func (r *Report) CSV(out io.Writer) error {
	w := csv.NewWriter(out)
	head := []string{"system", "job", "target", "task", "attempt", "ending", "exit", "signal", "host",
		"architecture", "cpu", "start", "end", "image", "digest", "file"}
	fixed := len(head)
	for _, m := range measures {
		head = append(head, m.name)
	}
	params := r.params()
	for _, p := range params {
		head = append(head, harmless("param."+p))
	}
	_ = w.Write(head)
	for _, s := range r.Systems {
		for _, t := range s.Tasks {
			row := append(make([]string, 0, len(head)), t.csv(s.Name)[:fixed]...)
			for _, m := range measures {
				cell := ""
				if v, ok := t.Figures[m.name]; ok {
					cell = plainNumber(v)
				}
				row = append(row, cell)
			}
			for _, p := range params {
				cell := ""
				if t.Header.Job != nil {
					cell = harmless(t.Header.Job.Params[p])
				}
				row = append(row, cell)
			}
			_ = w.Write(row)
		}
	}
	w.Flush()
	return w.Error()
}

// plainNumber formats twelve significant digits, because further digits of a quotient differ
// between machines.
func plainNumber(v float64) string {
	if rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 12, 64), 64); err == nil {
		v = rounded
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// params returns the names of all runs' parameters.
func (r *Report) params() []string {
	names := map[string]bool{}
	for _, s := range r.Systems {
		for _, t := range s.Tasks {
			if t.Header.Job == nil {
				continue
			}
			for n := range t.Header.Job.Params {
				names[n] = true
			}
		}
	}
	list := slices.Sorted(maps.Keys(names))
	return list[:min(len(list), maxParams)]
}

// csv returns the cells of a run that are not figures.
func (t *Task) csv(system string) []string {
	h := &t.Header
	job, target, exit, signal := "", "", "", ""
	if h.Job != nil {
		job, target = h.Job.ID, h.Job.Target
	}
	if t.Footer != nil {
		exit, signal = fmt.Sprint(t.Footer.Exit), t.Footer.Signal
	}
	return []string{harmless(system), harmless(job), harmless(target), fmt.Sprint(t.index()),
		fmt.Sprint(t.attempt()), string(t.Ending), exit, harmless(signal),
		harmless(h.Machine.Host), harmless(h.Machine.Architecture), harmless(h.Machine.CPU),
		stamp(h.Start), stamp(t.end()), harmless(h.Image), harmless(h.Digest), harmless(t.File)}
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// harmless keeps spreadsheets from interpreting foreign text as a formula. It leaves numbers
// unchanged and does not truncate, because readers of the table need all of it.
func harmless(s string) string {
	s = text.Printable(s)
	if s == "" || !strings.ContainsRune("=+-@", rune(s[0])) {
		return s
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return s
	}
	return "'" + s
}
