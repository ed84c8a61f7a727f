package report

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/metrics"
	"hpcc/text"
)

// A Sweep is a job whose tasks have individual parameters, with their results.
type Sweep struct {
	Name    string
	Params  []string // names in the given order
	Tasks   []SweepTask
	Columns []string // results to show; empty: the ranking's and a few others

	Best    string // result by which tasks are ranked, see Rank
	Highest bool   // higher is better
	Guessed bool   // both were guessed from the names of the results
}

// A SweepTask is one task with its parameters and results.
type SweepTask struct {
	Index   int
	Attempt int // number of the attempt, from 0
	Params  map[string]string
	Ending  Ending
	Start   time.Time
	End     time.Time // zero: in progress
	Results metrics.Results
}

// NoResultError reports that no task has the result to rank by.
type NoResultError struct {
	Name      string
	Available []string // names of the available results
}

func (e *NoResultError) Error() string {
	if len(e.Available) == 0 {
		return fmt.Sprintf("no task has a result %q, nor any other result", e.Name)
	}
	return fmt.Sprintf("no task has a result %q; there are %s", e.Name, abbreviate(e.Available))
}

// Rank sorts the tasks by a result, the lowest first, or the highest first if best begins
// with "+". A series counts by its last value, or with the suffix .min or .max by those. An
// empty best guesses the result. Next come tasks without the result or without a number,
// then tasks in progress, then failed ones. It returns a [NoResultError] if no task has the
// result, or one of the columns.
func (s *Sweep) Rank(best string) error {
	s.Best, s.Highest, s.Guessed = strings.TrimPrefix(best, "+"), strings.HasPrefix(best, "+"), best == ""
	names := s.names()
	for _, c := range s.Columns {
		if !s.has(c) {
			return &NoResultError{c, names}
		}
	}
	if best == "" {
		s.Best, s.Highest = guess(names)
	} else if !s.has(s.Best) {
		return &NoResultError{s.Best, names}
	}
	slices.SortStableFunc(s.Tasks, func(a, b SweepTask) int {
		return cmp.Or(cmp.Compare(s.group(&a), s.group(&b)), s.compare(&a, &b), cmp.Compare(a.Index, b.Index))
	})
	return nil
}

// has reports whether a task has a result of that name.
func (s *Sweep) has(name string) bool {
	return slices.ContainsFunc(s.Tasks, func(t SweepTask) bool { _, ok := t.result(name); return ok })
}

// names returns the sorted names of all results.
func (s *Sweep) names() []string {
	seen := map[string]bool{}
	for i := range s.Tasks {
		for n := range s.Tasks[i].Results {
			seen[n] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// result returns a task's number of that name.
func (t *SweepTask) result(name string) (float64, bool) {
	if r := t.Results[name]; r != nil {
		return r.Last, true
	}
	if stem, ok := strings.CutSuffix(name, ".min"); ok && t.Results[stem] != nil {
		return t.Results[stem].Min, true
	}
	if stem, ok := strings.CutSuffix(name, ".max"); ok && t.Results[stem] != nil {
		return t.Results[stem].Max, true
	}
	return 0, false
}

// group returns the primary sort key of a task.
func (s *Sweep) group(t *SweepTask) int {
	x, ok := t.result(s.Best)
	switch {
	case t.Ending == Open:
		return 2
	case t.Ending != Done:
		return 3
	case !ok || math.IsNaN(x):
		return 1
	}
	return 0
}

// compare orders the tasks of a group by their results.
func (s *Sweep) compare(a, b *SweepTask) int {
	x, xok := a.result(s.Best)
	y, yok := b.result(s.Best)
	xok, yok = xok && !math.IsNaN(x), yok && !math.IsNaN(y)
	switch {
	case !xok || !yok:
		return cmp.Compare(boolean(yok), boolean(xok))
	case s.Highest:
		return cmp.Compare(y, x)
	}
	return cmp.Compare(x, y)
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Meanings of result names, the most reliable first.
var (
	lowBest  = []string{"loss", "perplexity", "ppl", "nll", "rmse", "mse", "mae", "wer", "cer", "error", "err", "fid", "bpb", "latency"}
	highBest = []string{"accuracy", "acc", "f1", "auc", "auroc", "iou", "dice", "bleu", "rouge",
		"psnr", "ssim", "r2", "reward", "return", "score", "precision", "recall"}
	heldOut = []string{"val", "valid", "validation", "eval", "test", "dev"}
)

// guess returns the result by which tasks are most probably ranked: validation results
// before others, a loss before an accuracy. It returns "" if no name is known and there are
// several.
func guess(names []string) (best string, highest bool) {
	least := math.MaxInt
	for _, n := range names {
		words := strings.FieldsFunc(strings.ToLower(n), func(r rune) bool { return strings.ContainsRune("_-./ :", r) })
		rank, high := -1, false
		for _, w := range words {
			if i := slices.Index(lowBest, w); i >= 0 { // dice_loss and loss_dice are losses
				rank, high = i, false
				break
			} else if i := slices.Index(highBest, w); i >= 0 {
				rank, high = len(lowBest)+i, true
			}
		}
		if rank < 0 {
			continue
		}
		if !slices.ContainsFunc(words, func(w string) bool { return slices.Contains(heldOut, w) }) {
			rank += 1000
		}
		if rank < least {
			least, best, highest = rank, n, high
		}
	}
	if best == "" && len(names) == 1 {
		best = names[0]
	}
	return best, highest
}

// maxColumns is the default maximum number of results in a table.
const maxColumns = 6

// columns returns the results in a table.
func (s *Sweep) columns() []string {
	if len(s.Columns) > 0 {
		return s.Columns
	}
	var list []string
	if s.Best != "" {
		list = append(list, s.Best)
	}
	for _, n := range s.names() {
		if len(list) < maxColumns && n != s.Best {
			list = append(list, n)
		}
	}
	return list
}

// table has a row for each task, the best first, at most most rows; 0: all.
func (s *Sweep) table(most int) *Table {
	columns := s.columns()
	t := &Table{Head: slices.Concat([]string{"task"}, s.Params, columns, []string{"ending"})}
	for i := range s.Tasks {
		if most > 0 && i == most {
			t.Caption = "and " + text.Count(len(s.Tasks)-most, "more task", "more tasks") + "; --csv, --json and --html show all"
			break
		}
		one := &s.Tasks[i]
		row := []string{strconv.Itoa(one.Index)}
		for _, p := range s.Params {
			row = append(row, one.Params[p])
		}
		for _, c := range columns {
			cell := ""
			if x, ok := one.result(c); ok {
				cell = formatResult(x)
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, append(row, string(one.Ending)))
	}
	return t
}

// formatResult formats a result for people.
func formatResult(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

// order describes the ranking of the tasks.
func (s *Sweep) order() string {
	var text string
	switch {
	case s.Best == "":
		return "the tasks are in the order of their indices; --best NAME ranks them by a result, lowest first, and --best +NAME highest first"
	case s.Highest:
		text = fmt.Sprintf("best first: highest %s", s.Best)
	default:
		text = fmt.Sprintf("best first: lowest %s", s.Best)
	}
	if s.Guessed {
		other := "+" + s.Best
		if s.Highest {
			other = s.Best
		}
		text += fmt.Sprintf(", guessed from its name; --best %s reverses the order", other)
	}
	return text
}

// briefRows is the number of tasks shown on a terminal.
const briefRows = 20

// Section returns the sweep as a section of a report. page adds a chart.
func (s *Sweep) Section(page bool) Section {
	sec := Section{Title: "Parameters and results of " + s.Name, Text: []string{s.order()}, Table: s.table(0), Brief: s.table(briefRows)}
	with := 0
	for i := range s.Tasks {
		if len(s.Tasks[i].Results) > 0 {
			with++
		}
	}
	if with < len(s.Tasks) {
		sec.Text = append(sec.Text, fmt.Sprintf("%d of %s left results", with, text.Count(len(s.Tasks), "task", "tasks")))
	}
	if page {
		if c, ok := s.chart(); ok {
			sec.Charts = []Chart{c}
		}
	}
	return sec
}

// CSV writes a row for each task with all its results, including minimum and maximum of
// series.
func (s *Sweep) CSV(out io.Writer) error {
	w := csv.NewWriter(out)
	head := []string{"job", "task", "ending"}
	for _, p := range s.Params {
		head = append(head, harmless(p))
	}
	names, series := s.names(), map[string]bool{}
	for i := range s.Tasks {
		for n, r := range s.Tasks[i].Results {
			series[n] = series[n] || r.N > 1
		}
	}
	var results []string
	for _, n := range names {
		results = append(results, n)
		if series[n] {
			results = append(results, n+".min", n+".max")
		}
	}
	for _, n := range results {
		head = append(head, harmless(n))
	}
	errs := []error{w.Write(head)}
	for i := range s.Tasks {
		t := &s.Tasks[i]
		row := []string{harmless(s.Name), strconv.Itoa(t.Index), string(t.Ending)}
		for _, p := range s.Params {
			row = append(row, harmless(t.Params[p]))
		}
		for _, n := range results {
			cell := ""
			if x, ok := t.result(n); ok {
				cell = strconv.FormatFloat(x, 'g', -1, 64)
			}
			row = append(row, cell)
		}
		errs = append(errs, w.Write(row))
	}
	w.Flush()
	return errors.Join(append(errs, w.Error())...)
}

// JSON writes an object for each task, the best first.
func (s *Sweep) JSON(out io.Writer) error {
	enc := json.NewEncoder(out)
	for i := range s.Tasks {
		t := &s.Tasks[i]
		if err := enc.Encode(struct {
			Type    string            `json:"type"`
			Job     string            `json:"job"`
			Rank    int               `json:"rank"`
			Task    int               `json:"task"`
			Ending  Ending            `json:"ending"`
			Params  map[string]string `json:"params,omitempty"`
			Results metrics.Results   `json:"results,omitempty"`
		}{"sweep", s.Name, i + 1, t.Index, t.Ending, t.Params, t.Results}); err != nil {
			return err
		}
	}
	return nil
}

// WriteSweeps writes sweeps without a report, in one of the forms of [Report.Write].
func WriteSweeps(w io.Writer, form string, sweeps []*Sweep) error {
	var list Sections
	for _, s := range sweeps {
		list = append(list, s.Section(form == "html"))
	}
	switch form {
	case "html":
		return list.HTML(w, "Results of "+sweeps[0].Name)
	case "markdown":
		return list.Markdown(w)
	case "text":
		return list.Text(w)
	}
	for _, s := range sweeps {
		write := s.JSON
		if form == "csv" {
			write = s.CSV
		}
		if err := write(w); err != nil {
			return err
		}
	}
	return nil
}
