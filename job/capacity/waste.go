package capacity

// A Waste is the part of a job's allocation that it did not use, in hours.
type Waste struct {
	AskedCPU     float64 `json:"cpu_hours"`        // processors times hours
	WastedCPU    float64 `json:"cpu_hours_wasted"` // part of it; 0 if the job's processor time is unknown
	AskedMemory  float64 `json:"gib_hours"`        // GiB times hours; 0: the job did not request memory
	WastedMemory float64 `json:"gib_hours_wasted"` // lower bound: as if the peak had lasted
	MemoryKnown  bool    `json:"memory_known"`     // both request and peak are known
	AskedGPU     float64 `json:"gpu_hours"`        // GPUs times hours
}

// Waste returns the idle part of a job's allocation.
func (u *Use) Waste() Waste {
	hours := u.Wall.Hours()
	w := Waste{AskedCPU: float64(u.CPUs) * hours, AskedGPU: float64(u.GPUs) * hours}
	if !u.CPUUnknown {
		w.WastedCPU = max(w.AskedCPU-u.CPUTime.Hours(), 0)
	}
	if u.Memory > 0 {
		const gib = 1 << 30
		nodes := float64(max(u.Nodes, 1))
		w.AskedMemory = nodes * float64(u.Memory) / gib * hours
		if u.PeakMemory > 0 {
			w.MemoryKnown = true
			w.WastedMemory = nodes * float64(max(u.Memory-u.PeakMemory, 0)) / gib * hours
		}
	}
	return w
}
