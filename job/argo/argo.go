// Package argo writes workflows for Argo 3.5 or later, submits users' workflows, and talks to an
// Argo server or, without one, to Kubernetes through kubectl.
package argo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/kube"
)

// System is Argo Workflows 3.5 or later, through its server or kubectl.
type System struct{ kube.System }

// New returns the system.
func New() System {
	return System{kube.System{Target: job.Argo, Source: openLogs, Assign: assignTasks}}
}

// A workflowAPI accesses workflows in the namespace of the context's cluster.
type workflowAPI interface {
	// create submits a workflow, or only validates it if dry is set, and returns the stored object.
	create(ctx context.Context, wf *item, dry bool) (json.RawMessage, error)
	// template returns a WorkflowTemplate of the namespace.
	template(ctx context.Context, name string) (json.RawMessage, error)
	// get returns the state of a workflow, or nil if no workflow has that name.
	get(ctx context.Context, name string) (*Workflow, error)
	// why returns a reader of the pods of workflows.
	why(ctx context.Context, names []string) *kube.StepReader
	terminate(ctx context.Context, name string) error
	// retry reruns the failed steps of a workflow that has ended.
	retry(ctx context.Context, name string) error
}

// open returns the API of the server if one is named, else that of kubectl.
func open(ctx context.Context) (workflowAPI, error) {
	s, err := openServer(ctx)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return argoKubectl{}, nil
	}
	return s, nil
}

// Detect always returns false; see [kube.System.Detect].
func (System) Detect(context.Context) bool { return false }

// Render returns the workflow as YAML.
func (a System) Render(j *job.Job) (string, []string, error) {
	text, notes, err := a.manifest(j, job.Label(j.Name))
	if err == nil && j.Workflow == nil && job.Label(j.Name) != j.Name {
		notes = append(notes, fmt.Sprintf("the job name %s is not a DNS label; the workflow uses %s", j.Name, job.Label(j.Name)))
	}
	return text, notes, err
}

// manifest returns the workflow as YAML, under the given name.
func (System) manifest(j *job.Job, name string) (string, []string, error) {
	if j.Workflow != nil {
		if j.Workflow.Manifest == "" {
			return "", nil, errors.New("the workflow was already submitted; its manifest is in the job's directory")
		}
		return j.Workflow.Manifest, j.Workflow.Notes, nil
	}
	var notes []string
	steps := j.Steps
	if len(steps) == 0 {
		steps = []*job.Job{j}
		if n := len(j.After) + len(j.AfterAny) + len(j.AfterFailed) + len(j.AfterEach); n > 0 {
			return "", nil, errors.New("a workflow cannot depend on jobs outside it; give all scripts, each with --from")
		}
	}
	for _, s := range steps {
		if err := check(s); err != nil {
			if len(j.Steps) > 0 {
				err = fmt.Errorf("step %s: %w", s.Name, err)
			}
			return "", nil, err
		}
		for _, n := range notesOf(s) {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
	}
	if j.Count() > maxSteps {
		return "", nil, fmt.Errorf("%d tasks: a workflow has at most %d", j.Count(), maxSteps)
	}
	wf := newWorkflow(j, name)
	if err := wf.checkArtifacts(); err != nil {
		return "", nil, err
	}
	text, err := kube.Documents(fmt.Sprintf("# Written by hpcc for %s. Submit it with argo submit.\n", j.Title()), wf)
	if err == nil && len(text) > kube.MaxManifest {
		err = fmt.Errorf("the manifest of job %q has %d bytes, above Kubernetes' limit of %d; put the scripts and the "+
			"parameters into the image", j.Name, len(text), kube.MaxManifest)
	}
	if err != nil {
		return "", nil, err
	}
	return text, notes, nil
}

// notesOf returns notes for users who come from another scheduler.
func notesOf(j *job.Job) []string {
	notes := kube.Notes(j, job.Argo)
	if j.Queue != "" {
		notes = append(notes, fmt.Sprintf("queue %s is a LocalQueue of Kueue, which decides when the pods start, if it manages pods", j.Queue))
	}
	if len(j.Native) > 0 {
		notes = append(notes, "Argo ignores fields of --native that pods do not have; \"hpcc submit\" checks their names "+
			"through kubectl, but cannot through an Argo server")
	}
	return notes
}

// Submit submits the workflow under the job's ID. First the server must have validated it, and must
// not drop any field.
func (a System) Submit(ctx context.Context, r *batch.Request) error {
	name := job.Label(r.ID)
	text, _, err := a.manifest(r.Job, name)
	if err != nil {
		return err
	}
	docs, err := readManifests(r.Script, []byte(text))
	if err != nil {
		return err
	}
	wf := docs[0].root
	if r.Job.Workflow != nil {
		wf.at("metadata").label(kube.Labels(r.Job, name))
	}
	if text, err = kube.Documents("", wf); err != nil {
		return err
	}
	if err := r.Rewrite(text); err != nil {
		return fmt.Errorf("writing the manifest of job %q: %w", r.Job.Name, err)
	}
	api, err := open(ctx)
	if err != nil {
		return err
	}
	if err := a.validate(ctx, api, r.Job, wf); err != nil {
		return err
	}
	stored, err := api.create(ctx, wf, false)
	if err != nil {
		return fmt.Errorf("submitting job %q to Argo: %w", r.Job.Name, err)
	}
	var created Workflow
	if err := json.Unmarshal(stored, &created); err != nil || created.Metadata.Name == "" {
		return fmt.Errorf("submitting job %q to Argo: the answer does not contain the name of the workflow", r.Job.Name)
	}
	r.Native = created.Metadata.Name
	return nil
}

// label adds labels to metadata.
func (it *item) label(labels map[string]string) {
	all := it.at("labels")
	if all == nil {
		all = &item{path: "metadata.labels"}
		it.set("labels", all)
	}
	for k, v := range labels {
		it := scalarItem(v)
		it.path = joinPath(all.path, k)
		all.set(k, it)
	}
}

// validate lets the server check a workflow without creating it. A field that the server would drop
// is an error. The API server of Kubernetes knows at most the fields of a workflow, so kubectl's route
// has further checks.
func (System) validate(ctx context.Context, api workflowAPI, j *job.Job, wf *item) error {
	stored, err := api.create(ctx, wf, true)
	if err != nil {
		return fmt.Errorf("validating job %q with Argo: %w", j.Name, err)
	}
	lost, err := lostFields(wf, stored)
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("the server would silently drop %s; it does not know or does not allow them",
			strings.Join(lost[:min(len(lost), maxProblems)], ", "))
	}
	k, viaKubectl := api.(argoKubectl)
	switch {
	case err != nil || !viaKubectl:
		return err
	case j.Workflow != nil:
		return k.lint(ctx, wf)
	}
	return k.checkNative(ctx, j)
}

// Estimate returns the server's refusal, if any. Argo cannot estimate a start time.
func (a System) Estimate(ctx context.Context, j *job.Job, script string) (*capacity.Estimate, error) {
	text, err := os.ReadFile(script)
	if err != nil {
		return nil, err
	}
	docs, err := readManifests("the workflow", text)
	if err != nil {
		return nil, err
	}
	api, err := open(ctx)
	if err != nil {
		return nil, err
	}
	return nil, a.validate(ctx, api, j, docs[0].root)
}

// Nodes returns the resources of the nodes, in total and free.
func (a System) Nodes(ctx context.Context, queue string) (*capacity.Snapshot, error) {
	if invoke.Getenv(ctx, ServerVariable) != "" {
		return nil, errors.New("an Argo server cannot list nodes")
	}
	return a.System.Nodes(ctx, queue)
}

// Cancel ends the tasks of the job.
func (System) Cancel(ctx context.Context, id string) error {
	api, err := open(ctx)
	if err == nil {
		err = api.terminate(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("cancelling workflow %s: %w", id, err)
	}
	return nil
}

// QueryKept is Query: a workflow has the states of all its steps; see [batch.Keeper].
func (a System) QueryKept(ctx context.Context, list []*batch.Submitted) (map[string]batch.State, error) {
	var ids []string
	for _, s := range list {
		ids = append(ids, s.Natives...)
	}
	return a.Query(ctx, ids)
}

// Watch watches the workflow, unless an Argo server is named: it does not serve the API of Kubernetes.
func (a System) Watch(ctx context.Context, s *batch.Submitted) <-chan struct{} {
	if invoke.Getenv(ctx, ServerVariable) != "" {
		return nil
	}
	return a.WatchObjects(ctx, "/apis/argoproj.io/v1alpha1/", "workflows",
		"fieldSelector=metadata.name%3D"+url.QueryEscape(s.Natives[len(s.Natives)-1]))
}

// Query requests each workflow separately, because a list of all workflows could be far larger.
func (System) Query(ctx context.Context, ids []string) (map[string]batch.State, error) {
	api, err := open(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]*Workflow, len(ids))
	var g errgroup.Group
	g.SetLimit(kube.MaxConcurrentLogs)
	for i, id := range ids {
		g.Go(func() (err error) {
			found[i], err = api.get(ctx, id)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("querying Argo for workflows: %w", err)
	}
	why := api.why(ctx, ids)
	defer why.Close()
	known := map[string]batch.State{}
	for i, wf := range found {
		if wf != nil {
			known[ids[i]] = wf.QueueState(ctx, why)
		}
	}
	return known, nil
}

// serverLogs reads the logs of a workflow from an Argo server.
type serverLogs struct {
	Server   *Server
	Workflow string
}

// Close does nothing: each log has its own connection.
func (*serverLogs) Close() {}

// Log opens the output of a pod's program; with follow it continues until the program ends.
func (l *serverLogs) Log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() {
		err := l.Server.Log(ctx, l.Workflow, pod, follow, w)
		if isGone(err) {
			err = &kube.Error{Code: http.StatusNotFound, Err: err}
		}
		w.CloseWithError(err)
	}()
	return r, nil
}

// stepLogs filters out the lines of Argo's executor, which starts the program of a step.
type stepLogs struct{ kube.LogSource }

// executorLine matches the executor's lines in logfmt, except its warnings.
var executorLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^time="?[0-9T:.Z+-]+"? level=(info|debug) msg=.* argo=true( .*)?\n?$`)
})

// Log opens the output of a pod's program without the executor's lines.
func (l stepLogs) Log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error) {
	from, err := l.LogSource.Log(ctx, pod, follow)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	go func() {
		defer from.Close()
		lines := bufio.NewReaderSize(from, 64<<10)
		for {
			line, err := lines.ReadSlice('\n') // a longer line is returned in parts
			if errors.Is(err, bufio.ErrBufferFull) {
				err = nil
			}
			if len(line) > 0 && !executorLine().Match(line) {
				if _, werr := w.Write(line); werr != nil {
					return
				}
			}
			if err != nil {
				w.CloseWithError(err)
				return
			}
		}
	}()
	return r, nil
}

// Template returns a workflow that runs a WorkflowTemplate of the cluster.
func Template(ctx context.Context, name string) (*File, error) {
	api, err := open(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := api.template(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("getting template %s: %w", name, err)
	}
	var t struct {
		Spec struct {
			Arguments struct {
				Parameters []struct {
					Name           string
					Value, Default any
					ValueFrom      any
					Enum           []any
				}
			}
		}
	}
	if err := json.Unmarshal(stored, &t); err != nil {
		return nil, fmt.Errorf("reading template %s: %w", name, err)
	}
	w := &File{Template: name}
	for _, p := range t.Spec.Arguments.Parameters {
		q := workflowParameter{name: p.Name, value: p.Value}
		if q.value == nil {
			q.value = p.Default
		}
		if q.value == nil && p.ValueFrom != nil {
			q.value = ""
		}
		for _, e := range p.Enum {
			q.enum = append(q.enum, fmt.Sprint(e))
		}
		w.parameters = append(w.parameters, q)
	}
	return w, nil
}
