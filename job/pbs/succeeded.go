package pbs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
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

// Endings returns how tasks of jobs ended, if the site keeps a history; see [batch.Accountant].
func (System) Endings(ctx context.Context, ids []string) (map[string]map[int]job.End, error) {
	return batch.EachEnding(ids, func(id string) (map[int]job.End, error) { return endingsOf(ctx, id) })
}

func endingsOf(ctx context.Context, id string) (map[int]job.End, error) {
	out, err := invoke.Call(ctx, "/", "qstat", "-x", "-t", "-f", "-F", "json", id)
	if err != nil {
		return nil, fmt.Errorf("reading the history of PBS about job %s: %w", id, invoke.Error(out, err))
	}
	return endings(out)
}

// killedForMemory is the Exit_status of a job that used more memory than it requested, at a site
// that enforces requests. It was seen on OpenPBS 23.06; PBS Pro's guide lists it.
const killedForMemory = -27

// endings parses the JSON of "qstat -x -t -f".
func endings(listing []byte) (map[int]job.End, error) {
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
	ends := map[int]job.End{}
	for id, j := range list.Jobs {
		_, index, isArray := arrayOf(id)
		if isArray || (j.State != "F" && j.State != "X") || j.Exit == nil {
			continue
		}
		if killed := *j.Exit == killedForMemory; killed || *j.Exit == 0 {
			end := job.End{State: job.Done, At: ansic(j.Ended), Memory: killed}
			if killed {
				end.State = job.Failed
			}
			ends[index] = end
		}
	}
	return ends, nil
}

// ansic parses a local time in the format of ctime(3). It returns the zero time for other text.
func ansic(s string) time.Time {
	t, err := time.ParseInLocation(time.ANSIC, s, time.Local)
	if err != nil {
		return time.Time{}
	}
	return t
}
