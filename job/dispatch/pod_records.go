package dispatch

import (
	"context"
	"slices"
	"strings"
	"time"

	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/batch"
	"hpcc/job/kube"
)

// openLogs is where the logs of a job's pods come from.
func (s *Submission) openLogs(ctx context.Context) (kube.LogSource, error) {
	if s.Target != job.Argo {
		return kube.System{Target: s.Target}.Open(ctx)
	}
	server, err := argo.OpenServer(ctx)
	if err != nil {
		return nil, err
	}
	if server != nil {
		return argo.StepLogs{LogSource: &argo.ServerLogs{Server: server, Workflow: s.Native}}, nil
	}
	api, err := kube.System{Target: job.Argo}.Open(ctx)
	return argo.StepLogs{LogSource: api}, err
}

// retryWorkflow has Argo run what failed of a workflow again; the tasks are those that a
// rerun would hand in.
func (s *Submission) retryWorkflow(ctx context.Context, home string, tasks []int) error {
	ctx = s.Within(ctx)
	api, err := argo.Open(ctx)
	if err != nil {
		return err
	}
	if err := api.Retry(ctx, s.Native); err != nil {
		return err
	}
	for _, k := range tasks {
		(&job.Task{Index: k}).Retire(home)
	}
	s.Reruns = append(s.Reruns, Rerun{Native: s.Native, Submitted: time.Now().UTC().Truncate(time.Second)})
	s.Cancelled, s.Over = time.Time{}, false
	return s.write(home)
}

// learn keeps what a scheduler tells of the tasks, where they keep no records themselves. A record that is
// whole stays as it is: pods go away before it does.
func (s *Submission) learn(home string, known map[string]batch.QueueState) error {
	params := s.Job.Params
	if params.Reopen() != nil { // the pods have them all the same: their file may change
		params = job.Params{}
	}
	for i, id := range s.natives() {
		array := s.Job.Array
		if i > 0 {
			array = s.Reruns[i-1].Array
		}
		list := s.ofNodes(known[id])
		if s.Target == job.Argo {
			var err error
			if list, err = s.placed(home, list); err != nil {
				return err
			}
		}
		for _, a := range list {
			t := a.Task
			if s.Job.Workflow == nil {
				t.Index, _ = array.Nth(t.Index + 1) // 0 without an array
			}
			t.Params = params.Row(t.Index)
			if before := (&job.Task{}); t.Native == "" && job.ReadRecord(home, t.FileName(), before) { // its pod went away
				t.Native, t.Host = before.Native, before.Host
			}
			over := s.Target != job.Argo && s.againAfter(i, t.Index) // what it was, a rerun has put aside
			if over && !t.Ended() {
				continue
			}
			keep := func() error { return nil }
			if s.Job.Measured() && t.Ended() {
				keep = func() error { return s.keepMeasured(home, &a, &t) }
			}
			if err := t.Learn(home, a.Last && !over, s.Target == job.Argo, keep); err != nil {
				return err
			}
		}
	}
	return nil
}

// againAfter says whether a task was handed in again after the i-th time.
func (s *Submission) againAfter(i, index int) bool {
	return slices.ContainsFunc(s.Reruns[i:], func(r Rerun) bool {
		return r.Array.IsZero() || r.Array.Has(index)
	})
}

// ofNodes makes one record of those of the pods of a job of several nodes: that of the first that
// failed, else of the first node, which has not succeeded before all have. The program of a Ray is the first node's alone.
func (s *Submission) ofNodes(st batch.QueueState) []batch.Attempt {
	list := st.Tasks
	if !s.Job.AcrossPods() || len(list) == 0 {
		return list
	}
	if i := slices.IndexFunc(list, func(a batch.Attempt) bool { return a.Index == 0 }); s.Job.Ray && (i >= 0 || !st.Gone()) {
		list = list[max(i, 0) : i+1]
	}
	var one *batch.Attempt
	for i := range list {
		a := &list[i]
		if a.OK() && !s.Job.Ray && !st.Gone() {
			continue
		}
		if one == nil || tellsMore(a, one) {
			one = a
		}
	}
	if one == nil {
		return nil
	}
	one.Last = true
	return []batch.Attempt{*one}
}

// tellsMore says whether an attempt of one node tells more of a job than that of another.
func tellsMore(a *batch.Attempt, b *batch.Attempt) bool {
	bad, other := a.Ended() && !a.OK(), b.Ended() && !b.OK()
	switch {
	case bad && other:
		return a.End.Before(b.End)
	case bad || other:
		return bad
	}
	return a.Index < b.Index
}

// placed says of which task of the job the attempts of a workflow are: by the template of a step and the place
// in its array, or, of a workflow that somebody wrote, by the step's name, which keeps the number that
// it got first.
func (s *Submission) placed(home string, list []batch.Attempt) ([]batch.Attempt, error) {
	if s.Job.Workflow != nil {
		return numbered(home, list)
	}
	var out []batch.Attempt
	for _, a := range list {
		first, step := s.Job.Place(a.Template)
		if step == nil { // of a step that never began the task has a name, and what would have run it has not
			task, _, _ := strings.Cut(a.Step, ".")
			first, step = s.Job.Place(task)
		}
		name := ""
		if step == nil {
			step = s.Job
		} else {
			name = step.Name
		}
		a.Step = name
		a.Index += first
		out = append(out, a)
		for k := 1; a.All && k < step.Count(); k++ {
			a.Index++
			out = append(out, a)
		}
	}
	return out, nil
}

// numbered gives steps numbers, from 0 on.
func numbered(home string, list []batch.Attempt) ([]batch.Attempt, error) {
	tasks, err := job.Tasks(home)
	if err != nil {
		return nil, err
	}
	next, of := 0, map[string]int{}
	for _, t := range tasks {
		of[t.Step] = t.Index
		next = max(next, t.Index+1)
	}
	for k := range next { // of what runs again, the record stands aside
		before := &job.Task{}
		if job.ReadRecord(home, (&job.Task{Index: k}).EarlierName(0), before) {
			of[before.Step] = k
		}
	}
	for i := range list {
		a := &list[i]
		k, ok := of[a.Step]
		if !ok {
			k = next
			of[a.Step] = k
			next++
		}
		a.Index = k
	}
	return list, nil
}
