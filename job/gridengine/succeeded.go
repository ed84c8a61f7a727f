package gridengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"hpcc/job"
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

// Endings returns how tasks of jobs ended; see [batch.Accountant]. The accounting does not show which limit
// of memory ended a task.
func (System) Endings(ctx context.Context, ids []string) (map[string]map[int]job.End, error) {
	return batch.EachEnding(ids, func(id string) (map[int]job.End, error) { return endingsOf(ctx, id) })
}

func endingsOf(ctx context.Context, id string) (map[int]job.End, error) {
	out, err := invoke.Call(ctx, "/", "qacct", "-j", id)
	if err != nil {
		return nil, fmt.Errorf("reading Grid Engine's accounting of job %s: %w", id, readError(out, err))
	}
	return endings(string(out)), nil
}

// endings parses the output of "qacct -j", in which a line of = begins each account. A job that was rescheduled has
// an account for each attempt; the last one counts.
func endings(accounts string) map[int]job.End {
	ends := map[int]job.End{}
	for account := range strings.SplitSeq(accounts, "=\n") {
		f := map[string]string{}
		for line := range strings.Lines(account) {
			key, value, _ := strings.Cut(line, " ")
			f[key] = strings.TrimSpace(value)
		}
		if f["failed"] == "" || f["exit_status"] == "" {
			continue
		}
		index, _ := strconv.Atoi(f["taskid"]) // "undefined" if the job is not an array
		at, _ := time.ParseInLocation(time.ANSIC, f["end_time"], time.Local)
		e := job.End{State: job.Failed, At: at}
		status, _, _ := strings.Cut(f["exit_status"], " ") // Univa adds a text
		code, why, _ := strings.Cut(f["failed"], ":")
		code = strings.TrimSpace(code)
		switch by := f["deleted_by"]; {
		case code == rescheduled:
			continue
		case by != "" && by != "NONE":
			e.State, e.Why = job.Stopped, "deleted by "+by
		case code == "0" && status == "0":
			e.State = job.Done
		case code == "0":
			e.Why = "ended with status " + status
		case code == timeLimit:
			e.Why = "ended at its time limit"
		default:
			e.Why = cmp.Or(strings.TrimSpace(why), "failed with code "+code)
		}
		ends[index] = e
	}
	return ends
}

// Codes of "failed" (sge_status(5)): "25 : rescheduling", and "37 : qmaster enforced h_rt, h_cpu, or h_vmem limit".
const (
	rescheduled = "25"
	timeLimit   = "37"
)
