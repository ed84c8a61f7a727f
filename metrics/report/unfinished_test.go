package report

import (
	"path/filepath"
	"strings"
	"testing"

	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// unfinished writes a record without a footer, with a sample each 50 s.
func unfinished(t *testing.T, samples int) Run {
	t.Helper()
	h := metrics.Header{Kind: "header", Version: 1, Start: started, Asked: metrics.Asked{CPUs: 4, GPUs: 1}, Machine: metrics.Machine{Host: "n1", CPUs: 8}, Limits: metrics.Limits{CPUs: 4}}
	var list []metrics.Sample
	for k := range samples {
		at := 50 * float64(k+1)
		list = append(list, metrics.Sample{Kind: "sample", At: at, CPU: 2 * at, System: at / 10, RSS: 3 << 30, Read: int64(k) << 30, Threads: 4, GPUs: []metrics.GPUSample{{Utilisation: 90, Power: 300}}})
	}
	file := filepath.Join(t.TempDir(), "task.1.jsonl")
	writeRecord(t, file, &h, list, nil)
	return Run{File: file}
}

// TestUnfinished: a run whose record has no footer is reported up to its last sample, but its wall
// clock is not compared with that of ended runs.
func TestUnfinished(t *testing.T) {
	p := &Prices{Currency: "EUR", KWh: 1, Node: map[string]nodePrice{"*": {Hour: 36, GPUs: 4}}}
	r, err := Read([]Source{{Name: "a", Runs: []Run{unfinished(t, 4)}}, {Name: "power", Runs: power.write(t, 1, nil)}}, Options{Prices: p, Different: true})
	testenv.Check(t, err)
	s := r.Systems[0]
	x := s.Tasks[0]
	for name, want := range map[string]float64{wallName: 200, cpuName: 400, cpusName: 2, busyName: 0.5, gpuName: 0.9, "memory_peak_bytes": 3 << 30, readName: 3 << 30,
		energyName: 300 * 200 / joules, costName: 36*0.5*200/3600 + 300*200/joules} {
		if got := x.Figures[name]; got != want || s.Figures[name].Median != want {
			t.Errorf("%s = %g and %g; want %g", name, got, s.Figures[name].Median, want)
		}
	}
	if x.Ending != Open || x.Footer != nil || s.Counted != "runs without an end, up to their last sample" {
		t.Errorf("%s, %v, counted %q", x.Ending, x.Footer, s.Counted)
	}
	c := r.Comparisons[0]
	if _, ok := c.Ratios[wallName]; ok || c.Verdict != wallUnknown || c.Headline != "power and a cannot be compared: no run of a has ended" || c.Ratios[cpusName] == 0 {
		t.Errorf("%s: %q, %v", c.Verdict, c.Headline, c.Ratios)
	}
	text := rendered(t, r.Text)
	for _, want := range []string{"1: 1 no end", "at least 6.67 CPU-minutes (1 run without an end)", "Counted runs of a: runs without an end, up to their last sample"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	// Beside ended runs it counts only in the sums.
	r, err = Read([]Source{{Name: "a", Runs: append(power.write(t, 2, nil), unfinished(t, 4))}}, Options{Different: true})
	testenv.Check(t, err)
	if s = r.Systems[0]; s.Figures[wallName].N != 2 || s.Counted != "successful runs" {
		t.Errorf("%d runs, %s", s.Figures[wallName].N, s.Counted)
	}
	r, err = Read([]Source{{Name: "a", Runs: []Run{unfinished(t, 0)}}}, Options{})
	testenv.Check(t, err)
	if s = r.Systems[0]; len(s.Figures) > 0 || s.Counted != "none; no run has ended" {
		t.Errorf("without samples: %v, %s", s.Figures, s.Counted)
	}
}

// TestExtended: the end is that of the job's record, and the usage that of the samples, where they
// have more.
func TestExtended(t *testing.T) {
	run := unfinished(t, 4)
	run.Known.Footer = &metrics.Footer{Wall: 230, Exit: -1, Signal: "SIGKILL", Usage: metrics.Usage{User: 1, System: 30, MaxRSS: 1 << 30}, Memory: 1 << 30, MemoryFrom: "process"}
	r, err := Read([]Source{{Name: "a", Runs: []Run{run}}}, Options{})
	testenv.Check(t, err)
	x := r.Systems[0].Tasks[0]
	if f := x.Footer; x.Ending != signalled || f.Wall != 230 || f.Usage.User != 380 || f.Usage.System != 30 || f.Memory != 3<<30 || f.MemoryFrom != "rss" || len(f.GPUs) != 1 || !x.Measured {
		t.Errorf("%s %+v", x.Ending, f)
	}
	if run.Known.Footer.Usage.User != 1 {
		t.Error("the job's record was changed")
	}
}
