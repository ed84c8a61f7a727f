package kube

import (
	"slices"

	"hpcc/job"
	"hpcc/job/batch"
)

// Record writes the records of the tasks from what the cluster reports; see [batch.Keeper]. A complete
// record outlives its pod.
func (k System) Record(s *batch.Submitted, known map[string]batch.State) error {
	params := s.Job.Params
	if params.Reopen() != nil { // not fatal: the pods already have the values, and their file may have changed
		params = job.Params{}
	}
	for i, id := range s.Natives {
		list := ofNodes(s.Job, known[id])
		if k.Assign != nil {
			var err error
			if list, err = k.Assign(s, list); err != nil {
				return err
			}
		}
		for j := range list {
			if err := k.recordAttempt(s, i, &list[j], params); err != nil {
				return err
			}
		}
	}
	return nil
}

// recordAttempt writes the record of an attempt of the i-th native job.
func (k System) recordAttempt(s *batch.Submitted, i int, a *batch.Attempt, params job.Params) error {
	t := a.Task
	if s.Job.Workflow == nil {
		t.Index, _ = s.Arrays[i].Nth(t.Index + 1) // 0 without an array
	}
	t.Params = params.Row(t.Index)
	if before := (&job.Task{}); t.Native == "" && job.ReadRecord(s.Home, t.FileName(), before) { // its pod is gone
		t.Native, t.Host = before.Native, before.Host
	}
	rerun := k.Target != job.Argo && isIn(s.Arrays[i+1:], t.Index) // the rerun has renamed the record
	if rerun && !t.Ended() {
		return nil
	}
	keep := func() error { return nil }
	if s.Job.Measured() && t.Ended() {
		keep = func() error { return k.keepMeasured(s, a, &t) }
	}
	return t.WriteAttempt(s.Home, a.Last && !rerun, k.Target == job.Argo, keep)
}

// isIn reports whether one of the arrays contains a task; the zero Array is a single task.
func isIn(arrays []job.Array, index int) bool {
	return slices.ContainsFunc(arrays, func(a job.Array) bool { return a.IsZero() || a.Has(index) })
}

// ofNodes reduces the attempts of the pods of a multi-node job to one: the first that failed, else that
// of the first node, which counts as a success only when all nodes have succeeded.
func ofNodes(j *job.Job, st batch.State) []batch.Attempt {
	list := st.Tasks
	if !j.AcrossPods() || len(list) == 0 {
		return list
	}
	var one *batch.Attempt
	for i := range list {
		a := &list[i]
		if a.OK() && !st.Gone() {
			continue
		}
		if one == nil || explainsMore(a, one) {
			one = a
		}
	}
	if one == nil {
		return nil
	}
	one.Last = true
	return []batch.Attempt{*one}
}

// explainsMore reports whether a explains the failure of a job better than b: the first failure does.
func explainsMore(a, b *batch.Attempt) bool {
	bad, other := a.Ended() && !a.OK(), b.Ended() && !b.OK()
	switch {
	case bad && other:
		return a.End.Before(b.End)
	case bad || other:
		return bad
	}
	return a.Index < b.Index
}
