package report

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

var update = flag.Bool("update", false, "update the golden files")

// prices are those of the golden report.
var prices = &Prices{Currency: "EUR", KWh: 0.28, PUE: 1.3, Node: map[string]nodePrice{
	"power":    {Hour: 2.4, GPUs: 4, IdleWatts: 400, MaxWatts: 900},
	"worker-*": {Hour: 1.9, GPUs: 2, IdleWatts: 180, MaxWatts: 520},
}}

// two is the report of the golden files: eight runs on each of two systems, some of which
// failed on one.
func two(t testing.TB) *Report {
	spoil := func(k int, h *metrics.Header, f *metrics.Footer) {
		switch k {
		case 3:
			f.Exit, f.Signal, f.Cgroup.OOMKills, f.Memory, f.Wall = -1, "SIGKILL", 1, h.Limits.Memory, f.Wall/2
		case 6:
			f.Exit = 3
		}
	}
	r, err := Read([]Source{{Name: "power", Runs: power.write(t, 8, nil)}, {Name: "pods", Runs: pods.write(t, 8, spoil), Missing: 1}}, Options{Prices: prices})
	testenv.Check(t, err)
	for _, s := range r.Systems { // golden files have no temporary directories
		for _, x := range s.Tasks {
			x.File = filepath.Base(x.File)
		}
	}
	return r
}

func TestGolden(t *testing.T) {
	r := two(t)
	for name, write := range map[string]func(io.Writer) error{"two.txt": r.Text, "two.md": r.Markdown, "two.csv": r.CSV, "two.html": r.HTML} {
		var b bytes.Buffer
		testenv.Check(t, write(&b))
		file := filepath.Join("testdata", name)
		if *update {
			testenv.Check(t, os.WriteFile(file, b.Bytes(), 0o644))
		}
		want, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%s differs (%v); \"go test ./metrics/report -update\" updates it:\n%s", file, err, b.Bytes()[:min(b.Len(), 3000)])
		}
	}
}

func TestDigests(t *testing.T) {
	other := pods
	other.digest = "sha256:" + hex64("b")
	sources := []Source{{Name: "a", Runs: power.write(t, 2, nil)}, {Name: "b", Runs: other.write(t, 2, nil)}}
	_, err := Read(sources, Options{})
	var d *DigestError
	if !errors.As(err, &d) || !strings.Contains(err.Error(), power.digest) || !strings.Contains(err.Error(), other.digest) {
		t.Fatalf("%v; want both digests", err)
	}
	r, err := Read(sources, Options{Different: true})
	if err != nil || !r.Different || !strings.Contains(r.Notes[0], "DIFFERENT IMAGES") {
		t.Errorf("%+v, %v; want a note on top", r, err)
	}
}

// TestManyHosts: all values are counted and compared, although not all are shown.
func TestManyHosts(t *testing.T) {
	hosts := func(n int) *System {
		s := &System{}
		for k := range n {
			s.Tasks = append(s.Tasks, &Task{Header: metrics.Header{Machine: metrics.Machine{Host: fmt.Sprintf("n%03d", k)}}})
		}
		return s
	}
	r := &Report{Systems: []*System{hosts(500), hosts(501)}}
	r.Properties = properties(r.Systems)
	p := r.Properties[0]
	a, _, differs := r.property("host", r.Systems[0], r.Systems[1])
	if p.Name != "host" || !p.Differs || !differs || len(p.Values[0]) != maxValues || p.Counts[1] != 501 || a != "n000, n001 and 498 more" {
		t.Errorf("%v %v %d values of %v, %q", p.Differs, differs, len(p.Values[0]), p.Counts, a)
	}
}

// TestLongValues: values that differ only in their truncated part differ.
func TestLongValues(t *testing.T) {
	run := func(command string) *System {
		return &System{Tasks: []*Task{{Header: metrics.Header{Command: []string{strings.Repeat("x", 2*longText), command}}}}}
	}
	for end, want := range map[string]bool{"--lr=1": false, "--lr=2": true} {
		p := properties([]*System{run("--lr=1"), run(end)})
		if v := p[0].Values[1][0]; p[0].Name != "command" || p[0].Differs != want || v != plain(v) || abbreviate(p[0].all[1]) != v {
			t.Errorf("%s: %+v; want that it differs: %v", end, p[0], want)
		}
	}
}

// TestNearest: the charts use a run with samples; a run without a start is not the first.
func TestNearest(t *testing.T) {
	runs := power.write(t, 5, func(k int, h *metrics.Header, f *metrics.Footer) { f.Wall = float64(100 * k) })
	for _, k := range []int{2, 3} { // the median and its neighbour
		b, err := os.ReadFile(runs[k].File)
		testenv.Check(t, err)
		lines := strings.SplitAfter(string(b), "\n")
		spoil(t, runs[k], lines[0]+lines[len(lines)-2])
	}
	r, err := Read([]Source{{Name: "a", Runs: append(runs, Run{Known: metrics.Record{Header: metrics.Header{Job: &metrics.JobOf{Task: 9}}, Footer: &metrics.Footer{Wall: 300}}})}}, Options{})
	testenv.Check(t, err)
	s := r.Systems[0]
	if s.chosen == nil || s.chosen.Header.Job.Task != 2 {
		t.Errorf("%+v; want the samples of task 2", s.chosen)
	}
	if first := s.firstStart(); first.Year() != 2026 {
		t.Errorf("the first start is %v", first)
	}
}

// TestOneSample: a curve needs two samples. Without curves the page has no heading for them.
func TestOneSample(t *testing.T) {
	cut := func(run Run, samples int) {
		b, err := os.ReadFile(run.File)
		testenv.Check(t, err)
		lines := strings.SplitAfter(string(b), "\n")
		spoil(t, run, strings.Join(lines[:1+samples], "")+lines[len(lines)-2])
	}
	runs := power.write(t, 3, func(k int, h *metrics.Header, f *metrics.Footer) { f.Wall = float64(100 * k) })
	for _, test := range []struct{ samples, chosen int }{{2, 2}, {1, 1}} { // of the run in the middle
		cut(runs[1], test.samples)
		r, err := Read([]Source{{Name: "a", Runs: runs}}, Options{})
		testenv.Check(t, err)
		if got := r.Systems[0].chosen.Header.Job.Task; got != test.chosen {
			t.Errorf("with %d samples in the median run, the curves are those of task %d; want %d", test.samples, got, test.chosen)
		}
	}
	for _, run := range runs {
		cut(run, 1)
	}
	r, err := Read([]Source{{Name: "a", Runs: runs}}, Options{})
	testenv.Check(t, err)
	if figures := r.timeCharts(); len(figures) > 0 || strings.Contains(rendered(t, r.HTML), "Over time") {
		t.Errorf("charts of one sample: %+v", figures)
	}
	for i := range r.Systems {
		r.Systems[i].chosen = &metrics.Record{Samples: []metrics.Sample{{At: 1, CPU: 1}, {At: 1, CPU: 2}}} // of one moment
	}
	if figures := r.timeCharts(); len(figures) > 0 {
		t.Errorf("charts of one moment: %+v", figures)
	}
}

// TestDays: axes in days have ticks at whole days.
func TestDays(t *testing.T) {
	for most, want := range map[float64]string{5: "[0 2 4 6]", 9.2: "[0 5 10]", 30: "[0 10 20 30]", 100: "[0 50 100]", 365: "[0 100 200 300 400]"} {
		var days []float64
		for _, s := range ticks(most*86400, inSeconds) {
			days = append(days, s/86400)
		}
		if fmt.Sprint(days) != want {
			t.Errorf("an axis of %g days has ticks at %v; want %s", most, days, want)
		}
	}
}

// TestTicks: the labels of axes have no superfluous zeros.
func TestTicks(t *testing.T) {
	for _, test := range []struct {
		u    unit
		v    float64
		want string
	}{
		{inNumber, 0, "0"}, {inNumber, 0.5, "0.5"}, {inNumber, 10, "10"}, {inPercent, 0.25, "25%"}, {inBytes, 1 << 30, "1 GiB"}, {inSeconds, 0.5, "0.5 s"},
		{inSeconds, 60, "1 min"}, {inSeconds, 90, "1.5 min"}, {inSeconds, 5400, "1.5 h"}, {inSeconds, 864000, "10 d"},
	} {
		if got := test.u.tick(test.v); got != test.want {
			t.Errorf("the tick at %g in %d is %q; want %q", test.v, test.u, got, test.want)
		}
	}
}

// TestImages: each image is compared with all others, in any order.
func TestImages(t *testing.T) {
	for _, test := range []struct {
		runs    [3][2]string // digest and configuration
		refused bool
		notes   int // in this order
	}{
		{[3][2]string{{"d", "c"}, {"e", "c"}, {"", "c"}}, false, 0},
		{[3][2]string{{"d", ""}, {"", "c"}, {"", "x"}}, true, 0},
		{[3][2]string{{"d", ""}, {"", "c"}, {"d", "x"}}, true, 0},
		{[3][2]string{{"d", ""}, {"", "c"}, {"d", "c"}}, false, 0}, // the third connects the other two
		{[3][2]string{{"d", ""}, {"", "c"}, {"d", ""}}, false, 1},
		{[3][2]string{{"", ""}, {"d", "c"}, {"d", "c"}}, false, 1},
		{[3][2]string{{"d", "c"}, {"d", "x"}, {"", "x"}}, false, 0}, // for two architectures
	} {
		for i, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
			r := &Report{}
			for _, k := range order {
				h := metrics.Header{Digest: test.runs[k][0], Config: test.runs[k][1]}
				r.Systems = append(r.Systems, &System{Name: string(rune('a' + k)), Tasks: []*Task{{Header: h}}})
			}
			if err := r.images(false); (err != nil) != test.refused || (i == 0 && !test.refused && len(r.Notes) != test.notes) {
				t.Errorf("%q in order %d: %v, %q; want refused %v and %d notes", test.runs, order, err, r.Notes, test.refused, test.notes)
			}
		}
	}
}

// TestSameImage: by the digest, or by the configuration if manifests differ or one is
// missing.
func TestSameImage(t *testing.T) {
	for _, test := range []struct {
		a, b        [2]string // digest and configuration
		same, known bool
	}{
		{[2]string{"d", "c"}, [2]string{"d", "c"}, true, true},
		{[2]string{"d", ""}, [2]string{"e", ""}, false, true},
		{[2]string{"d", "c"}, [2]string{"e", "c"}, true, true}, // recompressed
		{[2]string{"d", "c"}, [2]string{"d", "x"}, true, true}, // for two architectures
		{[2]string{"d", "c"}, [2]string{"", "c"}, true, true},  // a directory
		{[2]string{"d", "c"}, [2]string{"", "x"}, false, true},
		{[2]string{"d", ""}, [2]string{"", "c"}, false, false},
		{[2]string{"d", "c"}, [2]string{"", ""}, false, false},
	} {
		a, b := &metrics.Header{Digest: test.a[0], Config: test.a[1]}, &metrics.Header{Digest: test.b[0], Config: test.b[1]}
		if same, known := sameImage(a, b); same != test.same || known != test.known {
			t.Errorf("%v and %v: same %v, known %v", test.a, test.b, same, known)
		}
	}
}
