package capacity

import (
	"fmt"
	"time"
)

// Amounts are processors, memory in bytes, and GPUs; of a mean they are not whole numbers.
type Amounts struct {
	CPUs   float64 `json:"cpus"`
	Memory float64 `json:"memory_bytes"`
	GPUs   float64 `json:"gpus"`
}

// A Level is how much of a cluster jobs had, on average from a moment until the next level's.
type Level struct {
	From time.Time `json:"from"`
	Amounts
}

// A Utilisation is how much of a cluster was given out over a time, and what is free of it now.
type Utilisation struct {
	From      time.Time     `json:"from"`
	To        time.Time     `json:"to"`
	Step      time.Duration `json:"step_ns"`  // how long a level lasts; the last one less, or a moment more
	Capacity  Amounts       `json:"capacity"` // what the nodes have today
	Nodes     int           `json:"nodes"`
	Off       int           `json:"nodes_off"` // that take no jobs now; their capacity counts
	Levels    []Level       `json:"levels,omitempty"`
	Mean      Amounts       `json:"mean"`
	Peak      Amounts       `json:"peak"`      // of the levels
	Now       Amounts       `json:"now"`       // given out, as the nodes say
	Accounted Amounts       `json:"accounted"` // of that: what the jobs have that the levels are made of
	Jobs      int           `json:"jobs"`
	Users     int           `json:"users"`
	By        string        `json:"by"`               // who tells of the jobs
	Untold    []string      `json:"untold,omitempty"` // of what that tells nothing, and no figure counts: "memory", "GPUs"
	Own       bool          `json:"own,omitempty"`    // they are this user's alone, handed in by hpcc
	Why       string        `json:"why,omitempty"`    // there is no history of others' jobs
	Holes     []Hole        `json:"holes,omitempty"`
	Notes     []string      `json:"notes,omitempty"`
}

// CountNodes sums up what the nodes have, and what of it is given out.
func (u *Utilisation) CountNodes(nodes []Node) {
	u.Nodes = len(nodes)
	for i := range nodes {
		n := &nodes[i]
		u.Capacity.add(float64(n.CPUs), float64(n.Memory), float64(n.GPUs), 1)
		u.Now.add(float64(n.CPUs-n.FreeCPUs), float64(n.Memory-n.FreeMemory), float64(n.GPUs-n.FreeGPUs), 1)
		u.Off += btoi(n.State == Off)
	}
}

// add adds amounts of which a part counts.
func (a *Amounts) add(cpus, memory, gpus, part float64) {
	a.CPUs, a.Memory, a.GPUs = a.CPUs+cpus*part, a.Memory+memory*part, a.GPUs+gpus*part
}

// Fill makes levels of stays: what each had counts in each level for the part of it that it was there.
func (u *Utilisation) Fill(stays []Stay) {
	// Asking took a moment, which makes no level of its own.
	count := max(int((u.To.Sub(u.From)-sliver+u.Step-1)/u.Step), 1)
	u.Levels = make([]Level, count)
	for i := range u.Levels {
		u.Levels[i].From = u.From.Add(time.Duration(i) * u.Step)
	}
	users, jobs := map[string]bool{}, map[string]bool{}
	for i := range stays {
		s := &stays[i]
		if u.put(s) {
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

// sliver is what the last level may be longer than the others.
const sliver = 2 * time.Second

// until is when a level ends.
func (u *Utilisation) until(i int) time.Time {
	if i+1 < len(u.Levels) {
		return u.Levels[i+1].From
	}
	return u.To
}

// put adds a stay to the levels that it touches and says whether there is one.
func (u *Utilisation) put(s *Stay) bool {
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

// Hidden says in words when the jobs that are told of have less than the nodes have given out:
// a site may keep those of others to itself. It is "" where they agree.
func (u *Utilisation) Hidden() string {
	const most = 0.9 // jobs that begin or end between two questions do not matter
	if u.Own || u.Now.CPUs == 0 || u.Accounted.CPUs >= most*u.Now.CPUs {
		return ""
	}
	return fmt.Sprintf("of %.0f processors that are given out now it knows the jobs of %.0f: others' are hidden from you, and the figures are too low", u.Now.CPUs, u.Accounted.CPUs)
}

// steps are how long levels may last: what people read time by.
var steps = []time.Duration{
	10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	24 * time.Hour, 7 * 24 * time.Hour,
}

// maxLevels is how many levels a picture shows well.
const maxLevels = 60

// StepOf is the shortest step of which not too many make a time.
func StepOf(span time.Duration) time.Duration {
	for _, s := range steps {
		if span <= maxLevels*s {
			return s
		}
	}
	return (span + maxLevels - 1) / maxLevels
}
