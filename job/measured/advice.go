package measured

import (
	"time"

	"hpcc/job/capacity"
	"hpcc/metrics/report"
)

// adviseRequests advises how much to request. All runs of the system must have ended and must have
// requested the same. The use of processors covers only successful runs, because a failed run may
// have ended early. It gives no advice on a resource whose use does not show the need:
//
//   - processors, if runs waited for them or had fewer;
//   - memory and time, if a run was killed for lack of them;
//   - resources that were measured for one of several processes.
func adviseRequests(s *report.System) []string {
	if s.Endings[report.Open]+s.Missing > 0 {
		return nil
	}
	asked := s.Tasks[0].Header.Asked
	u := &capacity.Use{CPUs: asked.CPUs, Memory: asked.Memory, Time: duration(asked.Time)}
	var wall, cpu, longest float64
	done, killed := false, false
	for _, t := range s.Tasks {
		if t.Header.Asked != asked {
			return nil // the requests differ
		}
		longest = max(longest, t.Figures["wall_s"])
		u.PeakMemory = max(u.PeakMemory, int64(t.Figures["memory_peak_bytes"]))
		killed = killed || t.Footer.Signal == "SIGKILL"
		if oneProcess(t) && (asked.CPUs > 1 || t.Ranks > 1) {
			u.Memory = 0
		}
		firstRank := !t.Measured && t.Ranks > 1 // the processor time is that of the first rank
		if firstRank || t.Confined() {
			u.CPUs = 0
		}
		if t.Ending != report.Done {
			continue
		}
		c, known := t.Figures["cpu_s"]
		done, wall, cpu = true, wall+t.Figures["wall_s"], cpu+c
		u.CPUUnknown = u.CPUUnknown || (!known && t.Figures["wall_s"] > 0)
	}
	if !done {
		return nil
	}
	scale := min(1, maxSeconds/max(wall, cpu, 1)) // of both, to keep the number of busy processors
	u.Wall, u.CPUTime, u.Longest = duration(wall*scale), duration(cpu*scale), duration(longest)
	if s.Contended() {
		u.CPUs = 0
	}
	if killed || s.Endings[report.NoMemory] > 0 {
		u.Memory = 0
	}
	if s.Endings[report.TimeLimit] > 0 {
		u.Time = 0
	}
	return u.Advise()
}

// oneProcess reports whether the memory peak covers only the largest process.
func oneProcess(t *report.Task) bool {
	return t.Footer.MemoryFrom == "" || t.Footer.MemoryFrom == "process"
}

// maxSeconds is the largest number of seconds of a [time.Duration].
const maxSeconds = 9e9

func duration(v float64) time.Duration {
	return time.Duration(max(0, min(v, maxSeconds)) * float64(time.Second))
}
