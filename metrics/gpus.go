package metrics

// GPUTime is the use of a run's GPUs, in GPU-seconds (one GPU for one second).
type GPUTime struct {
	Measured float64 // covered by samples
	Busy     float64 // utilisation over that time: 1 is a GPU at full use for a second
	Idle     float64 // part of Measured in which a GPU was less than [IdleGPU] percent busy
}

// IdleGPU is the utilisation, in percent, below which a GPU counts as idle. Drivers report a
// few percent for a program that only queries it.
const IdleGPU = 5

// GPUTime sums the samples. Each covers the time since the previous one; the first also
// covers the time since the start, the last also the rest. Without samples it uses the means
// of the footer. Unmeasured time is zero, and does not count as idle.
func (r *Record) GPUTime() GPUTime {
	var g GPUTime
	var last *Sample
	before := 0.0
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.At <= before || (last == nil && len(s.GPUs) == 0) { // the tool has not reported yet
			continue
		}
		g.take(s.GPUs, s.At-before)
		last, before = s, s.At
	}
	if r.Footer == nil {
		return g
	}
	rest := r.Footer.Wall - before
	if last != nil {
		g.take(last.GPUs, rest)
		return g
	}
	for _, one := range r.Footer.GPUs {
		if !one.Unknown {
			g.add(rest, one.Mean)
		}
	}
	return g
}

// take counts the GPUs of a sample. GPUs that the tool does not report stay unknown.
func (g *GPUTime) take(list []GPUSample, seconds float64) {
	for _, one := range list {
		if !one.Unknown {
			g.add(seconds, one.Utilisation)
		}
	}
}

// add counts a GPU with this utilisation for some seconds.
func (g *GPUTime) add(seconds, percent float64) {
	seconds = max(seconds, 0)
	percent = min(max(percent, 0), 100)
	g.Measured += seconds
	g.Busy += seconds * percent / 100
	if percent < IdleGPU {
		g.Idle += seconds
	}
}
