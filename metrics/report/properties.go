package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A property is a property of hosts or requests in which systems may differ.
type property struct {
	Name    string     `json:"name"`
	Values  [][]string `json:"values"` // of each system, at most 64 values; empty if unknown
	Counts  []int      `json:"counts"` // number of values of each system
	Differs bool       `json:"differs"`

	all [][]string // untruncated values, because long ones may differ only at the end
}

// Names of properties used by other texts.
const (
	peakSource    = "source of peak memory"
	pressureScope = "scope of pressure"
)

// hostProperties are properties from a run's header. An empty value is unknown.
var hostProperties = []struct {
	name string
	of   func(t *Task) string
}{
	{"image", func(t *Task) string { return t.Header.Image }},
	{"digest", func(t *Task) string { return t.Header.Digest }},
	{"configuration digest", func(t *Task) string { return t.Header.Config }},
	{"command", func(t *Task) string { return strings.Join(t.Header.Command, " ") }},
	{"target", func(t *Task) string {
		if t.Header.Job == nil {
			return ""
		}
		return t.Header.Job.Target
	}},
	{"host", func(t *Task) string { return t.Header.Machine.Host }},
	{"architecture", func(t *Task) string { return t.Header.Machine.Architecture }},
	{"CPU", func(t *Task) string { return t.Header.Machine.CPU }},
	{"host processors", func(t *Task) string { return number(float64(t.Header.Machine.CPUs)) }},
	{"processors granted", func(t *Task) string { return number(granted(&t.Header)) }},
	{"processors requested", func(t *Task) string { return number(float64(t.Header.Asked.CPUs)) }},
	{"host memory", func(t *Task) string { return amount(t.Header.Machine.Memory) }},
	{"memory limit", func(t *Task) string { return amount(t.Header.Limits.Memory) }},
	{"memory requested", func(t *Task) string { return amount(t.Header.Asked.Memory) }},
	{peakSource, func(t *Task) string {
		f := t.used()
		if f == nil || (f.Memory <= 0 && f.Usage.MaxRSS <= 0) {
			return ""
		}
		return cmp.Or(f.MemoryFrom, "process")
	}},
	{"kernel", func(t *Task) string { return t.Header.Machine.Kernel }},
	{"GPU", func(t *Task) string {
		var names []string
		for _, g := range t.Header.Machine.GPUs {
			names = append(names, g.Name)
		}
		slices.Sort(names)
		n := len(names)
		names = slices.Compact(names)
		if n == 0 {
			return ""
		}
		return fmt.Sprintf("%d × %s", n, strings.Join(names, ", "))
	}},
	{"GPU driver", func(t *Task) string {
		if len(t.Header.Machine.GPUs) == 0 {
			return ""
		}
		return t.Header.Machine.GPUs[0].Driver
	}},
	{"cgroup", func(t *Task) string {
		if t.Header.Limits.Cgroup != "" && t.Header.Limits.Shared {
			return t.Header.Limits.Cgroup + ", shared with other processes"
		}
		return t.Header.Limits.Cgroup
	}},
	{pressureScope, func(t *Task) string {
		switch f := t.used(); {
		case f == nil || f.Pressure == nil:
			return ""
		case f.Pressure.Machine:
			return "the whole machine"
		}
		return "its cgroup"
	}},
	{"hpcc", func(t *Task) string { return t.Header.Hpcc }},
}

func number(v float64) string {
	if v <= 0 {
		return ""
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

func amount(n int64) string {
	if n <= 0 {
		return ""
	}
	return formatBytes(float64(n))
}

// maxValues bounds the reported values of a property for each system. All are compared.
const maxValues = 64

// properties returns the properties that any run has.
func properties(systems []*System) (list []property) {
	for _, p := range hostProperties {
		x, known := property{Name: p.name}, false
		for _, s := range systems {
			values := []string{}
			seen := map[string]bool{}
			for _, t := range s.Tasks {
				if v := p.of(t); v != "" && !seen[v] {
					seen[v] = true
					values = append(values, v)
				}
			}
			slices.Sort(values)
			known = known || len(values) > 0
			x.all, x.Counts = append(x.all, values), append(x.Counts, len(values))
			x.Values = append(x.Values, plains(values[:min(len(values), maxValues)]))
		}
		for _, v := range x.all {
			x.Differs = x.Differs || !slices.Equal(v, x.all[0])
		}
		if known {
			list = append(list, x)
		}
	}
	return list
}

// property returns the values of two systems, and whether both are known and differ.
func (r *Report) property(name string, a, b *System) (x, y string, differs bool) {
	i, j := slices.Index(r.Systems, a), slices.Index(r.Systems, b)
	for _, p := range r.Properties {
		if p.Name == name {
			differs = len(p.all[i]) > 0 && len(p.all[j]) > 0 && !slices.Equal(p.all[i], p.all[j])
			return abbreviate(p.all[i]), abbreviate(p.all[j]), differs
		}
	}
	return "", "", false
}

// abbreviate lists some of many foreign texts.
func abbreviate(list []string) string {
	const most = 3
	if len(list) <= most {
		return strings.Join(plains(list), ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(plains(list[:most-1]), ", "), len(list)-most+1)
}

func plains(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = plain(s)
	}
	return out
}
