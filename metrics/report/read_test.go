package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// spoil overwrites a run's file.
func spoil(t *testing.T, run Run, text string) {
	t.Helper()
	testenv.Check(t, os.WriteFile(run.File, []byte(text), 0o644))
}

// TestDamaged: invalid files are reported and skipped, unless nothing is left.
func TestDamaged(t *testing.T) {
	runs := power.write(t, 30, nil)
	spoil(t, runs[0], "")
	spoil(t, runs[1], "no record\n")
	b, err := os.ReadFile(runs[2].File)
	testenv.Check(t, err)
	cut := string(b[:len(b)-300]) // in the footer
	spoil(t, runs[2], cut)
	runs = append(runs, Run{File: filepath.Join(t.TempDir(), "gone.jsonl")})
	r, err := Read([]Source{{Name: "a", Runs: runs}}, Options{})
	testenv.Check(t, err)
	warnings := strings.Join(r.Warnings, "\n")
	for _, want := range []string{"task.1.jsonl:1: no header", "task.2.jsonl:1: invalid character", "gone.jsonl: no such file"} {
		if !strings.Contains(warnings, want) {
			t.Errorf("no warning of %q:\n%s", want, warnings)
		}
	}
	if s := r.Systems[0]; len(r.Warnings) != 3 || s.Endings[Done] != 27 || s.Endings[Open] != 1 {
		t.Errorf("%d warnings, %v; want 3, 27 done and one without an end", len(r.Warnings), s.Endings)
	}
	for _, run := range runs[:30] {
		spoil(t, run, "x")
	}
	r, err = Read([]Source{{Name: "good", Runs: power.write(t, 1, nil)}, {Name: "bad", Runs: runs}}, Options{})
	if !errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), "comparing bad: ") || !strings.Contains(err.Error(), ".jsonl:1: ") {
		t.Errorf("nothing left: %v, %v", r, err)
	}
	if _, err = Read([]Source{{Name: "bad", Runs: runs[:1]}}, Options{}); err == nil || errors.Is(err, ErrNothing) || !strings.Contains(err.Error(), "task.1.jsonl:1: ") {
		t.Errorf("one bad file alone: %v", err)
	}
	if _, err = Read([]Source{{Name: "none"}}, Options{}); !errors.Is(err, ErrNothing) {
		t.Errorf("none at all: %v", err)
	}
	many := append(power.write(t, 1, nil), make([]Run, 0, 30)...)
	for k := range 30 {
		many = append(many, Run{File: fmt.Sprint("/nonexistent/", k)})
	}
	if r, err = Read([]Source{{Name: "a", Runs: many}}, Options{}); err != nil || len(r.Warnings) != maxWarnings+1 || !strings.Contains(r.Warnings[maxWarnings], "20 more warnings") {
		t.Errorf("%v, %q", err, r.Warnings)
	}
}

// TestKnown: the job's record replaces a missing or incomplete file and completes it.
func TestKnown(t *testing.T) {
	known := metrics.Record{Header: metrics.Header{Start: started, Image: "sci", Asked: metrics.Asked{CPUs: 8, Memory: 64 << 30}, Machine: metrics.Machine{Host: "n1"},
		Job: &metrics.JobOf{ID: "j", Task: 3, Submitted: started.Add(-time.Minute), Params: map[string]string{"lr": "1"}}},
		Footer: &metrics.Footer{End: started.Add(time.Minute), Exit: -1, Signal: "SIGTERM", Problem: "ended after its time limit of 1m0s", Usage: metrics.Usage{User: 50, System: 10, MaxRSS: 1 << 30}}}
	file := filepath.Join(t.TempDir(), "task.3.jsonl")
	writeRecord(t, file, &metrics.Header{Kind: "header", Start: started, Machine: metrics.Machine{Host: "node1"}, Limits: metrics.Limits{CPUs: 4}}, nil, nil)
	for _, test := range []struct {
		name    string
		run     Run
		host    string
		granted float64
		bad     int
	}{{"no file", Run{Known: known}, "n1", 8, 0}, {"no footer", Run{File: file, Known: known}, "node1", 4, 0}, {"a file that is gone", Run{File: "/nonexistent", Known: known}, "n1", 8, 1}} {
		r, err := Read([]Source{{Name: "a", Runs: []Run{test.run}}}, Options{})
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		x := r.Systems[0].Tasks[0]
		if x.Ending != TimeLimit || x.Header.Machine.Host != test.host || x.Figures["wall_s"] != 60 || x.Figures["queue_s"] != 60 || x.Figures["memory_peak_bytes"] != 1<<30 ||
			x.Figures["cpu_efficiency"] != 60/(60*test.granted) || x.key() != `"lr"="1" ` || x.Header.Image != "sci" || len(r.Warnings) != test.bad {
			t.Errorf("%s: %+v %q", test.name, x, r.Warnings)
		}
	}
}

// TestJSON: members of later versions are preserved, and one object has everything.
func TestJSON(t *testing.T) {
	runs := power.write(t, 2, nil)
	b, err := os.ReadFile(runs[0].File)
	testenv.Check(t, err)
	spoil(t, runs[0], strings.Replace(string(b), `"machine"`, `"later":{"x":[1,2]},"machine"`, 1))
	r, err := Read([]Source{{Name: "a", Runs: runs}}, Options{})
	testenv.Check(t, err)
	b, err = r.JSON()
	testenv.Check(t, err)
	var got struct {
		Type    string
		Version int
		Systems []struct {
			Endings map[string]int
			Figures map[string]spread
			Tasks   []struct {
				Ending  string
				Figures map[string]float64
				Header  struct{ Later json.RawMessage }
				Footer  *metrics.Footer
			}
		}
	}
	testenv.Check(t, json.Unmarshal(b, &got))
	s := got.Systems[0]
	if got.Type != "report" || got.Version != 1 || s.Endings["done"] != 2 || s.Figures["wall_s"].N != 2 || string(s.Tasks[0].Header.Later) != `{"x":[1,2]}` || s.Tasks[1].Footer == nil || s.Tasks[1].Figures["wall_s"] <= 0 {
		t.Errorf("%s", b)
	}
}

func TestPrices(t *testing.T) {
	task := func(host string, cpus, gpus int) *Task {
		h := metrics.Header{Machine: metrics.Machine{Host: host, CPUs: 64}, Asked: metrics.Asked{CPUs: cpus, GPUs: gpus}}
		f := &metrics.Footer{Wall: 3600, Usage: metrics.Usage{User: 3600 * float64(cpus)}, GPUs: []metrics.GPUUse{{Energy: 0.5 * joules}}}
		return &Task{Header: h, Footer: f, Figures: figures(&h, f)}
	}
	p := &Prices{Currency: "EUR", KWh: 0.5, PUE: 2, Node: map[string]nodePrice{
		"sys": {Hour: 100, Exclusive: true}, "gpu*": {Hour: 8, GPUs: 4, IdleWatts: 100, MaxWatts: 300}, "gpu1*": {Hour: 16, CPUs: 16},
	}}
	for _, test := range []struct {
		system, host string
		cpus, gpus   int
		cost, kwh    float64
	}{
		{"sys", "gpu1", 4, 1, 100 + .5*1, 1},                // the system, exclusive; GPU energy alone, twice for the PUE
		{"x", "gpu2", 16, 0, 2 + .5*1.15, 2 * (.5 + .075)},  // a quarter: 25 W idle, and 200 W × 16/64
		{"x", "gpu2", 4, 2, 4 + .5*1.125, 2 * (.5 + .0625)}, // half of the GPUs is more than a sixteenth
		{"x", "gpu17", 4, 0, 4 + .5*1, 1},                   // the longer pattern
		{"x", "gpu2", 0, 1, 2 + .5*1.05, 2 * (.5 + .025)},   // of its processors nothing is known: a quarter of the GPUs
		{"x", "other", 4, 0, -1, -1},
	} {
		x := task(test.host, test.cpus, test.gpus)
		p.add(test.system, x)
		cost, ok := x.Figures[costName]
		if !ok {
			cost = -1
		}
		kwh, ok := x.Figures[energyName]
		if !ok {
			kwh = -1
		}
		if math.Abs(cost-test.cost) > 1e-9 || math.Abs(kwh-test.kwh) > 1e-9 {
			t.Errorf("%s on %s: %g EUR, %g kWh; want %g, %g", test.system, test.host, cost, kwh, test.cost, test.kwh)
		}
	}
	both := *p
	both.Draws = &Prices{PUE: 3, Node: map[string]nodePrice{"gpu1*": {IdleWatts: 200, MaxWatts: 200}}}
	x := task("gpu17", 4, 0)
	both.add("x", x)
	if cost, kwh := x.Figures[costName], x.Figures[energyName]; math.Abs(kwh-3*(.5+.0125)) > 1e-9 || math.Abs(cost-4-.5*kwh) > 1e-9 {
		t.Errorf("of two tables: %g EUR, %g kWh", cost, kwh)
	}
	x = task("gpu2", 16, 0)
	both.add("x", x)
	if _, drawn := x.Figures[energyName]; drawn || x.Figures[costName] != 2 {
		t.Errorf("of a host that only prices name: %+v", x.Figures)
	}
	one := map[string]nodePrice{"a": {Hour: 1}}
	for _, test := range []struct {
		p    Prices
		want string
	}{
		{Prices{Node: one}, ""}, {Prices{}, "there is no price"}, {Prices{KWh: -1, Node: one}, "kwh"}, {Prices{PUE: 0.5, Node: one}, "pue"}, {Prices{Node: map[string]nodePrice{"[": {}}}, "not a valid pattern"},
		{Prices{Node: map[string]nodePrice{"a": {Hour: -1}}}, `node "a": hour: -1`}, {Prices{Node: map[string]nodePrice{"a": {MaxWatts: -1, GPUs: -1, CPUs: -1, Hour: -1}}}, `node "a": hour: -1`}, {Prices{Node: map[string]nodePrice{"a": {IdleWatts: 2, MaxWatts: 1}}}, "less than idle_watts"}, {Prices{Node: map[string]nodePrice{"a": {Hour: math.Inf(1)}}}, "out of range"},
	} {
		key, err := test.p.Check()
		if (err == nil) != (test.want == "") || (err != nil && (!strings.Contains(err.Error(), test.want) || len(key) == 0)) {
			t.Errorf("%+v: %q %v; want %q", test.p, key, err, test.want)
		}
	}
	r, err := Read([]Source{{Name: "x", Runs: []Run{{Known: metrics.Record{Header: metrics.Header{Machine: metrics.Machine{Host: "gpu2"}}, Footer: &metrics.Footer{Wall: 3600}}}}}}, Options{Prices: p})
	if err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "1 run pays for a full node; set cpus") || r.Systems[0].Figures[costName].Sum != 8+.5*.2 {
		t.Errorf("%v %q %+v; want a note on nodes of unknown size", err, r.Notes, r.Systems[0].Figures)
	}
	unasked := metrics.Record{Header: metrics.Header{Machine: metrics.Machine{Host: "gpu17", CPUs: 16}}, Footer: &metrics.Footer{Wall: 3600}}
	r, err = Read([]Source{{Name: "x", Runs: []Run{{Known: unasked}}}}, Options{Prices: p})
	if err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "1 run pays for a full node; submit with --cpus") || r.Systems[0].Figures[costName].Sum != 16 {
		t.Errorf("%v %q %+v; want a note that a run without a request pays for a full node", err, r.Notes, r.Systems[0].Figures)
	}
	huge := metrics.Record{Header: unasked.Header, Footer: &metrics.Footer{Wall: 3600, GPUs: []metrics.GPUUse{{Energy: 1.7e308}, {Energy: 1.7e308}}}}
	r, err = Read([]Source{{Name: "x", Runs: []Run{{Known: huge}}}}, Options{Prices: p})
	testenv.Check(t, err)
	if _, err := r.JSON(); err != nil {
		t.Errorf("energy that cannot be: %v", err)
	}
	r, err = Read([]Source{{Name: "a", Runs: power.write(t, 2, nil)}}, Options{Prices: p})
	if err != nil || len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "2 of 2 runs have no cost") {
		t.Errorf("%v %q; want a note that nothing is priced", err, r.Notes)
	}
}

func TestAdvice(t *testing.T) {
	bad := pods
	bad.busy, bad.gpus = 0.1, 1
	r, err := Read([]Source{{Name: "a", Runs: bad.write(t, 4, func(k int, h *metrics.Header, f *metrics.Footer) {
		f.GPUs[0].Mean = 3
		if k == 1 {
			f.Exit, f.Cgroup.OOMKills = 137, 1
		}
		if k == 2 {
			f.Exit, f.Problem = 143, "ended after its time limit of 2h0m0s"
		}
	})}}, Options{})
	testenv.Check(t, err)
	want := "1 run was killed for lack of memory (12 GiB): ask for more\n1 run was ended at the time limit (2h00m): ask for more time\n" +
		"throttled 61% of the time in which it could run: ask for more processors, or start fewer threads\nits GPUs were busy 3.0% of the time, but it waited for processors: solve that first"
	if got := strings.Join(r.Systems[0].Advice, "\n"); got != want {
		t.Errorf("advice:\n%s\nwant\n%s", got, want)
	}
}

// TestIdleGPUs: of each run, for any GPU indices, and only if GPUs were requested.
func TestIdleGPUs(t *testing.T) {
	busy, idle := metrics.GPUUse{Mean: 80, P95: 90}, metrics.GPUUse{}
	at := func(i int, g metrics.GPUUse) metrics.GPUUse { g.Index = i; return g }
	for _, test := range []struct {
		name  string
		asked int
		runs  [][]metrics.GPUUse
		want  string
	}{
		{"one of two", 2, [][]metrics.GPUUse{{at(0, busy), at(1, idle)}}, "no run used more than 1 of 2 GPUs: --gpus 1 is enough"},
		{"another one each time", 2, [][]metrics.GPUUse{{at(0, busy), at(1, idle)}, {at(0, idle), at(1, busy)}}, "no run used more than 1 of 2 GPUs: --gpus 1 is enough"},
		{"four runs of one", 1, [][]metrics.GPUUse{{at(0, busy)}, {at(1, busy)}, {at(2, busy)}, {at(3, idle)}}, ""},
		{"both once", 2, [][]metrics.GPUUse{{at(0, busy), at(1, idle)}, {at(0, busy), at(1, busy)}}, ""},
		{"not asked for", 0, [][]metrics.GPUUse{{at(0, busy), at(1, idle)}}, ""},
		{"not asked for, and idle", 0, [][]metrics.GPUUse{{at(0, idle)}}, ""},
		{"idle", 1, [][]metrics.GPUUse{{at(0, idle)}}, "its GPUs were busy 0% of the time: ask for fewer or none"},
		{"one of unknown use", 3, [][]metrics.GPUUse{{at(0, busy), {Index: 1, Memory: 2 << 30}, {Index: 2, Unknown: true}}}, "no run used more than 2 of 3 GPUs: --gpus 2 is enough"},
		{"one busy of all that the node has", 1, [][]metrics.GPUUse{{at(0, idle), at(1, busy), at(2, idle), at(3, idle), at(4, idle), at(5, idle), at(6, idle), at(7, idle), at(8, idle)}}, ""},
		{"one run without GPU figures", 2, [][]metrics.GPUUse{{at(0, busy), at(1, idle)}, nil}, ""},
	} {
		s := &System{Endings: map[Ending]int{Done: len(test.runs)}}
		for _, g := range test.runs {
			x := &Task{Ending: Done, Header: metrics.Header{Asked: metrics.Asked{GPUs: test.asked}}, Footer: &metrics.Footer{Wall: 60, GPUs: g}}
			x.Figures = figures(&x.Header, x.Footer)
			s.Tasks = append(s.Tasks, x)
		}
		s.count()
		if got := strings.Join(advise(s), "\n"); got != test.want {
			t.Errorf("%s: %q; want %q", test.name, got, test.want)
		}
	}
}

// TestGPUMean: a GPU that only held memory is idle, an unreported one is unknown.
func TestGPUMean(t *testing.T) {
	idle, unknown := metrics.GPUUse{Memory: 2 << 30}, metrics.GPUUse{Unknown: true}
	for _, c := range []struct {
		asked int
		gpus  []metrics.GPUUse
		mean  float64
		known bool
	}{
		{0, []metrics.GPUUse{{Mean: 50}, idle}, .25, true}, {2, []metrics.GPUUse{{Mean: 50}, idle}, .25, true}, {4, []metrics.GPUUse{{Mean: 50}, idle}, .25, true},
		{0, []metrics.GPUUse{{Mean: 50}, unknown}, .5, true}, {1, []metrics.GPUUse{unknown}, 0, false},
		{1, []metrics.GPUUse{idle, {Mean: 75}, idle, idle}, .75, true}, {2, []metrics.GPUUse{idle, {Mean: 75}, idle, idle}, .375, true}, // as a node shows all of its own
	} {
		h := &metrics.Header{Asked: metrics.Asked{GPUs: c.asked}}
		if mean, known := gpuMean(h, &metrics.Footer{GPUs: c.gpus}); mean != c.mean || known != c.known {
			t.Errorf("gpuMean of %+v, of which %d were asked for = %g, %v; want %g, %v", c.gpus, c.asked, mean, known, c.mean, c.known)
		}
	}
	all := &metrics.Record{Header: metrics.Header{Asked: metrics.Asked{GPUs: 1}}, Samples: []metrics.Sample{{At: 1, GPUs: []metrics.GPUSample{{}, {Utilisation: 75}}}}}
	if a := gpuSeries(all); a.points[0].y != .75 {
		t.Errorf("the curve is at %g; want that of the GPU that was asked for", a.points[0].y)
	}
}

// BenchmarkThousand reads, compares and writes a sweep's records: 1,000 runs with 600
// samples.
func BenchmarkThousand(b *testing.B) {
	long := power
	long.samples = 600
	runs := long.write(b, 1000, nil)
	for b.Loop() {
		r, err := Read([]Source{{Name: "sweep", Runs: runs}}, Options{})
		if err != nil || len(r.Systems[0].Tasks) != 1000 {
			b.Fatal(err)
		}
		rendered(b, r.Text)
		rendered(b, r.HTML)
	}
}
