package slurm

import (
	"context"
	"fmt"
	"os/user"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
)

// Endings returns how tasks of jobs ended; see [batch.Accountant].
func (System) Endings(ctx context.Context, ids []string) (map[string]map[int]job.End, error) {
	list := strings.Join(ids, ",")
	out, err := invoke.Call(ctx, "/", "sacct", "-X", "-n", "-P", "-j", list, "-o", "JobID,State,ExitCode,End,Reason,NodeList")
	if err != nil {
		return nil, fmt.Errorf("reading Slurm's accounting of jobs %s: %w", list, readError(out, err))
	}
	return endings(string(out)), nil
}

// endings parses lines of sacct: 37_4|COMPLETED|0:0|END|REASON|NODES, or 37|… if the job is not an array.
func endings(list string) map[string]map[int]job.End {
	ends := map[string]map[int]job.End{}
	for f := range batch.Table(list, 6) {
		id, k, _ := strings.Cut(f[0], "_")
		index, _ := strconv.Atoi(k)
		state, by, _ := strings.Cut(f[1], " by ")
		e := job.End{State: job.Failed, At: parseTime(f[3])}
		switch state {
		case "COMPLETED":
			e.State = job.Done
		case "OUT_OF_MEMORY":
			e.Memory = true
		case "CANCELLED":
			e.State, e.Why = job.Stopped, "cancelled by Slurm"
			if id, err := user.LookupId(by); err == nil {
				e.Why = "cancelled by " + id.Username
			} else if by != "" {
				e.Why = "cancelled by the user with the ID " + by
			}
			if f[4] != "" && f[4] != "None" {
				e.Why += " (" + f[4] + ")"
			}
		case "TIMEOUT", "DEADLINE":
			e.Why = "ended at its time limit"
		case "NODE_FAIL", "BOOT_FAIL":
			e.Why = "its node failed (" + f[5] + ")"
		case "PREEMPTED":
			e.State, e.Why = job.Stopped, "preempted"
		case "FAILED":
			if e.Why = "ended with " + f[2] + " (status:signal)"; f[2] == noDirectory {
				e.Why = "it could not start, because its working directory or output file is missing on " + f[5]
			}
		default: // it runs or waits, or it ended in another cluster
			continue
		}
		if ends[id] == nil {
			ends[id] = map[int]job.End{}
		}
		ends[id][index] = e
	}
	return ends
}

// noDirectory is the ExitCode of a job whose node lacks its working directory, or cannot open its output file, as
// seen on Slurm 22.05.
const noDirectory = "0:53"
