package capacity

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"hpcc/job/quantity"
)

// A Window is a free window on a group of equal nodes: resources that a job could use now.
type Window struct {
	Nodes   []string      `json:"nodes"`
	CPUs    int           `json:"cpus"`
	Memory  int64         `json:"memory_bytes"`
	GPUs    int           `json:"gpus"`
	GPUType string        `json:"gpu_type,omitempty"`
	Queues  []string      `json:"queues,omitempty"`
	Until   time.Time     `json:"until,omitzero"`     // from then on For holds the resources; zero: nothing does
	For     string        `json:"for,omitempty"`      // a reservation or a waiting job
	Limit   time.Duration `json:"limit_ns,omitempty"` // longest time limit of its queues; 0: none known
}

// Windows returns the free windows of a cluster, those with the most GPUs first. It groups nodes with equal
// free resources.
func Windows(c *Snapshot, now time.Time) []Window {
	var list []Window
	at := map[string]int{}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.State == Off || n.FreeCPUs == 0 || (!n.FreeUntil.IsZero() && n.FreeUntil.Sub(now) < time.Minute+Margin) {
			continue // too short for any job
		}
		memory := n.FreeMemory / Step * Step
		if memory == 0 && n.Memory > 0 && !n.MemoryUnknown {
			continue // a job needs memory
		}
		key := fmt.Sprint(n.FreeCPUs, memory, n.FreeGPUs, n.GPUType, n.Queues, n.FreeUntil.Unix(), n.For)
		k, ok := at[key]
		if !ok {
			k = len(list)
			at[key] = k
			h := Window{CPUs: n.FreeCPUs, Memory: memory, GPUs: n.FreeGPUs, Queues: n.Queues,
				Until: n.FreeUntil, For: n.For, Limit: c.longest(n.Queues)}
			if h.GPUs > 0 {
				h.GPUType = n.GPUType
			}
			list = append(list, h)
		}
		list[k].Nodes = append(list[k].Nodes, n.Name)
	}
	for i := range list {
		slices.SortFunc(list[i].Nodes, compareNames)
	}
	slices.SortFunc(list, func(a, b Window) int {
		return cmp.Or(-cmp.Compare(a.GPUs, b.GPUs), -cmp.Compare(a.CPUs, b.CPUs), -cmp.Compare(a.Memory, b.Memory),
			compareNames(a.Nodes[0], b.Nodes[0]))
	})
	return list
}

// longest returns the time limit of the queue with the highest one, or 0 if a queue has none.
func (c *Snapshot) longest(queues []string) (most time.Duration) {
	for _, q := range queues {
		if c.Limits[q] == 0 {
			return 0
		}
		most = max(most, c.Limits[q])
	}
	return most
}

// Flags returns the flags of "hpcc submit" for the largest job that fits one of its nodes.
func (h *Window) Flags(now time.Time) string {
	f := []string{"--cpus " + strconv.Itoa(h.CPUs)}
	if h.Memory > 0 {
		f = append(f, "--mem "+strconv.FormatInt(h.Memory>>20, 10)+"M")
	}
	if h.GPUs > 0 {
		f = append(f, "--gpus "+strconv.Itoa(h.GPUs))
	}
	limit := h.Limit
	if !h.Until.IsZero() {
		if left := h.Until.Sub(now) - Margin; limit == 0 || left < limit {
			limit = left
		}
	}
	if limit = limit.Truncate(time.Minute); limit > 0 {
		f = append(f, "--time "+quantity.FormatTime(limit))
	}
	return strings.Join(f, " ")
}

// Margin is the part of a free window that may pass between submission and start of a job.
const Margin = 30 * time.Second
