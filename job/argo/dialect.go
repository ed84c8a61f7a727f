package argo

import (
	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/kube"
)

// Dialect returns how pods have jobs written, of which Argo keeps an order; see
// [batch.Dialects].
func (System) Dialect() *dialect.Dialect {
	d := kube.System{Target: job.Argo}.Dialect()
	delete(d.Verdicts, field.After)
	delete(d.Verdicts, field.AfterAny)
	delete(d.Verdicts, field.AfterFailed)
	d.Verdicts[field.AfterEach] = field.Verdict{Fate: field.Refused, How: "Argo waits for whole arrays"}
	d.Verdicts[field.Nodes] = field.Verdict{Fate: field.Refused, How: "each pod of a workflow begins for itself", When: func(j *job.Job) bool { return j.Nodes > 1 }}
	d.Verdicts[field.Hold] = field.Verdict{Fate: field.Changed, How: "the workflow is suspended until \"argo resume\""}
	return d
}
