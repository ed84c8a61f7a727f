package metrics

import "testing"

// TestSoFar: the usage up to the last sample is computed as that of a footer.
func TestSoFar(t *testing.T) {
	if f := new(Record).SoFar(); f != nil {
		t.Errorf("without samples: %+v; want nil", f)
	}
	gpu := func(percent float64, memory int64) []GPUSample {
		return []GPUSample{{Index: 0, Utilisation: percent, Memory: memory, Power: 200}, {Index: 1, Unknown: true}}
	}
	r := &Record{Samples: []Sample{
		{At: 10, CPU: 12, System: 2, RSS: 900, Processes: 3, Threads: 9, Read: 5, Written: 6, GPUs: gpu(50, 70)},
		{At: 40, CPU: 50, System: 5, RSS: 400, PSS: 350, Processes: 1, Threads: 2, Read: 50, Written: 60, NetIn: 7, NetOut: 8, GPUs: gpu(100, 60), Pressure: &Pressure{CPU: 4}},
	}}
	f := r.SoFar()
	if f.Wall != 40 || f.Usage.User != 45 || f.Usage.System != 5 || f.Processes != 3 || f.Threads != 9 || f.Read != 50 || f.Written != 60 || f.NetIn != 7 || f.NetOut != 8 ||
		f.Samples != 2 || f.Pressure.CPU != 4 || !f.End.IsZero() {
		t.Errorf("%+v", f)
	}
	if f.Memory != 350 || f.MemoryFrom != "pss" {
		t.Errorf("%d of %s; want the proportional sets", f.Memory, f.MemoryFrom)
	}
	if len(f.GPUs) != 2 || f.GPUs[0] != (GPUUse{Index: 0, Mean: 87.5, P95: 100, Memory: 70, Energy: 8000}) || !f.GPUs[1].Unknown { // (10 s × 50 + 30 s × 100) ÷ 40 s
		t.Errorf("GPUs %+v", f.GPUs)
	}
	r.Samples[1].Cgroup = &CgroupUse{CPU: 60, Peak: 2000, OOMKills: 1}
	if f = r.SoFar(); f.Memory != 2000 || f.MemoryFrom != "cgroup" || f.Cgroup.OOMKills != 1 {
		t.Errorf("%d of %s; want the peak of the cgroup", f.Memory, f.MemoryFrom)
	}
	r.Header.Limits.Shared = true
	if f = r.SoFar(); f.MemoryFrom != "pss" {
		t.Errorf("%d of %s; want none of a cgroup that others share", f.Memory, f.MemoryFrom)
	}
	backwards := &Record{Samples: []Sample{{At: 9, GPUs: gpu(10, 1)}, {At: 2, GPUs: gpu(90, 1)}, {At: 2, CPU: 1, System: 3}}}
	if f = backwards.SoFar(); f.GPUs[0].Mean != 10 || f.Usage.User != 0 {
		t.Errorf("a damaged record: %+v %+v", f.Usage, f.GPUs)
	}
}
