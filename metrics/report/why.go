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

// causes explains the parts of the difference.
func (m *match) causes() (text []string) {
	work, known := m.ratio(cpuName)
	busy, also := m.ratio(cpusName)
	if !known || !also {
		return []string{"why is not known: one of them has no processor time"}
	}
	if wall, _ := m.ratio(wallName); math.Abs(math.Log(work.Median/busy.Median/wall.Median)) > math.Log(telling) {
		what := "the runs"
		if len(m.pairs) > 0 {
			what = "the pairs"
		}
		return []string{fmt.Sprintf("%s differ in why: in their middle processor time is × %s and processors busy × %s, which do not come to × %s", what, times(work.Median), times(busy.Median), times(wall.Median))}
	}
	text = append(text, fmt.Sprintf("of that: processor time × %s (%s, %s), processors busy × %s (%s, %s)",
		times(work.Median), m.say(cpuName, m.other), m.say(cpuName, m.base),
		times(busy.Median), m.say(cpusName, m.other), m.say(cpusName, m.base)))
	if m.report.Different {
		text = append(text, "the images differ: it may be another program, and all below be of that")
	}
	switch {
	case work.Median >= telling:
		text = append(text, m.moreWork(m.other, m.base, work.Median)...)
	case work.Median <= 1/telling:
		text = append(text, m.moreWork(m.base, m.other, 1/work.Median)...)
	}
	switch {
	case busy.Median <= 1/telling:
		text = append(text, m.moreWaiting(m.other, m.base)...)
	case busy.Median >= telling:
		text = append(text, m.moreWaiting(m.base, m.other)...)
	}
	return text
}

// apart reports whether the parts of the wall clock differ, even if they compensate each
// other.
func (m *match) apart() bool {
	for _, name := range []string{cpuName, cpusName} {
		if r, ok := m.ratio(name); ok && math.Abs(math.Log(r.Median)) >= math.Log(telling) {
			return true
		}
	}
	return false
}

// say formats a figure's median.
func (m *match) say(name string, s *System) string {
	for _, x := range measures {
		if f, ok := s.Figures[name]; ok && x.name == name {
			return x.unit.say(f.Median, m.report.Currency)
		}
	}
	return "not known"
}

// moreWork explains why one system took more processor time.
func (m *match) moreWork(slow, fast *System, factor float64) (text []string) {
	because := func(format string, a ...any) { text = append(text, fmt.Sprintf(format, a...)) }
	head := fmt.Sprintf("%s took %s × the processor time", slow.Name, times(factor))
	a, b, arch := m.report.property("architecture", slow, fast)
	c, d, cpu := m.report.property("CPU", slow, fast)
	if g := fast.Figures["gpu_efficiency"]; g.Median >= idleGPU {
		if _, also := slow.Figures["gpu_efficiency"]; !also {
			because("%s: %s has GPUs, which probably do a part of it, and no GPU was seen on %s", head, fast.Name, slow.Name)
		}
	}
	switch {
	case arch:
		because("%s: probably its architecture, %s for %s", head, a, b)
	case cpu:
		because("%s: probably slower cores, %s for %s", head, c, d)
	}
	if s, f := slow.Figures["system_share"], fast.Figures["system_share"]; s.N > 0 && f.N > 0 && s.Median-f.Median >= tellingPart {
		because("%s of its processor time went to the kernel, %s on %s: system calls, page faults and file systems probably cost more there",
			m.say("system_share", slow), m.say("system_share", fast), fast.Name)
	}
	if m.otherCommands() {
		because("the commands differ: perhaps %s had more to do", slow.Name)
	}
	if len(text) == 0 {
		because("%s, and nothing that is known of the hosts differs: probably clock rates, memory, neighbours on the same cores, or more to do", head)
	}
	return text
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
func (m *match) moreWaiting(slow, fast *System) (text []string) {
	because := func(format string, a ...any) { text = append(text, fmt.Sprintf(format, a...)) }
	of := func(t *Task) float64 { return granted(&t.Header) }
	busy := slow.Figures[busyName].Median / fast.Figures[busyName].Median
	if a, b := slow.median(of), fast.median(of); a > 0 && a < b {
		noun := "processors"
		if a == 1 {
			noun = "processor"
		}
		because("%s was granted %s %s instead of %s", slow.Name, digits(a), noun, digits(b))
		if !(busy <= 1/telling) { // it used them as well, or that is unknown
			return text
		}
	}
	if _, known := slow.Figures[busyName]; known {
		because("%s kept %s of its processors busy, %s %s", slow.Name, m.say(busyName, slow), fast.Name, m.say(busyName, fast))
	} else {
		because("%s kept fewer processors busy, of how many is not known", slow.Name)
	}
	before := len(text)
	if a, b := slow.median(threads), fast.median(threads); a > 0 && a < b && a < fast.Figures[cpusName].Median {
		because("it had %s, %s on %s: it started fewer", counted(int(a), "thread", "threads"), digits(b), fast.Name)
	}
	text = append(text, m.waiting(slow, fast)...)
	if s, f := slow.Figures["gpu_efficiency"], fast.Figures["gpu_efficiency"]; s.N > 0 && f.N > 0 && math.Abs(s.Median-f.Median) >= tellingPart {
		what := "waiting for its GPU"
		if s.Median < f.Median {
			what = "something before the GPU, which idled too"
		}
		because("probably %s: GPUs busy %s, %s on %s", what, m.say("gpu_efficiency", slow), m.say("gpu_efficiency", fast), fast.Name)
	}
	if more, ok := ratioOf(fast.Figures["read_bytes"].Median, slow.Figures["read_bytes"].Median); ok && more >= 2 && slow.Figures["read_bytes"].Median >= muchRead {
		because("it read %s from storage, %s on %s: perhaps a cache that was cold", m.say("read_bytes", slow), m.say("read_bytes", fast), fast.Name)
	}
	if len(text) == before {
		because("%s", m.unknown(slow))
	}
	return text
}

// threads returns the maximum number of concurrent threads of a run, if known.
func threads(t *Task) float64 {
	if t.Footer == nil {
		return 0
	}
	return float64(t.Footer.Threads)
}

// median returns the median over the successful runs, or over all if none was successful, or
// 0 if unknown.
func (s *System) median(of func(*Task) float64) float64 {
	var values []float64
	for _, t := range s.Tasks {
		if v := of(t); v > 0 && (t.Ending == Done || s.Endings[Done] == 0) {
			values = append(values, v)
		}
	}
	return spreadOf(values).Median
}

// waiting describes what the slower system waited for more. It is a guess if the faster
// system lacks the data, or the pressures have different sources.
func (m *match) waiting(slow, fast *System) (text []string) {
	_, _, otherPressure := m.report.property("pressure of", slow, fast)
	for _, w := range waits {
		s, known := slow.Figures[w.name]
		f, also := fast.Figures[w.name]
		if !known || s.Median-f.Median < tellingPart {
			continue
		}
		sure := "probably"
		if !also || (otherPressure && w.name != "throttled") {
			sure = "perhaps"
		}
		text = append(text, fmt.Sprintf("%s %s: %s of %s, %s on %s", sure, w.what, m.say(w.name, slow), w.of, m.say(w.name, fast), fast.Name))
	}
	return text
}

// unknown describes the result if no wait stands out.
func (m *match) unknown(slow *System) string {
	longest := ""
	for _, w := range waits {
		if slow.Figures[w.name].Median > slow.Figures[longest].Median && slow.Figures[w.name].Median >= muchWaiting {
			longest = w.name
		}
	}
	for _, w := range waits {
		if w.name == longest {
			return fmt.Sprintf("why does not stand out; both had %s: %s of %s, %s", w.what, m.say(w.name, m.other), w.of, m.say(w.name, m.base))
		}
	}
	if _, known := slow.Figures["pressure_io"]; !known {
		return "why is not known: its host tells no pressure, and nothing else stands out"
	}
	return "why the record does not tell: probably the network, locks, or processes that wait for each other"
}

// muchWaiting is the share of time that is mentioned if both systems waited equally long.
const muchWaiting = 0.25

// muchRead is the number of bytes read from storage that is mentioned.
const muchRead = 64 << 20

// waits lists the possible waits of a run.
var waits = []struct{ name, what, of string }{
	{"throttled", "throttling by its quota of processors", "when it could run"},
	{"pressure_io", "waiting for storage", "the time"},
	{"pressure_memory", "want of memory", "the time"},
	{"pressure_cpu", "processors that others wanted too", "the time"},
}

// around describes differences outside the run itself: the waits before it, and its cost.
func (m *match) around() (text []string) {
	for _, x := range []struct{ name, what string }{{"queue_s", "before it began it waited in the queue"}, {"pull_s", "its image came in"}} {
		a, known := m.base.Figures[x.name]
		b, also := m.other.Figures[x.name]
		if known && also && math.Abs(a.Median-b.Median) >= 1 && math.Abs(a.Median-b.Median) > tellingPart*m.base.Figures[wallName].Median {
			text = append(text, fmt.Sprintf("%s: %s, %s on %s", x.what, saySeconds(b.Median), saySeconds(a.Median), m.base.Name))
		}
	}
	if a, b, differ := m.report.property("memory counted by", m.other, m.base); differ {
		text = append(text, fmt.Sprintf("memory was not told by the same: by %s; on %s by %s (process: the largest one alone)", a, m.base.Name, b))
	}
	if r, ok := m.ratio(costName); ok {
		text = append(text, fmt.Sprintf("a run costs %s, %s on %s: × %s", m.say(costName, m.other), m.say(costName, m.base), m.base.Name, times(r.Median)))
	}
	return text
}
