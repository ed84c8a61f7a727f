package pbs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"hpcc/job/invoke"
)

// isArray reports whether a native ID, such as 17[].server, is that of an array.
func isArray(id string) bool { return strings.Contains(id, "[]") }

// succeeded checks an array that hpcc did not submit; see [batch.Description]. PBS takes the exit status of
// the task that ended last for that of the array, so afterok releases jobs although other tasks failed.
// The array's substate is right.
func succeeded(ctx context.Context, id string) error {
	if !isArray(id) {
		return nil
	}
	e := entries(ended(ctx, []string{id}))[id]
	if e["job_state"] == "F" && e["substate"] != finished {
		return fmt.Errorf("dependency %s did not succeed: %s", id, e["comment"])
	}
	return nil
}

// Successes returns the ends of the tasks of a job that succeeded, if the site keeps a history; see
// [batch.Accountant].
func (System) Successes(ctx context.Context, id string) (map[int]time.Time, error) {
	out, err := invoke.Call(ctx, "/", "qstat", "-x", "-t", "-f", "-F", "json", id)
	if err != nil {
		return nil, fmt.Errorf("reading the history of PBS about job %s: %w", id, invoke.Error(out, err))
	}
	return successes(out)
}

// successes parses the JSON of "qstat -x -t -f".
func successes(listing []byte) (map[int]time.Time, error) {
	var list struct {
		Jobs map[string]struct {
			State string `json:"job_state"`
			Exit  *int   `json:"Exit_status"`
			Ended string `json:"obittime"`
		}
	}
	if err := json.Unmarshal(listing, &list); err != nil {
		return nil, fmt.Errorf("reading the output of qstat: %w", err)
	}
	ends := map[int]time.Time{}
	for id, j := range list.Jobs {
		if _, index, isArray := arrayOf(id); !isArray && (j.State == "F" || j.State == "X") && j.Exit != nil && *j.Exit == 0 {
			ends[index] = ansic(j.Ended)
		}
	}
	return ends, nil
}
