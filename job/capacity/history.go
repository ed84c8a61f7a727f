package capacity

import (
	"time"
)

// A Stay is that a job, or a task of an array, had something of a cluster for a time.
type Stay struct {
	ID     string
	User   string
	Start  time.Time
	End    time.Time // zero while it runs
	CPUs   int
	Memory int64 // bytes; 0 where that is not told
	GPUs   int
}

// A History is what a scheduler tells of who had what of it.
type History struct {
	Stays   []Stay
	By      string    // whose word it is
	Current bool      // it has the jobs that run, too
	Untold  []string  // of what it tells nothing: memory, GPUs
	Notes   []string  // what could not be learned
	Begins  time.Time // before that it knows nothing; zero: it goes back far enough
}

// MaxStays bounds a history.
const MaxStays = 4 << 20

// NoHistory is that a cluster tells nothing of what was.
type NoHistory struct{ Why string }

func (e *NoHistory) Error() string { return e.Why }

// Running are the jobs that the nodes tell of; of a scheduler whose accounting has
// those alone that have ended.
func (c *Snapshot) Running(now time.Time) (list []Stay) {
	type key struct {
		by   string
		from time.Time
	}
	at := map[key]int{}
	for _, n := range c.Nodes {
		for _, h := range n.Holds {
			if h.Whole || h.From.IsZero() || h.From.After(now) {
				continue
			}
			k := key{h.By, h.From}
			i, ok := at[k]
			if !ok {
				i = len(list)
				at[k] = i
				list = append(list, Stay{ID: h.By, Start: h.From})
			}
			s := &list[i]
			s.CPUs, s.Memory, s.GPUs = s.CPUs+h.Cpus, s.Memory+h.Memory, s.GPUs+h.Gpus
		}
	}
	return list
}
