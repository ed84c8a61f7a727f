package argo

import (
	"context"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/kube"
)

// openLogs opens the source of a workflow's logs: the server if one is named, else the pods.
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

// assignTasks assigns the attempts of a workflow to tasks, by the template of the step and the
// index in its array. In a user's own workflow each step name gets a number, which it keeps.
func assignTasks(s *batch.Submitted, list []batch.Attempt) ([]batch.Attempt, error) {
	if s.Job.Workflow != nil {
		return numberSteps(s.Home, list)
	}
	var out []batch.Attempt
	for _, a := range list {
		first, step := s.Job.Place(a.Template)
		if step == nil { // a step that never started has no pod; the step name begins with its task
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

// numberSteps sets the index of each attempt to the number of its step, from 0. A step that has a
// record in home keeps its number.
func numberSteps(home string, list []batch.Attempt) ([]batch.Attempt, error) {
	tasks, err := job.Tasks(home)
	if err != nil {
		return nil, err
	}
	next, numbers := 0, map[string]int{}
	for _, t := range tasks {
		numbers[t.Step] = t.Index
		next = max(next, t.Index+1)
	}
	for k := range next { // the record of a task that is retried was renamed
		before := &job.Task{}
		if job.ReadRecord(home, (&job.Task{Index: k}).EarlierName(0), before) {
			numbers[before.Step] = k
		}
	}
	for i := range list {
		a := &list[i]
		k, ok := numbers[a.Step]
		if !ok {
			k = next
			numbers[a.Step] = k
			next++
		}
		a.Index = k
	}
	return list, nil
}
