package argo

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

const threeSteps = wfHead + `  entrypoint: main
  arguments:
    parameters: [{name: batch_size, value: 4}, {name: model, value: small, enum: [small, large]}, {name: fast, value: false}, {name: note, value: "7"}]
  templates:
  - name: main
    dag:
      tasks:
      - {name: train, template: step, arguments: {parameters: [{name: x, value: "{{workflow.parameters.batch_size}}"}]}}
      - {name: prune, template: step, depends: "train.Succeeded && !train.Failed", arguments: {parameters: [{name: x, value: "{{tasks.train.outputs.parameters.acc}}"}]}}
      - {name: each, template: step, depends: prune, withItems: [1, 2], arguments: {parameters: [{name: x, value: "{{item}}"}]}}
  - name: step
    inputs: {parameters: [{name: x}]}
    outputs: {parameters: [{name: acc, valueFrom: {path: /tmp/acc}}]}
    container: {image: busybox, args: ["{{inputs.parameters.x}} {{pod.name}} {{workflow.name}} {{=1+1}} {{ jinja }}"]}
`

// TestPackedNodes reads the steps of a workflow that is too large for one object.
func TestPackedNodes(t *testing.T) {
	packed := base64.StdEncoding.EncodeToString(gzipped(t, `{"x":{"id":"x","type":"Pod","phase":"Succeeded"}}`))
	for status, want := range map[string]string{
		`{"phase":"Succeeded","compressedNodes":"` + packed + `"}`: "",
		`{"phase":"Succeeded","compressedNodes":"x"}`:              "unpacking the steps",
		`{"phase":"Succeeded","offloadNodeStatusVersion":"fnv:1"}`: "--server URL",
	} {
		wf := &Workflow{}
		testenv.Check(t, json.Unmarshal([]byte(`{"metadata":{"name":"w"},"status":`+status+`}`), wf))
		err := wf.unpack()
		if (want == "" && (err != nil || len(wf.pods()) != 1)) || (want != "" && (err == nil || !strings.Contains(err.Error(), want))) {
			t.Errorf("%s: %v, %+v; want %q", status, err, wf.Status.Nodes, want)
		}
	}
}

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	testenv.Check(t, z.Close())
	return b.Bytes()
}

// TestReadWorkflow reports what hpcc needs of a workflow, and keeps fields that it does not know.
func TestReadWorkflow(t *testing.T) {
	for _, tt := range []struct{ name, old, new, want string }{
		{"valid", "", "", ""},
		{"fields of a later Argo", "  - name: step\n", "  - name: step\n    someday: {a: [1]}\n", ""},
		{"no entrypoint", "entrypoint: main", "onExit: main", `w.yaml:5: spec: lacks entrypoint`},
		{"template of the cluster", "entrypoint: main", "workflowTemplateRef: {name: a}", ""},
		{"no spec", "spec:", "other:", `w.yaml:1: lacks spec`},
		{"spec", threeSteps[strings.Index(threeSteps, "spec:"):], "spec: [a]\n", `w.yaml:4: spec: is a list; want a mapping`},
		{"metadata", "{generateName: train-}", "train", `w.yaml:3: metadata: is text; want a mapping`},
		{"a name that is a boolean", "name: note", "name: n", `w.yaml:7: spec.arguments.parameters[3].name: is a number or a boolean; want text; put it in quotes`},
		{"labels", "{generateName: train-}", "{labels: [a]}", `w.yaml:3: metadata.labels: is a list; want a mapping`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(threeSteps, tt.old, tt.new, 1)
			w, err := Read("w.yaml", []byte(text))
			if (tt.want == "" && err != nil) || (tt.want != "" && (err == nil || err.Error() != tt.want)) {
				t.Errorf("Read: %v; want %q", err, tt.want)
			}
			if err == nil {
				got, err := json.Marshal(w.root)
				testenv.Check(t, err)
				compareYAML(t, text, got)
			}
		})
	}
}

func TestWorkflowParameters(t *testing.T) {
	for _, tt := range []struct{ name, given, want string }{
		{"some", `{"batch_size": 2, "model": "large", "fast": true, "note": "any"}`, ""},
		{"none", ``, ""},
		{"unknown", `{"batchsize": 2}`, `w.yaml does not have parameter "batchsize"; did you mean batch_size? It has batch_size, model, fast, note`},
		{"choice", `{"model": "huge"}`, `parameter model of w.yaml: "huge" is not one of small, large`},
		{"number", `{"batch_size": "many"}`, `"many" is not a number like the file's 4`},
		{"boolean", `{"fast": 3}`, `"3" is neither true nor false`},
		{"null", `{"fast": null}`, `parameter fast is null`},
		{"no object", `[1]`, `is not a JSON object`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, err := Read("w.yaml", []byte(threeSteps))
			testenv.Check(t, err)
			given, err := ParseParameters(tt.given, nil)
			if err == nil {
				err = w.Parameters(given)
			}
			if (tt.want == "" && err != nil) || (tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want))) {
				t.Errorf("Parameters(%s): %v; want %q", tt.given, err, tt.want)
			}
			if tt.name == "some" {
				b, err := json.Marshal(w.root)
				if err != nil || !strings.Contains(string(b), `{"name":"batch_size","value":"2"},{"name":"model","value":"large"`) {
					t.Errorf("Parameters: %s, %v", b, err)
				}
			}
		})
	}
	w, err := Read("w.yaml", []byte(strings.Replace(threeSteps, "{name: fast, value: false}", "{name: fast}", 1)))
	if err == nil {
		err = w.Parameters(nil)
	}
	if err == nil || !strings.Contains(err.Error(), "parameter fast of w.yaml has no value; give --parameter fast=VALUE") {
		t.Errorf("Parameters without a value for fast: %v", err)
	}
	if _, err := ParseParameters(`{"a": 1}`, []string{"a=2"}); err == nil {
		t.Error("ParseParameters accepted parameter a twice")
	}
}

// TestReadWorkflowKinds reads the workflow of a WorkflowTemplate, of a CronWorkflow, and of a file
// with two objects.
func TestReadWorkflowKinds(t *testing.T) {
	template := strings.NewReplacer("kind: Workflow", "kind: WorkflowTemplate", "generateName: train-", "name: train, resourceVersion: \"5\"").Replace(threeSteps)
	for _, tt := range []struct{ name, in, want, notes string }{
		{"template", template, `{"apiVersion":"argoproj.io/v1alpha1","kind":"Workflow","spec":{`, "metadata.resourceVersion is set by the server; dropped; WorkflowTemplate train: its workflow runs once, now"},
		{"cron", "apiVersion: argoproj.io/v1alpha1\nkind: CronWorkflow\nmetadata: {name: c, namespace: ns}\nspec: {schedule: 0 2 * * *, workflowMetadata: {labels: {a: b}}, workflowSpec: {entrypoint: a, templates: [{name: a, suspend: {}}]}}\n",
			`{"apiVersion":"argoproj.io/v1alpha1","kind":"Workflow","spec":{"entrypoint":"a","templates":[{"name":"a","suspend":{}}]},"metadata":{"namespace":"ns","labels":{"a":"b"},"generateName":"c-"}}`, "CronWorkflow c: its workflow runs once, now"},
		{"both", template + "---\n" + threeSteps + "status: {phase: Running}\n", `{"apiVersion":"argoproj.io/v1alpha1","kind":"Workflow","metadata":{"generateName":"train-"}`, `WorkflowTemplate train of w.yaml is not created; use "kubectl apply"; status is set by the server; dropped`},
	} {
		w, err := Read("w.yaml", []byte(tt.in))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		b, err := json.Marshal(w.root)
		if err != nil || !strings.HasPrefix(string(b), tt.want) || strings.Join(w.Notes, "; ") != tt.notes {
			t.Errorf("%s: %s, %v, notes %q", tt.name, b, err, w.Notes)
		}
	}
	for in, want := range map[string]string{
		threeSteps + "---\n" + threeSteps: "w.yaml contains 2 objects of kind Workflow",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n": "w.yaml does not contain a workflow: its kind is Pod of apiVersion v1",
	} {
		if _, err := Read("w.yaml", []byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Read: %v; want %q", err, want)
		}
	}
}
