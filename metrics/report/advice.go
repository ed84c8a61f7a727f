package report

import "fmt"

// MuchThrottled is the share of throttled time from which more processors are advised.
const MuchThrottled = 0.1

// idleGPU is the share of busy time from which a GPU counts as used.
const idleGPU = 0.1

// advise returns advice on resource requests. Callers add advice on processors, memory and
// time, which follows from the records of jobs.
func advise(s *System) (list []string) {
	if n := s.Endings[NoMemory]; n > 0 {
		list = append(list, fmt.Sprintf("%s killed for want of memory%s: ask for more", counted(n, "run was", "runs were"), of(s.memoryAsked(), " that had asked for %s")))
	}
	if n := s.Endings[TimeLimit]; n > 0 {
		list = append(list, fmt.Sprintf("%s not done at the time limit%s: ask for more", counted(n, "run was", "runs were"), s.timeAsked()))
	}
	if x, ok := s.Figures["throttled"]; ok && x.Median >= MuchThrottled {
		list = append(list, fmt.Sprintf("throttled %s of the time in which it could run: ask for more processors, or start fewer threads", sayPercent(x.Median)))
	}
	used, asked := s.usedGPUs()
	if g, ok := s.Figures["gpu_efficiency"]; asked > 0 && ok && g.Median < idleGPU {
		list = append(list, fmt.Sprintf("its GPUs were busy %s of the time: without --gpus, or with fewer, others could use them", sayPercent(g.Median)))
	} else if used > 0 && used < asked {
		list = append(list, fmt.Sprintf("no run used more than %d of %d GPUs: --gpus %d would do", used, asked, used))
	}
	return list
}

// of inserts s into format, unless s is empty.
func of(s, format string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf(format, s)
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
	return " of " + saySeconds(longest)
}

// usedGPUs returns the largest number of GPUs that a run used and that one requested. used
// is 0 if it is unknown for any run.
func (s *System) usedGPUs() (used, asked int) {
	known := true
	for _, t := range s.Tasks {
		asked = max(asked, t.Header.Asked.GPUs)
		if t.Footer == nil {
			continue
		}
		known = known && (len(t.Footer.GPUs) > 0 || t.Header.Asked.GPUs <= 0)
		n := 0
		for _, g := range t.Footer.GPUs {
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
