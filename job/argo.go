package job

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
	"sigs.k8s.io/yaml"
)

// argo is Argo Workflows 3.5 or later, by its server or by kubectl.
type argo struct{}

// A workflowAPI is either way to workflows, in the namespace of the context's cluster.
type workflowAPI interface {
	// create hands a workflow in, or, dry, only has it looked at, and returns what is stored.
	create(ctx context.Context, wf *item, dry bool) (json.RawMessage, error)
	// template is a WorkflowTemplate of the namespace.
	template(ctx context.Context, name string) (json.RawMessage, error)
	// get tells how a workflow goes; nil when there is none of that name.
	get(ctx context.Context, name string) (*workflow, error)
	terminate(ctx context.Context, name string) error
	// retry runs what failed of a workflow that has ended again.
	retry(ctx context.Context, name string) error
}

// openArgo is the server where one is named, else kubectl.
func openArgo(ctx context.Context) (workflowAPI, error) {
	s, err := openArgoServer(ctx)
	if err != nil {
		return nil, err
	}
	if s == nil {
		return argoKubectl{}, nil
	}
	return s, nil
}

// here is never so: see kubernetes.
func (argo) here(context.Context) bool { return false }

func (a argo) render(j *Job) (string, []string, error) {
	text, notes, err := a.manifest(j, Label(j.Name))
	if err == nil && j.Workflow == nil && Label(j.Name) != j.Name {
		notes = append(notes, fmt.Sprintf("the name %s is no label of the DNS: %s", j.Name, Label(j.Name)))
	}
	return text, notes, err
}

// manifest is the workflow under a name, as YAML.
func (argo) manifest(j *Job, name string) (string, []string, error) {
	if j.Workflow != nil {
		if j.Workflow.Manifest == "" {
			return "", nil, errors.New("the workflow was handed in before; its manifest stands in the job's directory")
		}
		return j.Workflow.Manifest, j.Workflow.Notes, nil
	}
	var notes []string
	steps := j.Steps
	if len(steps) == 0 {
		steps = []*Job{j}
		if n := len(j.After) + len(j.AfterAny) + len(j.AfterFailed) + len(j.AfterEach); n > 0 {
			return "", nil, errors.New("an order is kept by Argo only among the steps of one workflow: give the scripts of all of them, each with --from")
		}
	}
	for _, s := range steps {
		if err := s.argoable(); err != nil {
			if len(j.Steps) > 0 {
				err = fmt.Errorf("step %s: %w", s.Name, err)
			}
			return "", nil, err
		}
		for _, n := range s.argoNotes() {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
	}
	if j.Count() > maxSteps {
		return "", nil, fmt.Errorf("%d tasks: a workflow has at most %d", j.Count(), maxSteps)
	}
	text, err := documents(fmt.Sprintf("# Made by hpcc, for %s; \"hpcc submit\" hands it in, argo submit does too.\n", j.what()), j.workflow(name))
	if err == nil && len(text) > maxManifest {
		err = fmt.Errorf("the manifest of job %q would have %d bytes, and Kubernetes takes %d: put the scripts and the parameters into the image", j.Name, len(text), maxManifest)
	}
	return text, notes, err
}

// argoNotes are what the user should know who comes from another scheduler.
func (j *Job) argoNotes() []string {
	notes := j.podNotes(Argo)
	if j.Queue != "" {
		notes = append(notes, fmt.Sprintf("queue %s is a LocalQueue of Kueue, which lets the pods begin where it looks after pods", j.Queue))
	}
	return notes
}

// submit hands the workflow in under the job's id, after the server has looked at all of
// it and has dropped nothing.
func (a argo) submit(ctx context.Context, r *request) error {
	name := Label(r.ID)
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
		wf.at("metadata").label(r.Job.labels(name))
	}
	if text, err = yamlOf(wf); err != nil {
		return err
	}
	if err := r.Rewrite(text); err != nil {
		return fmt.Errorf("writing the manifest of job %q: %w", r.Job.Name, err)
	}
	api, err := openArgo(ctx)
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
	var made workflow
	if err := json.Unmarshal(stored, &made); err != nil || made.Metadata.Name == "" {
		return fmt.Errorf("handing job %q to Argo: its answer names no workflow", r.Job.Name)
	}
	r.Native = made.Metadata.Name
	return nil
}

func yamlOf(wf *item) (string, error) {
	b, err := json.Marshal(wf)
	if err == nil {
		b, err = yaml.JSONToYAML(b)
	}
	return string(b), err
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
func (argo) look(ctx context.Context, api workflowAPI, j *Job, wf *item) error {
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

// estimate is the server's refusal, or nothing: when a pod finds a place, nobody says.
func (a argo) estimate(ctx context.Context, j *Job, script string) (*estimate, error) {
	text, err := os.ReadFile(script)
	if err != nil {
		return nil, err
	}
	docs, err := readManifests("the workflow", text)
	if err != nil {
		return nil, err
	}
	api, err := openArgo(ctx)
	if err != nil {
		return nil, err
	}
	return nil, a.look(ctx, api, j, docs[0].root)
}

func (argo) nodes(ctx context.Context, queue string) (*cluster, error) {
	if getenv(ctx, ArgoServer) != "" {
		return nil, errors.New("an Argo server shows no nodes")
	}
	return kubernetes{Argo}.nodes(ctx, queue)
}

func (argo) cancel(ctx context.Context, id string) error {
	api, err := openArgo(ctx)
	if err == nil {
		err = api.terminate(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("ending workflow %s: %w", id, err)
	}
	return nil
}

// ask asks for each workflow: all of them at once would be much more than those that matter.
func (argo) ask(ctx context.Context, ids []string) (map[string]standing, error) {
	api, err := openArgo(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]*workflow, len(ids))
	var g errgroup.Group
	g.SetLimit(logsAtOnce)
	for i, id := range ids {
		g.Go(func() (err error) {
			found[i], err = api.get(ctx, id)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("asking Argo for its workflows: %w", err)
	}
	known := map[string]standing{}
	for i, wf := range found {
		if wf != nil {
			known[ids[i]] = wf.standing()
		}
	}
	return known, nil
}

// A logSource reads what the programs of pods write.
type logSource interface {
	log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error)
	close()
}

// openLogs is where the logs of a job's pods come from.
func (s *Submission) openLogs(ctx context.Context) (logSource, error) {
	if s.Target != Argo {
		return kubernetes{s.Target}.open(ctx)
	}
	server, err := openArgoServer(ctx)
	if err != nil {
		return nil, err
	}
	if server != nil {
		return stepLogs{&argoLogs{server, s.Native}}, nil
	}
	api, err := kubernetes{Argo}.open(ctx)
	return stepLogs{api}, err
}

// argoLogs are the logs of a workflow, from an Argo server.
type argoLogs struct {
	server   *argoServer
	workflow string
}

func (*argoLogs) close() {}

func (l *argoLogs) log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() {
		err := l.server.log(ctx, l.workflow, pod, follow, w)
		if isGone(err) {
			err = &kubeError{http.StatusNotFound, err}
		}
		w.CloseWithError(err)
	}()
	return r, nil
}

// stepLogs are logs without the lines of Argo's own program, which starts that of a step.
type stepLogs struct{ logSource }

// executorLine is one of them, in logfmt; its warnings are of use.
var executorLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^time="?[0-9T:.Z+-]+"? level=(info|debug) msg=.* argo=true( .*)?\n?$`)
})

func (l stepLogs) log(ctx context.Context, pod string, follow bool) (io.ReadCloser, error) {
	from, err := l.logSource.log(ctx, pod, follow)
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

// retryWorkflow has Argo run what failed of a workflow again; the tasks are those that a
// rerun would hand in.
func (s *Submission) retryWorkflow(ctx context.Context, home string, tasks []int) error {
	ctx = s.Within(ctx)
	api, err := openArgo(ctx)
	if err != nil {
		return err
	}
	if err := api.retry(ctx, s.Native); err != nil {
		return err
	}
	for _, k := range tasks {
		(&Task{Index: k}).retire(home)
	}
	s.Reruns = append(s.Reruns, Rerun{Native: s.Native, Submitted: time.Now().UTC().Truncate(time.Second)})
	s.Cancelled, s.Over = time.Time{}, false
	return s.write(home)
}

// ServerTemplate is a WorkflowTemplate that the cluster has, as a workflow.
func ServerTemplate(ctx context.Context, name string) (*WorkflowFile, error) {
	api, err := openArgo(ctx)
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
	w := &WorkflowFile{Template: name}
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
