package argo

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/job/message"
)

// This file checks the references of a workflow: templates, tasks, parameters. The server checks
// only some of them at submission, and the others when the step runs.

// tag matches the text between {{ and }}. {{= starts an expression, which is not checked.
var tag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{\{([^{}=][^{}]*)\}\}`) })

// dependsTask matches a task in "depends", with the required result.
var dependsTask = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([A-Za-z0-9_-]+)(\.[A-Za-z]+)?`) })

// A nameReader resolves the names in one document.
type nameReader struct {
	file       string
	templates  map[string]*item // nil if another object may define more
	parameters []string         // of spec.arguments
	anyParam   bool             // other objects may define more parameters
	problems   []string
}

func (r *nameReader) wrong(it *item, format string, a ...any) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, fmt.Sprintf("%s:%d: %s: %s", r.file, it.line, it.path, fmt.Sprintf(format, a...)))
	}
}

// checkNames returns an error with the references to unknown templates, tasks and parameters.
func (m *manifestDocument) checkNames(file string) error {
	spec := m.spec()
	if spec == nil || m.APIVersion != argoVersion || m.Kind == "WorkflowEventBinding" {
		return nil
	}
	r := &nameReader{file: file, anyParam: m.Kind != "Workflow" && m.Kind != "CronWorkflow"}
	for _, p := range spec.items("arguments", "parameters") {
		r.parameters = append(r.parameters, p.text("name"))
	}
	if spec.at("workflowTemplateRef") != nil {
		r.anyParam = true
	} else {
		r.templates = map[string]*item{}
		for _, t := range spec.items("templates") {
			r.templates[t.text("name")] = t
		}
	}
	for _, name := range []string{"entrypoint", "onExit"} {
		r.template(spec.at(name))
	}
	r.hooks(spec)
	if m.Kind != "ClusterWorkflowTemplate" && m.Kind != "WorkflowTemplate" && r.templates != nil && spec.text("entrypoint") == "" {
		r.problems = append(r.problems, fmt.Sprintf("%s:%d: %s: lacks entrypoint", file, spec.line, spec.path))
	}
	for _, t := range spec.items("templates") {
		r.inTemplate(t)
	}
	if len(r.problems) > 0 {
		return &manifestError{r.problems}
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

// template returns the template that an item names, or nil. It ignores a name that contains {{.
func (r *nameReader) template(it *item) *item {
	name := it.text()
	if name == "" || r.templates == nil || strings.Contains(name, "{{") {
		return nil
	}
	t, ok := r.templates[name]
	if !ok {
		known := make([]string, 0, len(r.templates))
		for k := range r.templates {
			known = append(known, k)
		}
		r.wrong(it, "unknown template %q%s", message.Short(name), r.near(name, known))
	}
	return t
}

// near suggests the closest known name, or lists all of them.
func (r *nameReader) near(name string, known []string) string {
	slices.Sort(known)
	if n := message.Nearest(message.Short(name), known); n != "" {
		return fmt.Sprintf(" (did you mean %s?)", n)
	}
	if len(known) == 0 {
		return "; there are none"
	}
	return "; known: " + strings.Join(known[:min(len(known), 20)], ", ")
}

func (r *nameReader) hooks(it *item) {
	if h := it.at("hooks"); h != nil {
		for _, e := range h.fields {
			r.template(e.value.at("template"))
		}
	}
}

// A scope holds the names to which the strings of a template may refer.
type scope struct {
	template *item
	group    string           // tasks, steps; "" for a template that runs a program
	members  map[string]*item // of the group, by name
	looped   bool             // {{item}} has a value
}

// inTemplate checks one template.
func (r *nameReader) inTemplate(t *item) {
	s := scope{template: t, members: map[string]*item{}}
	var members []*item
	switch {
	case t.at("dag") != nil:
		s.group, members = "tasks", t.items("dag", "tasks")
	case t.at("steps") != nil:
		s.group = "steps"
		for _, parallel := range t.items("steps") {
			members = append(members, parallel.list...)
		}
	}
	for _, m := range members {
		s.members[m.text("name")] = m
	}
	for _, m := range members {
		r.member(m, s)
	}
	for _, e := range t.fields {
		if e.name != "dag" && e.name != "steps" {
			r.strings(e.value, s)
		}
	}
}

// member checks a task of a DAG or a step.
func (r *nameReader) member(m *item, s scope) {
	r.template(m.at("template"))
	r.template(m.at("onExit"))
	r.hooks(m)
	known := make([]string, 0, len(s.members))
	for name := range s.members {
		known = append(known, name)
	}
	for _, d := range m.items("dependencies") {
		if s.members[d.text()] == nil {
			r.wrong(d, "unknown task %q%s", message.Short(d.text()), r.near(d.text(), known))
		}
	}
	if d := m.at("depends"); d != nil && !strings.Contains(d.text(), "{{") {
		for _, w := range dependsTask().FindAllStringSubmatch(d.text(), -1) {
			if s.members[w[1]] == nil {
				r.wrong(d, "unknown task %q%s", message.Short(w[1]), r.near(w[1], known))
			}
		}
	}
	s.looped = m.at("withItems") != nil || m.at("withParam") != nil || m.at("withSequence") != nil
	for _, e := range m.fields {
		if e.name == "inline" {
			r.inTemplate(e.value)
		} else {
			r.strings(e.value, s)
		}
	}
}

// strings checks all text below an item.
func (r *nameReader) strings(it *item, s scope) {
	it.walk(func(it *item) {
		text, ok := it.scalar.(string)
		if !ok {
			return
		}
		for _, m := range tag().FindAllStringSubmatch(text, -1) {
			r.reference(it, strings.TrimSpace(m[1]), s)
		}
	})
}

// reference checks the name in a {{…}}. It accepts the forms that hpcc does not know.
func (r *nameReader) reference(it *item, ref string, s scope) {
	names := func(where ...string) (out []string) {
		for _, p := range s.template.items(where...) {
			out = append(out, p.text("name"))
		}
		return out
	}
	require := func(what, name string, known []string) {
		if !slices.Contains(known, name) {
			r.wrong(it, "{{%s}}: unknown %s %q%s", message.Short(ref), what, message.Short(name), r.near(name, known))
		}
	}
	if name, ok := strings.CutPrefix(ref, "inputs.parameters."); ok {
		require("input parameter", name, names("inputs", "parameters"))
	} else if name, ok := strings.CutPrefix(ref, "inputs.artifacts."); ok {
		require("input artifact", strings.TrimSuffix(name, ".path"), names("inputs", "artifacts"))
	} else if name, ok := strings.CutPrefix(ref, "workflow.parameters."); ok && name != "json" && !r.anyParam {
		require("parameter of the workflow", name, r.parameters)
	} else if (ref == "item" || strings.HasPrefix(ref, "item.")) && !s.looped {
		r.wrong(it, "{{%s}}: item is only defined in the arguments of a step with withItems, withParam or withSequence", message.Short(ref))
	} else if group, rest, _ := strings.Cut(ref, "."); (group == "tasks" || group == "steps") && rest != "name" {
		r.memberReference(it, ref, group, rest, s)
	}
}

// memberReference checks the name in {{tasks.NAME.…}} or {{steps.NAME.…}}.
func (r *nameReader) memberReference(it *item, ref, group, rest string, s scope) {
	if s.group != group {
		r.wrong(it, "{{%s}}: only defined in a template with %s; pass the value in the step's arguments and use {{inputs.parameters.NAME}}", message.Short(ref), map[string]string{"tasks": "a dag", "steps": "steps"}[group])
		return
	}
	name, what, _ := strings.Cut(rest, ".")
	m := s.members[name]
	if m == nil {
		var known []string
		for k := range s.members {
			known = append(known, k)
		}
		r.wrong(it, "{{%s}}: unknown %s %q%s", message.Short(ref), strings.TrimSuffix(group, "s"), message.Short(name), r.near(name, known))
		return
	}
	t := r.templates[m.text("template")]
	if t == nil {
		return
	}
	for _, kind := range []string{"parameters", "artifacts"} {
		output, ok := strings.CutPrefix(what, "outputs."+kind+".")
		if !ok {
			continue
		}
		var known []string
		for _, p := range t.items("outputs", kind) {
			known = append(known, p.text("name"))
		}
		if !slices.Contains(known, output) {
			r.wrong(it, "{{%s}}: template %s has no output %q%s", message.Short(ref), m.text("template"), message.Short(output), r.near(output, known))
		}
	}
}
