package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"hpcc/job"
	"hpcc/job/capacity"
	"hpcc/job/quantity"
)

// startMargin is the part of a free window that may pass between submission and start of a job.
const startMargin = 30 * time.Second

// Backfill shortens the time limit of a job that would have to wait to the free window
// that fits it, but not below least. Schedulers that can may cut the limit further, down
// to least, and requeue the job. The result describes the choices in sentences.
func Backfill(ctx context.Context, j *job.Job, t job.Target, least time.Duration) ([]string, error) {
	switch {
	case j.Time == 0:
		return nil, errors.New("fitting a job into a free window needs its time limit; give --time")
	case least > j.Time:
		return nil, fmt.Errorf("time limit %s is below the least run time %s", quantity.FormatTime(j.Time), quantity.FormatTime(least))
	case t == job.Local:
		return []string{"jobs on this machine do not wait; nothing changed"}, nil
	}
	if least == 0 {
		least = (j.Time / leastPart).Truncate(time.Minute)
	}
	if lead := j.Warning.Lead + time.Minute; j.Warning.Signal != "" && least < lead { // leave time before the warning
		least = min(lead, j.Time)
	}
	f, err := Fits(ctx, "", j, Cluster{Target: t})
	if err != nil {
		return nil, err
	}
	var changes []string
	hole := (f.Window - startMargin).Truncate(time.Minute)
	switch {
	case f.When == capacity.Never:
		return nil, fmt.Errorf("the job never starts: %s", f.Why)
	case f.When == capacity.Now:
		changes = append(changes, "it starts now, with the requested limit "+quantity.FormatTime(j.Time))
	case hole >= max(least, time.Minute):
		changes = append(changes, fmt.Sprintf("limit %s instead of %s: %s", quantity.FormatTime(hole), quantity.FormatTime(j.Time), f.Why))
		j.Time = hole
	case f.Window > 0:
		changes = append(changes, fmt.Sprintf("its resources are free for only %s, less than %s; the limit stays %s",
			quantity.FormatTime(f.Window), quantity.FormatTime(least), quantity.FormatTime(j.Time)))
	default:
		changes = append(changes, fmt.Sprintf("no free window has its resources: %s; the limit stays %s",
			f.Why, quantity.FormatTime(j.Time)))
	}
	cuts := descriptionOf(t).CutsTime
	return append(changes, bend(j, cuts, least)...), nil
}

// leastPart is the default least run time, as a divisor of the requested limit.
const leastPart = 4

// bend lets the batch system cut the limit, if it can (cuts), and requeue the job.
func bend(j *job.Job, cuts bool, least time.Duration) (changes []string) {
	switch {
	case !cuts:
		changes = append(changes, "this scheduler does not cut limits itself; the limit that hpcc chose stays")
	case least >= time.Minute && least < j.Time && j.TimeMin == 0:
		j.TimeMin = least
		changes = append(changes, fmt.Sprintf("the scheduler may cut the limit down to %s to start it earlier", quantity.FormatTime(least)))
	}
	if j.Requeue == "" {
		j.Requeue = "yes"
		changes = append(changes, "it is requeued when it is preempted")
	}
	return append(changes, "if it reaches its limit, \"hpcc rerun\" continues it")
}
