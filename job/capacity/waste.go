package capacity

// A Waste is what a job kept from others and did not use, in hours.
type Waste struct {
	AskedCPU     float64 `json:"cpu_hours"`        // processors times hours
	WastedCPU    float64 `json:"cpu_hours_wasted"` // of them; 0 where the job's processor time is unknown
	AskedMemory  float64 `json:"gib_hours"`        // GiB times hours; 0: the job named no amount
	WastedMemory float64 `json:"gib_hours_wasted"` // at least: as if the peak had lasted
	MemoryKnown  bool    `json:"memory_known"`     // there is an amount and a peak
	AskedGPU     float64 `json:"gpu_hours"`        // GPUs times hours
}

// Waste is what a job had and what of it was idle.
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
