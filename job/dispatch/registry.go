package dispatch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/batch"
	"hpcc/job/gridengine"
	"hpcc/job/kube"
	"hpcc/job/local"
	"hpcc/job/lsf"
	"hpcc/job/pbs"
	"hpcc/job/slurm"
)

// systems are all targets.
var systems = map[job.Target]batch.System{
	job.Slurm: slurm.System{}, job.LSF: lsf.System{}, job.GridEngine: gridengine.System{}, job.PBS: pbs.System{}, job.Local: local.System{},
	job.Kubernetes: kube.System{Target: job.Kubernetes}, job.OpenShift: kube.System{Target: job.OpenShift}, job.Argo: argo.System{},
}

// targets are all that [Render] writes for, by name.
func targets() []job.Target { return slices.Sorted(maps.Keys(systems)) }

// Detect finds the scheduler of this machine; without one, tasks run here.
func Detect(ctx context.Context) job.Target {
	for _, t := range targets() {
		if t != job.Local && systems[t].Detect(ctx) {
			return t
		}
	}
	return job.Local
}

// Render writes the job as a script of the target. Notes say what the target
// does not do of what was asked; what would change the job's meaning is an
// error instead. The script's size does not depend on the number of tasks.
func Render(j *job.Job, t job.Target) (script string, notes []string, err error) {
	if err := j.Check(); err != nil {
		return "", nil, err
	}
	to := systems[t]
	if to == nil {
		return "", nil, fmt.Errorf("target %q: known are %s", t, known())
	}
	if t != job.Argo && (len(j.Steps) > 0 || j.Workflow != nil || len(j.Artifacts) > 0) {
		return "", nil, fmt.Errorf("target %s has no workflows; --to argo has", t)
	}
	return to.Render(j)
}

// known lists the targets for people.
func known() string {
	var names []string
	for _, t := range targets() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}
