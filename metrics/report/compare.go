package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"hpcc/text"
)

// A comparison compares one system with the first.
type comparison struct {
	Base     string             `json:"base"`
	Other    string             `json:"other"`
	Pairs    int                `json:"pairs,omitempty"` // pairs of equivalent runs; 0: all runs were compared together
	Ratios   map[string]float64 `json:"ratios"`          // other to base by measure: the median of the pairs' ratios, or the ratio of medians
	Verdict  verdict            `json:"verdict"`         // of the wall clock
	Headline string             `json:"headline"`        // the verdict in one sentence
	Text     []string           `json:"text"`            // differences and their probable causes
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

func nearOne(r float64) bool { return math.Abs(math.Log(r)) < math.Log(sameRatio) }

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
	text, causes := m.explain(c.Verdict)
	c.Headline, c.Text = m.headline(c.Verdict, causes), text
	return c
}

// pair finds equivalent successful runs of both systems. With fewer than two pairs, it
// returns nil; if other runs exist, the systems are unlike.
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

// groups returns the successful runs by their key, and the sorted keys. Among several attempts
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

// mostOf is the share of pairs, or of runs, that must have a figure. A result from fewer
// would describe only these.
const mostOf = 0.75

// unfinished reports whether no run of the system has ended.
func (s *System) unfinished() bool { return s.Endings[Open] == len(s.Tasks) }

// enough reports whether n of total are sufficient for a result.
func enough(n, total int) bool { return n > 0 && float64(n) >= mostOf*float64(total) }

// ratios returns the sorted ratios of the pairs' medians of a figure. It returns nil if too
// few pairs have values on both sides that can be divided.
func (m *match) ratios(name string) (list []float64) {
	least := measureOf(name).least
	for _, p := range m.pairs {
		if r, ok := ratioOf(p[0].median(name), p[1].median(name), least); ok {
			list = append(list, r)
		}
	}
	if !enough(len(list), len(m.pairs)) {
		return nil
	}
	slices.Sort(list)
	return list
}

// ratio returns the ratio of a figure of the other system to the base. Without pairs only
// the median is set.
func (m *match) ratio(name string) (spread, bool) {
	if measureOf(name).grows && (m.base.unfinished() || m.other.unfinished()) {
		return spread{}, false // one side is the part of a run
	}
	if len(m.pairs) > 0 {
		ratios := m.ratios(name)
		return spreadOf(ratios), len(ratios) > 0
	}
	r, ok := m.together(name)
	return spread{Median: r}, ok
}

// together returns the ratio of the medians of all runs, whether equivalent or not.
func (m *match) together(name string) (float64, bool) {
	a, known := m.base.figure(name)
	b, also := m.other.figure(name)
	if !known || !also {
		return 0, false
	}
	return ratioOf(a.Median, b.Median, measureOf(name).least)
}

// ratioOf divides two values. ok is false if one of them is below least.
func ratioOf(base, other, least float64) (r float64, ok bool) {
	r = other / base
	return r, min(base, other) >= least && base > 0 && other > 0 && r > 1/most && r < most
}

func (m *match) verdict() verdict {
	a, b := m.base.Figures[wallName], m.other.Figures[wallName]
	r, ok := m.ratio(wallName)
	ratios := m.ratios(wallName)
	low, high, many := medianInterval(ratios)
	switch {
	case !ok:
		return wallUnknown
	case m.unlike:
		return wallUnlike
	case nearOne(r.Median):
		return wallSame
	case len(ratios) > 1 && !many, len(ratios) < 2 && min(a.N, b.N) < enoughRuns:
		return wallFew
	case len(ratios) > 1 && low <= 1 && high >= 1, len(ratios) < 2 && !a.apart(b):
		return wallWithin
	}
	if r.Median > 1 {
		return wallLonger
	}
	return wallShorter
}

// headline returns the verdict in one sentence, with at most two causes.
func (m *match) headline(v verdict, causes []cause) string {
	base, other := m.base.Name, m.other.Name
	r, _ := m.ratio(wallName)
	switch v {
	case wallUnknown:
		for _, s := range []*System{m.base, m.other} {
			if s.unfinished() {
				return fmt.Sprintf("%s and %s cannot be compared: no run of %s has ended", other, base, s.Name)
			}
		}
		return fmt.Sprintf("%s and %s cannot be compared: the wall clock of one of them is unknown or below 1 ms", other, base)
	case wallUnlike:
		return fmt.Sprintf("%s and %s cannot be compared: fewer than two of their runs have the same parameters or index", other, base)
	case wallSame:
		return fmt.Sprintf("%s is as fast as %s: the wall clocks differ by less than %.0f%% (%s)",
			other, base, 100*(sameRatio-1), m.basis())
	case wallWithin:
		return fmt.Sprintf("%s may be as fast as %s: the difference is within the spread of the runs (%s)", other, base, m.votes())
	case wallFew:
		return fmt.Sprintf("%s seems %s than %s, but few runs may differ by chance (%s)", other,
			factor(r.Median, "slower", "faster"), base, m.votes())
	}
	text := fmt.Sprintf("%s is %s than %s (%s)", other, factor(r.Median, "slower", "faster"), base, m.votes())
	var brief []string
	for _, c := range causes {
		if c.brief != "" && len(brief) < 2 {
			brief = append(brief, c.brief)
		}
	}
	if len(brief) > 0 {
		text += ": " + strings.Join(brief, "; ")
	}
	return text
}

// basis names the runs that the verdict is based on.
func (m *match) basis() string {
	if n := len(m.ratios(wallName)); n > 0 {
		return text.Count(n, "pair", "pairs")
	}
	return fmt.Sprintf("%s of %s and %d of %s", text.Count(m.other.Figures[wallName].N, "run", "runs"),
		m.other.Name, m.base.Figures[wallName].N, m.base.Name)
}

// votes returns the basis of the verdict, and how many of the pairs agree with it.
func (m *match) votes() string {
	ratios := m.ratios(wallName)
	slower := 0
	for _, r := range ratios {
		if r > 1 {
			slower++
		}
	}
	switch {
	case len(ratios) == 0:
		return m.basis()
	case 2*slower < len(ratios):
		return fmt.Sprintf("faster in %d of %s", len(ratios)-slower, m.basis())
	}
	return fmt.Sprintf("slower in %d of %s", slower, m.basis())
}

// factor formats a ratio as a factor of at least 1 with a word for its direction.
func factor(r float64, more, less string) string {
	switch {
	case nearOne(r):
		return "about the same"
	case r < 1:
		return significant(1/r) + " × " + less
	}
	return significant(r) + " × " + more
}

// explain describes the comparison in sentences, and returns the probable causes of a
// difference.
func (m *match) explain(v verdict) (text []string, causes []cause) {
	if v == wallUnknown {
		return []string{}, nil // an empty list in JSON
	}
	text = []string{m.wallClock()}
	if paired, all := m.sides(); paired*all < 0 && math.Abs(paired-all) >= math.Log(telling) {
		text = append(text, fmt.Sprintf("all runs together show the opposite, %s: one system has runs that the other lacks, or more of some", factor(math.Exp(all), "longer", "shorter")))
	}
	if v != wallWithin && v != wallUnlike && (v != wallSame || m.apart()) {
		causes = m.causes()
		for _, c := range causes {
			text = append(text, c.text)
		}
	}
	return append(text, m.around()...), causes
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
	clause := fmt.Sprintf("wall clock: %s, against %s on %s: %s", formatSeconds(b.Median),
		formatSeconds(a.Median), m.base.Name, factor(r.Median, "longer", "shorter"))
	switch {
	case r.N > 1:
		low, high := r.middle()
		what := "quartiles"
		if r.N < enoughForQuartiles {
			what = "range"
		}
		return clause + fmt.Sprintf(" (median of %d pairs; %s of %s: %s – %s)", r.N, what, m.quotient(),
			significant(low), significant(high))
	case a.N > 1 || b.N > 1:
		return clause + fmt.Sprintf(" (medians of %d and %s)", b.N, text.Count(a.N, "run", "runs"))
	}
	return clause
}

// quotient names the ratio of the other system to the base.
func (m *match) quotient() string { return m.other.Name + " ÷ " + m.base.Name }
