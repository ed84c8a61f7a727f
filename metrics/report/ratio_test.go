package report

import (
	"fmt"
	"strings"
	"testing"

	"hpcc/metrics"
)

// with sets a figure of each run, repeating the values. A negative value leaves it unknown.
func (s *System) with(name string, values ...float64) *System {
	for k, t := range s.Tasks {
		if v := values[k%len(values)]; v >= 0 {
			t.Figures[name] = v
		}
	}
	s.count()
	return s
}

// TestRatios checks that a ratio needs known and sufficiently large values in three quarters of
// the pairs, or of the runs without pairs.
func TestRatios(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	same := func(int) float64 { return 100 }
	for _, test := range []struct {
		name        string
		paired      bool
		base, other []float64 // bytes read, by run
		ratio       float64   // 0: none
	}{
		{"all pairs", true, []float64{2 * mib}, []float64{6 * mib}, 3},
		{"six of eight pairs", true, []float64{0, 0, mib, mib, mib, mib, mib, mib}, []float64{2 * mib}, 2},
		{"five of eight pairs", true, []float64{0, 0, 0, mib, mib, mib, mib, mib}, []float64{2 * mib}, 0},
		{"five of eight pairs in the other system", true, []float64{2 * mib}, []float64{mib, mib, mib, mib, mib, 0, 0, 0}, 0},
		{"two pairs of eight", true, []float64{23.6 * kib, 0, 0, 0, 0, 0, 0, mib}, []float64{62.8 * kib, 0, 0, 0, 0, 0, mib, 451 * mib}, 0},
		{"unknown in three pairs", true, []float64{-1, -1, -1, mib, mib, mib, mib, mib}, []float64{mib}, 0},
		{"few bytes", true, []float64{4 * kib}, []float64{64 * kib}, 0},
		{"all runs", false, []float64{2 * mib}, []float64{6 * mib}, 3},
		{"half of the runs", false, []float64{2 * mib, -1}, []float64{6 * mib}, 0},
	} {
		a, b := drawn(8, test.paired, same).with(readName, test.base...), drawn(8, test.paired, same).with(readName, test.other...)
		a.Name, b.Name = "a", "b"
		r := &Report{Systems: []*System{a, b}}
		c := compare(r, a, b)
		r.Comparisons = []comparison{c}
		if got, ok := c.Ratios[readName]; got != test.ratio || ok != (test.ratio > 0) {
			t.Errorf("%s: ratio = %g, %v; want %g", test.name, got, ok, test.ratio)
		}
		want := unknown
		if test.ratio > 0 {
			want = fmt.Sprintf("%.2f (more)", test.ratio)
		}
		if row := r.figuresTable(false).Rows[1]; row[0] != "read from storage" || row[3] != want {
			t.Errorf("%s: the row is %q; want %s", test.name, row, want)
		}
	}
}

// TestSomeRuns checks a figure that is known for only some runs: the number of runs is stated,
// sums are lower bounds, and no advice is based on it.
func TestSomeRuns(t *testing.T) {
	a := drawn(4, false, func(int) float64 { return 100 }).with(cpuName, 50, 50, -1, -1).with(throttledName, 0.5, -1, -1, -1)
	r := &Report{Systems: []*System{a}}
	rows := fmt.Sprint(r.figuresTable(false).Rows)
	for _, want := range []string{"[processor time 50 s, 2 of 4 runs]", "[all runs: processor time at least 1.67 CPU-minutes (2 of 4 runs)]"} {
		if !strings.Contains(rows, want) {
			t.Errorf("%s; want %s", rows, want)
		}
	}
	if f, ok := a.figure(throttledName); ok || len(advise(a)) > 0 {
		t.Errorf("a figure of one run in four: %+v, advice %q; want no figure and no advice", f, advise(a))
	}
}

// TestHeadline checks that the headline contains the verdict, its basis and the causes.
func TestHeadline(t *testing.T) {
	plain := power
	plain.busy, plain.gpus = 0.95, 0
	for _, test := range []struct {
		change func(p *simulated)
		n      int
		want   string
	}{
		{func(p *simulated) {}, 6, "other is as fast as base: the wall clocks differ by less than 3% (6 pairs)"},
		{func(p *simulated) { p.busy, p.throttled = 0.5, 0.9 }, 6, "other is 1.90 × slower than base (slower in 6 of 6 pairs): it was throttled by its CPU quota"},
		{func(p *simulated) { p.granted, p.io = 2, 0.3 }, 8, "other is 2.00 × slower than base (slower in 8 of 8 pairs): it was granted 2 processors instead of 4"},
		{func(p *simulated) { p.seconds /= 2; p.cpu = "POWER10" }, 6, "other is 2.00 × faster than base (faster in 6 of 6 pairs): base probably has slower cores"},
		{func(p *simulated) { p.seconds *= 2 }, 3, "other seems 2.00 × slower than base, but few runs may differ by chance (slower in 3 of 3 pairs)"},
	} {
		other := plain
		test.change(&other)
		r := compared(t, plain, other, test.n, nil)
		if got := r.Comparisons[0].Headline; got != test.want {
			t.Errorf("headline %q; want %q", got, test.want)
		}
		for name, text := range map[string]string{"text": rendered(t, r.Text), "Markdown": rendered(t, r.Markdown)} {
			if line, _, _ := strings.Cut(strings.TrimPrefix(text, "# base, other\n\n"), "\n"); strings.Trim(line, "*") != test.want {
				t.Errorf("%s begins with %q; want %q", name, line, test.want)
			}
		}
	}
}

// TestContention checks the advice for runs that waited for processors: to request more, or a
// node of their own.
func TestContention(t *testing.T) {
	for _, test := range []struct {
		name      string
		figures   map[string]float64
		contended bool
		advice    string
	}{
		{"alone", map[string]float64{pressureName: 0.02, busyName: 0.1, cpusName: 0.8, switchesName: 900}, false, ""},
		{"throttled", map[string]float64{throttledName: 0.3}, true, "throttled 30% of the time in which it could run: ask for more processors, or start fewer threads"},
		{"more threads than processors", map[string]float64{pressureName: 1, busyName: 0.97}, true, "threads waited for a processor 100% of the time: ask for more processors, or start fewer threads"},
		{"processors of others", map[string]float64{pressureName: 1, busyName: 0.4}, true, "threads waited for a processor 100% of the time, and only 40% of its processors were busy: other programs probably took them; try --exclusive for a node of its own"},
		{"no request", map[string]float64{pressureName: 0.6}, true, "threads waited for a processor 60% of the time: ask for more processors, or try --exclusive for a node of its own"},
		{"little pressure", map[string]float64{pressureName: 0.12}, true, ""},
		{"preempted, without pressure", map[string]float64{cpusName: 2, switchesName: 150}, true, ""},
		{"seldom preempted", map[string]float64{cpusName: 2, switchesName: 20}, false, ""},
		{"nothing known", nil, false, ""},
	} {
		s := drawn(1, false, func(int) float64 { return 100 })
		for name, v := range test.figures {
			s.with(name, v)
		}
		if got := strings.Join(advise(s), "\n"); s.Contended() != test.contended || got != test.advice {
			t.Errorf("%s: contended %v, advice %q; want %v, %q", test.name, s.Contended(), got, test.contended, test.advice)
		}
	}
	short := drawn(1, false, func(int) float64 { return 2 }).with(pressureName, 1)
	if got := advise(short); len(got) > 0 {
		t.Errorf("advice for a run of 2 s: %q; want none", got)
	}
	r := compared(t, power, power, 1, func(_ int, h *metrics.Header, _ *metrics.Footer) { h.Limits.CPUs = 1 })
	if want := "it requested 4 processors but could use only 1: check its affinity and the quota of its cgroup"; len(r.Systems[0].Advice) != 1 || r.Systems[0].Advice[0] != want {
		t.Errorf("advice %q; want %q", r.Systems[0].Advice, want)
	}
}
