package capacity

import (
	"fmt"
	"time"
)

// Amounts holds processors, memory in bytes, and GPUs. Means may be fractions.
type Amounts struct {
	CPUs   float64 `json:"cpus"`
	Memory float64 `json:"memory_bytes"`
	GPUs   float64 `json:"gpus"`
}

// A Level is the average allocation of a cluster from a time until the start of the next level.
type Level struct {
	From time.Time `json:"from"`
	Amounts
}

// A Utilisation is the allocation of a cluster over a period, with its current free windows.
type Utilisation struct {
	From      time.Time     `json:"from"`
	To        time.Time     `json:"to"`
	Step      time.Duration `json:"step_ns"`  // duration of a level; the last may be shorter or slightly longer
	Capacity  Amounts       `json:"capacity"` // of today's nodes
	Nodes     int           `json:"nodes"`
	Off       int           `json:"nodes_off"` // number of nodes that accept no jobs; they count in Capacity
	Levels    []Level       `json:"levels,omitempty"`
	Mean      Amounts       `json:"mean"`
	Peak      Amounts       `json:"peak"`      // highest level
	Now       Amounts       `json:"now"`       // current allocation, from the nodes
	Accounted Amounts       `json:"accounted"` // part of Now that belongs to known jobs
	Jobs      int           `json:"jobs"`
	Users     int           `json:"users"`
	By        string        `json:"by"`               // source of the levels
	Unknown   []string      `json:"untold,omitempty"` // resources without figures: "memory", "GPUs"
	Own       bool          `json:"own,omitempty"`    // the levels count only jobs that this user submitted with hpcc
	Why       string        `json:"why,omitempty"`    // why the history of other users' jobs is unknown
	Windows   []Window      `json:"holes,omitempty"`
	Notes     []string      `json:"notes,omitempty"`
}

// CountNodes sums the resources of the nodes, and their allocation.
func (u *Utilisation) CountNodes(nodes []Node) {
	u.Nodes = len(nodes)
	for i := range nodes {
		n := &nodes[i]
		u.Capacity.add(float64(n.CPUs), float64(n.Memory), float64(n.GPUs), 1)
		u.Now.add(float64(n.CPUs-n.FreeCPUs), float64(n.Memory-n.FreeMemory), float64(n.GPUs-n.FreeGPUs), 1)
		u.Off += btoi(n.State == Off)
	}
}

// add adds the fraction part of the given amounts.
func (a *Amounts) add(cpus, memory, gpus, part float64) {
	a.CPUs, a.Memory, a.GPUs = a.CPUs+cpus*part, a.Memory+memory*part, a.GPUs+gpus*part
}

// Fill computes the levels from allocations. Each counts in proportion to its time in the level.
func (u *Utilisation) Fill(allocations []Allocation) {
	// To is slightly late, because the query took time. That does not add a level.
	count := max(int((u.To.Sub(u.From)-sliver+u.Step-1)/u.Step), 1)
	u.Levels = make([]Level, count)
	for i := range u.Levels {
		u.Levels[i].From = u.From.Add(time.Duration(i) * u.Step)
	}
	users, jobs := map[string]bool{}, map[string]bool{}
	for i := range allocations {
		s := &allocations[i]
		if u.addAllocation(s) {
			users[s.User], jobs[s.ID] = true, true
		}
		if s.End.IsZero() {
			u.Accounted.add(float64(s.CPUs), float64(s.Memory), float64(s.GPUs), 1)
		}
	}
	delete(users, "")
	u.Jobs, u.Users = len(jobs), len(users)
	for i, l := range u.Levels {
		part := u.until(i).Sub(l.From).Seconds() / u.To.Sub(u.From).Seconds()
		u.Mean.add(l.CPUs, l.Memory, l.GPUs, part)
		u.Peak = Amounts{max(u.Peak.CPUs, l.CPUs), max(u.Peak.Memory, l.Memory), max(u.Peak.GPUs, l.GPUs)}
	}
}

// sliver is the duration by which the last level may exceed the step.
const sliver = 2 * time.Second

// until returns the end of a level.
func (u *Utilisation) until(i int) time.Time {
	if i+1 < len(u.Levels) {
		return u.Levels[i+1].From
	}
	return u.To
}

// addAllocation adds an allocation to the levels that it overlaps, and reports whether it
// overlaps any.
func (u *Utilisation) addAllocation(s *Allocation) bool {
	from, to := Latest(u.From, s.Start), u.To
	if !s.End.IsZero() && s.End.Before(to) {
		to = s.End
	}
	if !from.Before(to) {
		return false
	}
	for i := min(int(from.Sub(u.From)/u.Step), len(u.Levels)-1); i < len(u.Levels) && u.Levels[i].From.Before(to); i++ {
		l := &u.Levels[i]
		begin, end := Latest(l.From, from), u.until(i)
		if to.Before(end) {
			end = to
		}
		l.add(float64(s.CPUs), float64(s.Memory), float64(s.GPUs), end.Sub(begin).Seconds()/u.until(i).Sub(l.From).Seconds())
	}
	return true
}

// Hidden returns a message if the known jobs account for less than the nodes' allocation, because the site
// hides other users' jobs. Otherwise it returns "".
func (u *Utilisation) Hidden() string {
	const most = 0.9 // tolerate jobs that start or end between the queries
	if u.Own || u.Now.CPUs == 0 || u.Accounted.CPUs >= most*u.Now.CPUs {
		return ""
	}
	return fmt.Sprintf("the site hides other users' jobs: only %.0f of %.0f allocated processors belong to known jobs, so the figures are too low", u.Accounted.CPUs, u.Now.CPUs)
}

// steps are the possible durations of levels, in common units.
var steps = []time.Duration{
	10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour,
	2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	24 * time.Hour, 7 * 24 * time.Hour,
}

// maxLevels is the most levels that a chart shows well.
const maxLevels = 60

// StepOf returns the shortest common step that divides span into at most [maxLevels] levels.
func StepOf(span time.Duration) time.Duration {
	for _, s := range steps {
		if span <= maxLevels*s {
			return s
		}
	}
	return (span + maxLevels - 1) / maxLevels
}
