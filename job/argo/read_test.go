package argo

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"hpcc/testdata/testenv"
)

const wfHead = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: train-}\nspec:\n"

func TestReadManifests(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"unknown", wfHead + "  entrypoint: a\n  templates:\n  - name: a\n  - name: b\n    retryStrategy:\n      limit: 2\n      retryPolcy: OnFailure\n",
			"w.yaml:11: spec.templates[1].retryStrategy.retryPolcy: unknown field (did you mean retryPolicy?)"},
		{"case", wfHead + "  entryPoint: a\n", "w.yaml:5: spec.entryPoint: unknown field (did you mean entrypoint? names are case-sensitive)"},
		{"too deep", wfHead + "  templates:\n  - name: a\n    container:\n      image: x\n      retryStrategy: {limit: 1}\n",
			"w.yaml:9: spec.templates[0].container.retryStrategy: unknown field; spec.templates[0] has a field of that name (indented too far?)"},
		{"too little", wfHead + "  templates:\n  - name: a\n    image: x\n",
			"w.yaml:7: spec.templates[0].image: unknown field; spec.templates[0].container has a field of that name (not indented enough?)"},
		{"twice", wfHead + "  entrypoint: a\n  entrypoint: b\n", "w.yaml:6: spec.entrypoint: duplicate of line 5"},
		{"number for text", wfHead + "  templates:\n  - name: a\n    container: {image: x, args: [--n, 5]}\n", "w.yaml:7: spec.templates[0].container.args[1]: 5 is a number; want text; put it in quotes"},
		{"yes for text", wfHead + "  templates:\n  - name: a\n    container: {image: x, args: [yes]}\n", "w.yaml:7: spec.templates[0].container.args[0]: yes is a boolean; want text; put it in quotes"},
		{"text for number", wfHead + "  parallelism: \"3\"\n", "w.yaml:5: spec.parallelism: 3 is text; want a whole number"},
		{"list for mapping", wfHead + "  templates:\n  - name: a\n    container: [x]\n", "w.yaml:7: spec.templates[0].container: is a list; want a mapping"},
		{"mapping for list", wfHead + "  templates:\n    name: a\n", "w.yaml:6: spec.templates: is a mapping; want a list"},
		{"quantity", wfHead + "  templates:\n  - name: a\n    container: {image: x, resources: {limits: {memory: 4GB}}}\n", `w.yaml:7: spec.templates[0].container.resources.limits.memory: "4GB" is not a quantity such as 500m, 2, 4Gi or 4G`},
		{"lacks", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - image: a\n", "w.yaml:6: spec.containers[0]: lacks name"},
		{"no field is there", wfHead + "  templates:\n  - inputs: {parameters: [{name: a, valueFrom: {supplied: {x: 1}}}]}\n", "w.yaml:6: spec.templates[0].inputs.parameters[0].valueFrom.supplied.x: unknown field; this object has no known fields"},
		{"kind", "apiVersion: v2\nkind: Workflow\n", `w.yaml:1: unknown kind "Workflow" of apiVersion "v2"`},
		{"no mapping", "- a\n", "w.yaml:1: not a manifest: lacks apiVersion and kind"},
		{"second document", wfHead + "  entrypoint: a\n---\n" + wfHead + "  x: 1\n", "w.yaml:11: spec.x: unknown field; known:"},
		{"boolean key", wfHead + "  nodeSelector: {y: a}\n", "w.yaml:5: spec.nodeSelector: key y is a boolean; put it in quotes"},
		{"tag", wfHead + "  entrypoint: !!binary aGk=\n", "w.yaml:5: spec.entrypoint: servers do not support the tag !!binary"},
		{"infinite", wfHead + "  arguments: {parameters: [{name: a, value: .inf}]}\n", "w.yaml:5: spec.arguments.parameters[0].value: JSON cannot represent the number .inf"},
		{"syntax", wfHead + "  a: [\n", "reading w.yaml: yaml: line 5:"},
		{"empty", "---\n# nothing\n---\n", "w.yaml is empty"},
		{"itself", wfHead + "  podMetadata: &a\n    labels: *a\n", "w.yaml:5: spec.podMetadata.labels.labels: is a mapping; want text"},
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
	_, err := readManifests("w.yaml", []byte(wfHead+"  a: 1\n  b: 2\n  entrypoint: 5\n"))
	var all *manifestError
	if !errors.As(err, &all) || len(all.Problems) != 3 {
		t.Errorf("ReadManifests: %v; want three problems", err)
	}
	text := wfHead
	for i := range 1000 {
		text += fmt.Sprintf("  a%d: 1\n", i)
	}
	if _, err = readManifests("w.yaml", []byte(text)); !errors.As(err, &all) || len(all.Problems) != maxProblems {
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

// FuzzReadManifests holds that what is read is what servers read, and that reading ends.
func FuzzReadManifests(f *testing.F) {
	for _, s := range sound {
		f.Add([]byte(s))
	}
	f.Add([]byte(wfHead + "  <<: [{entrypoint: a}, {entrypoint: b}]\n"))
	workflows, err := filepath.Glob("testdata/lint/*.yaml")
	testenv.Check(f, err)
	for _, file := range workflows {
		text, err := os.ReadFile(file)
		testenv.Check(f, err)
		f.Add(text)
	}
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
