package capacity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/quantity"
	"hpcc/text"
)

// A Fit says where and when a job would start.
type Fit struct {
	When    When          `json:"when"`
	Start   time.Time     `json:"start,omitzero"`    // if Later; zero: unknown
	Nodes   []string      `json:"nodes,omitempty"`   // the scheduler may choose equivalent ones
	By      string        `json:"by"`                // source of the answer
	Why     string        `json:"why,omitempty"`     // why not now, or never
	Instead []string      `json:"instead,omitempty"` // flags, each of which alone would let it start now
	Window  time.Duration `json:"hole_ns,omitempty"` // if Later: how long the requested resources are free from now on; 0: they are not
	Notes   []string      `json:"notes,omitempty"`
}

// A When classifies the start time of a job.
type When string

const (
	Now     When = "now"
	Later   When = "later"
	Never   When = "never"
	Running When = "running" // the job has started
)

// byCount is the source of a Fit that hpcc computed itself.
const byCount = "counted by hpcc from the free resources of the nodes and the time limits of jobs"

// An Estimate is the result of a scheduler's dry run.
type Estimate struct {
	Start time.Time // zero if unknown
	Nodes []string
	Now   bool
}

// Judge combines the Fit that hpcc counted with the scheduler's estimate or refusal. Only a refusal means that
// the job never starts, because nodes may exist that the scheduler does not list. An immediate start is final,
// too. The scheduler estimates a start behind all waiting jobs; if hpcc counted an earlier free window,
// backfilling will use it. planned reports whether the scheduler has planned starts of waiting jobs.
func (x *Need) Judge(counted *Fit, estimate *Estimate, refusal error, planned bool) *Fit {
	impossible := counted.When == Never
	if impossible {
		counted.When = Later
	}
	switch {
	case refusal != nil:
		f := &Fit{When: Never, By: "the scheduler, which refuses it", Why: refusal.Error()}
		if impossible && !strings.Contains(f.Why, counted.Why) {
			f.Why = counted.Why + " (" + f.Why + ")"
		}
		return f
	case impossible:
		counted.Why += "; the job can start only if the site adds nodes or changes its limits"
	}
	switch {
	case estimate == nil:
		return counted
	case estimate.Now:
		f := &Fit{When: Now, Nodes: estimate.Nodes, By: "the scheduler's own dry run"}
		if len(f.Nodes) == 0 && counted.When == Now {
			f.Nodes = counted.Nodes
		}
		return f
	case estimate.Start.IsZero():
		if counted.When == Now {
			return &Fit{When: Later, By: "the scheduler's own dry run",
				Why: "the scheduler would not start it now, although nodes have the requested resources"}
		}
		return counted
	case planned && x.Complete && !counted.Start.After(estimate.Start) && (counted.When == Now || !counted.Start.IsZero()):
		counted.Notes = append(counted.Notes, "the scheduler's own estimate, behind all waiting jobs, is "+estimate.Start.Format(time.DateTime))
		return counted
	}
	f := &Fit{When: Later, Start: estimate.Start, Nodes: estimate.Nodes, By: "the scheduler's own estimate",
		Why: counted.Why, Instead: counted.Instead, Window: counted.Window}
	if counted.When == Now {
		f.Why = "nodes are free, but the job may not use them now: a rule of the site, such as a priority or a limit, forbids it"
	}
	return f
}

// A Need is the request of one task, counted in units: nodes, or processes that may run on any node.
type Need struct {
	job       *job.Job
	Units     int  // number of units
	nodes     bool // the units are nodes
	CPUs      int  // per unit
	Memory    int64
	GPUs      int // per node
	kind      string
	exclusive bool
	Limit     time.Duration // 0: unknown
	Complete  bool          // all requests of the job are counted
}

// NewNeed returns the needs of a job; usual is the default time limit. adjust, if not nil, converts the needs
// to the batch system's way of counting.
func NewNeed(j *job.Job, usual time.Duration, adjust func(*Need, *job.Job)) *Need {
	x := &Need{job: j, Units: max(j.Tasks, 1), CPUs: max(j.CPUs, 1), Memory: j.Memory, GPUs: j.GPUs,
		kind: j.GPUType, exclusive: j.Exclusive, Limit: j.Time}
	if x.Limit == 0 {
		x.Limit = usual
	}
	nodes := j.Nodes
	if nodes == 0 && j.TasksPerNode > 0 {
		nodes = (max(j.Tasks, j.TasksPerNode) + j.TasksPerNode - 1) / j.TasksPerNode
	}
	if nodes > 0 {
		x.nodes, x.Units, x.CPUs = true, nodes, x.CPUs*j.ProcessesPerNode()
	}
	if j.MemoryPerCPU > 0 {
		x.Memory = j.MemoryPerCPU * int64(x.CPUs)
	}
	if adjust != nil {
		adjust(x, j)
	}
	x.Complete = len(x.Uncounted()) == 0
	return x
}

// Uncounted lists the requests that only the scheduler can check.
func (x *Need) Uncounted() []string {
	var out []string
	for request, present := range map[string]bool{"node features": len(x.job.Features) > 0, "native options": len(x.job.Native) > 0,
		"the QoS": x.job.QoS != "", "the earliest start time": x.job.Begin != "", "the hold": x.job.Hold} {
		if present {
			out = append(out, request)
		}
	}
	slices.Sort(out)
	return out
}

// allows reports whether the job may use a node.
func (x *Need) allows(n *Node) bool {
	return (len(x.job.Hosts) == 0 || slices.Contains(x.job.Hosts, n.Name)) && !slices.Contains(x.job.NotHosts, n.Name) &&
		(x.kind == "" || slices.Contains(strings.Split(n.GPUType, ","), x.kind))
}

// unitsOn returns the number of units that fit into the resources h of a node.
func (x *Need) unitsOn(n *Node, h Hold) int {
	if h.Memory < x.Memory || h.GPUs < x.GPUs || h.CPUs < x.CPUs || (x.exclusive && h.CPUs < n.CPUs) {
		return 0
	}
	if x.nodes {
		return 1
	}
	return min(h.CPUs/x.CPUs, x.Units)
}

// all returns the total resources of a node.
func (n *Node) all() Hold { return Hold{CPUs: n.CPUs, Memory: n.Memory, GPUs: n.GPUs} }

// free returns the resources of a node that a job could use from at on, for limit.
func (n *Node) free(at time.Time, limit time.Duration) Hold {
	if n.State == Off && !n.reserved {
		return Hold{}
	}
	f := Hold{CPUs: n.FreeCPUs, Memory: n.FreeMemory, GPUs: n.FreeGPUs}
	allEnded := true
	for _, h := range n.Holds {
		switch ended := !h.To.IsZero() && !h.To.After(at); {
		case h.FullNode && !ended && h.From.Before(at.Add(max(limit, time.Second))):
			return Hold{}
		case h.FullNode:
		case ended:
			f.CPUs, f.Memory, f.GPUs = f.CPUs+h.CPUs, f.Memory+h.Memory, f.GPUs+h.GPUs
		default:
			allEnded = false
		}
	}
	if allEnded && f.CPUs >= n.CPUs { // the node is empty
		return n.all()
	}
	f.CPUs, f.Memory, f.GPUs = min(f.CPUs, n.CPUs), min(f.Memory, n.Memory), min(f.GPUs, n.GPUs)
	return f
}

// OverLimit returns why the limits of the queue, or of each queue in a list, forbid the job, or "".
func (x *Need) OverLimit(c *Snapshot, queue string) (why string) {
	limit := cmp.Or(x.job.TimeMin, x.Limit)
	for q := range strings.SplitSeq(queue, ",") {
		longest, most := c.Limits[q], c.MaxNodes[q]
		switch {
		case longest > 0 && limit > longest:
			why = fmt.Sprintf("queue %s limits jobs to %s, and the job requests %s", q,
				quantity.FormatTime(longest), quantity.FormatTime(limit))
		case most > 0 && x.nodes && x.Units > most:
			why = fmt.Sprintf("queue %s limits jobs to %s, and the job requests %d", q, text.Count(most, "node", "nodes"), x.Units)
		default:
			return ""
		}
	}
	return why
}

// Never returns why even empty nodes could not meet the need, or "". It knows only nodes that the batch system
// lists with their resources: others may exist if one of them is incomplete.
func (x *Need) Never(c *Snapshot, queue string) string {
	incomplete := func(n Node) bool { return n.Memory <= 0 }
	if len(c.Nodes) == 0 || slices.ContainsFunc(c.Nodes, incomplete) {
		return ""
	}
	known := *x
	if !slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.GPUs > 0 }) { // the site may count them in another resource
		known.GPUs, known.kind = 0, ""
	}
	if slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.serves(queue) }) { // a routing queue leads to the queues of nodes
		c.Keep(queue)
	}
	if f := known.Fit(c, queue, time.Now()); f.When == Never {
		return f.Why
	}
	return ""
}

// Fit computes where and when the need can be met.
func (x *Need) Fit(c *Snapshot, queue string, now time.Time) *Fit {
	if why := x.OverLimit(c, queue); why != "" {
		return &Fit{When: Never, By: byCount, Why: why}
	}
	var nodes []*Node
	for i := range c.Nodes {
		if x.allows(&c.Nodes[i]) {
			nodes = append(nodes, &c.Nodes[i])
		}
	}
	if len(c.Nodes) == 0 {
		return &Fit{When: Never, By: byCount, Why: fmt.Sprintf("no node has queue %q", queue)}
	}
	if why := x.never(nodes, len(c.Nodes)); why != "" {
		return &Fit{When: Never, By: byCount, Why: why}
	}
	if where := x.place(nodes, now, x.Limit); where != nil {
		return &Fit{When: Now, Nodes: where, By: byCount}
	}
	f := &Fit{When: Later, By: byCount, Why: x.lacks(nodes, now), Instead: x.instead(nodes, now), Window: x.longest(nodes, now)}
	f.Start, f.Nodes = x.later(nodes, now)
	return f
}

// place returns nodes that can meet the need at a time, or nil.
func (x *Need) place(nodes []*Node, at time.Time, limit time.Duration) []string {
	left := x.Units
	var where []string
	for _, n := range nodes {
		if k := x.unitsOn(n, n.free(at, limit)); k > 0 {
			where = append(where, n.Name)
			if left -= k; left <= 0 {
				return where
			}
		}
	}
	return nil
}

// later returns the first time at which the need can be met, given the known ends of jobs and reservations.
func (x *Need) later(nodes []*Node, now time.Time) (time.Time, []string) {
	type change struct {
		at    time.Time
		node  int
		units int
	}
	var changes []change
	for i, n := range nodes {
		var times []time.Time
		for _, h := range n.Holds {
			if h.To.After(now) {
				times = append(times, h.To)
			}
			if tooLate := h.From.Add(-x.Limit + time.Second); h.FullNode && tooLate.After(now) {
				times = append(times, tooLate)
			}
		}
		slices.SortFunc(times, time.Time.Compare)
		last := x.unitsOn(n, n.free(now, x.Limit))
		changes = append(changes, change{now, i, last})
		for _, t := range slices.CompactFunc(times, time.Time.Equal) {
			if k := x.unitsOn(n, n.free(t, x.Limit)); k != last {
				changes = append(changes, change{t, i, k})
				last = k
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	units, sum := make([]int, len(nodes)), 0
	for i, c := range changes {
		sum += c.units - units[c.node]
		units[c.node] = c.units
		if sum >= x.Units && (i+1 == len(changes) || changes[i+1].at.After(c.at)) {
			return c.at, x.place(nodes, c.at, x.Limit)
		}
	}
	return time.Time{}, nil
}
