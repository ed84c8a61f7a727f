package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hpcc/job/batch"
	"hpcc/job/capacity"
)

// ownAllocations returns the allocations of the cluster's jobs below dir, from their records.
func ownAllocations(ctx context.Context, dir string, to Cluster, from time.Time) ([]capacity.Allocation, error) {
	all, _, err := Statuses(ctx, dir, nil)
	if err != nil {
		return nil, err
	}
	var list []capacity.Allocation
	for _, st := range all {
		if st.key() != to.key() {
			continue
		}
		running := st.Running > 0
		for i := range st.Tasks {
			t := &st.Tasks[i]
			if (!t.Ended() && !running) || (t.Ended() && t.End.Before(from)) {
				continue
			}
			list = append(list, capacity.Allocation{ID: fmt.Sprintf("%s.%d", st.ID, t.Index), User: "", Start: t.Start,
				End: t.End, CPUs: st.Job.Slots(), Memory: st.Job.MemoryPerNode() * st.Job.NodeCount(),
				GPUs: st.Job.GPUs * int(st.Job.NodeCount())})
		}
	}
	return list, nil
}

// Utilise computes the utilisation of a cluster since from or, if later, since the start of
// its accounting. Without accounting it counts only the jobs below dir.
func Utilise(ctx context.Context, dir string, to Cluster, from time.Time) (*capacity.Utilisation, error) {
	now := time.Now()
	if !from.Before(now) {
		return nil, errors.New("a report must start in the past")
	}
	target, err := to.scheduler()
	if err != nil {
		return nil, err
	}
	ctx = to.Within(ctx)
	c, err := listNodes(ctx, to.Target, "")
	if err != nil {
		return nil, err
	}
	h, err := historyOf(ctx, target, from)
	u := &capacity.Utilisation{From: from, To: now, Step: capacity.StepOf(now.Sub(from)), Notes: c.Notes}
	switch noHistory := (*capacity.NoHistory)(nil); {
	case errors.As(err, &noHistory):
		h = &capacity.History{By: "the records of hpcc's own jobs"}
		u.Own, u.Why = true, noHistory.Why
		if h.Allocations, err = ownAllocations(ctx, dir, to, from); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	case !h.Current:
		h.Allocations = append(h.Allocations, c.Running(now)...)
	}
	if h.Begins.After(from) && h.Begins.Before(now) {
		u.From, u.Step = h.Begins, capacity.StepOf(now.Sub(h.Begins))
	}
	u.By, u.Unknown, u.Notes = h.By, h.Unknown, append(u.Notes, h.Notes...)
	u.CountNodes(c.Nodes)
	u.Fill(h.Allocations)
	u.Windows = capacity.Windows(c, now)
	return u, nil
}

// historyOf returns the accounting history of a target.
func historyOf(ctx context.Context, target batch.System, from time.Time) (*capacity.History, error) {
	if t, ok := target.(batch.Historian); ok {
		return t.History(ctx, from)
	}
	return nil, &capacity.NoHistory{Why: "it does not keep accounting records"}
}
