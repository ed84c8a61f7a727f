package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hpcc/job/quantity"
)

// A Fit says where and when a job would start.
type Fit struct {
	When    When          `json:"when"`
	Start   time.Time     `json:"start,omitzero"`    // of Later; zero: nobody knows
	Nodes   []string      `json:"nodes,omitempty"`   // where; the scheduler may take others that are as good
	By      string        `json:"by"`                // who says so
	Why     string        `json:"why,omitempty"`     // not now, or never
	Instead []string      `json:"instead,omitempty"` // flags with which it would start now, each by itself
	Hole    time.Duration `json:"hole_ns,omitempty"` // of Later: for how long what it asks for is free from now on; 0: it is not
	Notes   []string      `json:"notes,omitempty"`
}

// When a job would start.
type When string

const (
	Now     When = "now"
	Later   When = "later"
	Never   When = "never"
	Running When = "running" // it has started
)

// byCount is whose word a Fit is that no scheduler gave.
const byCount = "hpcc, which counted what the nodes have and until when"

// Fits asks the scheduler, and counts, where and when the job would start if it
// were handed in now. Of an array it is about one task. Nothing is handed in.
func Fits(ctx context.Context, j *Job, t Target) (*Fit, error) {
	script, notes, err := Render(scripted(j), t)
	if err != nil {
		return nil, err
	}
	if t == Local {
		host, _ := os.Hostname()
		return &Fit{When: Now, Nodes: []string{host}, By: "hpcc: nobody waits on this machine", Notes: notes}, nil
	}
	c, err := listNodes(ctx, t, j.Queue)
	if err != nil && t.Pods() { // whose users mostly may not see nodes
		return unseen(ctx, j, t, script, append(notes, err.Error()))
	}
	if err != nil {
		return nil, err
	}
	queue := cmp.Or(j.Queue, c.queue)
	c.keep(queue)
	x := needs(j, c.usual[queue], adjuster(t))
	counted := x.fit(c, queue, time.Now())
	said, refusal, err := dryRun(ctx, j, t, script)
	if err != nil {
		return nil, err
	}
	f := x.judge(counted, said, refusal, len(c.planned) > 0)
	f.Notes = append(append(f.Notes, notes...), c.notes...)
	if u := x.uncounted(); said == nil && len(u) > 0 {
		f.Notes = append(f.Notes, "not counted: "+strings.Join(u, ", "))
	}
	if before := slices.Concat(j.After, j.AfterAny, j.AfterFailed, j.AfterEach); len(before) > 0 && f.When != Never {
		f.Notes = append(f.Notes, "it waits for jobs first: "+strings.Join(before, ", "))
	}
	if j.Array.Count() > 1 {
		f.Notes = append(f.Notes, fmt.Sprintf("this is of one task; there are %d", j.Array.Count()))
	}
	return f, nil
}

// unseen is what can be said of a cluster that does not show its nodes: whether it takes the job.
func unseen(ctx context.Context, j *Job, t Target, script string, notes []string) (*Fit, error) {
	_, refusal, err := dryRun(ctx, j, t, script)
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		return &Fit{When: Never, By: "the cluster, which refuses it", Why: refusal.Error(), Notes: notes}, nil
	}
	return &Fit{When: Later, By: "the cluster, which takes it", Why: "when there is room, nobody says", Notes: notes}, nil
}

// Fits says so of a job that was handed in: of one that waits, its own start, else
// when it would start if it were handed in again.
func (s *Submission) Fits(ctx context.Context, dir string) (*Fit, error) {
	st, err := s.status(ctx, dir)
	if err != nil {
		return nil, err
	}
	if st.Running > 0 {
		return &Fit{When: Running, By: "its record, or the scheduler"}, nil
	}
	ctx = s.Within(ctx)
	if st.Waiting > 0 && s.Target != Local {
		c, err := listNodes(ctx, s.Target, "")
		if err != nil && s.Target.Pods() {
			return &Fit{When: Later, By: "the cluster, which has taken it", Why: cmp.Or(st.Reason, "when there is room, nobody says"), Notes: []string{err.Error()}}, nil
		}
		if err != nil {
			return nil, err
		}
		natives := s.natives()
		if p, ok := c.planned[natives[len(natives)-1]]; ok {
			return &Fit{When: Later, Start: p.start, Nodes: p.nodes, By: "the scheduler, which has planned it", Why: st.Reason, Notes: c.notes}, nil
		}
	}
	f, err := Fits(ctx, s.Job, s.Target)
	if err == nil && st.Waiting > 0 {
		f.Notes = append(f.Notes, "it waits already ("+st.Reason+"), and the scheduler has not planned it; this is of one more like it")
	}
	return f, err
}

// scripted is the job as one that a script of can be handed in.
func scripted(j *Job) *Job {
	c := *j
	c.Interactive = false
	return &c
}

// An estimate is what a scheduler's own dry run says.
type estimate struct {
	start time.Time // zero where it does not tell
	nodes []string
	now   bool
}

// dryRun has the scheduler look at a script; refusal is why it would not take it.
// A scheduler without a dry run says nothing.
func dryRun(ctx context.Context, j *Job, t Target, script string) (said *estimate, refusal, err error) {
	dir, err := os.MkdirTemp("", "hpcc-fits-")
	if err != nil {
		return nil, nil, fmt.Errorf("writing the script of job %q: %w", j.Name, err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "script")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return nil, nil, fmt.Errorf("writing the script of job %q: %w", j.Name, err)
	}
	to, ok := schedulers[t].(estimator)
	if !ok {
		return nil, nil, nil
	}
	said, refusal = to.estimate(ctx, j, file)
	if errors.As(refusal, new(*noAnswer)) {
		return nil, nil, refusal
	}
	return said, refusal, nil
}

// adjuster is the target's way to count needs, nil where it has none of its own.
func adjuster(t Target) func(*need, *Job) {
	if to, ok := schedulers[t].(needAdjuster); ok {
		return to.adjust
	}
	return nil
}

// A busyError is the refusal of a job that the batch system would accept but for nodes
// that are off or reserved now.
type busyError struct{ error }

func (e *busyError) Unwrap() error { return e.error }

// A noAnswer is the error of a server that was not reached, or that does not know the user: it says
// nothing of a job.
type noAnswer struct{ error }

func (e *noAnswer) Unwrap() error { return e.error }

// judge puts together what was counted and what the scheduler says. Its refusal
// counts, and that it would start the job now. A later start it estimates by
// lining the job up behind all that wait; where what was counted sees a hole
// before, the scheduler's own backfilling does, too.
func (x *need) judge(counted *Fit, said *estimate, refusal error, planned bool) *Fit {
	switch {
	case refusal != nil && x.whole && counted.When == Later && errors.As(refusal, new(*busyError)):
		counted.Notes = append(counted.Notes, "the scheduler's own dry run finds no nodes for it while some are off or reserved")
		return counted
	case refusal != nil:
		f := &Fit{When: Never, By: "the scheduler, which refuses it", Why: refusal.Error()}
		if counted.When == Never {
			f.Why = counted.Why + " (" + refusal.Error() + ")"
		}
		return f
	case said == nil || counted.When == Never:
		return counted
	case said.now:
		f := &Fit{When: Now, Nodes: said.nodes, By: "the scheduler's own dry run"}
		if len(f.Nodes) == 0 && counted.When == Now {
			f.Nodes = counted.Nodes
		}
		return f
	case said.start.IsZero():
		if counted.When == Now {
			return &Fit{When: Later, By: "the scheduler's own dry run", Why: "it would not start it now, though nodes have what it asks for"}
		}
		return counted
	case planned && x.whole && !counted.Start.After(said.start) && (counted.When == Now || !counted.Start.IsZero()):
		counted.Notes = append(counted.Notes, "the scheduler's own estimate, behind all that wait, is "+said.start.Format(time.DateTime))
		return counted
	}
	f := &Fit{When: Later, Start: said.start, Nodes: said.nodes, By: "the scheduler's own estimate", Why: counted.Why, Instead: counted.Instead, Hole: counted.Hole}
	if counted.When == Now {
		f.Why = "the nodes that are free are not for it: other rules of the site count"
	}
	return f
}

// startsLater reports whether a job that no nodes can run now could start later.
func (s slurm) startsLater(ctx context.Context, j *Job) bool {
	c, err := s.nodes(ctx, j.Queue)
	if err != nil {
		return false
	}
	c.settle(time.Now())
	queue := cmp.Or(j.Queue, c.queue)
	c.keep(queue)
	x := needs(j, c.usual[queue], s.adjust)
	return x.whole && x.fit(c, queue, time.Now()).When == Later
}

// A need is what one task of a job asks for, in units: nodes, or processes that may
// lie anywhere.
type need struct {
	job       *Job
	units     int  // how many
	nodes     bool // they are nodes
	cpus      int  // of a unit
	memory    int64
	gpus      int // of a node
	kind      string
	exclusive bool
	limit     time.Duration // 0: not known
	whole     bool          // what is counted is all that the job asks for
}

// needs returns what the job asks for; usual is the time limit of a job that names
// none. adjust, if not nil, counts the needs as the batch system does.
func needs(j *Job, usual time.Duration, adjust func(*need, *Job)) *need {
	x := &need{job: j, units: max(j.Tasks, 1), cpus: max(j.CPUs, 1), memory: j.Memory, gpus: j.GPUs, kind: j.GPUType, exclusive: j.Exclusive, limit: j.Time}
	if x.limit == 0 {
		x.limit = usual
	}
	nodes := j.Nodes
	if nodes == 0 && j.TasksPerNode > 0 {
		nodes = (max(j.Tasks, j.TasksPerNode) + j.TasksPerNode - 1) / j.TasksPerNode
	}
	if nodes > 0 {
		x.nodes, x.units, x.cpus = true, nodes, x.cpus*j.ProcessesPerNode()
	}
	if j.MemoryPerCPU > 0 {
		x.memory = j.MemoryPerCPU * int64(x.cpus)
	}
	if adjust != nil {
		adjust(x, j)
	}
	x.whole = len(x.uncounted()) == 0
	return x
}

// uncounted names what the job asks for and what only the scheduler can tell of.
func (x *need) uncounted() []string {
	var out []string
	for what, asked := range map[string]bool{"features of nodes": len(x.job.Features) > 0, "options in the scheduler's own words": len(x.job.Native) > 0,
		"its QoS": x.job.QoS != "", "the moment before which it may not begin": x.job.Begin != "", "that it is held": x.job.Hold} {
		if asked {
			out = append(out, what)
		}
	}
	slices.Sort(out)
	return out
}

// wanted says whether the job may be on a node.
func (x *need) wanted(n *Node) bool {
	return (len(x.job.Hosts) == 0 || slices.Contains(x.job.Hosts, n.Name)) && !slices.Contains(x.job.NotHosts, n.Name) &&
		(x.kind == "" || slices.Contains(strings.Split(n.GPUType, ","), x.kind))
}

// room is how many units a node with so much free has room for.
func (x *need) room(n *Node, h hold) int {
	if h.memory < x.memory || h.gpus < x.gpus || h.cpus < x.cpus || (x.exclusive && h.cpus < n.CPUs) {
		return 0
	}
	if x.nodes {
		return 1
	}
	return min(h.cpus/x.cpus, x.units)
}

// all is what a node has, free what of it a job could have from at on, for limit.
func (n *Node) all() hold { return hold{cpus: n.CPUs, memory: n.Memory, gpus: n.GPUs} }

func (n *Node) free(at time.Time, limit time.Duration) hold {
	if n.State == Off && !n.reserved {
		return hold{}
	}
	f := hold{cpus: n.FreeCPUs, memory: n.FreeMemory, gpus: n.FreeGPUs}
	over := true
	for _, h := range n.holds {
		switch ended := !h.to.IsZero() && !h.to.After(at); {
		case h.whole && !ended && h.from.Before(at.Add(max(limit, time.Second))):
			return hold{}
		case h.whole:
		case ended:
			f.cpus, f.memory, f.gpus = f.cpus+h.cpus, f.memory+h.memory, f.gpus+h.gpus
		default:
			over = false
		}
	}
	if over && f.cpus >= n.CPUs { // nothing runs any more
		return n.all()
	}
	f.cpus, f.memory, f.gpus = min(f.cpus, n.CPUs), min(f.memory, n.Memory), min(f.gpus, n.GPUs)
	return f
}

// fit counts where and when the need could be met.
func (x *need) fit(c *cluster, queue string, now time.Time) *Fit {
	if most := c.limits[queue]; most > 0 && x.limit > most {
		return &Fit{When: Never, By: byCount, Why: fmt.Sprintf("jobs of queue %s end after %s at most, and %s are asked for", queue, quantity.FormatTime(most), quantity.FormatTime(x.limit))}
	}
	var nodes []*Node
	for i := range c.nodes {
		if x.wanted(&c.nodes[i]) {
			nodes = append(nodes, &c.nodes[i])
		}
	}
	if len(c.nodes) == 0 {
		return &Fit{When: Never, By: byCount, Why: fmt.Sprintf("no node has queue %q", queue)}
	}
	if why := x.never(nodes, len(c.nodes)); why != "" {
		return &Fit{When: Never, By: byCount, Why: why}
	}
	if where := x.place(nodes, now, x.limit); where != nil {
		return &Fit{When: Now, Nodes: where, By: byCount}
	}
	f := &Fit{When: Later, By: byCount, Why: x.lacks(nodes, now), Instead: x.instead(nodes, now), Hole: x.longest(nodes, now)}
	f.Start, f.Nodes = x.later(nodes, now)
	return f
}

// place finds nodes for the whole need from a moment on; nil when there are not
// enough.
func (x *need) place(nodes []*Node, at time.Time, limit time.Duration) []string {
	left := x.units
	var where []string
	for _, n := range nodes {
		if k := x.room(n, n.free(at, limit)); k > 0 {
			where = append(where, n.Name)
			if left -= k; left <= 0 {
				return where
			}
		}
	}
	return nil
}

// later is the first moment at which the need could be met, as far as the ends of
// jobs and reservations are known.
func (x *need) later(nodes []*Node, now time.Time) (time.Time, []string) {
	type change struct {
		at   time.Time
		node int
		room int
	}
	var changes []change
	for i, n := range nodes {
		var moments []time.Time
		for _, h := range n.holds {
			if h.to.After(now) {
				moments = append(moments, h.to)
			}
			if over := h.from.Add(-x.limit + time.Second); h.whole && over.After(now) {
				moments = append(moments, over)
			}
		}
		slices.SortFunc(moments, time.Time.Compare)
		last := x.room(n, n.free(now, x.limit))
		changes = append(changes, change{now, i, last})
		for _, t := range slices.CompactFunc(moments, time.Time.Equal) {
			if k := x.room(n, n.free(t, x.limit)); k != last {
				changes = append(changes, change{t, i, k})
				last = k
			}
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	room, sum := make([]int, len(nodes)), 0
	for i, c := range changes {
		sum += c.room - room[c.node]
		room[c.node] = c.room
		if sum >= x.units && (i+1 == len(changes) || changes[i+1].at.After(c.at)) {
			return c.at, x.place(nodes, c.at, x.limit)
		}
	}
	return time.Time{}, nil
}
