package argo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/job"
	"hpcc/job/kube"
	"hpcc/text"
)

// A File is a user's workflow, or the name of a template on the server, with its parameters.
type File struct {
	File     string // path as the user gave it
	Template string // instead of File
	Name     string // from the file; "" if the server chooses one
	Notes    []string

	root       *item
	parameters []workflowParameter
	given      []string // NAME=VALUE
}

// A workflowParameter is a parameter in spec.arguments.
type workflowParameter struct {
	name  string
	value any // from the file, or the default; nil without one
	enum  []string
	at    *item // the parameter in the file; nil for a template on the server
}

// Read reads a file with a Workflow, or with a WorkflowTemplate or CronWorkflow whose workflow is to
// run once. It removes fields that only a server may set, with a note, and keeps all others.
func Read(file string, content []byte) (*File, error) {
	list, err := readManifests(file, content)
	if err != nil {
		return nil, err
	}
	w := &File{File: file}
	var chosen *manifestDocument
	for _, kind := range []string{"Workflow", "WorkflowTemplate", "CronWorkflow"} {
		var found []*manifestDocument
		for i := range list {
			if list[i].APIVersion == argoVersion && list[i].Kind == kind {
				found = append(found, &list[i])
			}
		}
		if len(found) > 1 && chosen == nil {
			return nil, fmt.Errorf("%s contains %d objects of kind %s; put the one to run into a separate file", file, len(found), kind)
		}
		if len(found) == 1 && chosen == nil {
			chosen = found[0]
		}
	}
	if chosen == nil {
		return nil, fmt.Errorf("%s does not contain a workflow: its kind is %s of apiVersion %s", file,
			text.Short(list[0].Kind), text.Short(list[0].APIVersion))
	}
	if err := chosen.check(file); err != nil {
		return nil, err
	}
	for i := range list {
		if &list[i] != chosen {
			w.Notes = append(w.Notes, fmt.Sprintf("%s %s of %s is not created; use \"kubectl apply\"", text.Short(list[i].Kind),
				text.Short(list[i].Name), file))
		}
	}
	w.take(chosen)
	return w, nil
}

// check returns an error for a document without the parts of a workflow that hpcc changes or that a
// run needs. The rest is checked by the server.
func (m *manifestDocument) check(file string) error {
	wrong := func(at *item, text string) error {
		return fmt.Errorf("%s:%d: %s", file, at.line, strings.TrimPrefix(at.path+": "+text, ": "))
	}
	spec := m.spec()
	for _, it := range []*item{m.root.at("metadata"), m.root.at("metadata", "labels"), m.root.at("spec"),
		m.root.at("spec", "workflowMetadata"), m.root.at("spec", "workflowMetadata", "labels"), spec} {
		if it != nil && it.shape != yaml.MappingNode && it.shape != 0 {
			return wrong(it, "is "+shapeName(it.shape)+"; want a mapping")
		}
	}
	texts := []*item{m.root.at("metadata", "name"), m.root.at("metadata", "generateName"),
		m.root.at("metadata", "namespace"), spec.at("entrypoint")}
	for _, p := range spec.items("arguments", "parameters") {
		texts = append(texts, p.at("name"))
	}
	for _, it := range texts {
		if it == nil || it.scalar == nil {
			continue
		}
		if _, isText := it.scalar.(string); !isText {
			return wrong(it, "is a number or a boolean; want text; put it in quotes")
		}
	}
	switch {
	case spec == nil || spec.shape == 0:
		return wrong(m.root, "lacks spec")
	case spec.text("entrypoint") == "" && spec.at("workflowTemplateRef") == nil:
		return wrong(spec, "lacks entrypoint")
	}
	return nil
}

// spec returns the spec of the workflow itself, also for a CronWorkflow.
func (m *manifestDocument) spec() *item {
	if m.Kind == "CronWorkflow" {
		return m.root.at("spec", "workflowSpec")
	}
	return m.root.at("spec")
}

// serverFields are the fields of metadata that only a server may set.
var serverFields = []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink",
	"deletionTimestamp", "ownerReferences"}

// take converts a document to the workflow to submit.
func (w *File) take(m *manifestDocument) {
	meta := m.root.at("metadata")
	if meta == nil || meta.shape != yaml.MappingNode {
		meta = &item{line: m.root.line, path: "metadata", shape: yaml.MappingNode}
	}
	for _, name := range serverFields {
		if meta.drop(name) {
			w.Notes = append(w.Notes, fmt.Sprintf("metadata.%s is set by the server; dropped", name))
		}
	}
	if m.root.drop("status") {
		w.Notes = append(w.Notes, "status is set by the server; dropped")
	}
	w.root = m.root
	if m.Kind != "Workflow" {
		w.Notes = append(w.Notes, fmt.Sprintf("%s %s: its workflow runs once, now", m.Kind, m.Name))
		w.root = &item{shape: yaml.MappingNode}
		w.root.set("apiVersion", scalarItem(argoVersion))
		w.root.set("kind", scalarItem("Workflow"))
		if own := m.root.at("spec", "workflowMetadata"); m.Kind == "CronWorkflow" {
			meta = &item{shape: yaml.MappingNode, fields: []entry{{"namespace", meta.at("namespace")}}}
			for _, name := range []string{"labels", "annotations"} {
				meta.set(name, own.at(name))
			}
			meta.fields = slices.DeleteFunc(meta.fields, func(e entry) bool { return e.value == nil })
		}
		meta.drop("name")
		if m.Name != "" {
			meta.set("generateName", scalarItem(m.Name+"-"))
		}
		w.root.set("spec", m.spec())
	}
	if meta.text("name") == "" && meta.text("generateName") == "" {
		meta.set("generateName", scalarItem(job.Label(job.BaseName(w.File))+"-"))
	}
	w.root.set("metadata", meta)
	w.Name = meta.text("name")
	for _, p := range m.spec().items("arguments", "parameters") {
		q := workflowParameter{name: p.text("name"), at: p}
		for _, field := range []string{"default", "value"} {
			if v := p.at(field); v != nil && v.scalar != nil {
				q.value = v.scalar
			}
		}
		if from := p.at("valueFrom"); from != nil {
			q.value = ""
		}
		for _, e := range p.items("enum") {
			q.enum = append(q.enum, e.text())
		}
		w.parameters = append(w.parameters, q)
	}
}

// Parameters sets the values of parameters. Each name must be a parameter of the workflow, the file
// must allow the value, and afterwards every parameter must have one.
func (w *File) Parameters(given map[string]string) error {
	var known []string
	for _, p := range w.parameters {
		known = append(known, p.name)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		i, value := slices.Index(known, name), given[name]
		if i < 0 {
			hint := "it has no parameters"
			if len(known) > 0 {
				hint = "it has " + strings.Join(known, ", ")
			}
			if near := text.Nearest(text.Short(name), known); near != "" {
				hint = fmt.Sprintf("did you mean %s? %s", near, strings.ToUpper(hint[:1])+hint[1:])
			}
			return fmt.Errorf("%s does not have parameter %q; %s", w.what(), text.Short(name), hint)
		}
		if err := w.parameters[i].set(value); err != nil {
			return fmt.Errorf("parameter %s of %s: %w", name, w.what(), err)
		}
		w.given = append(w.given, name+"="+value)
	}
	if w.Template != "" {
		var err error
		if w.root, err = workflowOfTemplate(w.Template, w.given); err != nil {
			return err
		}
	}
	for _, p := range w.parameters {
		if _, ok := given[p.name]; !ok && p.value == nil && (w.Template != "" || w.root.at("spec", "workflowTemplateRef") == nil) {
			return fmt.Errorf("parameter %s of %s has no value; give --parameter %s=VALUE", p.name, w.what(), p.name)
		}
	}
	return nil
}

// what returns the name of the workflow for messages.
func (w *File) what() string {
	if w.Template != "" {
		return "template " + w.Template
	}
	return w.File
}

// set sets a parameter. If the file has a number or a boolean without quotes, other text is an error.
func (p *workflowParameter) set(value string) error {
	if len(p.enum) > 0 && !slices.Contains(p.enum, value) {
		return fmt.Errorf("%q is not one of %s", text.Short(value), strings.Join(p.enum, ", "))
	}
	var err error
	switch p.value.(type) {
	case int, int64, uint64, float64:
		if _, err = strconv.ParseFloat(value, 64); err != nil {
			err = fmt.Errorf("%q is not a number like the file's %v; to allow any text, quote the value in the file",
				text.Short(value), p.value)
		}
	case bool:
		if value != "true" && value != "false" {
			err = fmt.Errorf("%q is neither true nor false", text.Short(value))
		}
	}
	if err == nil && p.at != nil {
		p.at.drop("valueFrom")
		p.at.set("value", scalarItem(value))
	}
	return err
}

// ParseParameters parses a JSON object and NAME=VALUE items. Lists and objects stay JSON.
func ParseParameters(object string, list []string) (map[string]string, error) {
	out := map[string]string{}
	if object != "" {
		var all map[string]json.RawMessage
		d := json.NewDecoder(strings.NewReader(object))
		if err := d.Decode(&all); err != nil || d.More() {
			return nil, fmt.Errorf("%q is not a JSON object such as {\"batch_size\": 2}", text.Short(object))
		}
		for name, raw := range all {
			var s string
			if json.Unmarshal(raw, &s) != nil {
				s = string(bytes.TrimSpace(raw))
			}
			if bytes.Equal(raw, []byte("null")) {
				return nil, fmt.Errorf("parameter %s is null; give a value", text.Short(name))
			}
			out[name] = s
		}
	}
	for _, p := range list {
		name, value, ok := strings.Cut(p, "=")
		if _, twice := out[name]; !ok || name == "" || twice {
			return nil, fmt.Errorf("%q is not of the form NAME=VALUE, or its name appears twice", text.Short(p))
		}
		out[name] = value
	}
	return out, nil
}

// JobName returns the name of the job for a workflow.
func (w *File) JobName() string {
	name := w.Template
	if name == "" {
		name = strings.TrimSuffix(w.root.text("metadata", "generateName"), "-")
	}
	if w.Name != "" {
		name = w.Name
	}
	if name == "" {
		name = job.BaseName(w.File)
	}
	return job.CleanName(name)
}

// Record returns the workflow for a job. Later changes of w do not affect it.
func (w *File) Record() (*job.Workflow, error) {
	text, err := kube.Documents("", w.root)
	return &job.Workflow{File: w.File, Template: w.Template, Manifest: text, Notes: w.Notes}, err
}

// Namespace returns the namespace in the file, usually "".
func (w *File) Namespace() string { return w.root.text("metadata", "namespace") }

// Ports returns the named ports on which programs of the workflow listen.
func (w *File) Ports() (list []job.Port) {
	for _, t := range w.root.items("spec", "templates") {
		for _, p := range slices.Concat(t.items("container", "ports"), t.items("script", "ports")) {
			o, err := job.ParsePort(p.text("name") + "=" + p.text("containerPort"))
			if err == nil && !slices.ContainsFunc(list, func(q job.Port) bool { return q.Name == o.Name }) {
				list = append(list, o)
			}
		}
	}
	return list
}
