package argo

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/invoke"
	"hpcc/job/kube"
	"hpcc/job/results"
	"hpcc/text"
	"hpcc/web"
)

// A stepArtifact is an output of a step that has ended.
type stepArtifact struct {
	step     string
	node     workflowNode
	name     string
	archived bool            // as a tar archive
	location json.RawMessage // the artifact in the state of the workflow
}

// artifacts returns the output artifacts of the steps, in the order in which the steps started.
func (w *Workflow) artifacts() (list []stepArtifact, err error) {
	for _, n := range w.pods() {
		for _, raw := range n.Outputs.Artifacts {
			var a struct {
				Name    string
				Archive *struct{ None, Zip *struct{} }
			}
			if err := json.Unmarshal(raw, &a); err != nil {
				return nil, fmt.Errorf("reading the artifacts of step %s: %w", w.step(&n), err)
			}
			if a.Name == "main-logs" { // hpcc logs shows it
				continue
			}
			archived := a.Archive == nil || (a.Archive.None == nil && a.Archive.Zip == nil)
			list = append(list, stepArtifact{w.step(&n), n, a.Name, archived, raw})
		}
	}
	return list, nil
}

// label returns the name under which users select the artifact.
func (a *stepArtifact) label() string {
	return strings.ReplaceAll(a.step, "/", "-") + "/" + strings.ReplaceAll(a.name, "/", "-")
}

// Fetch reads the artifacts of the workflow, or the one that the path names as NAME or STEP/NAME,
// from the Argo server or through a workflow that has it as an input. Other paths are those of
// pods; see [kube.System.Fetch].
func (a System) Fetch(ctx context.Context, f *batch.Fetch, each func(name string, tar io.ReadCloser) error) error {
	api, err := open(ctx)
	if err != nil {
		return err
	}
	native := f.Natives[len(f.Natives)-1]
	wf, err := api.get(ctx, native)
	if err != nil {
		return fmt.Errorf("querying Argo for workflow %s: %w", native, err)
	}
	if wf == nil {
		wf = &Workflow{}
	}
	all, err := wf.artifacts()
	if err != nil {
		return err
	}
	var want []stepArtifact
	var labels []string
	for _, x := range all {
		labels = append(labels, x.label())
		if f.Path == "" || f.Path == x.name || f.Path == x.label() {
			want = append(want, x)
		}
	}
	switch {
	case len(want) == 0 && (path.IsAbs(f.Path) || len(all) == 0):
		return a.System.Fetch(ctx, f, each)
	case len(want) == 0:
		return fmt.Errorf("workflow %s has no artifact %q; it has %s", native, text.Short(f.Path), strings.Join(labels, ", "))
	case len(want) > 1 && f.Path != "":
		return fmt.Errorf("workflow %s has several artifacts %q; name one of %s", native, text.Short(f.Path), strings.Join(labels, ", "))
	}
	for _, x := range want {
		name := x.label()
		if f.Path != "" {
			name = ""
		}
		if err := a.fetchArtifact(ctx, f, wf, &x, func(r io.ReadCloser) error { return each(name, r) }); err != nil {
			return fmt.Errorf("fetching artifact %s of workflow %s: %w", x.label(), wf.Metadata.Name, err)
		}
	}
	return nil
}

// fetchArtifact opens one artifact as a tar stream.
func (a System) fetchArtifact(ctx context.Context, f *batch.Fetch, wf *Workflow, x *stepArtifact, each func(io.ReadCloser) error) error {
	server, err := openServer(ctx)
	if err != nil {
		return err
	}
	if server == nil {
		return a.collect(ctx, f, wf, x, each)
	}
	body, size, err := server.artifact(ctx, wf.Metadata.Name, x)
	if err != nil {
		return err
	}
	r, err := asTar(body, size, x, f)
	if err != nil {
		body.Close()
		return err
	}
	return each(r)
}

// artifact opens the object of an artifact. size is -1 if the server does not send it.
func (s *Server) artifact(ctx context.Context, workflow string, x *stepArtifact) (body io.ReadCloser, size int64, err error) {
	u := s.base.JoinPath("artifacts", kube.Namespace(ctx), workflow, x.node.ID, x.name)
	req, err := http.NewRequestWithContext(web.Forever(ctx), http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, 0, err
	}
	if s.token != "" {
		req.Header.Set("Authorization", s.token)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, 0, s.unreached(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, resp.ContentLength, nil
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxLogLine))
	return nil, 0, s.refusal(resp, b)
}

// asTar returns the content of an artifact's object as a tar stream. size is -1 if it is unknown.
func asTar(body io.ReadCloser, size int64, x *stepArtifact, f *batch.Fetch) (io.ReadCloser, error) {
	if !x.archived && size >= 0 {
		return fileTar(body, size, x.name, body.Close), nil
	}
	if !x.archived {
		return copiedTar(body, x.name, f)
	}
	in := bufio.NewReader(body)
	if magic, err := in.Peek(2); err != nil || magic[0] != 0x1f || magic[1] != 0x8b {
		return readCloser{in, body.Close}, nil // an uncompressed archive
	}
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	return readCloser{z, body.Close}, nil
}

type readCloser struct {
	io.Reader
	close func() error
}

func (r readCloser) Close() error { return r.close() }

// copiedTar is fileTar for a file of unknown size: the header of a tar stream has the size, so the file is
// copied first.
func copiedTar(body io.ReadCloser, name string, o *batch.Fetch) (io.ReadCloser, error) {
	f, err := os.CreateTemp(o.Temp, ".hpcc-artifact-")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	most := cmp.Or(o.Max, int64(results.DefaultMax))
	size, err := io.Copy(f, io.LimitReader(body, most+1))
	if err == nil && size > most {
		err = &results.TooLargeError{Max: most}
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return fileTar(f, size, name, func() error { return errors.Join(f.Close(), body.Close()) }), nil
}

// fileTar returns a tar stream of one file.
func fileTar(in io.Reader, size int64, name string, end func() error) io.ReadCloser {
	r := results.Pipe(func(w io.Writer) error {
		t := tar.NewWriter(w)
		err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Base(name), Mode: 0o644, Size: size})
		if err == nil {
			_, err = io.Copy(t, in)
		}
		return errors.Join(err, t.Close())
	})
	return readCloser{r, func() error { return errors.Join(r.Close(), end()) }}
}

// collectedIn is where the pod of a collecting workflow has the artifact.
const collectedIn = "/hpcc-artifact"

// collect reads an artifact without an Argo server: a workflow with the artifact as its input
// fetches it from the repository, whose credentials only the cluster has, and tar reads it in the
// pod.
func (a System) collect(ctx context.Context, f *batch.Fetch, wf *Workflow, x *stepArtifact, each func(io.ReadCloser) error) error {
	name := f.NewName()
	w, err := collector(f, wf, x, name)
	if err != nil {
		return err
	}
	k := argoKubectl{}
	if _, err := k.create(ctx, w, false); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), invoke.LongTimeout)
		defer cancel()
		if _, err := k.kubectl(ctx, nil, "delete", workflowResource, name, "--ignore-not-found", "--wait=false"); err != nil {
			f.Report(fmt.Sprintf("warning: the workflow %s remains until its time limit: %v", name, err))
		}
	}()
	f.Report("reading artifact " + x.label() + " through the workflow " + name)
	if err := a.AwaitPod(ctx, name); err != nil {
		return err
	}
	r, err := a.Tar(ctx, name, path.Join(collectedIn, path.Base(x.name)))
	if err != nil {
		return err
	}
	return each(r)
}

// collector returns a workflow whose only pod has an artifact as its input and sleeps.
func collector(f *batch.Fetch, wf *Workflow, x *stepArtifact, name string) (*item, error) {
	j := &job.Job{Name: f.Job.Name, Image: f.Image, Dir: f.Job.Dir}
	from := f.Job
	if i := slices.IndexFunc(f.Job.Steps, func(s *job.Job) bool { return job.Label(s.Name) == x.node.template() }); i >= 0 {
		from = f.Job.Steps[i]
	}
	p := &from.Pod
	j.Pod = job.Pod{PullSecret: p.PullSecret, UID: p.UID, AnyUID: p.AnyUID, ServiceAccount: p.ServiceAccount, NodeLabels: p.NodeLabels}
	if j.Image == "" {
		j.Image, j.Pod.Pull = cmp.Or(p.Image, from.Image, wf.image(x.node.template())), p.Pull
	}
	if f.Job.Workflow != nil { // the pods' user is not known
		j.Pod.UID = job.OrdinaryUser
	}
	if j.Image == "" {
		return nil, errors.New("the image of the step is not known; name one that has tar with --image")
	}
	o := newWorkflow(j, name)
	t := &o.Spec.Templates[0]
	t.ActiveDeadlineSeconds = kube.System{}.Idle(t.Container)
	var in map[string]any
	if err := json.Unmarshal(x.location, &in); err != nil {
		return nil, err
	}
	in["path"] = path.Join(collectedIn, path.Base(x.name))
	t.Inputs = &workflowIO{Artifacts: []workflowArtifact{{Name: x.name, Location: in}}}
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	docs, err := readManifests("the workflow that reads the artifact", b)
	if err != nil {
		return nil, err
	}
	return docs[0].root, nil
}

// image returns the image of a template, if the state has the specification.
func (w *Workflow) image(template string) string {
	for _, t := range w.Spec.Templates {
		if t.Name == template {
			return cmp.Or(t.Container.Image, t.Script.Image)
		}
	}
	return ""
}
