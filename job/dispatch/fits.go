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

// Fits asks the scheduler, and counts, where and when the job would start if it
// were handed in now. Of an array it is about one task. Nothing is handed in.
func Fits(ctx context.Context, j *job.Job, t job.Target) (*capacity.Fit, error) {
	script, notes, err := Render(scripted(j), t)
	if err != nil {
		return nil, err
	}
	if t == job.Local {
		host, _ := os.Hostname()
		return &capacity.Fit{When: capacity.Now, Nodes: []string{host}, By: "hpcc: nobody waits on this machine", Notes: notes}, nil
	}
	c, err := listNodes(ctx, t, j.Queue)
	if err != nil && t.Pods() { // whose users mostly may not see nodes
		return unseen(ctx, j, t, script, append(notes, err.Error()))
	}
	if err != nil {
		return nil, err
	}
	queue := cmp.Or(j.Queue, c.Queue)
	c.Keep(queue)
	x := capacity.NewNeed(j, c.Usual[queue], descriptionOf(t).Adjust)
	counted := x.Fit(c, queue, time.Now())
	said, refusal, err := dryRun(ctx, j, t, script)
	if err != nil {
		return nil, err
	}
	f := x.Judge(counted, said, refusal, len(c.Planned) > 0)
	f.Notes = append(append(f.Notes, notes...), c.Notes...)
	if u := x.Uncounted(); said == nil && len(u) > 0 {
		f.Notes = append(f.Notes, "not counted: "+strings.Join(u, ", "))
	}
	if before := slices.Concat(j.After, j.AfterAny, j.AfterFailed, j.AfterEach); len(before) > 0 && f.When != capacity.Never {
		f.Notes = append(f.Notes, "it waits for jobs first: "+strings.Join(before, ", "))
	}
	if j.Array.Count() > 1 {
		f.Notes = append(f.Notes, fmt.Sprintf("this is of one task; there are %d", j.Array.Count()))
	}
	return f, nil
}

// unseen is what can be said of a cluster that does not show its nodes: whether it takes the job.
func unseen(ctx context.Context, j *job.Job, t job.Target, script string, notes []string) (*capacity.Fit, error) {
	_, refusal, err := dryRun(ctx, j, t, script)
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		return &capacity.Fit{When: capacity.Never, By: "the cluster, which refuses it", Why: refusal.Error(), Notes: notes}, nil
	}
	return &capacity.Fit{When: capacity.Later, By: "the cluster, which takes it", Why: "when there is room, nobody says", Notes: notes}, nil
}

// Fits says so of a job that was handed in: of one that waits, its own start, else
// when it would start if it were handed in again.
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
			return &capacity.Fit{When: capacity.Later, By: "the cluster, which has taken it", Why: cmp.Or(st.Reason, "when there is room, nobody says"), Notes: []string{err.Error()}}, nil
		}
		if err != nil {
			return nil, err
		}
		natives := s.natives()
		if p, ok := c.Planned[natives[len(natives)-1]]; ok {
			return &capacity.Fit{When: capacity.Later, Start: p.Start, Nodes: p.Nodes, By: "the scheduler, which has planned it", Why: st.Reason, Notes: c.Notes}, nil
		}
	}
	f, err := Fits(ctx, s.Job, s.Target)
	if err == nil && st.Waiting > 0 {
		f.Notes = append(f.Notes, "it waits already ("+st.Reason+"), and the scheduler has not planned it; this is of one more like it")
	}
	return f, err
}

// scripted is the job as one that a script of can be handed in.
func scripted(j *job.Job) *job.Job {
	c := *j
	c.Interactive = false
	return &c
}

// dryRun has the scheduler look at a script; refusal is why it would not take it.
// A scheduler without a dry run says nothing.
func dryRun(ctx context.Context, j *job.Job, t job.Target, script string) (said *capacity.Estimate, refusal, err error) {
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
	said, refusal = to.Estimate(ctx, j, file)
	if errors.As(refusal, new(*batch.NoAnswer)) {
		return nil, nil, refusal
	}
	return said, refusal, nil
}
