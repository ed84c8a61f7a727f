package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hpcc/job/invoke"
)

// Successes returns the ends of the tasks of a job that succeeded; see [batch.Accountant].
func (System) Successes(ctx context.Context, id string) (map[int]time.Time, error) {
	out, err := invoke.Call(ctx, "/", "sacct", "-X", "-n", "-P", "-j", id, "-o", "JobID,State,ExitCode,End")
	if err != nil {
		return nil, fmt.Errorf("reading Slurm's accounting of job %s: %w", id, readError(out, err))
	}
	return successes(string(out)), nil
}

// successes parses lines of sacct: 37_4|COMPLETED|0:0|END, or 37|… if the job is not an array.
func successes(list string) map[int]time.Time {
	ends := map[int]time.Time{}
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) < 4 || f[1] != "COMPLETED" || f[2] != "0:0" {
			continue
		}
		_, k, _ := strings.Cut(f[0], "_")
		index, _ := strconv.Atoi(k)
		ends[index] = parseTime(f[3])
	}
	return ends
}
