package lsf

import (
	"context"
	"fmt"
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
		if queue(string(out))[id].Gone() {
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
