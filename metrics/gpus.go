package metrics

// GPUTime is how the GPUs of a run were used, in GPU-seconds: what one GPU is for one second.
type GPUTime struct {
	Measured float64 // that samples tell of
	Busy     float64 // utilisation over that time: 1 is a GPU at full use for a second
	Idle     float64 // of Measured, when a GPU was less than [IdleGPU] percent busy
}

// IdleGPU is the utilisation, in percent, below which a GPU counts as idle: drivers show a few
// percent for a program that does nothing but ask.
const IdleGPU = 5

// GPUTime sums up the samples: each tells of the time since the one before, the first one of that since the start, and the
// last one of what is left. Of a record without samples the means of the footer count. Where nothing was measured it is
// zero: what is not known is not idle.
func (r *Record) GPUTime() GPUTime {
	var g GPUTime
	var last *Sample
	before := 0.0
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.At <= before || (last == nil && len(s.GPUs) == 0) { // the tool has not answered yet
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

// take counts the GPUs that a sample has; of those that its tool said nothing of nothing is known.
func (g *GPUTime) take(list []GPUSample, seconds float64) {
	for _, one := range list {
		if !one.Unknown {
			g.add(seconds, one.Utilisation)
		}
	}
}

// add counts a GPU that was so busy for some seconds.
func (g *GPUTime) add(seconds, percent float64) {
	seconds = max(seconds, 0)
	percent = min(max(percent, 0), 100)
	g.Measured += seconds
	g.Busy += seconds * percent / 100
	if percent < IdleGPU {
		g.Idle += seconds
	}
}
