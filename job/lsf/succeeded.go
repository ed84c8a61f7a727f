package lsf

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/message"
)

// succeeded checks the states of a job that hpcc did not submit; see [batch.Description]. LSF knows ended jobs
// for an hour by default (lsb.params(5), CLEAN_PERIOD). It waits while the job is active, because volclava 2.2
// may start a job before its dependencies.
func succeeded(ctx context.Context, id string) error {
	if !isID(id) {
		return nil // LSF checks it
	}
	for {
		out, err := invoke.Call(ctx, "/", "bjobs", "-a", "-w", id)
		if err != nil {
			return fmt.Errorf("checking whether dependency %s succeeded: %w", id, refusal(out, err))
		}
		if parseQueue(string(out))[id].Gone() {
			return checkEnd(id, string(out))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(batch.Poll):
		}
	}
}

// checkEnd returns an error if a task of a job in the output of "bjobs -a -w" is not done.
func checkEnd(id, list string) error {
	tasks, done := 0, 0
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == id {
			if tasks++; f[2] == "DONE" {
				done++
			}
		}
	}
	if done < tasks || tasks == 0 {
		return fmt.Errorf("dependency %s did not succeed: bjobs lists %d of %s as DONE", id, done, message.Count(tasks, "task"))
	}
	return nil
}

// Endings returns the successes of tasks of a job; see [batch.Accountant]. LSF keeps them for an hour
// by default (CLEAN_PERIOD), and this listing has no years in its times.
func (System) Endings(ctx context.Context, id string) (map[int]batch.Ending, error) {
	out, err := invoke.Call(ctx, "/", "bjobs", "-a", "-w", id)
	if err != nil {
		return nil, fmt.Errorf("querying LSF for job %s: %w", id, refusal(out, err))
	}
	return endings(string(out)), nil
}

// endings parses "bjobs -a -w".
func endings(list string) map[int]batch.Ending {
	ends := map[int]batch.Ending{}
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "DONE" {
			ends[indexIn(line)] = batch.Ending{}
		}
	}
	return ends
}

// indexIn returns the index at the end of the job name in a line of bjobs, such as main[3], or 0.
func indexIn(line string) int {
	i := strings.LastIndex(line, "[")
	k, _, _ := strings.Cut(line[i+1:], "]")
	index, _ := strconv.Atoi(k)
	return index
}
