package dispatch

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/batch"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/job/gridengine"
	"hpcc/job/kube"
	"hpcc/job/local"
	"hpcc/job/lsf"
	"hpcc/job/node"
	"hpcc/job/pbs"
	"hpcc/job/slurm"
	"hpcc/job/snakemake"
	"hpcc/job/translate"
)

// registry lists all batch systems, in the order in which messages name them.
var registry = []batch.System{
	slurm.System{}, lsf.System{}, gridengine.System{}, pbs.System{}, local.System{},
	kube.System{Target: job.Kubernetes}, kube.System{Target: job.OpenShift}, argo.New(),
}

// systemOf returns the batch system of a target, or nil if there is none.
func systemOf(t job.Target) batch.System {
	for _, s := range registry {
		if s.Describe().Target == t {
			return s
		}
	}
	return nil
}

// describe returns the descriptions of all batch systems.
func describe() (list []*batch.Description) {
	for _, s := range registry {
		list = append(list, s.Describe())
	}
	return list
}

// descriptionOf returns the description of a target; for an unknown one it holds only the name.
func descriptionOf(t job.Target) *batch.Description {
	if s := systemOf(t); s != nil {
		return s.Describe()
	}
	return &batch.Description{Dialect: &dialect.Dialect{Target: t, Title: string(t)}}
}

// targets returns the names of all targets, sorted.
func targets() (names []job.Target) {
	for _, d := range describe() {
		names = append(names, d.Target)
	}
	slices.Sort(names)
	return names
}

// Translator returns a translator of the scripts of all batch systems, and of Snakemake.
func Translator() (t translate.Translator) {
	for _, d := range describe() {
		t = append(t, d.Dialect)
	}
	return append(t, &snakemake.Dialect)
}

// OnNode returns the batch systems that a task can run under, for detection on its node.
func OnNode() (list node.Schedulers) {
	for _, d := range describe() {
		if d.Node != nil {
			list = append(list, d.Node)
		}
	}
	return list
}

// Detect returns the scheduler of this machine, or job.Local if there is none.
func Detect(ctx context.Context) job.Target {
	for _, t := range targets() {
		if t != job.Local && systemOf(t).Detect(ctx) {
			return t
		}
	}
	return job.Local
}

// Render returns the job as a script of the target. Notes list the settings that the target
// ignores; a setting whose loss would change the job's meaning is an error instead. The
// script's size does not depend on the number of tasks.
func Render(j *job.Job, t job.Target) (script string, notes []string, err error) {
	if err := j.Check(); err != nil {
		return "", nil, err
	}
	to := systemOf(t)
	if to == nil {
		return "", nil, unknownTarget(t)
	}
	if t != job.Argo && (len(j.Steps) > 0 || j.Workflow != nil || len(j.Artifacts) > 0) {
		return "", nil, fmt.Errorf("target %s does not support workflows; use --to argo", t)
	}
	if t.Pods() && j.Retry.Grows() {
		return "", nil, fmt.Errorf("target %s does not support --retry-mem and --retry-time: hpcc does not run next to its pods and cannot submit them again; use \"hpcc rerun --mem SIZE\"", t)
	}
	if v := to.Describe().Dialect.Verdicts[field.GPUType]; j.GPUType != "" && v.Fate == field.Refused {
		return "", nil, fmt.Errorf("--gpu-type %s: %s; leave it out and pass %s the type with --native",
			j.GPUType, v.How, to.Describe().Title)
	}
	for _, o := range j.Native {
		if !t.Pods() && strings.ContainsAny(o, "\n\r\x00") {
			return "", nil, fmt.Errorf("option %q: contains a line break, which a directive cannot hold", o)
		}
	}
	for _, part := range append(slices.Clone(j.Steps), j) {
		if s := part.Script; s != nil {
			from := descriptionOf(s.From)
			s.FromTitle, s.Sets = from.Title, from.Variables
		}
	}
	if j.Pack == nil {
		return to.Render(j)
	}
	if t.Pods() {
		return "", nil, fmt.Errorf("target %s does not support --pack: its pods do not share the records of the tasks; use --array with a limit, such as --array 1-10000%%100", t)
	}
	script, notes, err = to.Render(j.Allocation(t != job.Local))
	if err == nil && j.TasksPerNode == 0 && !j.Exclusive && t != job.Local {
		notes = append(notes, "--pack takes full nodes; --tasks-per-node N requests CPUs and memory for N tasks at once on each node")
	}
	return script, notes, err
}

// unknownTarget is the error for a target that hpcc does not know.
func unknownTarget(t job.Target) error {
	return fmt.Errorf("unknown target %q; known targets: %s", t, known())
}

// known returns the targets for messages.
func known() string {
	var names []string
	for _, t := range targets() {
		names = append(names, string(t))
	}
	return strings.Join(names, ", ")
}
