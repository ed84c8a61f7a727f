package report

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// simulated describes a system whose records the tests write.
type simulated struct {
	name, target, host, arch, cpu, kernel string
	cpus, granted                         int
	asked, limit                          int64
	gpus                                  int
	seconds                               float64 // of processor time of a run
	busy                                  float64 // of the processors granted
	throttled, io                         float64 // parts of the wall clock
	peak                                  int64
	queue, pull                           time.Duration
	digest                                string
	samples                               int
}

var power = simulated{name: "power", target: "slurm", host: "p9-%02d", arch: "ppc64le", cpu: "POWER9 (raw), altivec supported", kernel: "4.18.0-305.el8.ppc64le",
	cpus: 160, granted: 4, asked: 64 << 30, limit: 64 << 30, gpus: 1, seconds: 412, busy: 0.91, peak: 9 << 30, queue: 13 * time.Minute, digest: "sha256:" + hex64("a"), samples: 60}

var pods = simulated{name: "pods", target: "openshift", host: "worker-%02d.example.org", arch: "amd64", cpu: "Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz", kernel: "5.14.0-427.el9.x86_64",
	cpus: 64, granted: 2, asked: 12 << 30, limit: 12 << 30, gpus: 1, seconds: 388, busy: 0.55, throttled: 0.31, io: 0.08, peak: 10 << 30, queue: 20 * time.Second, pull: 42 * time.Second, digest: "sha256:" + hex64("a"), samples: 60}

func hex64(s string) string {
	for len(s) < 64 {
		s += s
	}
	return s[:64]
}

var started = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

// write writes n records. change may modify each.
func (p simulated) write(t testing.TB, n int, change func(k int, h *metrics.Header, f *metrics.Footer)) []Run {
	t.Helper()
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(uint64(len(p.name)), 7))
	var runs []Run
	for k := 1; k <= n; k++ {
		lr := []string{"0.1", "0.01", "0.001"}[k%3]
		cpu := rounded(p.seconds * (0.9 + 0.1*float64(k%3)) * (0.97 + 0.06*rnd.Float64()))
		wall := rounded(cpu / (float64(p.granted) * p.busy) * (0.98 + 0.04*rnd.Float64()))
		start := started.Add(p.queue + time.Duration(k/4)*span(wall*1.02))
		h := metrics.Header{Kind: "header", Version: 1, Hpcc: "0.1.0", Start: start, Command: []string{"python", "main.py", fmt.Sprintf("--id=%d", k), "--lr=" + lr}, Image: "sci", Digest: p.digest,
			Job:     &metrics.JobOf{ID: p.name + "-261121-090000", Name: p.name, Target: p.target, Task: k, Params: map[string]string{"lr": lr, "seed": fmt.Sprint(k)}, Submitted: started, Pulled: p.pull.Seconds()},
			Asked:   metrics.Asked{CPUs: p.granted, Memory: p.asked, GPUs: p.gpus, Time: 7200},
			Machine: metrics.Machine{Host: fmt.Sprintf(p.host, 1+k%4), Architecture: p.arch, CPU: p.cpu, CPUs: p.cpus, Memory: 256 << 30, Kernel: p.kernel},
			Limits:  metrics.Limits{CPUs: float64(p.granted), Memory: p.limit, Cgroup: "v2", CgroupPath: "/job"}}
		for g := range p.gpus {
			h.Machine.GPUs = append(h.Machine.GPUs, metrics.GPU{Index: g, Name: "Tesla V100", Memory: 16 << 30, Driver: "535.1"})
		}
		peak := int64(float64(p.peak) * (0.95 + 0.05*rnd.Float64()))
		f := metrics.Footer{Kind: "footer", End: start.Add(span(wall)), Wall: wall, Usage: metrics.Usage{User: cpu * .96, System: cpu * .04, MaxRSS: peak / 2, Switches: int64(wall * 3)},
			Memory: peak, MemoryFrom: "cgroup", Read: 5 << 30, Written: 300 << 20, NetIn: 1 << 20, NetOut: 1 << 19, Processes: 5, Threads: 40,
			Cgroup:   &metrics.CgroupUse{CPU: cpu, Memory: peak / 3, Peak: peak, Throttled: p.throttled * wall},
			Pressure: &metrics.Pressure{CPU: .02 * wall, IO: p.io * wall}, Samples: p.samples, Cost: .2}
		for g := range p.gpus {
			f.GPUs = append(f.GPUs, metrics.GPUUse{Index: g, Mean: 60 * p.busy, P95: 97, Memory: 11 << 30, Energy: 180 * wall})
		}
		if change != nil {
			change(k, &h, &f)
		}
		file := filepath.Join(dir, fmt.Sprintf("task.%d.jsonl", k))
		writeRecord(t, file, &h, p.sampled(rnd, wall, cpu, peak), &f)
		runs = append(runs, Run{File: file})
	}
	return runs
}

// rounded rounds to milliseconds, which every machine computes alike.
func rounded(seconds float64) float64 { return math.Round(seconds*1000) / 1000 }

func span(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds*1000)) * time.Millisecond
}

// sampled returns samples that end with the footer's values.
func (p simulated) sampled(rnd *rand.Rand, wall, cpu float64, peak int64) (list []metrics.Sample) {
	at, used := 0.0, 0.0
	for k := range p.samples {
		part := float64(k+1) / float64(p.samples)
		step := wall*part - at
		at, used = wall*part, min(cpu, used+step*cpu/wall*(0.7+0.6*rnd.Float64()))
		s := metrics.Sample{Kind: "sample", At: at, CPU: used, System: used * .04, RSS: int64(float64(peak) * min(1, part*1.6)), Processes: 5, Threads: 40, Read: int64(part * (5 << 30)), Written: int64(part * (300 << 20)),
			Cgroup: &metrics.CgroupUse{CPU: used, Memory: int64(float64(peak) * min(1, part*1.6)), Throttled: p.throttled * at}, Pressure: &metrics.Pressure{CPU: .02 * at, IO: p.io * at}}
		for g := range p.gpus {
			s.GPUs = append(s.GPUs, metrics.GPUSample{Index: g, Utilisation: min(100, 100*p.busy*(.4+.5*rnd.Float64())), Memory: 11 << 30, Power: 180})
		}
		list = append(list, s)
	}
	return list
}

func writeRecord(t testing.TB, file string, h *metrics.Header, samples []metrics.Sample, f *metrics.Footer) {
	t.Helper()
	var out []byte
	add := func(v any) {
		b, err := json.Marshal(v)
		testenv.Check(t, err)
		out = append(append(out, b...), '\n')
	}
	add(h)
	for i := range samples {
		add(&samples[i])
	}
	if f != nil {
		add(f)
	}
	testenv.Check(t, os.WriteFile(file, out, 0o644))
}
