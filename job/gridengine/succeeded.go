package gridengine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hpcc/job/batch"
	"hpcc/job/invoke"
)

// accountingDelay is the time that Grid Engine may take to write the accounting of an ended job (sge_conf(5),
// accounting_flush_time: 15 s by default).
const accountingDelay = 40 * time.Second

// succeeded checks the accounting of a job that hpcc did not submit; see [batch.Description].
func succeeded(ctx context.Context, id string) error {
	for end := time.Now().Add(accountingDelay); ; {
		out, err := invoke.Call(ctx, "/", "qacct", "-j", id)
		if err == nil {
			return checkAccount(id, string(out))
		}
		if time.Now().After(end) {
			return fmt.Errorf("checking whether dependency %s succeeded: %w", id, readError(out, err))
		}
		if err := batch.Wait(ctx); err != nil {
			return err
		}
	}
}

// checkAccount returns an error if the account of a job, the output of "qacct -j", has a failed task.
func checkAccount(id, account string) error {
	seen := false
	for line := range strings.Lines(account) {
		f := strings.Fields(line)
		if len(f) < 2 || (f[0] != "failed" && f[0] != "exit_status") {
			continue
		}
		if seen = true; f[1] != "0" {
			return fmt.Errorf("dependency %s did not succeed: %s", id, strings.Join(f, " "))
		}
	}
	if !seen {
		return errors.New("qacct does not report how job " + id + " ended")
	}
	return nil
}

// Endings returns the successes of tasks of a job; see [batch.Accountant]. The accounting does not
// show which limit ended a task.
func (System) Endings(ctx context.Context, id string) (map[int]batch.Ending, error) {
	out, err := invoke.Call(ctx, "/", "qacct", "-j", id)
	if err != nil {
		return nil, fmt.Errorf("reading Grid Engine's accounting of job %s: %w", id, readError(out, err))
	}
	return endings(string(out)), nil
}

// endings parses the output of "qacct -j". A job that was rescheduled has an account for each attempt.
func endings(account string) map[int]batch.Ending {
	ends := map[int]batch.Ending{}
	index, end, failed := 0, time.Time{}, false
	for line := range strings.Lines(account) {
		key, value, _ := strings.Cut(line, " ")
		switch value = strings.TrimSpace(value); key {
		case "taskid":
			index, _ = strconv.Atoi(value) // "undefined" if the job is not an array
		case "end_time":
			end, _ = time.ParseInLocation(time.ANSIC, value, time.Local)
		case "failed":
			failed = value != "0"
		case "exit_status":
			if !failed && value == "0" {
				ends[index] = batch.Ending{At: end}
			}
		}
	}
	return ends
}
