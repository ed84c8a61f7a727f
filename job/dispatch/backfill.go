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

// Backfill shapes a job to what is free now: where it would have to wait, and what
// it asks for is free for at least the time least, its limit becomes that time.
// Schedulers that can are told that they may cut it down to least as well, and to
// run it again when they need its nodes. It returns in words what was chosen.
func Backfill(ctx context.Context, j *job.Job, t job.Target, least time.Duration) ([]string, error) {
	switch {
	case j.Time == 0:
		return nil, errors.New("to fit a job into a hole hpcc has to know how long it would like to run; give --time")
	case least > j.Time:
		return nil, fmt.Errorf("the job is to run for %s, and for %s at least", quantity.FormatTime(j.Time), quantity.FormatTime(least))
	case t == job.Local:
		return []string{"on this machine nobody waits; the job is as it was"}, nil
	}
	if least == 0 {
		least = (j.Time / leastPart).Truncate(time.Minute)
	}
	if lead := j.Warning.Lead + time.Minute; j.Warning.Signal != "" && least < lead { // there must be time before the warning
		least = min(lead, j.Time)
	}
	f, err := Fits(ctx, j, t)
	if err != nil {
		return nil, err
	}
	var said []string
	hole := (f.Hole - capacity.Margin).Truncate(time.Minute)
	switch {
	case f.When == capacity.Never:
		return nil, fmt.Errorf("the job never starts: %s", f.Why)
	case f.When == capacity.Now:
		said = append(said, "it starts now, with the limit that was asked for: "+quantity.FormatTime(j.Time))
	case hole >= max(least, time.Minute):
		said = append(said, fmt.Sprintf("limit %s in the place of %s: %s", quantity.FormatTime(hole), quantity.FormatTime(j.Time), f.Why))
		j.Time = hole
	case f.Hole > 0:
		said = append(said, fmt.Sprintf("what it asks for is free for %s alone, less than %s; the limit stays %s", quantity.FormatTime(f.Hole), quantity.FormatTime(least), quantity.FormatTime(j.Time)))
	default:
		said = append(said, fmt.Sprintf("no hole has what it asks for: %s; the limit stays %s", f.Why, quantity.FormatTime(j.Time)))
	}
	cuts := descriptionOf(t).CutsTime
	return append(said, bend(j, cuts, least)...), nil
}

// leastPart is which part of the time that is asked for counts as the least.
const leastPart = 4

// bend leaves to the batch system what it can do itself: cut the limit (cuts), run the
// job again.
func bend(j *job.Job, cuts bool, least time.Duration) (said []string) {
	switch {
	case !cuts:
		said = append(said, "this scheduler cuts no limits by itself: what hpcc chose stays")
	case least >= time.Minute && least < j.Time && j.TimeMin == 0:
		j.TimeMin = least
		said = append(said, fmt.Sprintf("the scheduler may cut the limit down to %s to start it earlier", quantity.FormatTime(least)))
	}
	if j.Requeue == "" {
		j.Requeue = "yes"
		said = append(said, "it begins again when its nodes are taken from it")
	}
	return append(said, "what its limit ends, \"hpcc rerun\" takes up again")
}
