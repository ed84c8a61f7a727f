package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
)

// Fits does what Submit does, except the submission itself, and estimates where and when the job would start
// from the scheduler's dry run and the free nodes. For an array it covers one task. Without dir it creates no
// files.
func Fits(ctx context.Context, dir string, j *job.Job, to Cluster) (*capacity.Fit, error) {
	own := *j // Submit packs the caller's job
	j = &own
	notes := packLarge(ctx, j, to)
	s := newSubmission(j, to)
	s.dry = true
	var more []string
	var err error
	if dir == "" {
		_, more, err = s.render(ctx, j)
	} else {
		var home string
		home, _, more, err = s.create(ctx, dir)
		os.RemoveAll(home) // before the scheduler is queried, because a signal may end this process meanwhile
	}
	if never := new(neverError); errors.As(err, &never) {
		return &capacity.Fit{When: capacity.Never, By: "the limits of the site", Why: never.why}, nil
	}
	if err != nil {
		return nil, err
	}
	return fits(to.Within(ctx), s.Job, to.Target, append(notes, more...))
}

// fits estimates the start of a job that has been checked, with notes.
func fits(ctx context.Context, j *job.Job, t job.Target, notes []string) (*capacity.Fit, error) {
	script, _, err := Render(scripted(j), t)
	if err != nil {
		return nil, err
	}
	if t == job.Local {
		host, _ := os.Hostname()
		return &capacity.Fit{When: capacity.Now, Nodes: []string{host}, By: "hpcc: jobs on this machine do not wait", Notes: notes}, nil
	}
	if j.Packed() {
		j = j.Allocation(true)
	}
	c, err := listNodes(ctx, t, j.Queue)
	if err != nil && t.Pods() { // most users may not list nodes
		return unseen(ctx, j, t, script, append(notes, err.Error()))
	}
	if err != nil {
		return nil, err
	}
	queue := cmp.Or(j.Queue, c.Queue)
	c.Keep(queue)
	x := capacity.NewNeed(j, c.Usual[queue], descriptionOf(t).Adjust)
	counted := x.Fit(c, queue, time.Now())
	estimate, refusal, err := dryRun(ctx, j, t, script)
	if err != nil {
		return nil, err
	}
	f := x.Judge(counted, estimate, refusal, len(c.Planned) > 0)
	f.Notes = append(append(f.Notes, notes...), c.Notes...)
	if u := x.Uncounted(); estimate == nil && len(u) > 0 {
		f.Notes = append(f.Notes, "not counted: "+strings.Join(u, ", "))
	}
	if before := slices.Concat(j.After, j.AfterAny, j.AfterFailed, j.AfterEach); len(before) > 0 && f.When != capacity.Never {
		f.Notes = append(f.Notes, "it depends on jobs "+strings.Join(before, ", "))
	}
	if j.Array.Count() > 1 {
		f.Notes = append(f.Notes, fmt.Sprintf("this is for one of %d tasks", j.Array.Count()))
	}
	return f, nil
}

// unseen returns the fit on a cluster that does not list its nodes: only whether it accepts the job.
func unseen(ctx context.Context, j *job.Job, t job.Target, script string, notes []string) (*capacity.Fit, error) {
	_, refusal, err := dryRun(ctx, j, t, script)
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		return &capacity.Fit{When: capacity.Never, By: "the cluster, which rejects it", Why: refusal.Error(), Notes: notes}, nil
	}
	return &capacity.Fit{When: capacity.Later, By: "the cluster, which accepts it", Why: "its start time is not known", Notes: notes}, nil
}

// Fits returns the planned start of a submitted job that waits. If the scheduler has not
// planned it, Fits estimates the start of another job like it.
func (s *Submission) Fits(ctx context.Context, dir string) (*capacity.Fit, error) {
	st, err := s.status(ctx, dir)
	if err != nil {
		return nil, err
	}
	if st.Running > 0 {
		return &capacity.Fit{When: capacity.Running, By: "its record, or the scheduler"}, nil
	}
	ctx = s.Within(ctx)
	if st.Waiting > 0 && s.Target != job.Local {
		c, err := listNodes(ctx, s.Target, "")
		if err != nil && s.Target.Pods() {
			return &capacity.Fit{When: capacity.Later, By: "the cluster, which has accepted it",
				Why: cmp.Or(st.Reason, "its start time is not known"), Notes: []string{err.Error()}}, nil
		}
		if err != nil {
			return nil, err
		}
		natives := s.natives()
		if p, ok := c.Planned[natives[len(natives)-1]]; ok {
			return &capacity.Fit{When: capacity.Later, Start: p.Start, Nodes: p.Nodes,
				By: "the scheduler, which has planned it", Why: st.Reason, Notes: c.Notes}, nil
		}
	}
	f, err := Fits(ctx, "", s.Job, s.Cluster)
	if err == nil && st.Waiting > 0 {
		f.Notes = append(f.Notes, "it waits ("+st.Reason+") and the scheduler has not planned it; this is for another job like it")
	}
	return f, err
}

// scripted returns a copy of the job that a batch script can run.
func scripted(j *job.Job) *job.Job {
	c := *j
	c.Interactive = false
	return &c
}

// dryRun lets the scheduler check a script; refusal is why it would reject the job.
// Without a dry run all results are nil.
func dryRun(ctx context.Context, j *job.Job, t job.Target, script string) (estimate *capacity.Estimate, refusal, err error) {
	dir, err := os.MkdirTemp("", "hpcc-fits-")
	if err != nil {
		return nil, nil, fmt.Errorf("writing the script of job %q: %w", j.Name, err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "script")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return nil, nil, fmt.Errorf("writing the script of job %q: %w", j.Name, err)
	}
	to, ok := systemOf(t).(batch.Estimator)
	if !ok {
		return nil, nil, nil
	}
	estimate, refusal = to.Estimate(ctx, j, file)
	if errors.As(refusal, new(*batch.NoAnswer)) {
		return nil, nil, refusal
	}
	return estimate, refusal, nil
}
