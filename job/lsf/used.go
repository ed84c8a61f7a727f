package lsf

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

// Used queries the usage of all jobs with one command.
func (System) Used(ctx context.Context, ids []string) (map[string]capacity.Usage, error) {
	out, err := invoke.Call(ctx, "/", "bjobs", append([]string{"-a", "-noheader", "-o", "jobid cpu_used max_mem delimiter='|'"}, ids...)...)
	if err != nil {
		return nil, fmt.Errorf("querying LSF for usage: %w", refusal(out, err))
	}
	return used(string(out)), nil
}

// used parses lines of bjobs: 17|1.5 second(s)|12.5 Mbytes.
func used(list string) map[string]capacity.Usage {
	m := map[string]capacity.Usage{}
	for f := range batch.Table(list, 3) {
		u := m[f[0]]
		var seconds float64
		if _, err := fmt.Sscanf(f[1], "%g", &seconds); err == nil && seconds > 0 && seconds < quantity.MaxTime.Seconds() {
			u.CPU += time.Duration(seconds * float64(time.Second))
		}
		number, unit, _ := strings.Cut(strings.TrimSpace(f[2]), " ")
		u.Peak = max(u.Peak, quantity.Bytes(number+unit[:min(len(unit), 1)], 1<<20))
		m[f[0]] = u
	}
	return m
}
