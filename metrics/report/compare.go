package report

import (
	"fmt"
	"math"
)

// A Comparison is one system against the first.
type Comparison struct {
	Base    string             `json:"base"`
	Other   string             `json:"other"`
	Pairs   int                `json:"pairs,omitempty"` // of runs that did the same; 0: all were taken together
	Ratios  map[string]float64 `json:"ratios"`          // other to base by measure: the median of the pairs', or that of the medians
	Verdict Verdict            `json:"verdict"`         // of the wall clock
	Text    []string           `json:"text"`            // what differs, and what probably explains it
}

// A Verdict says how two wall clocks compare.
type Verdict string

// The verdicts.
const (
	Longer  Verdict = "longer"
	Shorter Verdict = "shorter"
	Same    Verdict = "same"          // as good as
	Within  Verdict = "within spread" // the difference may be chance
	Few     Verdict = "few runs"      // how far they spread is not known
	Unknown Verdict = "unknown"       // one has none that ended
)

// sameRatio is how far a ratio may be from one and be as good as one.
const sameRatio = 1.03

// A match is two systems side by side.
type match struct {
	report *Report
	base   *System
	other  *System
	pairs  [][2]*Task
}

func compare(r *Report, base, other *System) Comparison {
	m := &match{report: r, base: base, other: other, pairs: pair(base, other)}
	c := Comparison{Base: base.Name, Other: other.Name, Pairs: len(m.pairs), Ratios: map[string]float64{}}
	for _, x := range measures {
		if ratio, ok := m.ratio(x.name); ok {
			c.Ratios[x.name] = ratio.Median
		}
	}
	c.Verdict = m.verdict()
	c.Text = m.explain(c.Verdict)
	return c
}

// pair finds runs that went well and did the same on both systems. Fewer than two
// pairs say no more than the runs alone.
func pair(a, b *System) (pairs [][2]*Task) {
	byKey := map[string]*Task{}
	for _, t := range a.Tasks {
		if k := t.key(); k != "" && t.Ending == Done {
			byKey[k] = t // of several attempts the last
		}
	}
	at := map[string]int{}
	for _, t := range b.Tasks {
		k := t.key()
		mate := byKey[k]
		if k == "" || mate == nil || t.Ending != Done {
			continue
		}
		if i, again := at[k]; again {
			pairs[i][1] = t
			continue
		}
		at[k] = len(pairs)
		pairs = append(pairs, [2]*Task{mate, t})
	}
	if len(pairs) < 2 {
		return nil
	}
	return pairs
}

// ratio is how a figure of the other system is to that of the base. Without pairs
// only the median is set.
func (m *match) ratio(name string) (Spread, bool) {
	var ratios []float64
	for _, p := range m.pairs {
		if r, ok := ratioOf(p[0].Figures[name], p[1].Figures[name]); ok {
			ratios = append(ratios, r)
		}
	}
	if len(ratios) > 1 {
		return spreadOf(ratios), true
	}
	r, ok := ratioOf(m.base.Figures[name].Median, m.other.Figures[name].Median)
	return Spread{Median: r}, ok
}

func ratioOf(base, other float64) (float64, bool) {
	r := other / base
	return r, base > 0 && other > 0 && r > 1/most && r < most
}

func (m *match) verdict() Verdict {
	a, b := m.base.Figures[wallName], m.other.Figures[wallName]
	r, ok := m.ratio(wallName)
	switch {
	case !ok:
		return Unknown
	case math.Abs(math.Log(r.Median)) < math.Log(sameRatio):
		return Same
	case r.N >= enoughForSpread:
		if low, high := r.middle(); low <= 1 && high >= 1 {
			return Within
		}
	case min(a.N, b.N) < enoughForSpread:
		return Few
	case !a.apart(b):
		return Within
	}
	if r.Median > 1 {
		return Longer
	}
	return Shorter
}

// explain tells the comparison in sentences.
func (m *match) explain(v Verdict) []string {
	if v == Unknown {
		return []string{"the wall clock of one of them is not known"}
	}
	text := []string{m.wallClock()}
	switch v {
	case Same:
		text = append(text, "as good as the same")
	case Within:
		text = append(text, "the difference is within the spread of the runs: more of them may tell whether there is one")
	case Few:
		text = append(text, fmt.Sprintf("there are only %d and %s: how far they spread is not known, and chance may be all of it", m.base.Figures[wallName].N, counted(m.other.Figures[wallName].N, "run", "runs")))
	}
	if v != Within && (v != Same || m.apart()) {
		text = append(text, m.causes()...)
	}
	return append(text, m.around()...)
}

// wallClock tells both wall clocks and where their ratio comes from.
func (m *match) wallClock() string {
	a, b := m.base.Figures[wallName], m.other.Figures[wallName]
	r, _ := m.ratio(wallName)
	text := fmt.Sprintf("wall clock: %s, %s on %s: × %s", saySeconds(b.Median), saySeconds(a.Median), m.base.Name, times(r.Median))
	switch {
	case r.N > 1:
		low, high := r.middle()
		what := "quartiles"
		if r.N < enoughForQuartiles {
			what = "between"
		}
		return text + fmt.Sprintf(" (median of %d pairs, %s × %s and × %s)", r.N, what, times(low), times(high))
	case a.N > 1 || b.N > 1:
		return text + fmt.Sprintf(" (medians of %d and %s)", b.N, counted(a.N, "run", "runs"))
	}
	return text
}

// times writes a ratio.
func times(r float64) string {
	if r < 0.01 || r >= 100 {
		return digits(r)
	}
	return fmt.Sprintf("%.2f", r)
}
