package job

import (
	"cmp"
	"context"
	"fmt"
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
	CPUs       int       `json:"cpus"` // what the scheduler gives out: slots, of LSF and Grid Engine
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

	holds    []hold
	reserved bool // it is off for a reservation's time alone
	untold   bool // how much of its memory is free
}

// The states of nodes.
const (
	Idle   = "idle"   // nothing of it is given out
	Shared = "shared" // something is
	Full   = "full"   // no processor is left
	Off    = "off"    // it takes no jobs
)

// A hold is that something of a node is taken for a time.
type hold struct {
	from, to time.Time // zero: since ever; not known to end
	cpus     int
	memory   int64
	gpus     int
	whole    bool // the node, whatever it has
	by       string
}

// A cluster is what a scheduler tells of its nodes.
type cluster struct {
	nodes   []Node
	queue   string                   // that jobs go to which name none; "" where that is not known
	limits  map[string]time.Duration // the longest job of a queue; 0: any
	usual   map[string]time.Duration // the limit of its jobs that name none
	planned map[string]plan          // when jobs that wait are to start, by native id
	notes   []string                 // what could not be learned
}

// A plan is when and where a scheduler means to start a job.
type plan struct {
	start time.Time
	nodes []string
}

// Nodes lists the nodes of a scheduler, what is most free first and what takes no
// jobs last; queue, when given, chooses those of one queue. Notes say what could
// not be learned.
func Nodes(ctx context.Context, t Target, queue string) (list []Node, notes []string, err error) {
	c, err := listNodes(ctx, t, queue)
	if err != nil {
		return nil, nil, err
	}
	if c.keep(queue); len(c.nodes) == 0 && queue != "" {
		return nil, nil, fmt.Errorf("no node has queue %q; \"hpcc nodes\" shows which there are", queue)
	}
	slices.SortFunc(c.nodes, moreFree)
	return c.nodes, c.notes, nil
}

// listNodes asks a scheduler. Of one whose queues share out a node's slots, those of
// the queue count.
func listNodes(ctx context.Context, t Target, queue string) (*cluster, error) {
	to := schedulers[t]
	if to == nil {
		return nil, fmt.Errorf("target %q: known are %s", t, known())
	}
	lister, ok := to.(nodeLister)
	if !ok {
		return nil, fmt.Errorf("target %s lists no nodes", t)
	}
	c, err := lister.nodes(ctx, queue)
	if err != nil {
		return nil, err
	}
	c.settle(time.Now())
	return c, nil
}

// settle fills in what follows from what was read of the nodes.
func (c *cluster) settle(now time.Time) {
	for i := range c.nodes {
		c.nodes[i].settle(now)
	}
}

// keep drops the nodes that a queue does not have. Where no queues are told of, all
// may have it.
func (c *cluster) keep(queue string) {
	if queue != "" {
		c.nodes = slices.DeleteFunc(c.nodes, func(n Node) bool { return len(n.Queues) > 0 && !slices.Contains(n.Queues, queue) })
	}
}

// settle fills in what follows from what was read.
func (n *Node) settle(now time.Time) {
	n.FreeCPUs, n.FreeGPUs = min(max(n.FreeCPUs, 0), n.CPUs), min(max(n.FreeGPUs, 0), n.GPUs)
	n.FreeMemory = min(max(n.FreeMemory, 0), n.Memory)
	for _, h := range n.holds {
		switch {
		case h.from.After(now):
			if n.FreeUntil.IsZero() || h.from.Before(n.FreeUntil) {
				n.FreeUntil, n.For = h.from, h.by
			}
		case h.whole: // a reservation that has begun
			if n.State != Off {
				n.State, n.Reason, n.reserved = Off, h.by, true
			}
			n.BusyUntil = later(n.BusyUntil, h.to)
		default:
			n.Running++
			n.NoLimit = n.NoLimit || h.to.IsZero()
			n.BusyUntil = later(n.BusyUntil, h.to)
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

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// moreFree orders nodes for people: by what of them is free, then by name.
func moreFree(a, b Node) int {
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

// nodeIndex finds nodes by name, to put holds on them.
func nodeIndex(nodes []Node) map[string]*Node {
	m := make(map[string]*Node, len(nodes))
	for i := range nodes {
		m[nodes[i].Name] = &nodes[i]
	}
	return m
}
