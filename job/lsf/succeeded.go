package lsf

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/text"
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
		if err := batch.Wait(ctx); err != nil {
			return err
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
		return fmt.Errorf("dependency %s did not succeed: bjobs lists %d of %s as DONE", id, done, text.Count(tasks, "task", "tasks"))
	}
	return nil
}

// Endings returns how tasks of jobs ended; see [batch.Accountant]. LSF keeps that for an hour by
// default (CLEAN_PERIOD), and these listings have no years in their times.
func (System) Endings(ctx context.Context, ids []string) (map[string]map[int]job.End, error) {
	return batch.EachEnding(ids, func(id string) (map[int]job.End, error) { return endingsOf(ctx, id) })
}

func endingsOf(ctx context.Context, id string) (map[int]job.End, error) {
	out, err := invoke.Call(ctx, "/", "bjobs", "-a", "-w", id)
	if err != nil {
		return nil, fmt.Errorf("querying LSF for job %s: %w", id, refusal(out, err))
	}
	ends := endings(string(out))
	if strings.Contains(string(out), " EXIT ") {
		history, _ := invoke.Call(ctx, "/", "bhist", "-a", "-l", id) // without it, no task was killed
		for _, index := range killed(string(history)) {
			ends[index] = job.End{State: job.Failed, Memory: true}
		}
	}
	return ends, nil
}

// endings parses "bjobs -a -w".
func endings(list string) map[int]job.End {
	ends := map[int]job.End{}
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "DONE" {
			ends[indexIn(line)] = job.End{State: job.Done}
		}
	}
	return ends
}

// killed parses "bhist -a -l" and returns the tasks that LSF ended because they used more memory than
// their limit. IBM's LSF names the reason. The history of volclava shows only that the task ended by
// SIGINT, which LSF sends first, and that nobody requested that.
func killed(history string) (indices []int) {
	history = strings.ReplaceAll(history, "\n                     ", "") // folded lines
	for _, task := range strings.Split(history, "\nJob <") {
		id, _, _ := strings.Cut(task, ">")
		signalled := strings.Contains(task, "Exited with exit code 130.") && !strings.Contains(task, ": Signal <")
		if signalled || strings.Contains(task, "TERM_MEMLIMIT") {
			indices = append(indices, indexIn(id))
		}
	}
	return indices
}

// indexIn returns the index at the end of the job name in a line of bjobs, such as main[3], or 0.
func indexIn(line string) int {
	i := strings.LastIndex(line, "[")
	k, _, _ := strings.Cut(line[i+1:], "]")
	index, _ := strconv.Atoi(k)
	return index
}
