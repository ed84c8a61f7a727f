package main

import (
	"cmp"
	"math"
	"slices"
	"time"

	"hpcc/metrics"
)

// A topTask is what a task uses now: rates are those of its last second, or between its last two samples.
type topTask struct {
	Task     int                 `json:"task"`
	Step     string              `json:"step,omitempty"`
	Attempt  int                 `json:"attempt,omitempty"`
	Params   map[string]string   `json:"params,omitempty"`
	Host     string              `json:"host,omitempty"`
	Start    time.Time           `json:"start,omitzero"`
	Age      float64             `json:"age_s"`              // of the last sample, by this machine's clock
	CPUs     float64             `json:"cpus"`               // that are busy
	Granted  float64             `json:"cpus_granted"`       // that it may use
	Memory   int64               `json:"memory_bytes"`       // of the cgroup where the task has its own, without the contents of files; else resident
	Peak     int64               `json:"memory_peak_bytes"`  // of the cgroup, else of the samples
	Limit    int64               `json:"memory_limit_bytes"` // 0: that of the machine
	Read     float64             `json:"read_bytes_per_s"`
	Written  float64             `json:"written_bytes_per_s"`
	NetIn    float64             `json:"net_in_bytes_per_s"`
	NetOut   float64             `json:"net_out_bytes_per_s"`
	Threads  int                 `json:"threads"`
	GPUs     []metrics.GPUSample `json:"gpus,omitempty"`
	Stalled  float64             `json:"throttled_cpus"`     // processors that the quota holds back
	Pressure *metrics.Pressure   `json:"pressure,omitempty"` // seconds of each second
}

// row is what the newest samples of a task say.
func (k *watchedTask) row(now time.Time) topTask {
	h, list := &k.tail.Header, k.tail.Samples
	last := &list[len(list)-1]
	before := &metrics.Sample{} // the start
	if len(list) > 1 {
		before = &list[0]
	}
	t := topTask{
		Task: k.task.Index, Step: k.task.Step, Attempt: k.task.Attempt, Params: k.task.Params, Host: cmp.Or(k.task.Host, h.Machine.Host), Start: h.Start,
		Granted: h.Limits.CPUs, Limit: h.Limits.Memory, Memory: last.RSS, Threads: last.Threads, GPUs: last.GPUs,
	}
	t.Age = max(0, now.Sub(h.Start).Seconds()-last.At)
	if took := last.At - before.At; took > 0 {
		rate := func(a, b float64) float64 { return min(max(0, b-a)/took, math.MaxInt64) } // samples may be next to each other
		t.CPUs = rate(before.CPU, last.CPU)
		t.Read, t.Written = rate(float64(before.Read), float64(last.Read)), rate(float64(before.Written), float64(last.Written))
		t.NetIn, t.NetOut = rate(float64(before.NetIn), float64(last.NetIn)), rate(float64(before.NetOut), float64(last.NetOut))
		if a, b := before.Pressure, last.Pressure; b != nil {
			if a == nil {
				a = &metrics.Pressure{}
			}
			t.Pressure = &metrics.Pressure{CPU: rate(a.CPU, b.CPU), Memory: rate(a.Memory, b.Memory), IO: rate(a.IO, b.IO), Machine: b.Machine}
		}
		if b := last.Cgroup; b != nil {
			a := before.Cgroup
			if a == nil {
				a = &metrics.CgroupUse{}
			}
			t.Stalled = rate(a.Throttled, b.Throttled)
		}
	}
	peak := last.Peak
	if g := last.Cgroup; g != nil && !h.Limits.Shared && g.Memory > 0 { // there may be no controller of memory
		t.Memory = g.Memory - g.Cache
		if g.Peak > 0 && g.Peak >= 8*g.Cache { // else it is mostly the contents of files
			peak = g.Peak
		}
	}
	k.peak = max(k.peak, peak, t.Memory)
	t.Peak = k.peak
	return t
}

// add makes the sum of a task and those before.
func (s *topTask) add(t *topTask) {
	s.CPUs, s.Granted, s.Stalled = s.CPUs+t.CPUs, s.Granted+t.Granted, s.Stalled+t.Stalled
	if s.Memory, s.Peak = s.Memory+t.Memory, s.Peak+t.Peak; t.Limit == 0 || s.Limit < 0 {
		s.Limit = -1 // some have none
	} else {
		s.Limit += t.Limit
	}
	s.Read, s.Written, s.NetIn, s.NetOut = s.Read+t.Read, s.Written+t.Written, s.NetIn+t.NetIn, s.NetOut+t.NetOut
	s.Threads += t.Threads
	s.GPUs = append(s.GPUs, t.GPUs...)
	s.Age = max(s.Age, t.Age)
}

// gpu is the mean utilisation of a task's GPUs, in percent, and their memory. Of parts of GPUs (MIG) the utilisation is not known:
// negative where no other is.
func (t *topTask) gpu() (busy float64, memory int64) {
	known := 0
	for _, g := range t.GPUs {
		if memory += g.Memory; !g.Unknown {
			busy += g.Utilisation
			known++
		}
	}
	if known == 0 {
		return -1, memory
	}
	return busy / float64(known), memory
}

// waits is for what a task waits most, and for which part of the time.
func (t *topTask) waits() (what string, part float64) {
	if p := t.Pressure; p != nil {
		what, part = "cpu", p.CPU
		if p.Memory > part {
			what, part = "memory", p.Memory
		}
		if p.IO > part {
			what, part = "io", p.IO
		}
	}
	return what, min(part, 1)
}

// topKeys are what tasks are sorted by, the largest first.
var topKeys = []struct {
	name string
	of   func(*topTask) float64
}{
	{"cpu", func(t *topTask) float64 { return t.CPUs }},
	{"mem", func(t *topTask) float64 { return float64(t.Memory) }},
	{"peak", func(t *topTask) float64 { return float64(t.Peak) }},
	{"read", func(t *topTask) float64 { return t.Read }},
	{"write", func(t *topTask) float64 { return t.Written }},
	{"threads", func(t *topTask) float64 { return float64(t.Threads) }},
	{"gpu", func(t *topTask) float64 { busy, _ := t.gpu(); return busy }},
	{"gpu-mem", func(t *topTask) float64 { _, m := t.gpu(); return float64(m) }},
	{"throttled", func(t *topTask) float64 { return t.Stalled }},
	{"pressure", func(t *topTask) float64 { _, part := t.waits(); return part }},
	{"time", func(t *topTask) float64 { return -float64(t.Start.Unix()) }},
	{"task", func(t *topTask) float64 { return -float64(t.Task) }},
}

func topColumns() []string {
	var out []string
	for _, k := range topKeys {
		out = append(out, k.name)
	}
	return out
}

// sortTop sorts tasks by a column; those that are equal in it by their index.
func sortTop(list []topTask, by string) {
	of := topKeys[max(0, slices.Index(topColumns(), by))].of
	slices.SortFunc(list, func(a, b topTask) int { return cmp.Or(cmp.Compare(of(&b), of(&a)), a.Task-b.Task) })
}
