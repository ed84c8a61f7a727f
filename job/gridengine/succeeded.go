package gridengine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"hpcc/job/batch"
	"hpcc/job/invoke"
)

// accounted is how long Grid Engine may take to account for a job that has ended
// (sge_conf(5), accounting_flush_time: 15 s unless the site says otherwise).
const accounted = 40 * time.Second

// succeeded reads the account of a job that hpcc did not submit; see
// [batch.Description].
func succeeded(ctx context.Context, id string) error {
	for end := time.Now().Add(accounted); ; {
		out, err := invoke.Call(ctx, "/", "qacct", "-j", id)
		if err == nil {
			return checkAccount(id, string(out))
		}
		if time.Now().After(end) {
			return fmt.Errorf("finding out whether job %s, which had to succeed first, did: %w", id, readError(out, err))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(batch.Poll):
		}
	}
}

// checkAccount refuses an account (qacct(1), -j) with a task that failed.
func checkAccount(id, account string) error {
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
