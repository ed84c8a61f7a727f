// Package capacity computes the free resources of a cluster and when a job could start, and compares the
// requests of jobs with their usage.
//
//	batch system's listings ─► Snapshot ─► Need.Fit
//
// Batch systems fill in a [Snapshot]: the nodes, and the allocations on them with their end times. The rest is
// arithmetic without queries. It covers processors, memory and GPUs; only the batch system's dry run can
// check licences, features and quotas.
package capacity

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Node is a machine of a scheduler with its free resources. Values that the scheduler does not report are
// zero.
type Node struct {
	Name       string    `json:"name"`
	State      string    `json:"state"`            // one of Idle, Shared, Full, Off
	Reason     string    `json:"reason,omitempty"` // why it is off, as the scheduler prints it
	Queues     []string  `json:"queues,omitempty"`
	CPUs       int       `json:"cpus"` // processors, or slots with some schedulers
	FreeCPUs   int       `json:"free_cpus"`
	Memory     int64     `json:"memory_bytes"`
	FreeMemory int64     `json:"free_memory_bytes"`
	GPUs       int       `json:"gpus"`
	FreeGPUs   int       `json:"free_gpus"`
	GPUType    string    `json:"gpu_type,omitempty"`  // separated by commas
	FreeUntil  time.Time `json:"free_until,omitzero"` // end of the free window; from then on For holds the node
	For        string    `json:"for,omitempty"`       // a reservation or a waiting job
	BusyUntil  time.Time `json:"busy_until,omitzero"` // latest time limit of its jobs
	NoLimit    bool      `json:"no_limit,omitempty"`  // the time limits of some jobs are unknown
	Running    int       `json:"running_jobs_known"`  // number of its jobs that the scheduler lists

	Holds    []Hold `json:"-"`
	reserved bool   // it is off only because of a current reservation
}

// The states of nodes.
const (
	Idle   = "idle"   // nothing is allocated
	Shared = "shared" // partly allocated
	Full   = "full"   // no processor is free
	Off    = "off"    // accepts no jobs
)

// A Hold is an allocation of a node's resources for a time.
type Hold struct {
	From, To time.Time // zero: unlimited in that direction
	CPUs     int
	Memory   int64
	GPUs     int
	FullNode bool   // all resources of the node
	By       string // a reservation or a waiting job
}

// A Snapshot is the state of a scheduler's nodes.
type Snapshot struct {
	Nodes    []Node
	Queue    string                   // default queue; "" if unknown
	Limits   map[string]time.Duration // longest time limit of a queue; 0: unlimited
	MaxNodes map[string]int           // most nodes of a job in a queue; 0: unlimited
	Usual    map[string]time.Duration // default time limit of a queue
	Planned  map[string]Plan          // planned starts of waiting jobs, by native ID
	Notes    []string                 // queries that failed, and what is unknown without them
}

// A Plan is a scheduler's planned start of a job.
type Plan struct {
	Start time.Time
	Nodes []string
}

// Settle calls [Node.Settle] for all nodes.
func (c *Snapshot) Settle(now time.Time) {
	for i := range c.Nodes {
		c.Nodes[i].Settle(now)
	}
}

// Keep removes the nodes that do not belong to the queue, or to a queue in a list. Nodes whose queues are unknown
// stay.
func (c *Snapshot) Keep(queue string) {
	if queue == "" {
		return
	}
	c.Nodes = slices.DeleteFunc(c.Nodes, func(n Node) bool { return len(n.Queues) > 0 && !n.serves(queue) })
}

// serves reports whether the node is known to belong to the queue, or to a queue in a list.
func (n *Node) serves(queue string) bool {
	named := strings.Split(queue, ",")
	return slices.ContainsFunc(n.Queues, func(q string) bool { return slices.Contains(named, q) })
}

// Settle derives the state, the free window and the busy time of the node from its free resources and holds.
// It first limits the free resources to those that the node has.
func (n *Node) Settle(now time.Time) {
	n.FreeCPUs, n.FreeGPUs = min(max(n.FreeCPUs, 0), n.CPUs), min(max(n.FreeGPUs, 0), n.GPUs)
	n.FreeMemory = min(max(n.FreeMemory, 0), n.Memory)
	for _, h := range n.Holds {
		switch {
		case h.From.After(now):
			if n.FreeUntil.IsZero() || h.From.Before(n.FreeUntil) {
				n.FreeUntil, n.For = h.From, h.By
			}
		case h.FullNode: // a current reservation
			if n.State != Off {
				n.State, n.Reason, n.reserved = Off, h.By, true
			}
			n.BusyUntil = Latest(n.BusyUntil, h.To)
		default:
			n.Running++
			n.NoLimit = n.NoLimit || h.To.IsZero()
			n.BusyUntil = Latest(n.BusyUntil, h.To)
		}
	}
	switch {
	case n.State == Off:
	case n.FreeCPUs == 0:
		n.State = Full
	case n.FreeCPUs < n.CPUs || n.FreeGPUs < n.GPUs || n.Running > 0:
		n.State = Shared
	default:
		n.State = Idle
	}
	if n.State == Off || n.State == Full {
		n.FreeUntil, n.For = time.Time{}, ""
	}
	if n.NoLimit {
		n.BusyUntil = time.Time{}
	}
}

// Latest returns the later of two times.
func Latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// MoreFree orders nodes for output: by free resources, then by name.
func MoreFree(a, b Node) int {
	return cmp.Or(
		cmp.Compare(btoi(a.State == Off), btoi(b.State == Off)),
		-cmp.Compare(a.FreeGPUs, b.FreeGPUs),
		-cmp.Compare(a.FreeCPUs, b.FreeCPUs),
		-cmp.Compare(a.FreeMemory, b.FreeMemory),
		compareNames(a.Name, b.Name),
	)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compareNames puts n2 before n10.
func compareNames(a, b string) int {
	stem := func(s string) (string, int) {
		head := strings.TrimRight(s, "0123456789")
		k, _ := strconv.Atoi(s[len(head):])
		return head, k
	}
	ha, ka := stem(a)
	hb, kb := stem(b)
	return cmp.Or(cmp.Compare(ha, hb), cmp.Compare(ka, kb), cmp.Compare(a, b))
}

// NodeIndex returns the nodes by name, for adding holds.
func NodeIndex(nodes []Node) map[string]*Node {
	m := make(map[string]*Node, len(nodes))
	for i := range nodes {
		m[nodes[i].Name] = &nodes[i]
	}
	return m
}
