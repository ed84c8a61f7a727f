package dispatch

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

// A counting is a toy that counts its queries, which can fail.
type counting struct {
	toy
	queries int
	err     error
}

func (s *counting) Query(ctx context.Context, ids []string) (map[string]batch.State, error) {
	if s.queries++; s.err != nil {
		return nil, s.err
	}
	known, err := s.toy.Query(ctx, ids)
	for id, q := range known { // a job without an array
		q.Add(0, job.QueueWaiting)
		known[id] = q
	}
	return known, err
}

// TestPoll follows jobs one by one, as Snakemake does.
func TestPoll(t *testing.T) {
	s := &counting{toy: toy{map[string]*batch.Request{}, map[string]bool{}}}
	registry = append(registry, s)
	defer func() { registry = registry[:len(registry)-1] }()
	dir, work := t.TempDir(), t.TempDir()
	var jobs []*Submission
	for range 20 {
		j := jobtest.With(func(j *job.Job) { j.Dir = work })
		sub, _, err := Submit(t.Context(), dir, j, Cluster{Target: toyTarget})
		testenv.Check(t, err)
		jobs = append(jobs, sub)
	}
	// round polls all jobs, and returns those that have ended, by their failure.
	round := func(again bool) map[string]int {
		t.Helper()
		if p := readPolled(dir); again {
			p.Next = time.Time{}
			testenv.Check(t, p.write(dir))
		}
		ended := map[string]int{}
		for _, sub := range jobs {
			over, failure, err := sub.Poll(t.Context(), dir)
			if err != nil && s.err == nil {
				t.Errorf("Poll: %v", err)
			}
			if over {
				ended[failure]++
			}
		}
		return ended
	}
	check := func(what string, got map[string]int, want map[string]int, queries int) {
		t.Helper()
		same := len(got) == len(want)
		for k, n := range want {
			same = same && got[k] == n
		}
		if !same || s.queries != queries {
			t.Errorf("%s: %v after %d queries; want %v after %d", what, got, s.queries, want, queries)
		}
	}
	check("first round", round(false), nil, 1)
	check("second round", round(false), nil, 1)
	end := func(i int, task job.Task) {
		task.Start, task.End = time.Now(), time.Now()
		testenv.Check(t, task.Write(filepath.Join(dir, jobs[i].ID)))
	}
	end(0, job.Task{})
	end(1, job.Task{Exit: 3})
	known := map[string]int{"": 1, "status 3": 1}
	check("by the records", round(false), known, 1)

	end(2, job.Task{Exit: -1, Signal: "SIGTERM"}) // its scheduler may run it again
	check("terminated", round(false), known, 1)
	s.ended[jobs[3].Native] = true // without a record
	s.ended[jobs[2].Native] = true
	check("missed once", round(true), known, 2)
	s.err = errors.New("the toy is busy")
	check("no answer", round(true), known, 3)
	s.err = nil
	known["it left no record of its end: the scheduler killed it, or its node failed"] = 1
	known["SIGTERM, as after a cancellation, preemption, or the loss of its node"] = 1
	check("missed twice", round(true), known, 4)
	check("afterwards", round(false), known, 4)
	if p := readPolled(dir); len(p.Jobs) != 18 {
		t.Errorf("%d jobs are polled; want 18", len(p.Jobs))
	}
	s.ended[jobs[3].Native] = false // a lost job stays lost: nothing queries it again
	check("after the loss", round(true), known, 5)
	for i := range jobs {
		if i > 3 {
			end(i, job.Task{})
		}
	}
	known[""] = 17
	check("at the end", round(true), known, 5)
	p := readPolled(dir)
	for _, g := range p.Jobs {
		g.Over = g.Over.Add(-2 * time.Hour)
	}
	p.Next = time.Time{}
	testenv.Check(t, p.query(t.Context(), dir))
	if len(p.Jobs) != 0 {
		t.Errorf("%d lost jobs are remembered for ever", len(p.Jobs))
	}
	if list, warnings, err := Statuses(t.Context(), dir, nil); err != nil || len(warnings) > 0 || len(list) != 20 {
		t.Errorf("Statuses reads %s as a job: %d, %q, %v", pollFile, len(list), strings.Join(warnings, "; "), err)
	}
}
