package argo

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

const wfHead = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: train-}\nspec:\n"

func TestReadManifests(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"twice", wfHead + "  entrypoint: a\n  entrypoint: b\n", "w.yaml:6: spec.entrypoint: duplicate of line 5"},
		{"kind", "apiVersion: v1\nmetadata: {}\n", "w.yaml:1: lacks kind: is it a manifest?"},
		{"no mapping", "- a\n", "w.yaml:1: not a manifest: lacks apiVersion and kind"},
		{"second document", wfHead + "  entrypoint: a\n---\n" + wfHead + "  x: 1\n  x: 2\n", "w.yaml:12: spec.x: duplicate of line 11"},
		{"boolean key", wfHead + "  nodeSelector: {y: a}\n", "w.yaml:5: spec.nodeSelector: key y is a boolean; put it in quotes"},
		{"tag", wfHead + "  entrypoint: !!binary aGk=\n", "w.yaml:5: spec.entrypoint: servers do not support the tag !!binary"},
		{"infinite", wfHead + "  arguments: {parameters: [{name: a, value: .inf}]}\n", "w.yaml:5: spec.arguments.parameters[0].value: JSON cannot represent the number .inf"},
		{"syntax", wfHead + "  a: [\n", "reading w.yaml: yaml: line 5:"},
		{"empty", "---\n# nothing\n---\n", "w.yaml is empty"},
		{"itself", wfHead + "  podMetadata: &a\n    labels: *a\n", "nested more than 64 levels deep"},
		{"bomb", "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {}\nspec:\n  arguments: {parameters: [{name: a, enum: &a [x,x,x,x,x,x,x,x,x,x]}]}\n" +
			"  templates:\n  - name: a\n    dag: {tasks: [{name: x, withItems: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]}, {name: y, withItems: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]}, {name: z, withItems: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]}, {name: u, withItems: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]}]}\n",
			"the file has more than 100000 values"},
		{"deep", wfHead + "  templates: [{name: a, dag: {tasks: [{name: b, withItems: " + strings.Repeat("[", 80) + strings.Repeat("]", 80) + "}]}}]\n", "nested more than 64 levels deep"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readManifests("w.yaml", []byte(tt.in))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ReadManifests: %v; want %q", err, tt.want)
			}
		})
	}
}

// TestReadManifestsAll checks that several mistakes are reported at once, and only some of endless ones.
func TestReadManifestsAll(t *testing.T) {
	_, err := readManifests("w.yaml", []byte(wfHead+"  y: 1\n  n: 2\n  entrypoint: .inf\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("ReadManifests: %v; want three problems", err)
	}
	text := wfHead
	for range 1000 {
		text += "  y: 1\n"
	}
	if _, err = readManifests("w.yaml", []byte(text)); err == nil || strings.Count(err.Error(), "\n") != maxProblems-1 {
		t.Errorf("ReadManifests: %v; want %d problems", err, maxProblems)
	}
}

// sound are documents that the servers take.
var sound = []string{
	wfHead + `  entrypoint: a
  arguments: {parameters: [{name: mode, value: 0644}, {name: b, value: yes}, {name: x, value: 1.50}, {name: d, value: 2024-01-01}, {name: q, value: "on"}]}
  templates:
  - name: a
    activeDeadlineSeconds: 5
    retryStrategy: {limit: 2, retryPolicy: OnFailure}
    container: &c {image: busybox, command: [sh, -c], args: ["echo <a> & 'b' {{workflow.parameters.mode}}"], resources: {limits: {cpu: 1, memory: 1e9, nvidia.com/gpu: "2"}}}
  - name: b
    container:
      <<: *c
      image: other
      env: [{name: A, value: "1"}]
  - name: s
    steps: [[{name: one, template: a}], [{name: two, template: b, withItems: [1, a, {x: y}]}]]
`,
	`{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "labels": {"a.b/c": "d"}},
	"spec": {"completions": 4, "completionMode": "Indexed", "template": {"spec": {"restartPolicy": "Never",
		"containers": [{"name": "a", "image": "b", "ports": [{"containerPort": 6006, "name": "tb"}], "readinessProbe": {"tcpSocket": {"port": "tb"}}}]}}}}`,
	"apiVersion: argoproj.io/v1alpha1\nkind: CronWorkflow\nmetadata: {name: c}\nspec: {schedules: [\"* * * * *\"], workflowSpec: {entrypoint: a, templates: [{name: a, suspend: {}}]}}\n",
}

// TestReadManifestsSound compares what is read with what servers' own YAML makes of it.
func TestReadManifestsSound(t *testing.T) {
	for _, text := range sound {
		list, err := readManifests("w.yaml", []byte(text))
		if err != nil {
			t.Errorf("ReadManifests: %v", err)
			continue
		}
		got, err := json.Marshal(list[0].root)
		testenv.Check(t, err)
		compareYAML(t, text, got)
	}
}

func compareYAML(t *testing.T, text string, got []byte) {
	t.Helper()
	theirs, err := yaml.YAMLToJSON([]byte(text))
	testenv.Check(t, err)
	var a, b any
	testenv.Check(t, errors.Join(json.Unmarshal(got, &a), json.Unmarshal(theirs, &b)))
	if !reflect.DeepEqual(a, b) {
		t.Errorf("reading %s\ngives %s\nand not %s", text, got, theirs)
	}
}

// TestExamples reads Argo's examples: servers read the same values, and the workflow to submit has each
// field of the file.
func TestExamples(t *testing.T) {
	dir := os.Getenv("HPCC_TEST_WORKFLOWS")
	_, err := os.Stat(dir)
	testenv.Need(t, "the files of testdata/corpora/workflows.txt in HPCC_TEST_WORKFLOWS", err)
	list, err := os.ReadFile("../../testdata/corpora/workflows.txt")
	testenv.Check(t, err)
	workflows := 0
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] == "#" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f[0], f[2]))
		testenv.Check(t, err)
		docs, err := readManifests(f[2], text)
		if err != nil {
			t.Errorf("hpcc refuses an example: %v", err)
			continue
		}
		if len(docs) > 1 {
			continue
		}
		got, err := json.Marshal(docs[0].root)
		testenv.Check(t, err)
		compareYAML(t, string(text), got)
		if docs[0].Kind != "Workflow" {
			continue
		}
		w, err := Read(f[2], text)
		if err == nil {
			var r *job.Workflow
			if r, err = w.Record(); err == nil {
				compareYAML(t, r.Manifest, got)
			}
		}
		if err != nil {
			t.Errorf("hpcc refuses an example: %v", err)
		}
		workflows++
	}
	t.Logf("hpcc accepts %d workflows", workflows)
	if workflows < 150 {
		t.Errorf("workflows.txt has %d workflows; want 150", workflows)
	}
}

// FuzzReadManifests holds that what is read is what servers read, and that reading ends.
func FuzzReadManifests(f *testing.F) {
	for _, s := range sound {
		f.Add([]byte(s))
	}
	f.Add([]byte(wfHead + "  <<: [{entrypoint: a}, {entrypoint: b}]\n"))
	f.Add([]byte(threeSteps))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := readManifests("w.yaml", text)
		if err != nil || len(list) != 1 {
			return
		}
		got, err := json.Marshal(list[0].root)
		if err != nil {
			t.Fatalf("writing %q: %v", text, err)
		}
		if theirs, err := yaml.YAMLToJSON(text); err == nil && json.Valid(theirs) && !strings.Contains(string(text), "---") {
			compareYAML(t, string(text), got)
		}
	})
}
