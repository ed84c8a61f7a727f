// Package capacity computes what of a cluster is free, when a job could start and how
// busy the cluster was.
//
//	batch system's listings ─► Snapshot ─► Need.Fit, Holes, Utilisation
//
// Batch systems fill in a [Snapshot]: nodes, what is taken of them and until when. The
// rest is arithmetic and asks nobody. It knows processors, memory and GPUs; licences,
// features and quotas stay with the batch system's own dry run.
package capacity

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Node is a machine of a scheduler, and what of it a job could have now. What
// the scheduler does not tell is zero.
type Node struct {
	Name       string    `json:"name"`
	State      string    `json:"state"`            // one of Idle, Shared, Full, Off
	Reason     string    `json:"reason,omitempty"` // why it is off, in the scheduler's words
	Queues     []string  `json:"queues,omitempty"`
	CPUs       int       `json:"cpus"` // what the scheduler gives out; of some it is slots
	FreeCPUs   int       `json:"free_cpus"`
	Memory     int64     `json:"memory_bytes"`
	FreeMemory int64     `json:"free_memory_bytes"`
	GPUs       int       `json:"gpus"`
	FreeGPUs   int       `json:"free_gpus"`
	GPUType    string    `json:"gpu_type,omitempty"`  // several with commas between them
	FreeUntil  time.Time `json:"free_until,omitzero"` // what is free now is taken then, by For
	For        string    `json:"for,omitempty"`       // a reservation, or a job that waits
	BusyUntil  time.Time `json:"busy_until,omitzero"` // the last of its jobs has ended by then, by their limits
	NoLimit    bool      `json:"no_limit,omitempty"`  // some of its jobs have no limit that is known
	Running    int       `json:"running_jobs_known"`  // how many jobs on it the scheduler tells of

	Holds    []Hold `json:"-"`
	reserved bool   // it is off for a reservation's time alone
	Untold   bool   `json:"-"` // how much of its memory is free
}

// The states of nodes.
const (
	Idle   = "idle"   // nothing of it is given out
	Shared = "shared" // something is
	Full   = "full"   // no processor is left
	Off    = "off"    // it takes no jobs
)

// A Hold is that something of a node is taken for a time.
type Hold struct {
	From, To time.Time // zero: since ever; not known to end
	Cpus     int
	Memory   int64
	Gpus     int
	Whole    bool // the node, whatever it has
	By       string
}

// A Snapshot is what a scheduler tells of its nodes.
type Snapshot struct {
	Nodes   []Node
	Queue   string                   // that jobs go to which name none; "" where that is not known
	Limits  map[string]time.Duration // the longest job of a queue; 0: any
	Usual   map[string]time.Duration // the limit of its jobs that name none
	Planned map[string]Plan          // when jobs that wait are to start, by native id
	Notes   []string                 // what could not be learned
}

// A Plan is when and where a scheduler means to start a job.
type Plan struct {
	Start time.Time
	Nodes []string
}

// Settle fills in what follows from what was read of the nodes.
func (c *Snapshot) Settle(now time.Time) {
	for i := range c.Nodes {
		c.Nodes[i].Settle(now)
	}
}

// Keep drops the nodes that a queue does not have. Where no queues are told of, all
// may have it.
func (c *Snapshot) Keep(queue string) {
	if queue != "" {
		c.Nodes = slices.DeleteFunc(c.Nodes, func(n Node) bool { return len(n.Queues) > 0 && !slices.Contains(n.Queues, queue) })
	}
}

// Settle fills in what follows from what was read.
func (n *Node) Settle(now time.Time) {
	n.FreeCPUs, n.FreeGPUs = min(max(n.FreeCPUs, 0), n.CPUs), min(max(n.FreeGPUs, 0), n.GPUs)
	n.FreeMemory = min(max(n.FreeMemory, 0), n.Memory)
	for _, h := range n.Holds {
		switch {
		case h.From.After(now):
			if n.FreeUntil.IsZero() || h.From.Before(n.FreeUntil) {
				n.FreeUntil, n.For = h.From, h.By
			}
		case h.Whole: // a reservation that has begun
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

// MoreFree orders nodes for people: by what of them is free, then by name.
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

// NodeIndex finds nodes by name, to put holds on them.
func NodeIndex(nodes []Node) map[string]*Node {
	m := make(map[string]*Node, len(nodes))
	for i := range nodes {
		m[nodes[i].Name] = &nodes[i]
	}
	return m
}
