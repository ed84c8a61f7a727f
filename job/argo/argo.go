// Package argo writes workflows of Argo 3.5 or later, checks those that people wrote, and
// speaks to an Argo server or, without one, to Kubernetes by kubectl.
package argo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/capacity"
	"hpcc/job/invoke"
	"hpcc/job/kube"
)

// System is Argo Workflows 3.5 or later, by its server or by kubectl.
type System struct{ kube.System }

// New returns the system.
func New() System {
	return System{kube.System{Target: job.Argo, Logs: openLogs, Place: placeTasks}}
}

// A workflowAPI is either way to workflows, in the namespace of the context's cluster.
type workflowAPI interface {
	// create hands a workflow in, or, dry, only has it looked at, and returns what is stored.
	create(ctx context.Context, wf *item, dry bool) (json.RawMessage, error)
	// template is a WorkflowTemplate of the namespace.
	template(ctx context.Context, name string) (json.RawMessage, error)
	// get tells how a workflow goes; nil when there is none of that name.
	get(ctx context.Context, name string) (*Workflow, error)
	terminate(ctx context.Context, name string) error
	// retry runs what failed of a workflow that has ended again.
	retry(ctx context.Context, name string) error
}

// open returns the server if one is named, else kubectl.
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

// Detect is never so: see kubernetes.
func (System) Detect(context.Context) bool { return false }

// Render returns the workflow as YAML.
func (a System) Render(j *job.Job) (string, []string, error) {
	text, notes, err := a.manifest(j, job.Label(j.Name))
	if err == nil && j.Workflow == nil && job.Label(j.Name) != j.Name {
		notes = append(notes, fmt.Sprintf("the name %s is no label of the DNS: %s", j.Name, job.Label(j.Name)))
	}
	return text, notes, err
}

// manifest is the workflow under a name, as YAML.
func (System) manifest(j *job.Job, name string) (string, []string, error) {
	if j.Workflow != nil {
		if j.Workflow.Manifest == "" {
			return "", nil, errors.New("the workflow was handed in before; its manifest stands in the job's directory")
		}
		return j.Workflow.Manifest, j.Workflow.Notes, nil
	}
	var notes []string
	steps := j.Steps
	if len(steps) == 0 {
		steps = []*job.Job{j}
		if n := len(j.After) + len(j.AfterAny) + len(j.AfterFailed) + len(j.AfterEach); n > 0 {
			return "", nil, errors.New("an order is kept by Argo only among the steps of one workflow: give the scripts of all of them, each with --from")
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
	text, err := kube.Documents(fmt.Sprintf("# Made by hpcc, for %s; \"hpcc submit\" hands it in, argo submit does too.\n", j.Title()), newWorkflow(j, name))
	if err == nil && len(text) > kube.MaxManifest {
		err = fmt.Errorf("the manifest of job %q would have %d bytes, and Kubernetes takes %d: put the scripts and the parameters into the image", j.Name, len(text), kube.MaxManifest)
	}
	return text, notes, err
}

// notesOf are what the user should know who comes from another scheduler.
func notesOf(j *job.Job) []string {
	notes := kube.Notes(j, job.Argo)
	if j.Queue != "" {
		notes = append(notes, fmt.Sprintf("queue %s is a LocalQueue of Kueue, which lets the pods begin where it looks after pods", j.Queue))
	}
	return notes
}

// Submit hands the workflow in under the job's id, after the server has looked at all of
// it and has dropped nothing.
func (a System) Submit(ctx context.Context, r *batch.Request) error {
	name := job.Label(r.ID)
	text, _, err := a.manifest(r.Job, name)
	if err != nil {
		return err
	}
	docs, err := readManifests(r.Script, []byte(text)) // also our own: nothing is handed in that Argo does not know
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
	if err := a.look(ctx, api, r.Job, wf); err != nil {
		return err
	}
	stored, err := api.create(ctx, wf, false)
	if err != nil {
		return fmt.Errorf("handing job %q to Argo: %w", r.Job.Name, err)
	}
	var made Workflow
	if err := json.Unmarshal(stored, &made); err != nil || made.Metadata.Name == "" {
		return fmt.Errorf("handing job %q to Argo: its answer names no workflow", r.Job.Name)
	}
	r.Native = made.Metadata.Name
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

// look has the server look at a workflow and make nothing. What it would drop is refused.
func (System) look(ctx context.Context, api workflowAPI, j *job.Job, wf *item) error {
	stored, err := api.create(ctx, wf, true)
	if err != nil {
		return fmt.Errorf("asking Argo whether it takes job %q: %w", j.Name, err)
	}
	lost, err := lostFields(wf, stored)
	if err == nil && len(lost) > 0 {
		err = fmt.Errorf("the server would drop, without a word: %s; it is older than these fields, or does not allow them", strings.Join(lost[:min(len(lost), maxProblems)], ", "))
	}
	return err
}

// Estimate is the server's refusal, or nothing: when a pod finds a place, nobody says.
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
	return nil, a.look(ctx, api, j, docs[0].root)
}

// Nodes returns what the nodes have and what of it is free.
func (a System) Nodes(ctx context.Context, queue string) (*capacity.Snapshot, error) {
	if invoke.Getenv(ctx, ServerVariable) != "" {
		return nil, errors.New("an Argo server shows no nodes")
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
		return fmt.Errorf("ending workflow %s: %w", id, err)
	}
	return nil
}

// Query asks for each workflow: all of them at once would be much more than those that matter.
func (System) Query(ctx context.Context, ids []string) (map[string]batch.QueueState, error) {
	api, err := open(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]*Workflow, len(ids))
	var g errgroup.Group
	g.SetLimit(kube.LogsAtOnce)
	for i, id := range ids {
		g.Go(func() (err error) {
			found[i], err = api.get(ctx, id)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("asking Argo for its workflows: %w", err)
	}
	known := map[string]batch.QueueState{}
	for i, wf := range found {
		if wf != nil {
			known[ids[i]] = wf.Standing()
		}
	}
	return known, nil
}

// serverLogs are the logs of a workflow, from an Argo server.
type serverLogs struct {
	Server   *Server
	Workflow string
}

// Close does nothing: each log has a connection of its own.
func (*serverLogs) Close() {}

// Log opens what the program of a pod wrote; with follow it goes on until that ends.
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

// stepLogs are logs without the lines of Argo's own program, which starts that of a step.
type stepLogs struct{ kube.LogSource }

// executorLine is one of them, in logfmt; its warnings are of use.
var executorLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^time="?[0-9T:.Z+-]+"? level=(info|debug) msg=.* argo=true( .*)?\n?$`)
})

// Log opens what the program of a pod wrote, without the lines of Argo's own program.
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
			line, err := lines.ReadSlice('\n') // a longer one comes in parts
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

// Template is a WorkflowTemplate that the cluster has, as a workflow.
func Template(ctx context.Context, name string) (*File, error) {
	api, err := open(ctx)
	if err != nil {
		return nil, err
	}
	stored, err := api.template(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("looking for template %s: %w", name, err)
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

// History returns a [capacity.NoHistory]: there are no accounts.
func (System) History(context.Context, time.Time) (*capacity.History, error) {
	return nil, &capacity.NoHistory{Why: "Argo keeps no account of pods that have ended"}
}
