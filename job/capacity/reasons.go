package capacity

import (
	"fmt"
	"slices"
	"time"

	"hpcc/job/quantity"
	"hpcc/text"
)

// unit describes one unit of the need.
func (x *Need) unit() string {
	s := text.Count(x.CPUs, "CPU", "CPUs")
	if x.Memory > 0 {
		s += ", " + quantity.FormatMemory(x.Memory) + " of memory"
	}
	if x.GPUs > 0 {
		s += ", " + text.Count(x.GPUs, "GPU", "GPUs")
	}
	return s
}

// never returns why even the empty nodes could not meet the need, or "". all is the number of nodes, including
// those that the job may not use.
func (x *Need) never(nodes []*Node, all int) string {
	want := 1
	if x.nodes {
		want = x.Units
	}
	if len(nodes) < want {
		switch {
		case x.kind != "" && len(nodes) == 0:
			return fmt.Sprintf("no node has GPUs of kind %s", x.kind)
		case all > len(nodes):
			return fmt.Sprintf("the job needs %s, and %d of %d match", text.Count(want, "node", "nodes"), len(nodes), all)
		}
		return fmt.Sprintf("the job needs %s, and the cluster has %d", text.Count(want, "node", "nodes"), all)
	}
	for _, what := range []struct {
		asked int64
		of    func(n *Node) int64
		text  func(v int64) string
	}{
		{int64(x.CPUs), func(n *Node) int64 { return int64(n.CPUs) }, func(v int64) string { return text.Count(int(v), "CPU", "CPUs") }},
		{x.Memory, func(n *Node) int64 { return n.Memory }, func(v int64) string { return quantity.FormatMemory(v) + " of memory" }},
		{int64(x.GPUs), func(n *Node) int64 { return int64(n.GPUs) }, func(v int64) string { return text.Count(int(v), "GPU", "GPUs") }},
	} {
		have := 0
		largest := nodes[0]
		for _, n := range nodes {
			if what.of(n) >= what.asked {
				have++
			}
			if what.of(n) > what.of(largest) {
				largest = n
			}
		}
		switch {
		case have >= want:
		case what.of(largest) == 0:
			return "no node has any of " + what.text(what.asked)
		case have == 0:
			return fmt.Sprintf("no node has %s: the largest, %s, has %s", what.text(what.asked), largest.Name, what.text(what.of(largest)))
		default:
			return fmt.Sprintf("the job needs %s with %s, and only %d have that", text.Count(want, "node", "nodes"),
				what.text(what.asked), have)
		}
	}
	fitting := 0
	for _, n := range nodes {
		fitting += x.unitsOn(n, n.all())
	}
	switch {
	case fitting >= x.Units:
		return ""
	case fitting == 0:
		return "no node has all of this together: " + x.unit()
	case x.nodes:
		return fmt.Sprintf("the job needs %s with %s, and only %d have that", text.Count(x.Units, "node", "nodes"), x.unit(), fitting)
	}
	return fmt.Sprintf("the job needs %s with %s each, and all nodes together have room for %d",
		text.Count(x.Units, "process", "processes"), x.unit(), fitting)
}

// lacks returns why the need cannot be met now.
func (x *Need) lacks(nodes []*Node, now time.Time) string {
	if end, by := x.reservedFrom(nodes, now); !end.IsZero() {
		return fmt.Sprintf("the free resources are reserved from %s, by %s, and %s are requested",
			end.Format(time.TimeOnly), by, quantity.FormatTime(x.Limit))
	}
	have := 0
	for _, n := range nodes {
		have += x.unitsOn(n, n.free(now, x.Limit))
	}
	what := text.Count(x.Units, "process", "processes")
	if x.nodes {
		what = text.Count(x.Units, "node", "nodes")
	}
	return fmt.Sprintf("now there is room for %d of %s with %s", have, what, x.unit())
}

// instead lists flags, each of which alone would let the job start now.
func (x *Need) instead(nodes []*Node, now time.Time) []string {
	var out []string
	if d := x.longest(nodes, now); d >= time.Minute && (x.Limit == 0 || d < x.Limit) {
		out = append(out, "--time "+quantity.FormatTime(d))
	}
	part, most := 0, Hold{}
	for _, n := range nodes {
		f := n.free(now, x.Limit)
		part += x.unitsOn(n, f)
		if f.GPUs >= x.GPUs && f.Memory >= x.Memory && !x.exclusive {
			most.CPUs = max(most.CPUs, f.CPUs)
		}
		if f.GPUs >= x.GPUs && f.CPUs >= x.CPUs && !x.exclusive {
			most.Memory = max(most.Memory, f.Memory)
		}
	}
	switch {
	case part > 0 && part < x.Units && x.nodes:
		out = append(out, fmt.Sprintf("--nodes %d", part))
	case part > 0 && part < x.Units:
		out = append(out, fmt.Sprintf("--tasks %d", part))
	case x.Units == 1 && most.CPUs > 0 && most.CPUs < x.CPUs:
		if per := most.CPUs / max(x.CPUs/max(x.job.CPUs, 1), 1); per > 0 {
			out = append(out, fmt.Sprintf("--cpus %d", per))
		}
	case x.Units == 1 && most.Memory >= 1<<20 && most.Memory < x.Memory:
		out = append(out, fmt.Sprintf("--mem %dM", most.Memory>>20))
	}
	return out
}

// longest returns the time, in full minutes, for which the need can be met from now on. It returns 0 if the
// need cannot be met now, or can be met without end.
func (x *Need) longest(nodes []*Node, now time.Time) time.Duration {
	end, _ := x.reservedFrom(nodes, now)
	if end.IsZero() {
		return 0
	}
	return end.Sub(now).Truncate(time.Minute)
}

// reservedFrom returns the time until which the need can be met from now on, and the name of the reservation or
// job that takes the nodes then. The time is zero if the need cannot be met now, or can be met without end.
func (x *Need) reservedFrom(nodes []*Node, now time.Time) (end time.Time, by string) {
	able := make([]*Node, 0, len(nodes))
	for _, n := range nodes {
		if x.unitsOn(n, n.free(now, 0)) > 0 {
			able = append(able, n)
		}
	}
	until := func(n *Node) time.Time {
		if n.FreeUntil.IsZero() {
			return now.Add(quantity.MaxTime)
		}
		return n.FreeUntil
	}
	slices.SortStableFunc(able, func(a, b *Node) int { return until(b).Compare(until(a)) })
	left := x.Units
	for _, n := range able {
		if left -= x.unitsOn(n, n.free(now, 0)); left <= 0 {
			return n.FreeUntil, n.For
		}
	}
	return time.Time{}, ""
}
