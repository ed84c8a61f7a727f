package metrics

import (
	"maps"
	"slices"
)

// SoFar returns the usage up to the last sample, in the form of a footer without an end. It is
// nil without samples. The footer of a record has more: the time after the last sample, and
// processes between two samples.
func (r *Record) SoFar() *Footer {
	if len(r.Samples) == 0 {
		return nil
	}
	var most peaks
	used := map[int]*gpuSum{}
	for i := range r.Samples {
		s := &r.Samples[i]
		most.take(s)
		for _, g := range s.GPUs {
			u := used[g.Index]
			if u == nil {
				if len(used) == maxGPUs {
					continue
				}
				u = &gpuSum{}
				used[g.Index] = u
			}
			before := 0.0
			if i > 0 {
				before = r.Samples[i-1].At
			}
			u.add(g, max(0, s.At-before))
		}
	}
	last := &r.Samples[len(r.Samples)-1]
	f := &Footer{Kind: kindFooter, Wall: last.At,
		Usage: Usage{User: max(0, last.CPU-last.System), System: last.System}, Samples: len(r.Samples)}
	f.total(last, &most)
	f.Memory, f.MemoryFrom = most.memory(last.Cgroup, r.Header.Limits.Shared)
	for _, index := range slices.Sorted(maps.Keys(used)) {
		f.GPUs = append(f.GPUs, used[index].use(index))
	}
	return f
}

// total sets the totals of the last sample and the maxima of all.
func (f *Footer) total(last *Sample, most *peaks) {
	f.Processes, f.Threads = most.processes, most.threads
	f.Read, f.Written, f.NetIn, f.NetOut = last.Read, last.Written, last.NetIn, last.NetOut
	f.Cgroup, f.Pressure = last.Cgroup, last.Pressure
}

// memory returns the peak memory of samples and its source. The cgroup's peak is exact, but
// says little about the run's needs if much of it was file contents.
func (p *peaks) memory(u *CgroupUse, shared bool) (int64, string) {
	switch {
	case !shared && u != nil && u.Peak > 0 && u.Peak >= 8*p.cache:
		return u.Peak, "cgroup"
	case p.pss > 0:
		return p.pss, "pss"
	}
	return p.rss, "rss"
}
