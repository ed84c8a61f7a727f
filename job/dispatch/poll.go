package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"hpcc/files"
	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/text"
)

// pollFile is the file, in the directory of the jobs, with the jobs that [Submission.Poll] follows.
const pollFile = ".poll.json"

// Intervals between the queries of [Submission.Poll].
const (
	pollInterval = 10 * time.Second
	pollShare    = 20 // queries take at most one in this many parts of the time
	maxPollPause = 10 * time.Minute
	pollMemory   = time.Hour // for how long pollFile keeps lost jobs
)

// pollGone is the number of queries in a row that must miss a job without an end before it counts as
// lost: schedulers and shared file systems are late.
const pollGone = 2

// polled is the content of pollFile.
type polled struct {
	Next time.Time       `json:"next"` // earliest time of the next query
	Jobs map[string]*gap `json:"jobs"` // without an end in their records, by ID
}

// A gap counts the queries in a row that did not find a job.
type gap struct {
	Missed int    `json:"missed,omitempty"`
	Why    string `json:"why,omitempty"` // the failure of the job, if it has ended

	Over time.Time `json:"over,omitzero"` // when the job counted as lost; no query asks for it again
}

// Poll reports whether the job below dir has ended. failure is "" if all tasks succeeded. Programs
// call it often and for one job at a time: the records decide, if they have the end. For all other
// jobs that were polled, Poll queries the schedulers once every few seconds; until then, a job has
// not ended.
func (s *Submission) Poll(ctx context.Context, dir string) (ended bool, failure string, err error) {
	st := &Status{Submission: s}
	if _, err := job.Readable(st.read(dir)); err != nil {
		return false, "", err
	}
	if st.final() {
		return true, st.failure(), nil
	}
	p := readPolled(dir)
	_, known := p.Jobs[s.ID]
	if !known {
		p.Jobs[s.ID] = &gap{}
	}
	switch now := time.Now(); {
	case now.After(p.Next) || p.Next.After(now.Add(maxPollPause)): // or the clock was set back
		err = p.query(ctx, dir)
	case !known:
		err = p.write(dir)
	}
	if g := p.Jobs[s.ID]; g != nil && !g.Over.IsZero() {
		return true, g.Why, err
	}
	return false, "", err
}

// final reports whether the job has ended by its records, and no scheduler may run it again.
func (s *Status) final() bool { return s.open() == 0 && !(s.mayReturn() && s.taken()) }

// failure describes how a job that has ended failed; "" if it did not.
func (s *Status) failure() string {
	if s.Done == s.Total {
		return ""
	}
	why := s.State()
	if why == "lost" {
		why = "it left no record of its end: the scheduler killed it, or its node failed"
	}
	records := s.records()
	for _, k := range s.over {
		t := records[k]
		if t == nil {
			continue
		}
		if why = t.Ending(); t.Problem == "" && t.Taken() {
			why += ", as after a cancellation, preemption, or the loss of its node"
		}
	}
	if s.Reason != "" {
		why += " (" + s.Reason + ")"
	}
	return why
}

func readPolled(dir string) *polled {
	p := &polled{}
	if b, err := files.Read(filepath.Join(dir, pollFile)); err == nil {
		_ = json.Unmarshal(b, p)
	}
	if p.Jobs == nil {
		p.Jobs = map[string]*gap{}
	}
	maps.DeleteFunc(p.Jobs, func(id string, g *gap) bool { return g == nil || !isName(id) })
	return p
}

func (p *polled) write(dir string) error {
	b, err := json.Marshal(p)
	if err == nil {
		err = files.Write(filepath.Join(dir, pollFile), b)
	}
	return err
}

// query queries the schedulers about all polled jobs, and forgets those whose records have the end.
// A scheduler that does not answer changes nothing.
func (p *polled) query(ctx context.Context, dir string) error {
	begun := time.Now()
	clusters := map[string][]*Status{}
	for id, g := range p.Jobs {
		if !g.Over.IsZero() {
			if time.Since(g.Over) > pollMemory {
				delete(p.Jobs, id)
			}
			continue
		}
		s, err := ReadJob(filepath.Join(dir, id))
		if err != nil { // it was removed
			delete(p.Jobs, id)
			continue
		}
		st := &Status{Submission: s}
		if _, err := job.Readable(st.read(dir)); err == nil && st.final() {
			delete(p.Jobs, id)
		} else if err == nil {
			clusters[s.key()] = append(clusters[s.key()], st)
		}
	}
	var silent error
	for _, list := range clusters {
		if err := settle(ctx, dir, list, invoke.ShortTimeout); err != nil {
			silent = errors.Join(silent, err)
			continue
		}
		accountAll(ctx, dir, list, invoke.ShortTimeout)
		for _, st := range list {
			p.note(st)
		}
	}
	p.Next = time.Now().Add(min(max(pollInterval, pollShare*time.Since(begun)), maxPollPause))
	return errors.Join(silent, p.write(dir))
}

// note records the state of a job after a query.
func (p *polled) note(st *Status) {
	switch g := p.Jobs[st.ID]; {
	case st.Active():
		*g = gap{}
	case st.Done == st.Total:
		delete(p.Jobs, st.ID)
	default:
		if *g = (gap{Missed: g.Missed + 1, Why: st.failure()}); g.Missed >= pollGone {
			g.Over = time.Now()
		}
	}
}

// Succeeded returns an error naming the first job that has not succeeded. ids are native IDs;
// it uses the records below dir, else the scheduler's accounting. Schedulers that start a
// job after any end of its dependencies need it.
func Succeeded(ctx context.Context, dir string, ids []string) error {
next:
	for _, id := range ids {
		for _, name := range jobsOfNative(dir, id) {
			s, err := ReadJob(filepath.Join(dir, name))
			if err != nil || s.Native != id || descriptionOf(s.Target).Succeeded == nil {
				continue // the scheduler reports on an unreadable one
			}
			st, err := s.atEnd(ctx, dir)
			if err != nil {
				return err
			}
			if st.Done < st.Total {
				return fmt.Errorf("dependency %s (%s): %d of %s did not succeed", s.ID, id,
					st.Total-st.Done, text.Count(st.Total, "task", "tasks"))
			}
			continue next
		}
		_, target := OnNode().NativeIDs(os.Getenv)
		if succeeded := descriptionOf(target).Succeeded; succeeded != nil {
			if err := succeeded(ctx, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// atEnd returns the state of a dependency. It waits while the dependency is active, because a
// scheduler may start a job too early (volclava 2.2). If the scheduler does not answer, the records
// decide.
func (s *Submission) atEnd(ctx context.Context, dir string) (*Status, error) {
	for {
		st, err := s.status(ctx, dir)
		switch {
		case st == nil:
			return nil, err
		case err != nil || !st.Active():
			return st, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(batch.Poll):
		}
	}
}
