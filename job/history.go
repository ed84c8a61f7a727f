package job

import (
	"context"
	"fmt"
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

// A history is what a scheduler tells of who had what of it.
type history struct {
	stays   []Stay
	by      string    // whose word it is
	current bool      // it has the jobs that run, too
	untold  []string  // of what it tells nothing: memory, GPUs
	notes   []string  // what could not be learned
	begins  time.Time // before that it knows nothing; zero: it goes back far enough
}

// maxStays bounds a history.
const maxStays = 4 << 20

// noHistory is that a cluster tells nothing of what was.
type noHistory struct{ why string }

func (e *noHistory) Error() string { return e.why }

func (local) history(context.Context, time.Time) (*history, error) {
	return nil, &noHistory{"nobody counts what runs on this machine"}
}

func (kubernetes) history(context.Context, time.Time) (*history, error) {
	return nil, &noHistory{"Kubernetes keeps no account of pods that have ended"}
}

func (argo) history(context.Context, time.Time) (*history, error) {
	return nil, &noHistory{"Argo keeps no account of pods that have ended"}
}

// running are the jobs that the nodes tell of; of a scheduler whose accounting has
// those alone that have ended.
func (c *cluster) running(now time.Time) (list []Stay) {
	type key struct {
		by   string
		from time.Time
	}
	at := map[key]int{}
	for _, n := range c.nodes {
		for _, h := range n.holds {
			if h.whole || h.from.IsZero() || h.from.After(now) {
				continue
			}
			k := key{h.by, h.from}
			i, ok := at[k]
			if !ok {
				i = len(list)
				at[k] = i
				list = append(list, Stay{ID: h.by, Start: h.from})
			}
			s := &list[i]
			s.CPUs, s.Memory, s.GPUs = s.CPUs+h.cpus, s.Memory+h.memory, s.GPUs+h.gpus
		}
	}
	return list
}

// ownStays are those of the cluster's jobs below dir, as their records tell.
func ownStays(ctx context.Context, dir string, to Cluster, from time.Time) ([]Stay, error) {
	all, _, err := Statuses(ctx, dir, nil)
	if err != nil {
		return nil, err
	}
	var list []Stay
	for _, st := range all {
		if st.key() != to.key() {
			continue
		}
		open := st.Running > 0
		for i := range st.Tasks {
			t := &st.Tasks[i]
			if (!t.Ended() && !open) || (t.Ended() && t.End.Before(from)) {
				continue
			}
			list = append(list, Stay{fmt.Sprintf("%s.%d", st.ID, t.Index), "", t.Start, t.End, st.Job.Slots(), st.Job.memory() * st.Job.nodes(), st.Job.GPUs * int(st.Job.nodes())})
		}
	}
	return list, nil
}

// nodes is on how many nodes a task of the job lies, at least one.
func (j *Job) nodes() int64 { return int64(max(j.Nodes, j.spread(), 1)) }
