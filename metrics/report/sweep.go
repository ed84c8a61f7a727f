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
)

// A Sweep is a job whose tasks had parameters of their own, and what came of them.
type Sweep struct {
	Name    string
	Params  []string // their names, in the order in which they were given
	Tasks   []SweepTask
	Columns []string // results to show; none: the best's, and a few others

	Best    string // the result that tasks are ranked by, see Rank
	Highest bool   // the highest is the best
	Guessed bool   // both follow from the names of the results
}

// A SweepTask is one task: its parameters and its results.
type SweepTask struct {
	Index   int
	Attempt int // which, from 0
	Params  map[string]string
	Ending  Ending
	Start   time.Time
	End     time.Time // zero: it goes on
	Results metrics.Results
}

// A NoResultError is that no task has a result to rank by.
type NoResultError struct {
	Name  string
	There []string // those that there are
}

func (e *NoResultError) Error() string {
	if len(e.There) == 0 {
		return fmt.Sprintf("no task has a result %q, or any other", e.Name)
	}
	return fmt.Sprintf("no task has a result %q; there are %s", e.Name, few(e.There))
}

// Rank puts the best task first: the one whose result best names is lowest, or highest of one that
// begins with "+". Of a series the last value counts; its name with .min or .max behind chooses those.
// With "" the result is guessed. Behind come tasks without it, or with none that is a number, then those that go
// on, and last those that failed. A result that no task has is a [NoResultError], among the columns, too.
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

// has says whether a task has a result of such a name.
func (s *Sweep) has(name string) bool {
	return slices.ContainsFunc(s.Tasks, func(t SweepTask) bool { _, ok := t.result(name); return ok })
}

// names are those of all results, in order.
func (s *Sweep) names() []string {
	seen := map[string]bool{}
	for i := range s.Tasks {
		for n := range s.Tasks[i].Results {
			seen[n] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// result is a number of a task by its name.
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

// group orders tasks before their results do.
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

// compare orders tasks of a group by their results.
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

// What the names of results mean, the surest first.
var (
	lowBest  = []string{"loss", "perplexity", "ppl", "nll", "rmse", "mse", "mae", "wer", "cer", "error", "err", "fid", "bpb", "latency"}
	highBest = []string{"accuracy", "acc", "f1", "auc", "auroc", "iou", "dice", "bleu", "rouge", "psnr", "ssim", "r2", "reward", "return", "score", "precision", "recall"}
	heldOut  = []string{"val", "valid", "validation", "eval", "test", "dev"}
)

// guess finds the result that tasks are most probably ranked by: of what was held out before the
// rest, a loss before an accuracy. "" when no name says anything, and there is not just one.
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

// maxColumns is how many results a table has when none were asked for.
const maxColumns = 6

// columns are the results that a table shows.
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

// table has a row for each task, the best first, most rows at most; 0: all.
func (s *Sweep) table(most int) *Table {
	columns := s.columns()
	t := &Table{Head: slices.Concat([]string{"task"}, s.Params, columns, []string{"ending"})}
	for i := range s.Tasks {
		if most > 0 && i == most {
			t.Caption = fmt.Sprintf("and %d more tasks; --csv, --json and --html show all", len(s.Tasks)-most)
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
				cell = sayResult(x)
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, append(row, string(one.Ending)))
	}
	return t
}

// sayResult writes a result for people.
func sayResult(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

// order says in words how the tasks are ranked.
func (s *Sweep) order() string {
	var text string
	switch {
	case s.Best == "":
		return "the tasks stand in their own order: --best NAME, or --best +NAME, says by which result the best is found"
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
		text += fmt.Sprintf(", as its name lets guess; --best %s turns it round", other)
	}
	return text
}

// briefRows is how many tasks a terminal is shown.
const briefRows = 20

// Section is the sweep as a part of a report; on a page with a picture.
func (s *Sweep) Section(page bool) Section {
	sec := Section{Title: "Parameters and results of " + s.Name, Text: []string{s.order()}, Table: s.table(0), Brief: s.table(briefRows)}
	with := 0
	for i := range s.Tasks {
		if len(s.Tasks[i].Results) > 0 {
			with++
		}
	}
	if with < len(s.Tasks) {
		sec.Text = append(sec.Text, fmt.Sprintf("%d of %d tasks left results", with, len(s.Tasks)))
	}
	if page {
		if c, ok := s.chart(); ok {
			sec.Charts = []Chart{c}
		}
	}
	return sec
}

// CSV writes a row for each task with all of its results; a series has its least and its most, too.
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
