package report

import (
	"fmt"
	"slices"

	"hpcc/text"
)

// idleGPU is the share of busy time from which a GPU counts as used.
const idleGPU = 0.1

// Thresholds for contention: runs that wait for processors use fewer than they could.
const (
	muchContended = 0.1 // share of time
	manySwitches  = 50  // involuntary context switches per second of processor time; a run alone has a few
	allBusy       = 0.8 // share of the granted processors
)

// leastAdvised is the sum of wall clocks, in seconds, from which the use of processors and GPUs
// says more about the program than about its start.
const leastAdvised = 60

// advise returns advice on resource requests that follows from the runs. Callers add advice on
// processors, memory and time that follows from the records of jobs.
func advise(s *System) (list []string) {
	if n := s.Endings[NoMemory]; n > 0 {
		list = append(list, fmt.Sprintf("%s killed for lack of memory%s: ask for more",
			text.Count(n, "run was", "runs were"), inBrackets(s.memoryAsked())))
	}
	if n := s.Endings[TimeLimit]; n > 0 {
		list = append(list, fmt.Sprintf("%s at the time limit%s: ask for more time",
			text.Count(n, "run was ended", "runs were ended"), inBrackets(s.timeAsked())))
	}
	if i := slices.IndexFunc(s.Tasks, (*Task).Confined); i >= 0 && s.Tasks[i].Ranks <= 1 {
		h := &s.Tasks[i].Header
		list = append(list, fmt.Sprintf("it requested %s but could use only %s: check its affinity and the quota of its cgroup", text.Count(h.Asked.CPUs, "processor", "processors"), digits(h.Limits.CPUs)))
	}
	if s.Figures[wallName].Sum < leastAdvised {
		return list
	}
	if text := s.adviseProcessors(); text != "" {
		list = append(list, text)
	}
	if text := s.adviseGPUs(); text != "" {
		list = append(list, text)
	}
	return list
}

// Contended reports whether a quarter of the runs waited for processors: throttled, under CPU
// pressure, or, if their kernel does not count that, often preempted. Their use of processors
// then says little about their needs.
func (s *System) Contended() bool {
	if s.Figures[throttledName].Q3 >= muchContended {
		return true
	}
	if p, ok := s.figure(pressureName); ok {
		return p.Q3 >= muchContended
	}
	busy, known := s.figure(cpusName)
	return known && busy.Median > 0 && s.Figures[switchesName].Q3/busy.Median >= manySwitches
}

// Confined reports whether the run could use fewer processors than it requested.
func (t *Task) Confined() bool {
	l := &t.Header.Limits
	return l.CPUs > 0 && l.CPUs < float64(t.Header.Asked.CPUs)
}

// adviseProcessors returns advice for runs that waited for processors, or "".
func (s *System) adviseProcessors() string {
	if x, ok := s.figure(throttledName); ok && x.Median >= muchContended {
		return fmt.Sprintf("throttled %s of the time in which it could run: ask for more processors, or start fewer threads", formatPercent(x.Median))
	}
	x, ok := s.figure(pressureName)
	if !ok || x.Median < muchWaiting {
		return ""
	}
	waited := fmt.Sprintf("threads waited for a processor %s of the time", formatPercent(x.Median))
	busy, known := s.figure(busyName)
	switch {
	case known && busy.Median >= allBusy:
		return waited + ": ask for more processors, or start fewer threads"
	case known:
		return fmt.Sprintf("%s, and only %s of its processors were busy: other programs probably took them; try --exclusive for a node of its own", waited, formatPercent(busy.Median))
	}
	return waited + ": ask for more processors, or try --exclusive for a node of its own"
}

// adviseGPUs returns advice on GPUs that were requested but not used, or "". A GPU that idles
// while the rest of the run waits may be needed.
func (s *System) adviseGPUs() string {
	used, asked := s.usedGPUs()
	if asked == 0 || s.Endings[Done] == 0 {
		return ""
	}
	g, ok := s.figure(gpuName)
	switch idle := ok && g.Median < idleGPU; {
	case idle && s.Contended():
		return fmt.Sprintf("its GPUs were busy %s of the time, but it waited for processors: solve that first", formatPercent(g.Median))
	case idle && s.Figures[storageName].Median >= muchWaiting:
		return fmt.Sprintf("its GPUs were busy %s of the time, but it waited for storage: solve that first", formatPercent(g.Median))
	case idle:
		return fmt.Sprintf("its GPUs were busy %s of the time: ask for fewer or none", formatPercent(g.Median))
	case used > 0 && used < asked:
		return fmt.Sprintf("no run used more than %d of %d GPUs: --gpus %d is enough", used, asked, used)
	}
	return ""
}

// inBrackets returns " (s)", or "" if s is empty.
func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// memoryAsked returns the largest memory request or limit of the runs that were killed for
// lack of memory.
func (s *System) memoryAsked() string {
	var n int64
	for _, t := range s.Tasks {
		if t.Ending == NoMemory {
			n = max(n, t.Header.Asked.Memory, t.Header.Limits.Memory)
		}
	}
	return amount(n)
}

// timeAsked returns the longest time limit of the runs that reached their limit, or "".
func (s *System) timeAsked() string {
	longest := 0.0
	for _, t := range s.Tasks {
		if t.Ending == TimeLimit {
			longest = max(longest, t.Header.Asked.Time)
		}
	}
	if longest == 0 {
		return ""
	}
	return formatSeconds(longest)
}

// usedGPUs returns the largest number of GPUs that any run used, and the largest that any run
// requested. used is 0 if it is unknown for any run.
func (s *System) usedGPUs() (used, asked int) {
	known := true
	for _, t := range s.Tasks {
		asked = max(asked, t.Header.Asked.GPUs)
		f := t.used()
		if f == nil {
			continue
		}
		known = known && (len(f.GPUs) > 0 || t.Header.Asked.GPUs <= 0)
		n := 0
		for _, g := range f.GPUs {
			if g.Mean >= 1 || g.Unknown {
				n++
			}
		}
		used = max(used, n)
	}
	if !known {
		used = 0
	}
	return used, asked
}
