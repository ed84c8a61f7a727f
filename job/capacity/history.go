package capacity

import (
	"time"
)

// An Allocation holds the resources of a job, or of a task of an array, and the time that it held them.
type Allocation struct {
	ID     string
	User   string
	Start  time.Time
	End    time.Time // zero while the job runs
	CPUs   int
	Memory int64 // bytes; 0 if unknown
	GPUs   int
}

// A History is a scheduler's record of past allocations.
type History struct {
	Allocations []Allocation
	By          string    // source of the history
	Current     bool      // it includes running jobs
	Unknown     []string  // resources without figures: memory, GPUs
	Notes       []string  // limits of the history, as sentences for the user
	Begins      time.Time // start of the records; zero: before the requested period
}

// MaxAllocations bounds the number of allocations in a history.
const MaxAllocations = 4 << 20

// NoHistory is the error of a cluster without accounting records.
type NoHistory struct{ Why string }

func (e *NoHistory) Error() string { return e.Why }

// Running returns the allocations of running jobs from the holds of the nodes, for a scheduler whose
// accounting has only ended jobs.
func (c *Snapshot) Running(now time.Time) (list []Allocation) {
	type key struct {
		by   string
		from time.Time
	}
	at := map[key]int{}
	for _, n := range c.Nodes {
		for _, h := range n.Holds {
			if h.FullNode || h.From.IsZero() || h.From.After(now) {
				continue
			}
			k := key{h.By, h.From}
			i, ok := at[k]
			if !ok {
				i = len(list)
				at[k] = i
				list = append(list, Allocation{ID: h.By, Start: h.From})
			}
			s := &list[i]
			s.CPUs, s.Memory, s.GPUs = s.CPUs+h.CPUs, s.Memory+h.Memory, s.GPUs+h.GPUs
		}
	}
	return list
}
