package report

import (
	"fmt"
	"math"
	"slices"
)

// The wall clock is processor time divided by busy processors. So a difference comes from
// more processor time, fewer busy processors, or both. Each part is compared with the
// records' data on hosts and waiting. The explanations are likely, not proven.

// telling is the factor from which a part of a difference is explained, and tellingPart the
// same as a difference of percentages.
const (
	telling     = 1.1
	tellingPart = 0.05
)

// A cause is a statement on a difference.
type cause struct {
	brief string // clause for the headline; empty if the statement names no cause
	text  string // sentence with the figures
}

// causes explains the parts of the difference.
func (m *match) causes() (list []cause) {
	work, known := m.ratio(cpuName)
	busy, also := m.ratio(cpusName)
	if !known || !also {
		why := "processor times are missing"
		if m.idle() {
			why = "the programs used hardly any processor time"
		}
		return []cause{{text: "the cause is unknown: " + why}}
	}
	if wall, _ := m.ratio(wallName); math.Abs(math.Log(work.Median/busy.Median/wall.Median)) > math.Log(telling) {
		complete := "the runs"
		if len(m.pairs) > 0 {
			complete = "the pairs"
		}
		return []cause{{text: fmt.Sprintf("%s have different causes: the medians of %s are %s for processor time and %s for busy processors, which do not explain %s for the wall clock",
			complete, m.quotient(), significant(work.Median), significant(busy.Median), significant(wall.Median))}}
	}
	list = append(list, cause{text: fmt.Sprintf("processor time: %s (%s, against %s); busy processors: %s (%s, against %s)",
		factor(work.Median, "more", "less"), m.format(cpuName, m.other), m.format(cpuName, m.base),
		factor(busy.Median, "more", "fewer"), m.format(cpusName, m.other), m.format(cpusName, m.base))})
	if m.report.Different {
		list = append(list, cause{"the images differ", "the images differ, so the causes below may be those of different programs"})
	}
	switch {
	case work.Median >= telling:
		list = append(list, m.moreWork(m.other, m.base, work.Median)...)
	case work.Median <= 1/telling:
		list = append(list, m.moreWork(m.base, m.other, 1/work.Median)...)
	}
	switch {
	case busy.Median <= 1/telling:
		list = append(list, m.moreWaiting(m.other, m.base)...)
	case busy.Median >= telling:
		list = append(list, m.moreWaiting(m.base, m.other)...)
	}
	return list
}

// idle reports whether both systems have the number of busy processors, and it is too small for a
// ratio.
func (m *match) idle() bool {
	_, divided := m.ratio(cpusName)
	_, known := m.base.figure(cpusName)
	_, also := m.other.figure(cpusName)
	return !divided && known && also
}

// apart reports whether the parts of the wall clock differ, even if they compensate each
// other.
func (m *match) apart() bool {
	if m.idle() {
		return false
	}
	for _, name := range []string{cpuName, cpusName} {
		if r, ok := m.ratio(name); ok && math.Abs(math.Log(r.Median)) >= math.Log(telling) {
			return true
		}
	}
	return false
}

// format formats a figure's median.
func (m *match) format(name string, s *System) string {
	if f, ok := s.figure(name); ok {
		return measureOf(name).unit.format(f.Median, m.report.Currency)
	}
	return "unknown"
}

// subject names a system in the headline, which is about the other system.
func (m *match) subject(s *System) string {
	if s == m.other {
		return "it"
	}
	return s.Name
}

// moreWork explains why one system took more processor time.
func (m *match) moreWork(slow, fast *System, more float64) (list []cause) {
	subject, head := m.subject(slow), fmt.Sprintf("%s used %s × the processor time", slow.Name, significant(more))
	because := func(brief, format string, a ...any) {
		list = append(list, cause{brief, fmt.Sprintf(format, a...)})
	}
	a, b, arch := m.report.property("architecture", slow, fast)
	c, d, cpu := m.report.property("CPU", slow, fast)
	if g, ok := fast.figure(gpuName); ok && g.Median >= idleGPU {
		if _, also := slow.Figures[gpuName]; !also {
			because(subject+" had no GPU", "%s: %s has GPUs, which probably do part of the work, and %s reports none",
				head, fast.Name, slow.Name)
		}
	}
	switch {
	case arch:
		because(subject+" needed more processor time on another architecture",
			"%s: probably because of its architecture, %s instead of %s", head, a, b)
	case cpu:
		because(subject+" probably has slower cores", "%s: probably because of slower cores, %s instead of %s", head, c, d)
	}
	s, known := slow.figure("system_share")
	f, also := fast.figure("system_share")
	if known && also && s.Median-f.Median >= tellingPart {
		because(subject+" spent more processor time in the kernel",
			"%s spent %s of its processor time in the kernel, against %s on %s: probably in system calls, page faults or file systems",
			slow.Name, m.format("system_share", slow), m.format("system_share", fast), fast.Name)
	}
	if m.otherCommands() {
		because("", "the commands differ: perhaps %s had more to do", slow.Name)
	}
	if len(list) == 0 {
		because(subject+" needed more processor time",
			"%s, and no known property of the hosts differs: probably clock rates, memory bandwidth, other programs on the same cores, or more to do", head)
	}
	return list
}

// otherCommands reports whether the systems ran different commands. It compares pairs,
// because one system may have additional runs.
func (m *match) otherCommands() bool {
	for _, p := range m.pairs {
		if !slices.Equal(p[0][0].Header.Command, p[1][0].Header.Command) {
			return true
		}
	}
	_, _, differ := m.report.property("command", m.base, m.other)
	return differ && len(m.pairs) == 0
}

// moreWaiting explains why one system kept fewer processors busy.
func (m *match) moreWaiting(slow, fast *System) (list []cause) {
	subject := m.subject(slow)
	because := func(brief, format string, a ...any) {
		list = append(list, cause{brief, fmt.Sprintf(format, a...)})
	}
	of := func(t *Task) float64 { return granted(&t.Header) }
	s, known := slow.figure(busyName)
	f, also := fast.figure(busyName)
	if a, b := slow.median(of), fast.median(of); a > 0 && a < b {
		noun := "processors"
		if a == 1 {
			noun = "processor"
		}
		clause := fmt.Sprintf("was granted %s %s instead of %s", digits(a), noun, digits(b))
		because(subject+" "+clause, "%s %s", slow.Name, clause)
		if !known || !also || s.Median/f.Median > 1/telling { // it used them as well, or that is unknown
			return list
		}
	}
	if known {
		because("", "%s kept %s of its processors busy, %s %s", slow.Name, m.format(busyName, slow), fast.Name, m.format(busyName, fast))
	} else {
		because("", "%s kept fewer processors busy; how many it had is unknown", slow.Name)
	}
	before := len(list)
	if a, b := slow.median(threads), fast.median(threads); a > 0 && a < b && a < fast.Figures[cpusName].Median {
		because(subject+" started fewer threads", "%s started fewer threads: at most %s, against %s on %s",
			slow.Name, digits(a), digits(b), fast.Name)
	}
	list = append(list, m.waiting(slow, fast)...)
	g, known := slow.figure(gpuName)
	h, also := fast.figure(gpuName)
	if known && also && math.Abs(g.Median-h.Median) >= tellingPart {
		what := "waiting for its GPU"
		if g.Median < h.Median {
			what = "a step before the GPU, which idled too"
		}
		because("", "probably %s: GPU utilisation %s, against %s on %s", what, m.format(gpuName, slow), m.format(gpuName, fast), fast.Name)
	}
	in, known := slow.figure(readName)
	less, also := fast.figure(readName)
	if known && also && in.Median >= max(muchRead, 2*less.Median) {
		because(subject+" read more from storage",
			"%s read %s from storage, against %s on %s: perhaps its page cache was cold", slow.Name,
			m.format(readName, slow), m.format(readName, fast), fast.Name)
	}
	if len(list) == before {
		because("", "%s", m.unknown(slow))
	}
	return list
}

// threads returns the maximum number of concurrent threads of a run, if known.
func threads(t *Task) float64 {
	f := t.used()
	if f == nil {
		return 0
	}
	return float64(f.Threads)
}

// median returns the median of a number over the runs that the figures include, or 0 if
// most of them lack it.
func (s *System) median(of func(*Task) float64) float64 {
	var values []float64
	for _, t := range s.Tasks {
		if v := of(t); v > 0 && (t.Ending == Done || s.Endings[Done] == 0) {
			values = append(values, v)
		}
	}
	if !enough(len(values), s.included) {
		return 0
	}
	return spreadOf(values).Median
}

// A wait is something that runs wait for.
type wait struct {
	name   string // of its figure
	doing  string // with "was" before it
	clause string // for the headline, after the system
	of     string // what the figure is a share of
}

// waits lists the possible waits of a run.
var waits = []wait{
	{throttledName, "throttled by its CPU quota", "was throttled by its CPU quota", "its runnable time"},
	{storageName, "waiting for storage", "waited for storage", "the time"},
	{"pressure_memory", "short of memory", "was short of memory", "the time"},
	{pressureName, "waiting for processors", "waited for processors", "the time"},
}

// waiting describes what the slower system waited for more. It is a guess if the faster
// system lacks the data, or the pressures have different scopes.
func (m *match) waiting(slow, fast *System) (list []cause) {
	_, _, otherScope := m.report.property(pressureScope, slow, fast)
	for _, w := range waits {
		s, known := slow.figure(w.name)
		f, also := fast.figure(w.name)
		if !known || s.Median-f.Median < tellingPart {
			continue
		}
		sure, brief := "probably", m.subject(slow)+" "+w.clause
		if !also || (otherScope && w.name != throttledName) {
			sure, brief = "perhaps", ""
		}
		list = append(list, cause{brief, fmt.Sprintf("%s %s: %s of %s, %s on %s", sure, w.doing,
			m.format(w.name, slow), w.of, m.format(w.name, fast), fast.Name)})
	}
	return list
}

// unknown describes the result if no wait stands out.
func (m *match) unknown(slow *System) string {
	longest := wait{}
	for _, w := range waits {
		if f, ok := slow.figure(w.name); ok && f.Median >= muchWaiting && f.Median > slow.Figures[longest.name].Median {
			longest = w
		}
	}
	if w := longest; w.name != "" {
		return fmt.Sprintf("no cause stands out; both were %s: %s of %s, and %s", w.doing,
			m.format(w.name, m.other), w.of, m.format(w.name, m.base))
	}
	if _, known := slow.figure(storageName); !known {
		return "the cause is unknown: its host reports no pressure, and nothing else stands out"
	}
	return "the records do not show the cause: probably the network, locks, or processes that wait for each other"
}

// muchWaiting is the share of time that is mentioned if both systems waited equally long.
const muchWaiting = 0.25

// muchRead is the number of bytes read from storage that is mentioned.
const muchRead = 64 << 20

// around describes differences outside the run itself: the waits before it, and its cost.
func (m *match) around() (text []string) {
	for _, x := range []struct{ name, what string }{{"queue_s", "queue wait before it began"}, {"pull_s", "pull of its image"}} {
		a, known := m.base.figure(x.name)
		b, also := m.other.figure(x.name)
		if known && also && math.Abs(a.Median-b.Median) >= leastWait &&
			math.Abs(a.Median-b.Median) > tellingPart*m.base.Figures[wallName].Median {
			text = append(text, fmt.Sprintf("%s: %s, against %s on %s", x.what, formatSeconds(b.Median),
				formatSeconds(a.Median), m.base.Name))
		}
	}
	if a, b, differ := m.report.property(peakSource, m.other, m.base); differ {
		text = append(text, fmt.Sprintf("the peaks of memory have different sources: %s on %s, %s on %s (process: the largest process alone)", a, m.other.Name, b, m.base.Name))
	}
	if r, ok := m.ratio(costName); ok {
		text = append(text, fmt.Sprintf("a run costs %s, against %s on %s: %s", m.format(costName, m.other),
			m.format(costName, m.base), m.base.Name, factor(r.Median, "more", "less")))
	}
	return text
}
