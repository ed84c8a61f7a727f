package argo

import (
	"context"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/kube"
)

// openLogs opens what the logs of a workflow come from: the server if one is named, else
// the pods.
func openLogs(ctx context.Context, workflow string) (kube.LogSource, error) {
	server, err := openServer(ctx)
	if err != nil {
		return nil, err
	}
	if server != nil {
		return stepLogs{&serverLogs{server, workflow}}, nil
	}
	api, err := kube.System{Target: job.Argo}.Open(ctx)
	return stepLogs{api}, err
}

// placeTasks finds the tasks of a workflow's attempts, by the template of a step and the index
// in its array. The steps of a workflow that somebody else wrote get numbers by their names,
// and keep them.
func placeTasks(s *batch.Submitted, list []batch.Attempt) ([]batch.Attempt, error) {
	if s.Job.Workflow != nil {
		return numbered(s.Home, list)
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
