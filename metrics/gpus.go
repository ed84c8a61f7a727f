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

// GPUTime sums up the samples: each tells of the time since the one before. Of a record without
// samples the means of the footer count. Where nothing was measured it is zero: what is not known is not idle.
func (r *Record) GPUTime() GPUTime {
	var g GPUTime
	before := 0.0
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.At <= before || len(s.GPUs) == 0 {
			continue
		}
		for _, one := range s.GPUs {
			if !one.Unknown {
				g.add(s.At-before, one.Utilisation)
			}
		}
		before = s.At
	}
	if r.Footer == nil {
		return g
	}
	for _, one := range r.Footer.GPUs {
		rest, busy, known := r.Footer.Wall-before, one.Mean, !one.Unknown
		if before > 0 { // as it was when it was seen last
			busy, known = r.lastSeen(one.Index)
		}
		if rest > 0 && known {
			g.add(rest, busy)
		}
	}
	return g
}

// lastSeen is the utilisation of a GPU in the last sample that has it; a part of a GPU has none.
func (r *Record) lastSeen(index int) (percent float64, known bool) {
	for i := len(r.Samples) - 1; i >= 0; i-- {
		for _, one := range r.Samples[i].GPUs {
			if one.Index == index {
				return one.Utilisation, !one.Unknown
			}
		}
	}
	return 0, false
}

// add counts a GPU that was so busy for some seconds.
func (g *GPUTime) add(seconds, percent float64) {
	percent = min(max(percent, 0), 100)
	g.Measured += seconds
	g.Busy += seconds * percent / 100
	if percent < IdleGPU {
		g.Idle += seconds
	}
}
