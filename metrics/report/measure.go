package report

import (
	"slices"

	"hpcc/metrics"
)

// A measure describes a figure of runs.
type measure struct {
	name   string // in JSON and CSV
	title  string
	unit   unit
	least  float64 // ratios of smaller values are noise, because counters have coarse steps
	grows  bool    // with the length of the run, so a part of a run has no ratio
	detail bool    // shown only in HTML, CSV and JSON
	before bool    // known before the run has used anything: of does not read the footer
	of     figure
}

// A figure is computed from a run's header and its usage so far. known is false if the record lacks the data.
type figure func(h *metrics.Header, f *metrics.Footer) (v float64, known bool)

// most bounds accepted figures, so that the sum of a million figures stays finite.
const most = 1e18

// Names of figures used by other figures.
const (
	wallName      = "wall_s"
	cpuName       = "cpu_s"
	cpusName      = "cpus_busy"
	busyName      = "cpu_efficiency"
	gpuName       = "gpu_efficiency"
	throttledName = "throttled"
	pressureName  = "pressure_cpu"
	storageName   = "pressure_io"
	readName      = "read_bytes"
	switchesName  = "switches_per_s"
	costName      = "cost"
	energyName    = "energy_kwh"
	gpuHourName   = "cost_per_gpu_hour"
	busyHourName  = "cost_per_busy_gpu_hour"
)

// The smallest values with meaningful ratios.
const (
	leastSeconds = 0.001
	leastWait    = 1       // seconds
	leastBytes   = 1 << 20 // transferred
	leastShare   = 0.01
	leastRate    = 1 // per second
)

// measures lists all measures in display order. Costs and energy need prices; see
// [Prices.add].
var measures = []measure{
	{name: wallName, grows: true, title: "wall clock", unit: inSeconds, least: leastSeconds, of: wall},
	{name: cpuName, grows: true, title: "processor time", unit: inSeconds, least: leastSeconds, of: cpuTime},
	{name: cpusName, title: "processors busy", unit: inNumber, least: leastShare, of: quotient(cpuTime, wall)},
	{name: busyName, title: "CPU efficiency", unit: inPercent, least: leastShare, of: quotient(cpuTime, grantedTime)},
	{name: "node_share", title: "busy share of the host's processors", unit: inPercent, least: leastShare, of: quotient(cpuTime, hostTime)},
	{name: "system_share", title: "processor time in the kernel", unit: inPercent, least: leastShare,
		detail: true, of: quotient(systemTime, cpuTime)},
	{name: gpuName, title: "GPU utilisation", unit: inPercent, least: leastShare, of: gpuMean},
	{name: "gpu_memory_bytes", title: "peak memory of a GPU", unit: inBytes, least: leastBytes, of: gpuMemory},
	{name: "memory_peak_bytes", title: "peak memory", unit: inBytes, of: memory},
	{name: "memory_of_asked", title: "peak memory ÷ requested", unit: inPercent, of: quotient(memory, askedMemory)},
	{name: "memory_of_limit", title: "peak memory ÷ limit", unit: inPercent, of: quotient(memory, memoryLimit)},
	{name: readName, grows: true, title: "read from storage", unit: inBytes, least: leastBytes,
		of: transferred(func(f *metrics.Footer) (int64, int64) { return f.Read, f.Usage.ReadBlocks })},
	{name: "written_bytes", grows: true, title: "written to storage", unit: inBytes, least: leastBytes,
		of: transferred(func(f *metrics.Footer) (int64, int64) { return f.Written, f.Usage.WrittenBlocks })},
	{name: "net_in_bytes", grows: true, title: "received by its network namespace", unit: inBytes,
		least: leastBytes, detail: true, of: positive(func(f *metrics.Footer) float64 { return float64(f.NetIn) })},
	{name: "net_out_bytes", grows: true, title: "sent by its network namespace", unit: inBytes,
		least: leastBytes, detail: true, of: positive(func(f *metrics.Footer) float64 { return float64(f.NetOut) })},
	{name: throttledName, title: "throttled share of runnable time", unit: inPercent, least: leastShare, of: throttled},
	{name: pressureName, title: "CPU pressure", unit: inPercent, least: leastShare,
		of: pressure(func(p *metrics.Pressure) float64 { return p.CPU })},
	{name: storageName, title: "I/O pressure", unit: inPercent, least: leastShare,
		of: pressure(func(p *metrics.Pressure) float64 { return p.IO })},
	{name: "pressure_memory", title: "memory pressure", unit: inPercent, least: leastShare,
		of: pressure(func(p *metrics.Pressure) float64 { return p.Memory })},
	{name: switchesName, title: "involuntary context switches per second", unit: inNumber,
		least: leastRate, detail: true, of: quotient(switches, wall)},
	{name: "queue_s", title: "queue wait", unit: inSeconds, least: leastWait, before: true, of: queued},
	{name: "pull_s", title: "image pull", unit: inSeconds, least: leastWait, before: true, of: pulled},
	{name: energyName, grows: true, title: "energy", unit: inEnergy},
	{name: costName, grows: true, title: "cost", unit: inMoney},
	{name: gpuHourName, title: "cost of a GPU-hour", unit: inMoney},
	{name: busyHourName, title: "cost of a busy GPU-hour", unit: inMoney},
}

// measureOf returns the measure with the given name, which must exist.
func measureOf(name string) *measure {
	return &measures[slices.IndexFunc(measures, func(m measure) bool { return m.name == name })]
}

// figures returns the known and valid figures of a run. f is nil if its usage is unknown.
func figures(h *metrics.Header, f *metrics.Footer) map[string]float64 {
	m := map[string]float64{}
	for _, x := range measures {
		if x.of == nil || (f == nil && !x.before) {
			continue
		}
		if v, ok := x.of(h, f); ok && v >= 0 && v < most {
			m[x.name] = v
		}
	}
	return m
}

// quotient returns a figure that is the quotient of two figures.
func quotient(dividend, divisor figure) figure {
	return func(h *metrics.Header, f *metrics.Footer) (float64, bool) {
		a, knownA := dividend(h, f)
		b, knownB := divisor(h, f)
		return a / b, knownA && knownB && b > 0
	}
}

func wall(h *metrics.Header, f *metrics.Footer) (float64, bool) {
	switch {
	case f.Wall > 0:
		return f.Wall, true
	case f.End.IsZero() || h.Start.IsZero():
		return 0, false
	}
	return f.End.Sub(h.Start).Seconds(), true
}

// cpuTime returns the processor time in seconds that wait4 reported, or that of the run's own
// cgroup, which includes children that no process waited for.
func cpuTime(h *metrics.Header, f *metrics.Footer) (float64, bool) {
	t := f.Usage.User + f.Usage.System
	if f.Cgroup != nil && !h.Limits.Shared {
		t = max(t, f.Cgroup.CPU)
	}
	return t, t > 0
}

func systemTime(_ *metrics.Header, f *metrics.Footer) (float64, bool) {
	return f.Usage.System, f.Usage.User+f.Usage.System > 0
}

// granted returns the number of processors that the run could use, but at most as many as it
// requested: without confinement, a run can also use processors that it did not request.
func granted(h *metrics.Header) float64 {
	asked := float64(h.Asked.CPUs)
	switch {
	case h.Limits.CPUs <= 0:
		return asked
	case asked <= 0:
		return h.Limits.CPUs
	}
	return min(asked, h.Limits.CPUs)
}

// grantedTime returns the processor time in seconds that was available to the run.
func grantedTime(h *metrics.Header, f *metrics.Footer) (float64, bool) {
	w, ok := wall(h, f)
	return w * granted(h), ok
}

// hostTime returns the processor time in seconds that all processors of the host have.
func hostTime(h *metrics.Header, f *metrics.Footer) (float64, bool) {
	w, ok := wall(h, f)
	return w * float64(h.Machine.CPUs), ok
}

func gpuMean(h *metrics.Header, f *metrics.Footer) (float64, bool) {
	var parts []float64
	for _, g := range f.GPUs {
		if !g.Unknown {
			parts = append(parts, g.Mean/100)
		}
	}
	return busiest(parts, h.Asked.GPUs), len(parts) > 0
}

// busiest returns the mean of the busiest GPUs, as many as were requested: without confinement,
// a run sees all GPUs of the node.
func busiest(parts []float64, asked int) float64 {
	slices.Sort(parts)
	if asked > 0 {
		parts = parts[max(len(parts)-asked, 0):]
	}
	sum := 0.0
	for _, p := range parts {
		sum += p
	}
	return sum / float64(max(len(parts), 1))
}

func gpuMemory(_ *metrics.Header, f *metrics.Footer) (v float64, ok bool) {
	for _, g := range f.GPUs {
		v = max(v, float64(g.Memory))
	}
	return v, len(f.GPUs) > 0
}

// gpuEnergy returns the GPUs' energy in joules.
func gpuEnergy(f *metrics.Footer) (v float64) {
	for _, g := range f.GPUs {
		v += max(0, g.Energy)
	}
	return v
}

func memory(_ *metrics.Header, f *metrics.Footer) (float64, bool) {
	n := f.Memory
	if n <= 0 {
		n = f.Usage.MaxRSS
	}
	return float64(n), n > 0
}

func askedMemory(h *metrics.Header, _ *metrics.Footer) (float64, bool) {
	return float64(h.Asked.Memory), true
}

func memoryLimit(h *metrics.Header, _ *metrics.Footer) (float64, bool) {
	return float64(h.Limits.Memory), true
}

// blockSize is the size in bytes of the blocks that getrusage(2) counts.
const blockSize = 512

// throttled returns the share of runnable time in which the CPU quota stopped the run. The kernel
// sums the throttled time over processors, so it may exceed the wall clock.
func throttled(h *metrics.Header, f *metrics.Footer) (float64, bool) {
	if f.Cgroup == nil || h.Limits.Shared {
		return 0, false
	}
	used, _ := cpuTime(h, f)
	runnable := f.Cgroup.Throttled + used
	return f.Cgroup.Throttled / runnable, runnable > 0
}

var switches = positive(func(f *metrics.Footer) float64 { return float64(f.Usage.Switches) })

// positive returns a figure that is known unless it is 0.
func positive(of func(*metrics.Footer) float64) figure {
	return func(_ *metrics.Header, f *metrics.Footer) (float64, bool) { return of(f), of(f) > 0 }
}

// transferred returns the bytes that a run moved: as sampled, or as the kernel counted for the processes that were waited
// for, in blocks.
func transferred(of func(*metrics.Footer) (bytes, blocks int64)) figure {
	return func(_ *metrics.Header, f *metrics.Footer) (float64, bool) {
		bytes, blocks := of(f)
		return max(float64(bytes), float64(blocks)*blockSize), true
	}
}

func pressure(of func(*metrics.Pressure) float64) figure {
	return func(h *metrics.Header, f *metrics.Footer) (float64, bool) {
		w, ok := wall(h, f)
		if !ok || w <= 0 || f.Pressure == nil {
			return 0, false
		}
		return min(of(f.Pressure)/w, 1), true
	}
}

// queued returns the time in seconds from submission to the start of the first attempt. It is
// unknown for later attempts.
func queued(h *metrics.Header, _ *metrics.Footer) (float64, bool) {
	if h.Job == nil || h.Job.Attempt > 0 || h.Job.Submitted.IsZero() || h.Start.Before(h.Job.Submitted) {
		return 0, false
	}
	return h.Start.Sub(h.Job.Submitted).Seconds(), true
}

func pulled(h *metrics.Header, _ *metrics.Footer) (float64, bool) {
	if h.Job == nil {
		return 0, false
	}
	return h.Job.Pulled, h.Job.Pulled > 0
}
