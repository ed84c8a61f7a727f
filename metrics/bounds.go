package metrics

// Upper bounds of values in records. Records are untrusted, and sums and rates are computed from
// them.
const (
	mostCPUs    = 1e6
	mostSeconds = 1e10                   // three hundred years
	mostWork    = mostCPUs * mostSeconds // CPU-seconds, and joules
	mostMemory  = 1 << 50                // bytes
	mostItems   = 1 << 30                // processes, threads, samples
	mostCounter = 1 << 60                // counters of bytes and of events
)

// clamp limits values to the range from 0 to most.
func clamp[N int | int64 | float64](most N, values ...*N) {
	for _, v := range values {
		*v = min(max(*v, 0), most)
	}
}

func (h *Header) bound() {
	clamp(mostCPUs, &h.Limits.CPUs)
	clamp(mostCPUs, &h.Machine.CPUs, &h.Asked.CPUs, &h.Asked.GPUs)
	clamp(mostMemory, &h.Limits.Memory, &h.Machine.Memory, &h.Asked.Memory)
	clamp(mostSeconds, &h.Asked.Time)
	for i := range h.Machine.GPUs {
		clamp(mostMemory, &h.Machine.GPUs[i].Memory)
	}
	if h.Job != nil {
		clamp(mostSeconds, &h.Job.Pulled)
	}
}

func (s *Sample) bound() {
	clamp(mostSeconds, &s.At)
	clamp(mostWork, &s.CPU, &s.System)
	clamp(mostMemory, &s.RSS, &s.Peak, &s.PSS, &s.Swap)
	clamp(mostCounter, &s.Read, &s.Written, &s.NetIn, &s.NetOut)
	clamp(mostItems, &s.Processes, &s.Threads)
	s.Cgroup.bound()
	s.Pressure.bound()
	for i := range s.GPUs {
		g := &s.GPUs[i]
		clamp(100, &g.Utilisation)
		clamp(mostMemory, &g.Memory)
		clamp(mostWork, &g.Power)
	}
}

func (f *Footer) bound() {
	clamp(mostSeconds, &f.Wall)
	clamp(mostWork, &f.Usage.User, &f.Usage.System, &f.Cost)
	clamp(mostMemory, &f.Usage.MaxRSS, &f.Memory)
	clamp(mostCounter, &f.Usage.ReadBlocks, &f.Usage.WrittenBlocks, &f.Usage.Switches, &f.Read, &f.Written, &f.NetIn, &f.NetOut)
	clamp(mostItems, &f.Processes, &f.Threads, &f.Samples)
	f.Cgroup.bound()
	f.Pressure.bound()
	for i := range f.GPUs {
		g := &f.GPUs[i]
		clamp(100, &g.Mean, &g.P95)
		clamp(mostMemory, &g.Memory)
		clamp(mostWork, &g.Energy)
	}
}

func (u *CgroupUse) bound() {
	if u == nil {
		return
	}
	clamp(mostWork, &u.CPU, &u.Throttled)
	clamp(mostMemory, &u.Memory, &u.Cache, &u.Peak)
	clamp(mostCounter, &u.Read, &u.Written, &u.Throttles, &u.OOMKills)
}

func (p *Pressure) bound() {
	if p != nil {
		clamp(mostSeconds, &p.CPU, &p.Memory, &p.IO)
	}
}
