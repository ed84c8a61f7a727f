package capacity

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestAdvise(t *testing.T) {
	u := &Use{CPUs: 8, CPUTime: 3 * time.Hour, Wall: 2 * time.Hour, Longest: time.Hour, Time: 24 * time.Hour, Memory: 64 << 30, PeakMemory: 3 << 30}
	want := "1.5 of 8 processors were busy: ask for 2\n3G of 64G of memory were used: --mem 4608M would do\nit ran for 1h of 24h: --time 2h would do, and short jobs start sooner"
	if got := strings.Join(u.Advise(), "\n"); got != want {
		t.Errorf("advice is\n%s\nwant\n%s", got, want)
	}
	large := &Use{Memory: 64 << 30, PeakMemory: 9 << 30}
	if got := strings.Join(large.Advise(), "\n"); got != "9G of 64G of memory were used: --mem 14G would do" {
		t.Errorf("advice for 9G of 64G = %q", got)
	}
	for name, u := range map[string]*Use{
		"waited for processors": {CPUs: 8, CPUTime: time.Hour, Wall: time.Hour, Contended: true},
		"failed":                {CPUs: 8, CPUTime: time.Hour, Wall: time.Hour, Failed: true, Memory: 64 << 30, PeakMemory: 1 << 30, Time: 24 * time.Hour, Longest: time.Minute},
	} {
		if got := u.Advise(); len(got) > 0 {
			t.Errorf("advice for a job that %s = %q; want none", name, got)
		}
	}
	fair := &Use{CPUs: 2, CPUTime: 3 * time.Hour, Wall: 2 * time.Hour, Longest: time.Hour, Time: 2 * time.Hour, Memory: 4 << 30, PeakMemory: 3 << 30}
	if got := fair.Advise(); len(got) > 0 {
		t.Errorf("advice for a fair request = %q; want none", got)
	}
}

// TestLevels compares the levels with the sum of all allocations in each second.
func TestLevels(t *testing.T) {
	from := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		u := &Utilisation{From: from, To: from.Add(time.Duration(1000+r.IntN(5000)) * time.Second), Step: time.Duration(7+r.IntN(900)) * time.Second}
		var allocations []Allocation
		seconds := make([]float64, int(u.To.Sub(from).Seconds()))
		for range 30 {
			a, b := r.IntN(9000)-2000, r.IntN(9000)-2000
			s := Allocation{ID: fmt.Sprint(a), Start: from.Add(time.Duration(a) * time.Second), End: from.Add(time.Duration(b) * time.Second), CPUs: 1 + r.IntN(8)}
			if r.IntN(9) == 0 {
				s.End = time.Time{}
				b = len(seconds)
			}
			for i := max(a, 0); i < min(b, len(seconds)); i++ {
				seconds[i] += float64(s.CPUs)
			}
			allocations = append(allocations, s)
		}
		u.Fill(allocations)
		mean := 0.0
		for i, l := range u.Levels {
			want, n := 0.0, 0.0
			for k := int(l.From.Sub(from).Seconds()); k < int(u.until(i).Sub(from).Seconds()); k++ {
				want, n = want+seconds[k], n+1
			}
			if math.Abs(l.CPUs-want/n) > 1e-6 {
				t.Fatalf("level %d of %d has %g processors; want %g", i, len(u.Levels), l.CPUs, want/n)
			}
			mean += want
		}
		if mean /= float64(len(seconds)); math.Abs(u.Mean.CPUs-mean) > 1e-6 {
			t.Errorf("the mean is %g processors; want %g", u.Mean.CPUs, mean)
		}
	}
}

func TestHidden(t *testing.T) {
	u := &Utilisation{Now: Amounts{CPUs: 100}, Accounted: Amounts{CPUs: 95}}
	if u.Hidden() != "" {
		t.Errorf("Hidden with 95 of 100 processors known = %q; want none", u.Hidden())
	}
	u.Accounted.CPUs = 8
	if want := "the site hides other users' jobs: only 8 of 100 allocated processors belong to known jobs, so the figures are too low"; u.Hidden() != want {
		t.Errorf("Hidden with 8 of 100 processors known = %q; want %q", u.Hidden(), want)
	}
}

func TestWaste(t *testing.T) {
	u := &Use{CPUs: 4, GPUs: 2, Nodes: 2, Wall: 3 * time.Hour, CPUTime: 2 * time.Hour, Memory: 8 << 30, PeakMemory: 2 << 30}
	if w, want := u.Waste(), (Waste{AskedCPU: 12, WastedCPU: 10, AskedMemory: 48, WastedMemory: 36, MemoryKnown: true, AskedGPU: 6}); w != want {
		t.Errorf("Waste = %+v; want %+v", w, want)
	}
	u.PeakMemory = 0
	if w := u.Waste(); w.MemoryKnown || w.WastedMemory != 0 {
		t.Errorf("without a peak Waste = %+v", w)
	}
}

// FuzzLevels checks that no allocation makes a level negative.
func FuzzLevels(f *testing.F) {
	f.Add(int64(1700000000), int64(1700003600), 16, int64(4<<30), 8)
	f.Fuzz(func(t *testing.T, start, end int64, cpus int, memory int64, gpus int) {
		if cpus < 0 || memory < 0 || gpus < 0 {
			return
		}
		u := &Utilisation{From: time.Unix(1700000000, 0), To: time.Unix(1800000000, 0)}
		u.Step = StepOf(u.To.Sub(u.From))
		u.Fill([]Allocation{{ID: "1", Start: time.Unix(start, 0), End: time.Unix(end, 0), CPUs: cpus, Memory: memory, GPUs: gpus}})
		for _, l := range u.Levels {
			if !(l.CPUs >= 0 && l.Memory >= 0 && l.GPUs >= 0) {
				t.Errorf("negative level: %+v", l)
			}
		}
	})
}
