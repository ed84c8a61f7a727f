package job

import (
	"context"
	"errors"
	"strings"
	"time"
)

// history asks the accounting for the jobs of all users; a site may keep those of
// others to itself (PrivateData), and then it tells of this user's alone. A job that was
// requeued or preempted has a record (-D) for each time that it ran.
func (slurm) history(ctx context.Context, from time.Time) (*history, error) {
	out, err := call(ctx, "/", "sacct", "-a", "-D", "-X", "-n", "-P", "-S", from.Local().Format("2006-01-02T15:04:05"), "-E", "now", "-o", "JobID,User,Start,End,State,AllocTRES")
	if err != nil {
		return nil, &noHistory{"Slurm's accounting does not tell: " + slurmWords(out, err).Error()}
	}
	if len(out) > maxListing {
		return nil, errors.New("reading Slurm's accounting: it has more jobs than hpcc reads; ask for less with --since")
	}
	return &history{stays: slurmStays(string(out)), by: "sacct", current: true}, nil
}

// slurmStays reads lines of sacct: 37_0|alice|START|END|COMPLETED|cpu=1,mem=256M,node=1.
// What never began has no start or nothing that was given to it.
func slurmStays(list string) []Stay {
	var stays []Stay
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		if len(f) < 6 || len(stays) >= maxStays {
			continue
		}
		start, end := slurmWhen(f[2]), slurmWhen(f[3])
		h := slurmTRES(f[5])
		if start.IsZero() || h.cpus == 0 {
			continue
		}
		if end.IsZero() && !strings.HasPrefix(f[4], "RUNNING") && !strings.HasPrefix(f[4], "COMPLETING") && !strings.HasPrefix(f[4], "SUSPENDED") {
			continue // one that the accounting lost sight of
		}
		stays = append(stays, Stay{ID: f[0], User: f[1], Start: start, End: end, CPUs: h.cpus, Memory: h.memory, GPUs: h.gpus})
	}
	return stays
}
