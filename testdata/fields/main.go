// Command fields writes the tables of fields that hpcc uses to check users' manifests
// strictly: job/argo/fields_argo.txt and job/argo/fields_kubernetes.txt. It reads the
// schemas in the modules of Argo Workflows and Kubernetes.
//
//	go run ./testdata/fields
//
// A table has a line "@apiVersion kind type" for each kind, a line for each type
// and below it, after a blank, "field kind" for each of its fields; ! marks those
// that are required. Kinds are s string, b boolean, i integer, n number, q
// quantity, x integer or string, a anything, or a type's name,
// behind [] for lists and {} for maps.
package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A source is a module's schema, and the kinds that a table gets from it.
type source struct {
	file, module, schema string
	required             bool     // the server enforces the required fields of the schema
	kinds                []string // apiVersion, kind, definition
}

var sources = []source{
	{"job/argo/fields_argo.txt", "github.com/argoproj/argo-workflows/v3@v3.7.4", "api/jsonschema/schema.json", false, []string{
		"argoproj.io/v1alpha1 ClusterWorkflowTemplate io.argoproj.workflow.v1alpha1.ClusterWorkflowTemplate",
		"argoproj.io/v1alpha1 CronWorkflow io.argoproj.workflow.v1alpha1.CronWorkflow",
		"argoproj.io/v1alpha1 WorkflowEventBinding io.argoproj.workflow.v1alpha1.WorkflowEventBinding",
		"argoproj.io/v1alpha1 Workflow io.argoproj.workflow.v1alpha1.Workflow",
		"argoproj.io/v1alpha1 WorkflowTemplate io.argoproj.workflow.v1alpha1.WorkflowTemplate",
	}},
	{"job/argo/fields_kubernetes.txt", "k8s.io/kubernetes@v1.34.4", "api/openapi-spec/swagger.json", true, []string{
		"apps/v1 Deployment io.k8s.api.apps.v1.Deployment",
		"batch/v1 CronJob io.k8s.api.batch.v1.CronJob",
		"batch/v1 Job io.k8s.api.batch.v1.Job",
		"v1 ConfigMap io.k8s.api.core.v1.ConfigMap",
		"v1 PersistentVolumeClaim io.k8s.api.core.v1.PersistentVolumeClaim",
		"v1 Pod io.k8s.api.core.v1.Pod",
		"v1 Secret io.k8s.api.core.v1.Secret",
		"v1 Service io.k8s.api.core.v1.Service",
	}},
}

// A schema holds the used fields of JSON Schema and OpenAPI 2.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       string            `json:"type"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
	More       *schema           `json:"additionalProperties"`
	Required   []string          `json:"required"`
}

// special are types whose decoders accept more or less than their schema, with the kinds
// that the decoders accept.
var special = map[string]string{
	"io.k8s.apimachinery.pkg.api.resource.Quantity":       "q",
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString":     "x",
	"io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1":       "a",
	"io.k8s.apimachinery.pkg.runtime.RawExtension":        "a",
	"io.argoproj.workflow.v1alpha1.Item":                  "a",
	"io.argoproj.workflow.v1alpha1.Plugin":                "a",
	"io.argoproj.workflow.v1alpha1.Parameter.default":     "a",
	"io.argoproj.workflow.v1alpha1.Parameter.value":       "a",
	"io.argoproj.workflow.v1alpha1.Parameter.enum":        "[]a",
	"io.argoproj.workflow.v1alpha1.Parameter.description": "a",
	"io.argoproj.workflow.v1alpha1.ValueFrom.default":     "a",
}

func main() {
	for _, s := range sources {
		if err := s.write(); err != nil {
			fmt.Fprintf(os.Stderr, "fields: %s: %v\n", s.module, err)
			os.Exit(1)
		}
	}
}

func (s *source) write() error {
	out, err := exec.Command("go", "mod", "download", "-json", s.module).Output()
	if err != nil {
		return err
	}
	var m struct{ Dir string }
	if err := json.Unmarshal(out, &m); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(m.Dir, s.schema))
	if err != nil {
		return err
	}
	var doc struct {
		Definitions map[string]schema `json:"definitions"`
	}
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	t := &table{definitions: doc.Definitions, required: s.required, done: map[string]string{}}
	fmt.Fprintf(&t.text, "# Written by \"go run ./testdata/fields\", which says what it means, from %s of\n# %s.\n", s.schema, s.module)
	for _, k := range s.kinds {
		f := strings.Fields(k)
		name, err := t.name(f[2])
		if err != nil {
			return err
		}
		fmt.Fprintf(&t.text, "@%s %s %s\n", f[0], f[1], name)
	}
	if err := t.types(); err != nil {
		return err
	}
	return os.WriteFile(s.file, []byte(t.text.String()), 0o644)
}

// A table is a table that is being written. done has the names of the definitions that it
// contains or will contain.
type table struct {
	definitions map[string]schema
	required    bool
	done        map[string]string
	todo        []string
	text        strings.Builder
}

// name returns the last part of a definition's name. If two definitions share it, name
// adds the group before it.
func (t *table) name(definition string) (string, error) {
	if n, ok := t.done[definition]; ok {
		return n, nil
	}
	if _, ok := t.definitions[definition]; !ok {
		return "", fmt.Errorf("there is no definition %s", definition)
	}
	parts := strings.Split(definition, ".")
	n := parts[len(parts)-1]
	if slices.Contains(slices.Collect(maps.Values(t.done)), n) {
		n = parts[len(parts)-3] + "." + n
	}
	t.done[definition] = n
	t.todo = append(t.todo, definition)
	return n, nil
}

func (t *table) types() error {
	for len(t.todo) > 0 {
		d := t.todo[0]
		t.todo = t.todo[1:]
		fmt.Fprintln(&t.text, t.done[d])
		def := t.definitions[d]
		for _, p := range slices.Sorted(maps.Keys(def.Properties)) {
			kind := special[d+"."+p]
			var err error
			switch {
			case kind != "":
			case p == "status" && def.Properties["spec"].Ref != "": // set by the server
				kind = "a"
			default:
				kind, err = t.kind(def.Properties[p])
			}
			if err != nil {
				return fmt.Errorf("%s.%s: %w", d, p, err)
			}
			if t.required && slices.Contains(def.Required, p) {
				kind += "!"
			}
			fmt.Fprintf(&t.text, " %s %s\n", p, kind)
		}
	}
	return nil
}

// kind returns the notation of the table for a schema.
func (t *table) kind(s schema) (string, error) {
	if s.Ref != "" {
		d := s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]
		def := t.definitions[d]
		switch {
		case special[d] != "":
			return special[d], nil
		case def.Properties == nil && def.Type != "object":
			return t.kind(def)
		}
		return t.name(d)
	}
	switch s.Type {
	case "":
		return "a", nil
	case "string":
		return "s", nil
	case "boolean":
		return "b", nil
	case "integer":
		return "i", nil
	case "number":
		return "n", nil
	case "array":
		of, err := t.kind(*s.Items)
		return "[]" + of, err
	case "object":
		if s.More == nil {
			return "a", nil
		}
		of, err := t.kind(*s.More)
		return "{}" + of, err
	}
	return "", fmt.Errorf("type %q", s.Type)
}
