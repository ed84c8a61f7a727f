package report

import "fmt"

// MuchThrottled is the part of the time that a run is throttled from which on more
// processors are advised.
const MuchThrottled = 0.1

// idleGPU is the part of the time from which on a GPU is of use.
const idleGPU = 0.1

// advise says what else to ask for. What processors, memory and time would have done
// the records of jobs tell, too, and callers add it.
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

// of puts a text into another, where there is one.
func of(s, format string) string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf(format, s)
}

// memoryAsked is the most that a run that was killed for it asked for, or was limited to.
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

// usedGPUs is the most GPUs that a run used, and the most that one asked for. used is 0 where
// that is not known of one.
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
