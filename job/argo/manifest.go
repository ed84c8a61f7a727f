package argo

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"hpcc/job"
	"hpcc/job/kube"
	"hpcc/text"
)

// The types below are the part of the API of Argo Workflows 3.5 and later that hpcc writes, with
// the names of Argo's field reference.

const argoVersion = "argoproj.io/v1alpha1"

type workflowObject struct {
	kube.Object
	Spec workflowSpec `json:"spec"`
}

type workflowSpec struct {
	Entrypoint         string             `json:"entrypoint"`
	Suspend            bool               `json:"suspend,omitempty"`
	ServiceAccountName string             `json:"serviceAccountName,omitempty"`
	ImagePullSecrets   []kube.Named       `json:"imagePullSecrets,omitempty"`
	PodMetadata        kube.Meta          `json:"podMetadata,omitzero"`
	SecurityContext    kube.PodSecurity   `json:"securityContext,omitzero"`
	TTLStrategy        ttlStrategy        `json:"ttlStrategy"`
	Templates          []workflowTemplate `json:"templates"`
}

type ttlStrategy struct {
	SecondsAfterCompletion int64 `json:"secondsAfterCompletion"`
}

type workflowTemplate struct {
	Name                  string            `json:"name"`
	Metadata              kube.Meta         `json:"metadata,omitzero"`
	Inputs                *workflowIO       `json:"inputs,omitempty"`
	Outputs               *workflowIO       `json:"outputs,omitempty"`
	Parallelism           int               `json:"parallelism,omitempty"`
	DAG                   *workflowDAG      `json:"dag,omitempty"`
	ActiveDeadlineSeconds int64             `json:"activeDeadlineSeconds,omitempty"`
	RetryStrategy         *retryStrategy    `json:"retryStrategy,omitempty"`
	NodeSelector          map[string]string `json:"nodeSelector,omitempty"`
	Affinity              *kube.Affinity    `json:"affinity,omitempty"`
	Tolerations           []kube.Toleration `json:"tolerations,omitempty"`
	Volumes               []kube.Volume     `json:"volumes,omitempty"`
	Container             *kube.Container   `json:"container,omitempty"`
	Sidecars              []kube.Container  `json:"sidecars,omitempty"`
	PodSpecPatch          string            `json:"podSpecPatch,omitempty"`
}

type workflowDAG struct {
	FailFast bool           `json:"failFast"`
	Tasks    []workflowTask `json:"tasks"`
}

type workflowTask struct {
	Name         string            `json:"name"`
	Template     string            `json:"template"`
	Depends      string            `json:"depends,omitempty"`
	Arguments    *workflowIO       `json:"arguments,omitempty"`
	WithSequence *workflowSequence `json:"withSequence,omitempty"`
}

type workflowSequence struct {
	Count string `json:"count"`
}

type workflowIO struct {
	Parameters []workflowValue    `json:"parameters,omitempty"`
	Artifacts  []workflowArtifact `json:"artifacts,omitempty"`
}

type workflowValue struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

type workflowArtifact struct {
	Name string `json:"name"`
	Path string `json:"path,omitempty"`
	From string `json:"from,omitempty"`

	Location map[string]any `json:"-"` // all fields of an artifact of another workflow, instead of the others
}

// MarshalJSON writes Location, if it is set.
func (a workflowArtifact) MarshalJSON() ([]byte, error) {
	if a.Location != nil {
		return json.Marshal(a.Location)
	}
	type fields workflowArtifact
	return json.Marshal(fields(a))
}

type retryStrategy struct {
	Limit       string `json:"limit"`
	RetryPolicy string `json:"retryPolicy"`
	Expression  string `json:"expression,omitempty"`
}

// Names within a workflow, and its limits: Argo keeps the state of all tasks in one object.
const (
	entryTemplate = "main"
	placeVar      = "HPCC_TASK_PLACE" // position of the task in its array, from 0
	placeInput    = "place"
	maxSteps      = 5000 // pods of one workflow
)

// newWorkflow returns the Workflow of a job, or of its steps.
func newWorkflow(j *job.Job, name string) *workflowObject {
	labels := kube.Labels(j, name)
	spec := workflowSpec{
		Entrypoint: entryTemplate, PodMetadata: kube.Meta{Labels: kube.QueueLabels(j, name)},
		SecurityContext: kube.SecurityOf(j, job.Argo), Suspend: j.Hold,
		TTLStrategy: ttlStrategy{int64(kube.KeepEnded / time.Second)}, ServiceAccountName: j.Pod.ServiceAccount,
	}
	for _, s := range j.Steps {
		if own := kube.SecurityOf(s, job.Argo); own.FSGroup > 0 { // needed by a step's volumes
			spec.SecurityContext = own
		}
	}
	if j.Pod.PullSecret != "" {
		spec.ImagePullSecrets = []kube.Named{{Name: j.Pod.PullSecret}}
	}
	if len(j.Steps) == 0 && j.Array.IsZero() {
		t := newTemplate(j)
		t.Name = entryTemplate
		spec.Templates = []workflowTemplate{t}
	} else {
		spec.Templates = orderedTemplates(j)
		spec.Entrypoint = spec.Templates[0].Name
	}
	return &workflowObject{kube.Object{APIVersion: argoVersion, Kind: "Workflow", Metadata: kube.Meta{Name: name, Labels: labels}}, spec}
}

// orderedTemplates returns the templates of several tasks: a DAG with their order, and one for each
// step.
func orderedTemplates(j *job.Job) []workflowTemplate {
	steps := j.Steps
	if len(steps) == 0 {
		steps = []*job.Job{j}
	}
	// A failed task does not stop the others.
	dag := workflowTemplate{Name: free(entryTemplate, steps), DAG: &workflowDAG{}}
	if len(j.Steps) == 0 {
		dag.Parallelism = j.Array.Limit
	}
	all := []workflowTemplate{}
	for _, s := range steps {
		t := newTemplate(s)
		task := workflowTask{Name: t.Name, Template: t.Name, Depends: depends(s)}
		var in workflowIO
		if !s.Array.IsZero() {
			task.WithSequence = &workflowSequence{strconv.Itoa(s.Count())}
			in.Parameters = []workflowValue{{placeInput, "{{item}}"}}
			t.Inputs = &workflowIO{Parameters: []workflowValue{{Name: placeInput}}}
			t.Container.Env = append([]kube.EnvVar{{Name: placeVar, Value: "{{inputs.parameters." + placeInput + "}}"}}, t.Container.Env...)
		}
		for _, a := range j.Before(s) {
			in.Artifacts = append(in.Artifacts, workflowArtifact{Name: a.Name,
				From: "{{tasks." + job.Label(a.Step) + ".outputs.artifacts." + a.Name + "}}"})
			if t.Inputs == nil {
				t.Inputs = &workflowIO{}
			}
			t.Inputs.Artifacts = append(t.Inputs.Artifacts, workflowArtifact{Name: a.Name, Path: a.Path})
		}
		if len(in.Parameters)+len(in.Artifacts) > 0 {
			task.Arguments = &in
		}
		if s.Array.Limit > 0 && len(j.Steps) > 0 { // a separate template limits how many run
			dag.DAG.Tasks = append(dag.DAG.Tasks, limited(s, &task, free(task.Name+"-array", steps), &all))
		} else {
			dag.DAG.Tasks = append(dag.DAG.Tasks, task)
		}
		all = append(all, t)
	}
	return append([]workflowTemplate{dag}, all...)
}

// free returns a template name that no step has.
func free(name string, steps []*job.Job) string {
	for slices.ContainsFunc(steps, func(s *job.Job) bool { return job.Label(s.Name) == name }) {
		name += "-0"
	}
	return name
}

// limited moves an array with a limit to a template that enforces it.
func limited(j *job.Job, task *workflowTask, name string, all *[]workflowTemplate) workflowTask {
	inner := workflowTemplate{Name: name, Parallelism: j.Array.Limit, DAG: &workflowDAG{}}
	outer := workflowTask{Name: task.Name, Template: inner.Name, Depends: task.Depends}
	if a := task.Arguments.Artifacts; len(a) > 0 {
		outer.Arguments = &workflowIO{Artifacts: slices.Clone(a)}
		inner.Inputs = &workflowIO{}
		for i := range a {
			inner.Inputs.Artifacts = append(inner.Inputs.Artifacts, workflowArtifact{Name: a[i].Name})
			a[i].From = "{{inputs.artifacts." + a[i].Name + "}}"
		}
	}
	task.Depends = ""
	inner.DAG.Tasks = []workflowTask{*task}
	*all = append(*all, inner)
	return outer
}

// depends returns the dependencies of a step as an Argo expression.
func depends(j *job.Job) string {
	var all []string
	for _, d := range []struct {
		names  []string
		format string
	}{
		{j.After, "%[1]s.Succeeded"},
		{j.AfterAny, "(%[1]s.Succeeded || %[1]s.Failed || %[1]s.Errored)"},
		{j.AfterFailed, "(%[1]s.Failed || %[1]s.Errored)"},
	} {
		for _, n := range d.names {
			all = append(all, fmt.Sprintf(d.format, job.Label(n)))
		}
	}
	return strings.Join(all, " && ")
}

// newTemplate returns the template that runs one task of the job: the pod of the other targets, with
// Argo's field names.
func newTemplate(j *job.Job) workflowTemplate {
	p := kube.NewPod(j, job.Argo, placeVar)
	c := &p.Containers[0]
	c.StartWith(j.Entrypoint())
	t := workflowTemplate{
		Name: job.Label(j.Name), ActiveDeadlineSeconds: p.ActiveDeadlineSeconds, RetryStrategy: newRetryStrategy(j),
		NodeSelector: p.NodeSelector,
		Affinity:     p.Affinity, Tolerations: p.Tolerations, Volumes: p.Volumes, Container: c,
	}
	if t.Affinity != nil && t.Affinity.PodAntiAffinity != nil {
		other := t.Affinity.PodAntiAffinity.Required[0]
		other.LabelSelector.MatchExpressions = []kube.Requirement{{Key: "workflows.argoproj.io/workflow", Operator: "Exists"}}
		t.Affinity.PodAntiAffinity.Required = append(t.Affinity.PodAntiAffinity.Required, other)
	}
	t.Metadata, t.PodSpecPatch = p.Native()
	for _, side := range p.InitContainers { // Argo ends sidecars with the program
		side.RestartPolicy = ""
		side.StartWith(j.Pod.Entrypoint)
		t.Sidecars = append(t.Sidecars, side)
	}
	for _, a := range j.Artifacts {
		if t.Outputs == nil {
			t.Outputs = &workflowIO{}
		}
		t.Outputs.Artifacts = append(t.Outputs.Artifacts, workflowArtifact{Name: a.Name, Path: a.Path})
	}
	return t
}

// newRetryStrategy returns which endings are retried. A task that reached its time limit is not,
// because it would reach it again. A pod that was lost with its node has no exit status.
func newRetryStrategy(j *job.Job) *retryStrategy {
	const late = `!(lastRetry.message contains "longer than the specified deadline")`
	switch {
	case j.Retry.Times == 0 && j.Requeueing() == "yes":
		return &retryStrategy{Limit: "3", RetryPolicy: "OnError"}
	case j.Retry.Times == 0:
		return nil
	}
	r := &retryStrategy{Limit: strconv.Itoa(j.Retry.Times), RetryPolicy: "Always", Expression: late}
	if len(j.Retry.Endings) == 0 {
		return r
	}
	codes, node := j.Retry.Statuses()
	var any []string
	if len(codes) > 0 {
		any = append(any, "asInt(lastRetry.exitCode) in ["+strings.ReplaceAll(strings.Trim(fmt.Sprint(codes), "[]"), " ", ", ")+"]")
	}
	if node {
		any = append(any, `lastRetry.status == "Error"`)
	}
	r.Expression = strings.Join(any, " || ")
	return r
}

// argoValue matches what Argo replaces with a value; it leaves other braces unchanged.
var argoValue = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\{\{\s*(=|(inputs|outputs|workflow|tasks|steps|item|pod|node|retries|lastRetry)\b)[^}]*\}\}`)
})

// checkArtifacts returns an error for an artifact of an earlier step whose path is that of a volume.
func (w *workflowObject) checkArtifacts() error {
	for _, t := range w.Spec.Templates {
		if t.Inputs == nil || t.Container == nil {
			continue
		}
		for _, a := range t.Inputs.Artifacts {
			for _, m := range t.Container.VolumeMounts {
				if m.MountPath == a.Path {
					return fmt.Errorf("step %s: artifact %s: a volume is mounted at its path %s; choose another path for one of them",
						t.Name, a.Name, a.Path)
				}
			}
		}
	}
	return nil
}

// check returns an error for settings that workflows do not support.
func check(j *job.Job) error {
	if err := kube.Check(j, job.Argo); err != nil {
		return err
	}
	texts := slices.Concat(j.Args, j.Env, j.Pod.Env, j.Native)
	if j.Script != nil {
		texts = append(append(texts, j.Script.Body), j.Script.Args...)
	}
	for _, s := range texts {
		if v := argoValue().FindString(s); v != "" {
			return fmt.Errorf("%q: Argo would replace it with a value; separate the braces, as in { {", text.Short(v))
		}
	}
	switch {
	case j.Interactive:
		return fmt.Errorf("an interactive job has no steps: --to kubernetes runs one, and \"hpcc attach\" enters a step that runs")
	case j.Nodes > 1:
		return fmt.Errorf("%d nodes: Argo starts each pod separately; --to kubernetes starts them together", j.Nodes)
	case j.Count() > maxSteps:
		return fmt.Errorf("%d tasks: a workflow has at most %d, because one object holds the state of all; --to kubernetes "+
			"allows more", j.Count(), maxSteps)
	case !j.Array.IsZero() && len(j.Artifacts) > 0:
		return fmt.Errorf("artifact %s: the tasks of the array would overwrite each other's; put it on a volume (--volume "+
			"CLAIM:PATH)", j.Artifacts[0].Name)
	}
	return nil
}
