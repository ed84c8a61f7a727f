package slurm

import (
	"context"
	"fmt"
	"strings"
	"time"

	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// Used reads the accounting, and for running jobs the usage from their nodes.
func (System) Used(ctx context.Context, ids []string) (map[string]capacity.Usage, error) {
	list := strings.Join(ids, ",")
	out, err := invoke.Call(ctx, "/", "sacct", "-n", "-P", "-j", list, "-o", "JobID,TotalCPU,MaxRSS")
	m := used(map[string]capacity.Usage{}, string(out))
	if err != nil {
		return nil, fmt.Errorf("querying Slurm's accounting for usage: %w", readError(out, err))
	}
	// sstat fails for jobs that have ended, but still prints the others.
	out, _ = invoke.Call(ctx, "/", "sstat", "-a", "-n", "-P", "-j", list, "-o", "JobID,AveCPU,MaxRSS")
	return used(m, string(out)), nil
}

// used parses lines of sacct and sstat. Jobs and array tasks, 17 and 17_3, have the processor time of all
// their steps; the steps, 17.batch and 17_3.0, have the memory.
func used(m map[string]capacity.Usage, list string) map[string]capacity.Usage {
	for f := range batch.Table(list, 3) {
		id, stepName, isStep := strings.Cut(f[0], ".")
		id, _, _ = strings.Cut(id, "_")
		u := m[id]
		u.Peak = max(u.Peak, quantity.Bytes(f[2], 1<<10))
		if cpu := cpu(f[1]); !isStep {
			u.CPU += cpu
		} else if stepName == "batch" && u.CPU == 0 { // the job is running
			u.CPU = cpu
		}
		m[id] = u
	}
	return m
}

// cpu parses processor time: 1-02:03:04, 02:03:04, 03:04.567.
func cpu(s string) time.Duration {
	days, rest, ok := strings.Cut(s, "-")
	if !ok {
		days, rest = "0", s
	}
	rest, part, _ := strings.Cut(rest, ".")
	d, err := quantity.Clock(rest, time.Second, time.Minute, time.Hour)
	if err != nil {
		return 0
	}
	return min(time.Duration(quantity.Count(days))*24*time.Hour, quantity.MaxTime) + d +
		time.Duration(quantity.Count((part + "000")[:3]))*time.Millisecond
}
