package argo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"hpcc/job"
	"hpcc/job/invoke"
	"hpcc/job/kube"
)

// argoKubectl accesses workflows without an Argo server: as Kubernetes objects, through kubectl
// and its authentication.
type argoKubectl struct{}

const workflowResource = "workflows.argoproj.io"

// kubectl runs a kubectl command in the namespace of the context's cluster.
func (argoKubectl) kubectl(ctx context.Context, in []byte, args ...string) ([]byte, error) {
	w := kube.Argv(ctx, job.Argo, args...)
	if _, err := exec.LookPath(w[0]); err != nil {
		return nil, fmt.Errorf("no Argo server is given (--server URL or $%s), and %s is not on PATH", ServerVariable, w[0])
	}
	ctx, cancel := context.WithTimeout(ctx, invoke.LongTimeout)
	defer cancel()
	cmd := invoke.Command(ctx, "/", w[0], w[1:]...)
	cmd.Stdin = bytes.NewReader(in)
	out, err := invoke.Run(cmd)
	if err != nil {
		return nil, fmt.Errorf("kubectl %s: %w", args[0], kube.Refusal(out, err))
	}
	return out, nil
}

func (k argoKubectl) create(ctx context.Context, wf *item, dry bool) (json.RawMessage, error) {
	in, err := json.Marshal(wf)
	if err != nil {
		return nil, err
	}
	args := []string{"create", "--filename=-", "--output=json", "--validate=strict"}
	if dry {
		args = append(args, "--dry-run=server")
	}
	return k.kubectl(ctx, in, args...)
}

// lint lets "argo lint" check a workflow, if the command is on PATH. It applies the rules of Argo's
// server, with the templates of the cluster.
func (argoKubectl) lint(ctx context.Context, wf *item) error {
	if _, err := exec.LookPath("argo"); err != nil {
		return nil
	}
	in, err := json.Marshal(wf)
	if err != nil {
		return err
	}
	argv := kube.Argv(ctx, job.Argo, "lint", "--kinds=workflows", "--no-color", "--output=simple", "-")[1:]
	if out, err := invoke.Feed(ctx, "/", bytes.NewReader(in), nil, "argo", argv...); err != nil {
		return fmt.Errorf("argo lint: %w", invoke.Error(out, err))
	}
	return nil
}

// checkNative lets the API server check the names of the fields of --native. They are part of a
// podSpecPatch, in which the API server and Argo ignore unknown fields.
func (k argoKubectl) checkNative(ctx context.Context, j *job.Job) error {
	for _, s := range append(slices.Clone(j.Steps), j) {
		if len(s.Native) == 0 {
			continue
		}
		in, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod",
			"metadata": kube.Meta{Name: job.Label(s.Name)}, "spec": kube.NewPod(s, job.Argo, placeVar)})
		if err != nil {
			return err
		}
		_, err = k.kubectl(ctx, in, "create", "--filename=-", "--output=name", "--validate=strict", "--dry-run=server")
		if err != nil && strings.Contains(err.Error(), "cannot be handled as a Pod") { // else the user may not create pods, but Argo may
			return fmt.Errorf("--native: %w", err)
		}
	}
	return nil
}

func (k argoKubectl) template(ctx context.Context, name string) (json.RawMessage, error) {
	return k.kubectl(ctx, nil, "get", "workflowtemplates.argoproj.io", name, "--output=json")
}

func (k argoKubectl) get(ctx context.Context, name string) (*Workflow, error) {
	out, err := k.kubectl(ctx, nil, "get", workflowResource, name, "--output=json", "--ignore-not-found")
	if err != nil || len(out) == 0 {
		return nil, err
	}
	wf := &Workflow{}
	if err := json.Unmarshal(out, wf); err != nil {
		return nil, fmt.Errorf("reading workflow %s from kubectl: %w", name, err)
	}
	return wf, wf.unpack()
}

// labelWorkflow is the label of a pod with the name of its workflow.
const labelWorkflow = "workflows.argoproj.io/workflow"

// maxSelected is the number of workflows that a request names.
const maxSelected = 100

func (argoKubectl) why(_ context.Context, names []string) *kube.StepReader {
	selector := labelWorkflow
	if len(names) <= maxSelected {
		selector += " in (" + strings.Join(names, ",") + ")"
	}
	return &kube.StepReader{System: kube.System{Target: job.Argo}, Selector: selector}
}

// terminate patches the workflow like the server does.
func (k argoKubectl) terminate(ctx context.Context, name string) error {
	_, err := k.kubectl(ctx, nil, "patch", workflowResource, name, "--type=merge", `--patch={"spec":{"shutdown":"Terminate"}}`)
	return err
}

// retry uses the argo command, which like the server knows which steps to reset.
func (k argoKubectl) retry(ctx context.Context, name string) error {
	if _, err := exec.LookPath("argo"); err != nil {
		return fmt.Errorf("retrying the failed steps of workflow %s needs an Argo server (--server URL at submit) or the argo command", name)
	}
	w := []string{"retry", name, "--namespace=" + kube.Namespace(ctx)}
	if c := invoke.Getenv(ctx, kube.ContextVariable); c != "" {
		w = append(w, "--context="+c)
	}
	ctx, cancel := context.WithTimeout(ctx, invoke.LongTimeout)
	defer cancel()
	if out, err := invoke.Call(ctx, "/", "argo", w...); err != nil {
		return fmt.Errorf("argo retry: %w", invoke.Error(out, err))
	}
	return nil
}

// workflowOfTemplate returns a workflow that runs a WorkflowTemplate of the cluster.
func workflowOfTemplate(name string, parameters []string) (*item, error) {
	type parameter struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	list := []parameter{}
	for _, p := range parameters {
		k, v, _ := strings.Cut(p, "=")
		list = append(list, parameter{k, v})
	}
	b, err := json.Marshal(map[string]any{
		"apiVersion": argoVersion, "kind": "Workflow", "metadata": map[string]string{"generateName": name + "-"},
		"spec": map[string]any{"workflowTemplateRef": map[string]string{"name": name}, "arguments": map[string]any{"parameters": list}},
	})
	if err != nil {
		return nil, err
	}
	docs, err := readManifests("template "+name, b)
	if err != nil {
		return nil, err
	}
	return docs[0].root, nil
}
