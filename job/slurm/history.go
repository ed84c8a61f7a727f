package slurm

import (
	"context"
	"errors"
	"strings"
	"time"

	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
)

// History returns the accounting of all users' jobs. If the site hides the jobs of others
// (PrivateData), it only has this user's. A requeued or preempted job has a record (-D) for each run.
func (System) History(ctx context.Context, from time.Time) (*capacity.History, error) {
	out, err := invoke.Call(ctx, "/", "sacct", "-a", "-D", "-X", "-n", "-P", "-S",
		from.Local().Format("2006-01-02T15:04:05"), "-E", "now", "-o", "JobID,User,Start,End,State,AllocTRES")
	if err != nil {
		return nil, &capacity.NoHistory{Why: "Slurm's accounting is not available: " + readError(out, err).Error()}
	}
	if len(out) > invoke.MaxListing {
		return nil, errors.New("reading Slurm's accounting: too many jobs; shorten the period with --since")
	}
	return &capacity.History{Allocations: allocations(string(out)), By: "sacct", Current: true}, nil
}

// allocations parses lines of sacct: 37_0|alice|START|END|COMPLETED|cpu=1,mem=256M,node=1. It skips jobs
// that never started.
func allocations(list string) []capacity.Allocation {
	var out []capacity.Allocation
	for f := range batch.Table(list, 6) {
		start, end := parseTime(f[2]), parseTime(f[3])
		h := tres(f[5])
		if start.IsZero() || h.CPUs == 0 || len(out) >= capacity.MaxAllocations {
			continue
		}
		if end.IsZero() && !strings.HasPrefix(f[4], "RUNNING") && !strings.HasPrefix(f[4], "COMPLETING") &&
			!strings.HasPrefix(f[4], "SUSPENDED") {
			continue // the accounting lost the job's end
		}
		out = append(out, capacity.Allocation{ID: f[0], User: f[1], Start: start, End: end, CPUs: h.CPUs, Memory: h.Memory, GPUs: h.GPUs})
	}
	return out
}
