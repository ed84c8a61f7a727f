package slurm

import (
	"context"
	"fmt"
	"strings"
	"time"

	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/quantity"
)

// Used asks the accounting, and about what runs the nodes themselves.
func (System) Used(ctx context.Context, ids []string) (map[string]capacity.Usage, error) {
	list := strings.Join(ids, ",")
	out, err := invoke.Call(ctx, "/", "sacct", "-n", "-P", "-j", list, "-o", "JobID,TotalCPU,MaxRSS")
	m := used(map[string]capacity.Usage{}, string(out))
	if err != nil {
		return nil, fmt.Errorf("asking Slurm's accounting what jobs used: %w", readError(out, err))
	}
	// Of jobs that have ended it is an error, and tells of the others all the same.
	out, _ = invoke.Call(ctx, "/", "sstat", "-a", "-n", "-P", "-j", list, "-o", "JobID,AveCPU,MaxRSS")
	return used(m, string(out)), nil
}

// used reads lines of sacct and sstat: a job or task of an array, 17 and 17_3,
// whose processor time is that of its steps, and the steps, 17.batch and 17_3.0,
// with their memory.
func used(m map[string]capacity.Usage, list string) map[string]capacity.Usage {
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) < 3 {
			continue
		}
		id, stepName, isStep := strings.Cut(f[0], ".")
		id, _, _ = strings.Cut(id, "_")
		u := m[id]
		u.Peak = max(u.Peak, quantity.Bytes(f[2], 1<<10))
		if cpu := cpu(f[1]); !isStep {
			u.Cpu += cpu
		} else if stepName == "batch" && u.Cpu == 0 { // it runs
			u.Cpu = cpu
		}
		m[id] = u
	}
	return m
}

// cpu reads processor time: 1-02:03:04, 02:03:04, 03:04.567.
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
	return min(time.Duration(quantity.Count(days))*24*time.Hour, quantity.MaxTime) + d + time.Duration(quantity.Count((part + "000")[:3]))*time.Millisecond
}
