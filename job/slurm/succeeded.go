package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"hpcc/job/batch"
	"hpcc/job/invoke"
)

// Endings returns how tasks of a job ended; see [batch.Accountant].
func (System) Endings(ctx context.Context, id string) (map[int]batch.Ending, error) {
	out, err := invoke.Call(ctx, "/", "sacct", "-X", "-n", "-P", "-j", id, "-o", "JobID,State,ExitCode,End")
	if err != nil {
		return nil, fmt.Errorf("reading Slurm's accounting of job %s: %w", id, readError(out, err))
	}
	return endings(string(out)), nil
}

// endings parses lines of sacct: 37_4|COMPLETED|0:0|END, or 37|… if the job is not an array.
func endings(list string) map[int]batch.Ending {
	ends := map[int]batch.Ending{}
	for f := range batch.Table(list, 4) {
		_, k, _ := strings.Cut(f[0], "_")
		index, _ := strconv.Atoi(k)
		if killed := f[1] == "OUT_OF_MEMORY"; killed || (f[1] == "COMPLETED" && f[2] == "0:0") {
			ends[index] = batch.Ending{At: parseTime(f[3]), Killed: killed}
		}
	}
	return ends
}
