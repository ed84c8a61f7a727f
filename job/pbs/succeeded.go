package pbs

import (
	"context"
	"fmt"
	"strings"
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
