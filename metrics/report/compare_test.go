package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// compared reads two systems with n runs each.
func compared(t *testing.T, a, b simulated, n int, change func(k int, h *metrics.Header, f *metrics.Footer)) *Report {
	t.Helper()
	r, err := Read([]Source{{Name: "base", Runs: a.write(t, n, change)}, {Name: "other", Runs: b.write(t, n, change)}}, Options{})
	testenv.Check(t, err)
	return r
}

// TestPeakSources: comparing peaks from different sources adds a note.
func TestPeakSources(t *testing.T) {
	by := func(sources ...string) func(int, *metrics.Header, *metrics.Footer) {
		return func(k int, _ *metrics.Header, f *metrics.Footer) { f.MemoryFrom = sources[k%len(sources)] }
	}
	for _, test := range []struct {
		base, other []string
		want        string
	}{
		{[]string{"pss", "process"}, []string{"cgroup", "pss"}, "the peaks of memory have different sources: cgroup, pss on other, process, pss on base ("},
		{[]string{"pss"}, []string{"pss"}, ""},
	} {
		r, err := Read([]Source{{Name: "base", Runs: power.write(t, 6, by(test.base...))}, {Name: "other", Runs: power.write(t, 6, by(test.other...))}}, Options{})
		testenv.Check(t, err)
		text := strings.Join(r.Comparisons[0].Text, "\n")
		if !strings.Contains(text, test.want) || (test.want == "" && strings.Contains(text, "different sources")) {
			t.Errorf("%v against %v: %s; want %q", test.other, test.base, text, test.want)
		}
	}
}

// TestCauses: each cause is reported where it applies, and no other.
func TestCauses(t *testing.T) {
	plain := power
	plain.busy, plain.gpus = 0.95, 0
	tests := []struct {
		name    string
		change  func(p *simulated)
		verdict verdict
		says    []string
	}{
		{"nothing", func(p *simulated) {}, wallSame, nil},
		{"other architecture", func(p *simulated) { p.seconds *= 1.6; p.arch = "amd64" }, wallLonger, []string{"other used 1.60 × the processor time: probably because of its architecture, amd64 instead of ppc64le"}},
		{"faster cores", func(p *simulated) { p.seconds /= 1.5; p.cpu = "POWER10" }, wallShorter, []string{"base used 1.50 × the processor time: probably because of slower cores, POWER9 (raw), altivec supported instead of POWER10"}},
		{"no known cause", func(p *simulated) { p.seconds *= 1.5 }, wallLonger, []string{"no known property of the hosts differs"}},
		{"throttled", func(p *simulated) { p.busy, p.throttled = 0.5, 0.9 }, wallLonger, []string{"other kept 50% of its processors busy, base 95%", "probably throttled by its CPU quota: 31% of its runnable time, 0% on base"}},
		{"storage", func(p *simulated) { p.busy, p.io = 0.5, 0.4 }, wallLonger, []string{"probably waiting for storage: 40% of the time, 0% on base"}},
		{"fewer processors", func(p *simulated) { p.granted = 2 }, wallLonger, []string{"other was granted 2 processors instead of 4"}},
		{"more work on more processors", func(p *simulated) { p.seconds *= 1.5; p.granted = 6 }, wallSame, []string{"no known property of the hosts differs", "base was granted 4 processors instead of 6"}},
		{"no trace", func(p *simulated) { p.busy = 0.5 }, wallLonger, []string{"the records do not show the cause: probably the network, locks"}},
	}
	for _, test := range tests[5:7] { // the reverse: the base is the slow one
		slow := plain
		test.change(&slow)
		c := compared(t, slow, plain, 6, nil).Comparisons[0]
		want := strings.NewReplacer("other", "base", "base", "other").Replace(strings.Join(test.says, "\n"))
		if text := strings.Join(c.Text, "\n"); c.Verdict != wallShorter || !strings.Contains(text, want) {
			t.Errorf("%s, reversed: %s; want %q:\n%s", test.name, c.Verdict, want, text)
		}
	}
	all := []string{"architecture", "slower cores", "no known property", "throttled", "waiting for storage", "was granted", "do not show"}
	for _, test := range tests {
		other := plain
		test.change(&other)
		c := compared(t, plain, other, 6, nil).Comparisons[0]
		text := strings.Join(c.Text, "\n")
		if c.Verdict != test.verdict {
			t.Errorf("%s: %s; want %s\n%s", test.name, c.Verdict, test.verdict, text)
		}
		for _, s := range test.says {
			if !strings.Contains(text, s) {
				t.Errorf("%s: does not say %q:\n%s", test.name, s, text)
			}
		}
		for _, s := range all {
			if strings.Contains(text, s) && !strings.Contains(strings.Join(test.says, "\n"), s) {
				t.Errorf("%s: says %q, which is not so:\n%s", test.name, s, text)
			}
		}
	}
}

// TestClaims: the text makes no claims beyond the records.
func TestClaims(t *testing.T) {
	plain := power
	plain.busy, plain.gpus = 0.95, 0
	type change = func(k int, h *metrics.Header, f *metrics.Footer)
	as := func(int, *metrics.Header, *metrics.Footer) {}
	gpu := func(mean float64) change {
		return func(_ int, _ *metrics.Header, f *metrics.Footer) { f.GPUs = []metrics.GPUUse{{Mean: mean}} }
	}
	inKernel := func(_ int, _ *metrics.Header, f *metrics.Footer) {
		f.Usage.User, f.Usage.System = f.Usage.User/2, f.Usage.System+f.Usage.User/2
	}
	threads := func(n int) change {
		return func(_ int, _ *metrics.Header, f *metrics.Footer) { f.Threads = n }
	}
	for _, test := range []struct {
		name         string
		spoil        func(p *simulated)
		base         change
		other        change
		says, unsaid string
	}{
		{"slower with more", func(p *simulated) { p.granted, p.busy = 8, 0.25 }, as, as, "other kept 25% of its processors busy, base 95%", "was granted"},
		{"faster with fewer", func(p *simulated) { p.granted = 2 }, as, as, "other was granted 2 processors instead of 4", "base was granted"},
		{"pressure of one", func(p *simulated) { p.busy, p.io = 0.5, 0.4 }, func(_ int, _ *metrics.Header, f *metrics.Footer) { f.Pressure = nil }, as, "perhaps waiting for storage: 40% of the time, unknown on base", "probably"},
		{"pressure of all on the machine", func(p *simulated) { p.busy, p.io = 0.5, 0.4 }, func(_ int, _ *metrics.Header, f *metrics.Footer) { f.Pressure.Machine = true }, as, "perhaps waiting for storage: 40% of the time, 0% on base", "probably"},
		{"pressure of both", func(p *simulated) { p.busy, p.io = 0.5, 0.4 }, as, as, "probably waiting for storage", "perhaps"},
		{"one thread", func(p *simulated) { p.busy = 0.25 }, threads(8), threads(1), "other started fewer threads: at most 1, against 8 on base", "do not show"},
		{"threads enough", func(p *simulated) { p.busy = 0.25 }, threads(8), threads(6), "do not show", "started fewer"},
		{"a GPU that idled", func(p *simulated) { p.seconds *= 1.6 }, gpu(0), as, "no known property of the hosts differs", "has GPUs"},
		{"a GPU that did not", func(p *simulated) { p.seconds *= 1.6 }, gpu(50), as, "base has GPUs, which probably do part of the work", "no known property"},
		{"the kernel's part of one", func(p *simulated) { p.seconds *= 1.6 }, func(_ int, _ *metrics.Header, f *metrics.Footer) { f.Usage = metrics.Usage{} }, inKernel, "other used", "in the kernel"},
		{"the kernel's part of both", func(p *simulated) { p.seconds *= 1.6 }, as, inKernel, "of its processor time in the kernel", "no known property"},
	} {
		slow := plain
		test.spoil(&slow)
		r, err := Read([]Source{{Name: "base", Runs: plain.write(t, 6, test.base)}, {Name: "other", Runs: slow.write(t, 6, test.other)}}, Options{})
		testenv.Check(t, err)
		text := strings.Join(r.Comparisons[0].Text, "\n")
		if !strings.Contains(text, test.says) || strings.Contains(text, test.unsaid) || strings.Contains(text, "unknown of") {
			t.Errorf("%s: want %q and not %q:\n%s", test.name, test.says, test.unsaid, text)
		}
	}
}

// TestMixedCauses: medians of parts that do not multiply to the total's are reported as
// such.
func TestMixedCauses(t *testing.T) {
	a, b := drawn(7, true, func(int) float64 { return 100 }), drawn(7, true, func(k int) float64 { return []float64{400, 400, 400, 400, 100, 100, 100}[k] })
	for k, x := range b.Tasks {
		a.Tasks[k].Figures[cpuName], a.Tasks[k].Figures[cpusName] = 100, 1
		x.Figures[cpuName] = []float64{400, 400, 100, 100, 100, 100, 100}[k]
		x.Figures[cpusName] = x.Figures[cpuName] / x.Figures[wallName]
	}
	a.count()
	b.count()
	a.Name, b.Name = "a", "b"
	m := newMatch(&Report{Systems: []*System{a, b}}, a, b)
	want := "the pairs have different causes: the medians of b ÷ a are 1.00 for processor time and 1.00 for busy processors, which do not explain 4.00 for the wall clock"
	if list := m.causes(); len(list) != 1 || list[0].text != want {
		t.Errorf("%q; want %q", list, want)
	}
}

// TestIdle: programs that only wait have no causes if they take the same time, and else the reason
// why none can be found.
func TestIdle(t *testing.T) {
	a, b := drawn(5, false, func(int) float64 { return 100 }), drawn(5, false, func(int) float64 { return 100 })
	for k, x := range b.Tasks {
		a.Tasks[k].Figures[cpuName], a.Tasks[k].Figures[cpusName] = 0.1, 0.001
		x.Figures[cpuName], x.Figures[cpusName] = 0.5, 0.005
	}
	a.count()
	b.count()
	a.Name, b.Name = "a", "b"
	m := newMatch(&Report{Systems: []*System{a, b}}, a, b)
	if text, causes := m.explain(wallSame); len(causes) > 0 || len(text) != 1 {
		t.Errorf("equal wall clocks are explained: %q", text)
	}
	if _, causes := m.explain(wallLonger); len(causes) != 1 || causes[0].text != "the cause is unknown: the programs used hardly any processor time" {
		t.Errorf("causes %q", causes)
	}
}

// TestSpread: possible chance is reported as such, without causes. Pairs reveal a difference
// that the spread over parameters hides.
func TestSpread(t *testing.T) {
	wide := func(factor float64) func(simulated, bool) []Run {
		return func(p simulated, paired bool) []Run {
			return p.write(t, 9, func(k int, h *metrics.Header, f *metrics.Footer) {
				f.Wall = float64(k*100) * factor
				if !paired {
					h.Job = nil
				}
			})
		}
	}
	for _, test := range []struct {
		paired bool
		want   verdict
	}{{true, wallLonger}, {false, wallWithin}} {
		r, err := Read([]Source{{Name: "a", Runs: wide(1)(power, test.paired)}, {Name: "b", Runs: wide(1.2)(power, test.paired)}}, Options{})
		testenv.Check(t, err)
		c := r.Comparisons[0]
		text := strings.Join(c.Text, "\n")
		if c.Verdict != test.want || (c.Pairs == 9) != test.paired || (strings.Contains(text, "probably") && !test.paired) {
			t.Errorf("paired %v: %s, %d pairs; want %s\n%s", test.paired, c.Verdict, c.Pairs, test.want, text)
		}
	}
	slow := power
	slow.seconds *= 2
	if c := compared(t, power, slow, 1, nil).Comparisons[0]; c.Verdict != wallFew || c.Headline != "other seems 2.00 × slower than base, but few runs may differ by chance (1 run of other and 1 of base)" {
		t.Errorf("one run each: %s %q", c.Verdict, c.Headline)
	}
	none := func(k int, h *metrics.Header, f *metrics.Footer) { *f = metrics.Footer{Kind: "footer"} }
	if c := compared(t, power, slow, 2, none).Comparisons[0]; c.Verdict != wallUnknown || !strings.Contains(c.Headline, "cannot be compared") {
		t.Errorf("no figures: %s %q", c.Verdict, c.Headline)
	}
}

// TestPairs: parameters take precedence over indices, failed runs are not paired, the last
// attempt counts, and repeats count as one run by their median.
func TestPairs(t *testing.T) {
	task := func(k int, e Ending, lr string) *Task {
		j := &metrics.JobOf{Task: k}
		if lr != "" {
			j.Params = map[string]string{"lr": lr}
		}
		return &Task{Ending: e, Header: metrics.Header{Job: j}}
	}
	of := func(job string, attempt int, wall float64) *Task {
		x := task(4, Done, "")
		x.Header.Job.ID, x.Header.Job.Attempt, x.Figures = job, attempt, map[string]float64{wallName: wall}
		return x
	}
	a := &System{Tasks: []*Task{task(1, Done, "0.1"), task(2, Done, "0.2"), task(3, failed, "0.3"), task(4, Done, "")}}
	b := &System{Tasks: []*Task{task(1, Done, "0.2"), task(2, Done, "0.1"), task(3, Done, "0.3"), of("j", 0, 90), of("k", 0, 3), of("j", 1, 1), of("", 0, 2), {Ending: Done}}}
	var got []string
	pairs, _ := pair(a, b)
	for _, p := range pairs {
		got = append(got, fmt.Sprintf("%d-%d", p[0][0].index(), p[1][0].index()))
	}
	if want := "2-1 1-2 4-4"; strings.Join(got, " ") != want {
		t.Errorf("pairs %s; want %s", got, want)
	}
	if g := pairs[2][1]; len(g) != 3 || g.median(wallName) != 2 {
		t.Errorf("%d repeats with a median of %g; want 3 without the first attempt, and 2", len(g), g.median(wallName))
	}
}

// drawn returns a system whose runs took the seconds that draw returns, one run for each of
// n tasks, or files without a job.
func drawn(n int, paired bool, draw func(k int) float64) *System {
	s := &System{Endings: map[Ending]int{Done: n}}
	for k := range n {
		x := &Task{Ending: Done, Figures: map[string]float64{wallName: draw(k)}}
		if paired {
			x.Header.Job = &metrics.JobOf{Task: k + 1}
		}
		s.Tasks = append(s.Tasks, x)
	}
	s.count()
	return s
}

// TestChance: without a difference one is rarely reported, even for few runs. A small real
// one is found among many runs.
func TestChance(t *testing.T) {
	rnd := rand.New(rand.NewPCG(8, 2026))
	for _, test := range []struct {
		n           int
		paired      bool
		factor      float64
		least, most float64 // the part of experiments in which a difference is found
	}{
		{4, true, 1, 0, 0}, {5, true, 1, 0, 0}, {5, false, 1, 0, 0},
		{6, true, 1, 0, 0.05}, {12, true, 1, 0, 0.07}, {30, true, 1, 0, 0.07}, {300, true, 1, 0, 0.07},
		{6, false, 1, 0, 0.1}, {12, false, 1, 0, 0.07}, {100, false, 1, 0, 0.07},
		{200, false, 1.2, 0.95, 1}, {150, true, 1.2, 0.9, 1}, {400, true, 1.1, 0.9, 1},
	} {
		const experiments = 300
		found := 0
		for range experiments {
			draw := func(factor float64) func(int) float64 {
				return func(int) float64 { return 100 * factor * math.Exp(0.3*rnd.NormFloat64()) }
			}
			a, b := drawn(test.n, test.paired, draw(1)), drawn(test.n, test.paired, draw(test.factor))
			if v := newMatch(nil, a, b).verdict(); v == wallLonger || v == wallShorter {
				found++
			}
		}
		if part := float64(found) / experiments; part < test.least || part > test.most {
			t.Errorf("%d runs, paired %v, × %g: a difference in %.3f of the experiments; want %g to %g", test.n, test.paired, test.factor, part, test.least, test.most)
		}
	}
}

// TestUnlike: systems with different sets of runs are not explained.
func TestUnlike(t *testing.T) {
	slow := power
	slow.seconds, slow.cpu = slow.seconds*2, "POWER8"
	for _, test := range []struct {
		name    string
		seed    func(k int) string // of the others' runs
		verdict verdict
	}{
		{"the same", func(k int) string { return fmt.Sprint(k) }, wallLonger},
		{"none", func(k int) string { return fmt.Sprint(-k) }, wallUnlike},
		{"one", func(k int) string { return fmt.Sprint(7 - k*6) }, wallUnlike},
	} {
		r, err := Read([]Source{{Name: "a", Runs: power.write(t, 7, nil)}, {Name: "b", Runs: slow.write(t, 7, func(k int, h *metrics.Header, f *metrics.Footer) { h.Job.Params["seed"] = test.seed(k) })}}, Options{})
		testenv.Check(t, err)
		c := r.Comparisons[0]
		text := strings.Join(c.Text, "\n")
		if unlike := c.Verdict == wallUnlike; c.Verdict != test.verdict || strings.Contains(text, "because of slower cores") == unlike || strings.Contains(c.Headline, "cannot be compared") != unlike {
			t.Errorf("%s in common: %s %q\n%s", test.name, c.Verdict, c.Headline, text)
		}
	}
	for _, n := range []int{1, 3} { // runs of the only common task are repeats
		a, b := drawn(n, false, func(int) float64 { return 1 }), drawn(n, false, func(int) float64 { return 2 })
		for _, x := range append(a.Tasks, b.Tasks...) {
			x.Header.Job = &metrics.JobOf{Task: 4, ID: fmt.Sprintf("%p", x)}
		}
		if pairs, unlike := pair(a, b); pairs != nil || unlike {
			t.Errorf("%d runs of one task: %v, unlike %v", n, pairs, unlike)
		}
	}
}

// TestSides: contradicting results of pairs and of all runs are reported.
func TestSides(t *testing.T) {
	a := drawn(8, true, func(k int) float64 { return float64(k + 1) })
	b := drawn(8, true, func(k int) float64 { return float64(k+1) * 1.5 })
	for range 20 {
		b.Tasks = append(b.Tasks, &Task{Ending: Done, Figures: map[string]float64{wallName: 1}, Header: metrics.Header{Job: &metrics.JobOf{Task: 99}}})
	}
	b.count()
	a.Name, b.Name = "a", "b"
	c := compare(&Report{Systems: []*System{a, b}}, a, b)
	if text := strings.Join(c.Text, "\n"); c.Verdict != wallLonger || c.Ratios[wallName] != 1.5 || !strings.Contains(text, "all runs together show the opposite, 4.50 × shorter") {
		t.Errorf("%s\n%s", c.Verdict, text)
	}
}

// TestCommands: the commands of pairs are compared, not the sets of commands.
func TestCommands(t *testing.T) {
	slow := power
	slow.seconds *= 2
	for _, test := range []struct {
		change func(k int, h *metrics.Header, f *metrics.Footer)
		differ bool
	}{
		{func(k int, h *metrics.Header, f *metrics.Footer) {}, false},
		{func(k int, h *metrics.Header, f *metrics.Footer) { h.Command = append(h.Command, "--epochs=2") }, true},
	} {
		r, err := Read([]Source{{Name: "a", Runs: power.write(t, 5, nil)}, {Name: "b", Runs: slow.write(t, 4, test.change)}}, Options{})
		testenv.Check(t, err)
		if text := strings.Join(r.Comparisons[0].Text, "\n"); strings.Contains(text, "the commands differ: perhaps b had more to do") != test.differ {
			t.Errorf("differ: %v; the text is\n%s", test.differ, text)
		}
	}
}

// TestUnknownProcessors: jobs that did not request processors and were not measured.
func TestUnknownProcessors(t *testing.T) {
	slow := power
	slow.busy = 0.4
	r := compared(t, power, slow, 4, func(k int, h *metrics.Header, f *metrics.Footer) {
		h.Asked, h.Limits = metrics.Asked{}, metrics.Limits{}
		f.Pressure = nil
	})
	text := strings.Join(r.Comparisons[0].Text, "\n")
	if strings.Contains(text, "NaN") || !strings.Contains(text, "other kept fewer processors busy; how many it had is unknown") || strings.Contains(text, "waited") {
		t.Error(text)
	}
}

func TestEndings(t *testing.T) {
	limits := metrics.Header{Asked: metrics.Asked{Time: 100, Memory: 1 << 30}, Limits: metrics.Limits{Memory: 2 << 30}}
	for _, test := range []struct {
		name string
		h    metrics.Header
		f    *metrics.Footer
		want Ending
	}{
		{"well", limits, &metrics.Footer{}, Done},
		{"no footer", limits, nil, Open},
		{"exit", limits, &metrics.Footer{Exit: 3}, failed},
		{"killed by the kernel, said the cgroup", limits, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Cgroup: &metrics.CgroupUse{OOMKills: 1}}, NoMemory},
		{"a child was", limits, &metrics.Footer{Exit: 1, Cgroup: &metrics.CgroupUse{OOMKills: 1}}, NoMemory},
		{"and the run went on", limits, &metrics.Footer{Cgroup: &metrics.CgroupUse{OOMKills: 1}}, Done},
		{"others in the cgroup were", metrics.Header{Limits: metrics.Limits{Shared: true}}, &metrics.Footer{Exit: 1, Cgroup: &metrics.CgroupUse{OOMKills: 1}}, failed},
		{"killed at what it had asked for", limits, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Memory: 1<<30 - 1<<20}, NoMemory},
		{"killed above it, where nobody held it", metrics.Header{Asked: metrics.Asked{Memory: 4 << 30}}, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Memory: 6 << 30}, signalled},
		{"killed at the limit of time with more than it asked for", metrics.Header{Asked: metrics.Asked{Memory: 4 << 30, Time: 3600}}, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Memory: 6 << 30, Wall: 3600}, TimeLimit},
		{"killed at both limits", limits, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Memory: 1 << 30, Wall: 100}, TimeLimit},
		{"at both, said the cgroup", limits, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Wall: 100, Cgroup: &metrics.CgroupUse{OOMKills: 1}}, NoMemory},
		{"hpcc's limit, with all memory", limits, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Memory: 1 << 30, Wall: 50, Problem: "ended after its time limit of 50s"}, TimeLimit},
		{"killed at the cgroup's limit, above what it asked for", limits, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Memory: 2 << 30}, NoMemory},
		{"a pod's container", limits, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Problem: "killed because it used more than its memory"}, NoMemory},
		{"killed far from it", limits, &metrics.Footer{Exit: -1, Signal: "SIGKILL", Memory: 1 << 29}, signalled},
		{"a shell's child killed", limits, &metrics.Footer{Exit: 137, Memory: 1 << 30}, NoMemory},
		{"hpcc's limit", limits, &metrics.Footer{Exit: -1, Signal: "SIGTERM", Wall: 50, Problem: "ended after its time limit of 50s"}, TimeLimit},
		{"the scheduler's limit", limits, &metrics.Footer{Exit: -1, Signal: "SIGTERM", Wall: 99}, TimeLimit},
		{"before it", limits, &metrics.Footer{Exit: -1, Signal: "SIGTERM", Wall: 50}, signalled},
		{"at it, by itself", limits, &metrics.Footer{Exit: 2, Wall: 99}, failed},
		{"never began", limits, &metrics.Footer{Exit: 125, Problem: "starting x: no such file"}, notRun},
	} {
		if got := ending(&test.h, test.f); got != test.want {
			t.Errorf("%s: %s; want %s", test.name, got, test.want)
		}
	}
}

func TestSpreadOf(t *testing.T) {
	got := spreadOf([]float64{4, 1, 3, 2, 10})
	if want := (spread{N: 5, Min: 1, Q1: 2, Median: 3, Q3: 4, Max: 10, Sum: 20}); got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
	if got := spreadOf([]float64{1, 2}); got.Median != 1.5 || got.Q1 != 1.25 {
		t.Errorf("of two: %+v", got)
	}
	if low, high := spreadOf([]float64{1, 2, 9}).middle(); low != 1 || high != 9 {
		t.Errorf("the middle of three: %g to %g", low, high)
	}
}

func TestUnits(t *testing.T) {
	for _, test := range []struct {
		u    unit
		v    float64
		want string
	}{
		{inSeconds, 0, "0 s"}, {inSeconds, 1.5e-5, "15 µs"}, {inSeconds, 0.0123, "12.3 ms"}, {inSeconds, 0.561, "561 ms"}, {inSeconds, 0.9996, "1.00 s"}, {inSeconds, 9.999, "10.0 s"}, {inSeconds, 59.5, "59.5 s"}, {inSeconds, 59.97, "1m00s"}, {inSeconds, 99.96, "1m40s"}, {inSeconds, 125.4, "2m05s"}, {inSeconds, 3600, "1h00m"}, {inSeconds, 3599.6, "1h00m"}, {inSeconds, 864000, "10 days"}, {inSeconds, 1e17, "1157407407407 days"},
		{inBytes, 0, "0 B"}, {inBytes, 999, "999 B"}, {inBytes, 1000, "1000 B"}, {inBytes, 1023.6, "1.00 KiB"}, {inBytes, 1023.9 * (1 << 20), "1.00 GiB"}, {inBytes, 9 << 30, "9 GiB"}, {inBytes, 1.5 * (1 << 40), "1.50 TiB"},
		{inPercent, 0, "0%"}, {inPercent, 0.0001, "<0.1%"}, {inPercent, 0.034, "3.4%"}, {inPercent, 0.0997, "10%"}, {inPercent, 0.999, "100%"},
		{inMoney, 0.0227, "0.0227 EUR"}, {inMoney, 1234.5, "1234 EUR"}, {inMoney, 0.2, "0.200 EUR"}, {inMoney, 0.0000215, "0.0000215 EUR"}, {inMoney, 1e-9, "<0.000001 EUR"}, {inEnergy, 2, "2 kWh"}, {inEnergy, 0.0122, "12.2 Wh"}, {inEnergy, 1500, "1.50 MWh"}, {inNumber, 3.456, "3.46"},
	} {
		if got := test.u.format(test.v, "EUR"); got != test.want {
			t.Errorf("%g in %d is %q; want %q", test.v, test.u, got, test.want)
		}
	}
}

// TestAtOnce: many short runs count with their actual concurrency, even if they took no
// time.
func TestAtOnce(t *testing.T) {
	var bars []bar
	for k := range 10000 { // of a second each, four at a time
		bars = append(bars, bar{from: float64(k / 4), to: float64(k/4 + 1)})
	}
	for _, p := range atOnce(bars) {
		if math.Abs(p.y-4) > 1e-6 {
			t.Fatalf("%g runs after %g s; want 4", p.y, p.x)
		}
	}
	for _, p := range atOnce(append(bars[:0:0], bar{}, bar{})) {
		if p.y != 0 {
			t.Fatalf("%g runs that took no time", p.y)
		}
	}
	c := timeline(&System{}, 0, bars, 2500)
	if c.Table == nil || len(c.Table.Rows) != 12 || !strings.HasPrefix(c.Table.Rows[5][1], "4") || strings.Contains(string(c.Body), "NaN") {
		t.Errorf("the chart has the table %+v", c.Table)
	}
}

// TestMemorySeries: the curve has the same source as the peak and never exceeds it.
func TestMemorySeries(t *testing.T) {
	r := &metrics.Record{Footer: &metrics.Footer{Memory: 225, MemoryFrom: "pss"}, Samples: []metrics.Sample{
		{At: 1, RSS: 400, PSS: 100}, {At: 2, RSS: 600}, {At: 3, RSS: 824, PSS: 206}, {At: 4, RSS: 1000}, {At: 5, RSS: 400, PSS: 200}, {At: 6, RSS: 300}}}
	for _, test := range []struct{ from, what, want string }{
		{"pss", ", proportional (PSS)", "[{1 100} {2 150} {3 206} {4 225} {5 200} {6 150}]"},
		{"rss", "", "[{1 400} {2 600} {3 824} {4 1000} {5 400} {6 300}]"},
	} {
		r.Footer.MemoryFrom = test.from
		if a := memorySeries(r); a.suffix != test.what || fmt.Sprint(a.points) != test.want {
			t.Errorf("by %s: %q %v; want %q %s", test.from, a.suffix, a.points, test.what, test.want)
		}
	}
}
