package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"hpcc/job/tunnel"
)

// Begin is the record of a task that begins in this process: where it is, and
// which of the scheduler's tasks it is, by the environment. dir is the job's directory;
// a record of this task that is there is of an attempt before, and is put aside.
func Begin(dir string, index int) *Task {
	t := &Task{Index: index, Start: time.Now(), Native: nativeTask(os.Getenv)}
	t.Host = tunnel.Host()
	t.retire(dir)
	t.Attempt = t.attempts(dir)
	if n, err := strconv.Atoi(os.Getenv("SLURM_RESTART_COUNT")); err == nil {
		t.Attempt = max(t.Attempt, n) // one that was killed before it left a record
	}
	return t
}

// nativeTask is the scheduler's id of the task whose environment this is; ""
// without a scheduler.
func nativeTask(getenv func(string) string) string {
	switch {
	case getenv("SLURM_JOB_ID") != "":
		return getenv("SLURM_JOB_ID")
	case getenv("JOB_ID") != "" && getenv("SGE_ROOT") != "":
		if k := getenv("SGE_TASK_ID"); k != "" && k != "undefined" {
			return getenv("JOB_ID") + "." + k
		}
		return getenv("JOB_ID")
	case getenv("PBS_JOBID") != "":
		return getenv("PBS_JOBID")
	case getenv("LSB_JOBID") != "":
		if k := getenv("LSB_JOBINDEX"); k != "" && k != "0" {
			return getenv("LSB_JOBID") + "[" + k + "]"
		}
		return getenv("LSB_JOBID")
	}
	return ""
}

// Succeeded says whether jobs, named by the target's ids, have: by their records
// below dir, else by what the scheduler accounts. An error names the first that has not. It is for
// schedulers that start a job when those before it have ended, however they did.
func Succeeded(ctx context.Context, dir string, ids []string) error {
	subs, _, err := submissions(dir) // an unreadable one is asked of the scheduler
	if err != nil {
		return err
	}
next:
	for _, id := range ids {
		for _, s := range subs {
			if s.Native != id || s.Target != GridEngine {
				continue
			}
			tasks, err := Tasks(filepath.Join(dir, s.ID))
			if err != nil {
				return err
			}
			st := &Status{Submission: s, Total: s.Job.Count(), Tasks: tasks}
			if st.count(); st.Done < st.Total {
				return fmt.Errorf("job %s (%s), which had to succeed first, has %d of %d tasks that did not", s.ID, id, st.Total-st.Done, st.Total)
			}
			continue next
		}
		if err := gridEngineSucceeded(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

// accounted is how long Grid Engine may take to account for a job that has ended
// (sge_conf(5), accounting_flush_time: 15 s unless the site says otherwise).
const accounted = 40 * time.Second

// gridEngineSucceeded reads the account of a job that hpcc did not hand in.
func gridEngineSucceeded(ctx context.Context, id string) error {
	for end := time.Now().Add(accounted); ; {
		out, err := call(ctx, "/", "qacct", "-j", id)
		if err == nil {
			return gridEngineAccount(id, string(out))
		}
		if time.Now().After(end) {
			return fmt.Errorf("finding out whether job %s, which had to succeed first, did: %w", id, gridEngineWords(out, err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// gridEngineAccount refuses an account (qacct(1), -j) with a task that failed.
func gridEngineAccount(id, account string) error {
	seen := false
	for line := range strings.Lines(account) {
		f := strings.Fields(line)
		if len(f) < 2 || (f[0] != "failed" && f[0] != "exit_status") {
			continue
		}
		if seen = true; f[1] != "0" {
			return fmt.Errorf("job %s, which had to succeed first, did not: %s", id, strings.Join(f, " "))
		}
	}
	if !seen {
		return errors.New("qacct says nothing of how job " + id + " ended")
	}
	return nil
}
