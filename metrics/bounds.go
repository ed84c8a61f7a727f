package metrics

// Bounds for values in records, because records are untrusted and sums and rates are
// computed from them.
const (
	mostCPUs    = 1e6
	mostSeconds = 1e10                   // three hundred years
	mostWork    = mostCPUs * mostSeconds // seconds of processors, and joules
	mostMemory  = 1 << 50                // bytes
	mostThings  = 1 << 30                // processes, samples
	mostCounted = 1 << 60                // bytes, and events
)

// within clamps values to the range from 0 to most.
func within[N int | int64 | float64](most N, values ...*N) {
	for _, v := range values {
		*v = min(max(*v, 0), most)
	}
}

func (h *Header) bound() {
	within(mostCPUs, &h.Limits.CPUs)
	within(mostCPUs, &h.Machine.CPUs, &h.Asked.CPUs, &h.Asked.GPUs)
	within(mostMemory, &h.Limits.Memory, &h.Machine.Memory, &h.Asked.Memory)
	within(mostSeconds, &h.Asked.Time)
	for i := range h.Machine.GPUs {
		within(mostMemory, &h.Machine.GPUs[i].Memory)
	}
	if h.Job != nil {
		within(mostSeconds, &h.Job.Pulled)
	}
}

func (s *Sample) bound() {
	within(mostSeconds, &s.At)
	within(mostWork, &s.CPU, &s.System)
	within(mostMemory, &s.RSS, &s.Peak, &s.PSS, &s.Swap)
	within(mostCounted, &s.Read, &s.Written, &s.NetIn, &s.NetOut)
	within(mostThings, &s.Processes, &s.Threads)
	s.Cgroup.bound()
	s.Pressure.bound()
	for i := range s.GPUs {
		g := &s.GPUs[i]
		within(100, &g.Utilisation)
		within(mostMemory, &g.Memory)
		within(mostWork, &g.Power)
	}
}

func (f *Footer) bound() {
	within(mostSeconds, &f.Wall)
	within(mostWork, &f.Usage.User, &f.Usage.System, &f.Cost)
	within(mostMemory, &f.Usage.MaxRSS, &f.Memory)
	within(mostCounted, &f.Usage.ReadBlocks, &f.Usage.WrittenBlocks, &f.Usage.Switches, &f.Read, &f.Written, &f.NetIn, &f.NetOut)
	within(mostThings, &f.Processes, &f.Threads, &f.Samples)
	f.Cgroup.bound()
	f.Pressure.bound()
	for i := range f.GPUs {
		g := &f.GPUs[i]
		within(100, &g.Mean, &g.P95)
		within(mostMemory, &g.Memory)
		within(mostWork, &g.Energy)
	}
}

func (u *CgroupUse) bound() {
	if u == nil {
		return
	}
	within(mostWork, &u.CPU, &u.Throttled)
	within(mostMemory, &u.Memory, &u.Cache, &u.Peak)
	within(mostCounted, &u.Read, &u.Written, &u.Throttles, &u.OOMKills)
}

func (p *Pressure) bound() {
	if p != nil {
		within(mostSeconds, &p.CPU, &p.Memory, &p.IO)
	}
}
