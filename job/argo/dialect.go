package argo

import (
	"context"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/field"
)

// Describe returns the properties of Argo for other packages; see [batch.System].
func (a System) Describe() *batch.Description {
	d := a.System.Describe()
	d.Command, d.Product = "argo", "Argo Workflows"
	d.Version, d.Ping = []string{"argo", "version", "--short"}, []string{"argo", "list", "--request-timeout=2s"}
	delete(d.Verdicts, field.After)
	delete(d.Verdicts, field.AfterAny)
	delete(d.Verdicts, field.AfterFailed)
	d.Verdicts[field.AfterEach] = field.Verdict{Fate: field.Refused, How: "Argo waits for full arrays, not for their tasks"}
	d.Verdicts[field.Nodes] = field.Verdict{Fate: field.Refused, How: "the pods of a workflow start independently",
		When: func(j *job.Job) bool { return j.Nodes > 1 }}
	d.Verdicts[field.Hold] = field.Verdict{Fate: field.Changed, How: "the workflow is suspended until \"argo resume\""}
	d.Retry = func(ctx context.Context, id string) error {
		api, err := open(ctx)
		if err != nil {
			return err
		}
		return api.retry(ctx, id)
	}
	return d
}
