package report

import (
	"fmt"
	"math"
	"slices"
)

// A comparison compares one system with the first.
type comparison struct {
	Base    string             `json:"base"`
	Other   string             `json:"other"`
	Pairs   int                `json:"pairs,omitempty"` // pairs of equivalent runs; 0: all runs were compared together
	Ratios  map[string]float64 `json:"ratios"`          // other to base by measure: the median of the pairs' ratios, or the ratio of medians
	Verdict verdict            `json:"verdict"`         // of the wall clock
	Text    []string           `json:"text"`            // differences and their probable causes
}

// A verdict is the result of comparing two wall clocks.
type verdict string

// The verdicts.
const (
	wallLonger  verdict = "longer"
	wallShorter verdict = "shorter"
	wallSame    verdict = "same"          // practically the same
	wallWithin  verdict = "within spread" // the difference may be chance
	wallFew     verdict = "few runs"      // too few to distinguish from chance
	wallUnlike  verdict = "unlike runs"   // the systems' runs are not equivalent
	wallUnknown verdict = "unknown"       // one system has no ended run
)

// sameRatio is the largest ratio that counts as equal.
const sameRatio = 1.03

// A match pairs two systems.
type match struct {
	report *Report
	base   *System
	other  *System
	pairs  [][2]group
	unlike bool // they have no equivalent runs, although runs could be matched
}

// A group holds equivalent runs of one system.
type group []*Task

func newMatch(r *Report, base, other *System) *match {
	m := &match{report: r, base: base, other: other}
	m.pairs, m.unlike = pair(base, other)
	return m
}

func compare(r *Report, base, other *System) comparison {
	m := newMatch(r, base, other)
	c := comparison{Base: base.Name, Other: other.Name, Pairs: len(m.pairs), Ratios: map[string]float64{}}
	for _, x := range measures {
		if ratio, ok := m.ratio(x.name); ok {
			c.Ratios[x.name] = ratio.Median
		}
	}
	c.Verdict = m.verdict()
	c.Text = m.explain(c.Verdict)
	return c
}

// pair finds equivalent successful runs of both systems. With fewer than two pairs, it
// returns none; if other runs exist, the systems are unlike.
func pair(a, b *System) (pairs [][2]group, unlike bool) {
	all, mates := groups(a)
	keys, own := groups(b)
	for _, k := range keys {
		if mate := mates[k]; mate != nil {
			pairs = append(pairs, [2]group{mate, own[k]})
		}
	}
	if len(pairs) < 2 {
		return nil, len(all) > 0 && len(keys) > 0 && len(all)+len(keys) > 2*len(pairs)
	}
	return pairs, false
}

// groups returns the successful runs by their key, and the sorted keys. Of several attempts
// of one task the last counts; the same task of another job is a repeat.
func groups(s *System) (keys []string, byKey map[string]group) {
	type task struct {
		job   string
		index int
	}
	last := map[task]int{}
	of := func(t *Task) task { return task{t.Header.Job.ID, t.Header.Job.Task} }
	counts := func(t *Task) bool { return t.key() != "" && t.Ending == Done }
	for _, t := range s.Tasks {
		if counts(t) {
			last[of(t)] = max(last[of(t)], t.attempt())
		}
	}
	byKey = map[string]group{}
	for _, t := range s.Tasks {
		if !counts(t) || (t.Header.Job.ID != "" && t.attempt() < last[of(t)]) {
			continue
		}
		k := t.key()
		if byKey[k] == nil {
			keys = append(keys, k)
		}
		byKey[k] = append(byKey[k], t)
	}
	return keys, byKey
}

// median returns the median of a figure, or 0 if no run has it.
func (g group) median(name string) float64 {
	var values []float64
	for _, t := range g {
		if v, ok := t.Figures[name]; ok {
			values = append(values, v)
		}
	}
	return spreadOf(values).Median
}

// ratios returns the sorted ratios of the pairs' medians of a figure.
func (m *match) ratios(name string) (list []float64) {
	for _, p := range m.pairs {
		if r, ok := ratioOf(p[0].median(name), p[1].median(name)); ok {
			list = append(list, r)
		}
	}
	slices.Sort(list)
	return list
}

// ratio returns the ratio of a figure of the other system to the base. Without pairs only
// the median is set.
func (m *match) ratio(name string) (spread, bool) {
	if ratios := m.ratios(name); len(ratios) > 1 {
		return spreadOf(ratios), true
	}
	r, ok := m.together(name)
	return spread{Median: r}, ok
}

// together returns the ratio of the medians of all runs, whether equivalent or not.
func (m *match) together(name string) (float64, bool) {
	return ratioOf(m.base.Figures[name].Median, m.other.Figures[name].Median)
}

func ratioOf(base, other float64) (float64, bool) {
	r := other / base
	return r, base > 0 && other > 0 && r > 1/most && r < most
}

func (m *match) verdict() verdict {
	a, b := m.base.Figures[wallName], m.other.Figures[wallName]
	r, ok := m.ratio(wallName)
	ratios := m.ratios(wallName)
	low, high, enough := sure(ratios)
	switch {
	case !ok:
		return wallUnknown
	case m.unlike:
		return wallUnlike
	case math.Abs(math.Log(r.Median)) < math.Log(sameRatio):
		return wallSame
	case len(ratios) > 1 && !enough, len(ratios) < 2 && min(a.N, b.N) < enoughToTell:
		return wallFew
	case len(ratios) > 1 && low <= 1 && high >= 1, len(ratios) < 2 && !a.apart(b):
		return wallWithin
	}
	if r.Median > 1 {
		return wallLonger
	}
	return wallShorter
}

// explain describes the comparison in sentences.
func (m *match) explain(v verdict) []string {
	if v == wallUnknown {
		return []string{"the wall clock of one of them is not known"}
	}
	text := []string{m.wallClock()}
	switch v {
	case wallSame:
		text = append(text, "as good as the same")
	case wallWithin:
		text = append(text, "the difference may be chance: more runs may tell whether there is one")
	case wallUnlike:
		text = append(text, "the runs of one that went well did not do what those of the other did (they have fewer than two sets of parameters, or indices, in common): why is not looked for")
	case wallFew:
		text = append(text, fmt.Sprintf("there are only %s: too few to tell the difference from chance", m.howMany()))
	}
	if paired, all := m.sides(); paired*all < 0 && math.Abs(paired-all) >= math.Log(telling) {
		text = append(text, fmt.Sprintf("all runs taken together say the opposite, × %s: one system has runs that the other has not, or more of some", times(math.Exp(all))))
	}
	if v != wallWithin && v != wallUnlike && (v != wallSame || m.apart()) {
		text = append(text, m.causes()...)
	}
	return append(text, m.around()...)
}

// howMany describes the data of the verdict.
func (m *match) howMany() string {
	if n := len(m.ratios(wallName)); n > 1 {
		return counted(n, "pair of runs", "pairs of runs")
	}
	return fmt.Sprintf("%d and %s", m.base.Figures[wallName].N, counted(m.other.Figures[wallName].N, "run", "runs"))
}

// sides returns the logarithms of the wall clock's ratio, by pairs and of all runs. Below
// zero, the other system is faster.
func (m *match) sides() (paired, all float64) {
	p, _ := m.ratio(wallName)
	a, ok := m.together(wallName)
	if !ok {
		return 0, 0
	}
	return math.Log(p.Median), math.Log(a)
}

// wallClock describes both wall clocks and the source of their ratio.
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

// times formats a ratio.
func times(r float64) string {
	if r < 0.01 || r >= 100 {
		return digits(r)
	}
	return fmt.Sprintf("%.2f", r)
}
