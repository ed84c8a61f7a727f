package argo

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/job/message"
)

// This file checks the references of a workflow: templates, tasks, arguments, and the names in
// {{…}}. The server checks only some of them at submission, and the others when the step runs.

// tag matches the text between {{ and }}. {{= starts an expression, which is not checked.
var tag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{\{([^{}=][^{}]*)\}\}`) })

// Limits of names, which become parts of labels. A CronWorkflow's workflow gets a number at the end.
const (
	maxName     = 63
	maxCronName = 52
)

// check returns an error with the problems of a document for Argo.
func (m *manifestDocument) check(file string) error {
	if m.APIVersion != argoVersion || m.Kind == "WorkflowEventBinding" {
		return nil
	}
	c := &checker{file: file, kind: m.Kind, meta: m.root.at("metadata"), spec: m.spec()}
	if m.Kind == "CronWorkflow" {
		c.meta = m.root.at("spec", "workflowMetadata") // of the workflows that it creates
	}
	if c.spec == nil || c.spec.shape != yaml.MappingNode {
		c.wrong(m.root, "lacks spec")
		return c.err()
	}
	limit := maxName
	if m.Kind == "CronWorkflow" {
		limit = maxCronName
	}
	if len(m.Name) > limit {
		c.wrong(m.root.at("metadata", "name"), "has %d characters; the limit for a %s is %d", len(m.Name), m.Kind, limit)
	}
	c.apply(m.root)
	c.references()
	return c.err()
}

// spec returns the spec of the workflow itself, also for a CronWorkflow.
func (m *manifestDocument) spec() *item {
	if m.Kind == "CronWorkflow" {
		return m.root.at("spec", "workflowSpec")
	}
	return m.root.at("spec")
}

// references checks the names to which a document refers.
func (c *checker) references() {
	isTemplate := c.kind == "WorkflowTemplate" || c.kind == "ClusterWorkflowTemplate"
	ref := c.spec.at("workflowTemplateRef").given()
	c.open = isTemplate || ref
	if !ref {
		c.templates = map[string]*item{}
		for _, t := range c.spec.items("templates") {
			if name := t.text("name"); c.templates[name] == nil { // a second one is a problem of its own
				c.templates[name] = t
			}
		}
	}
	c.setGlobals()
	if !isTemplate && !ref && c.spec.text("entrypoint") == "" {
		c.wrong(c.spec, "lacks entrypoint")
	}
	for _, name := range []string{"entrypoint", "onExit"} {
		at := c.spec.at(name)
		if t := c.template(at); t != nil && !(isTemplate && name == "entrypoint") {
			c.supplied(at, t, c.spec.at("arguments"))
		}
	}
	c.holders(c.spec)
	for _, t := range c.spec.items("templates") {
		c.inTemplate(t)
	}
	for _, e := range c.spec.fields {
		if e.name != "templates" && e.name != "templateDefaults" {
			c.strings(e.value, scope{})
		}
	}
}

// setGlobals collects the names of {{workflow.NAME}} that the document defines.
func (c *checker) setGlobals() {
	c.globals = map[string]bool{}
	add := func(names ...string) {
		for _, n := range names {
			c.globals[n] = true
		}
	}
	add("name", "namespace", "mainEntrypoint", "serviceAccountName", "uid", "status", "failures", "annotations", "annotations.json", "labels", "labels.json")
	if parameters := c.spec.items("arguments", "parameters"); len(parameters) > 0 {
		add("parameters", "parameters.json")
		for _, p := range parameters {
			add("parameters." + p.text("name"))
		}
	}
	if c.spec.at("priority").given() {
		add("priority")
	}
	sources := []*item{c.meta, c.spec.at("workflowMetadata")}
	for _, m := range sources {
		for _, name := range []string{"labels", "annotations", "labelsFrom"} {
			if v := m.at(name); v != nil {
				for _, e := range v.fields {
					add(strings.TrimSuffix(name, "From") + "." + e.name)
				}
			}
		}
	}
	c.spec.walk(func(it *item) {
		for _, name := range []string{"parameters", "artifacts"} {
			for _, o := range it.items(name) {
				if it.kind == "Outputs" && o.text("globalName") != "" {
					add("outputs." + name + "." + o.text("globalName"))
				}
			}
		}
	})
}

// template returns the template that an item names, or nil. It ignores a name that contains {{.
func (c *checker) template(it *item) *item {
	name := it.text()
	if name == "" || c.templates == nil || strings.Contains(name, "{{") {
		return nil
	}
	t, ok := c.templates[name]
	if !ok {
		c.wrong(it, "unknown template %q%s", message.Short(name), c.near(name, slices.Collect(maps.Keys(c.templates))))
	}
	return t
}

// near suggests the closest known name, or lists all of them.
func (c *checker) near(name string, known []string) string {
	if c.full() {
		return ""
	}
	slices.Sort(known)
	if n := message.Nearest(message.Short(name), known); n != "" {
		return fmt.Sprintf(" (did you mean %s?)", n)
	}
	if len(known) == 0 {
		return "; there are none"
	}
	return "; known: " + strings.Join(known[:min(len(known), 20)], ", ")
}

// holders checks the templates of the hooks of a workflow, step or task.
func (c *checker) holders(it *item) {
	if h := it.at("hooks"); h != nil {
		for _, e := range h.fields {
			if t := c.template(e.value.at("template")); t != nil {
				c.supplied(e.value, t, e.value.at("arguments"))
			}
		}
	}
}

// A scope holds the names to which the strings of a template may refer.
type scope struct {
	template *item                  // nil outside of templates
	group    string                 // tasks, steps; "" for a template that runs a program
	members  map[string]*item       // of the group, by name
	member   *item                  // whose strings are checked; nil for the rest of the template
	before   func(name string) bool // whether a member has ended when member starts
}

// inTemplate checks one template.
func (c *checker) inTemplate(t *item) {
	c.form(t)
	s := scope{template: t, members: map[string]*item{}}
	var groups [][]*item // of members that start at the same time
	switch typeOf(t) {
	case "dag":
		s.group, groups = "tasks", [][]*item{t.items("dag", "tasks")}
	case "steps":
		s.group = "steps"
		for _, parallel := range t.items("steps") {
			groups = append(groups, parallel.list)
		}
	}
	members := slices.Concat(groups...)
	for _, m := range members {
		s.members[m.text("name")] = m
	}
	if s.group == "steps" {
		c.names(members)
	} else if s.group == "tasks" {
		c.dag(t.at("dag"), s.members)
		if target := t.at("dag", "target"); target != nil {
			c.strings(target, s)
		}
	}
	ended := map[string]bool{}
	for _, m := range members {
		s.member, s.before = m, func(name string) bool { return ended[name] }
		if s.group == "tasks" {
			all := sync.OnceValue(func() map[string]bool { return ancestors(m, s.members) })
			s.before = func(name string) bool { return len(members) > maxSteps || all()[name] }
		}
		c.inMember(m, s)
		ended[m.text("name")] = true
	}
	s.member, s.before = nil, nil
	for _, e := range t.fields {
		if e.name != "dag" && e.name != "steps" {
			c.strings(e.value, s)
		}
	}
}

// inMember checks a task of a DAG or a step.
func (c *checker) inMember(m *item, s scope) {
	t := c.template(m.at("template"))
	if inline := m.at("inline"); inline.given() {
		t = inline
	}
	if t != nil {
		c.supplied(m, t, m.at("arguments"))
	}
	c.template(m.at("onExit"))
	c.holders(m)
	if when := m.at("when"); when.given() {
		c.condition(when, false)
	}
	for _, e := range m.fields {
		if e.name == "inline" {
			c.inTemplate(e.value)
		} else {
			c.strings(e.value, s)
		}
	}
}

// strings checks all text below an item.
func (c *checker) strings(it *item, s scope) {
	it.walk(func(it *item) {
		text, ok := it.scalar.(string)
		if !ok || c.full() {
			return
		}
		for _, m := range tag().FindAllStringSubmatch(text, -1) {
			ref := strings.TrimSpace(m[1])
			if problem := c.unresolved(ref, s); problem != "" {
				c.wrong(it, "{{%s}}: %s", message.Short(ref), problem)
			}
		}
	})
}

// unresolved returns why the name in a {{…}} has no value, or "". It accepts the forms that hpcc
// does not know, which other programs may replace.
func (c *checker) unresolved(ref string, s scope) string {
	first, rest, _ := strings.Cut(ref, ".")
	switch {
	case first == "workflow" && rest != "":
		return c.global(rest)
	case s.template == nil:
		return ""
	case first == "inputs" && rest != "":
		return c.input(rest, s.template)
	case first == "pod" && rest != "":
		if kind := typeOf(s.template); rest != "name" || !slices.Contains([]string{"container", "containerSet", "script", "resource", "data"}, kind) {
			return "only pod.name is defined, in a template that runs a pod"
		}
	case first == "item":
		return c.item(rest, s.member)
	case (first == "tasks" || first == "steps") && rest != "" && !strings.HasPrefix(rest, "name"):
		return c.memberReference(first, rest, s)
	}
	return ""
}

// global returns why {{workflow.NAME}} has no value.
func (c *checker) global(name string) string {
	kind, rest, _ := strings.Cut(name, ".")
	set := strings.HasPrefix(rest, "workflows.argoproj.io/") // by the server
	switch {
	case c.globals[name], strings.HasPrefix(name, "creationTimestamp"), strings.HasPrefix(name, "scheduledTime"), strings.HasPrefix(name, "duration"):
		return ""
	case kind == "parameters" && c.open, (kind == "labels" || kind == "annotations") && (set || c.spec.at("workflowTemplateRef").given()), kind == "outputs" && c.foreignOutputs():
		return ""
	}
	prefix, what := "", "variable"
	switch kind {
	case "parameters":
		prefix, what = "parameters.", "parameter"
	case "labels", "annotations":
		prefix, what = kind+".", strings.TrimSuffix(kind, "s")
	case "outputs":
		prefix, what = "outputs.", "output"
	}
	var known []string
	for g := range c.globals {
		if r, ok := strings.CutPrefix(g, prefix); ok && r != "json" && (prefix != "" || !strings.Contains(g, ".")) {
			known = append(known, r)
		}
	}
	name = strings.TrimPrefix(name, prefix)
	return fmt.Sprintf("unknown %s of the workflow %q%s", what, message.Short(name), c.near(name, known))
}

// foreignOutputs reports whether the workflow may have outputs whose names are not in the document.
func (c *checker) foreignOutputs() (yes bool) {
	yes = c.open
	c.spec.walk(func(it *item) { yes = yes || it.kind == "TemplateRef" || strings.Contains(it.text("globalName"), "{{") })
	return yes
}

// input returns why {{inputs.NAME}} has no value.
func (c *checker) input(name string, t *item) string {
	kind, rest, _ := strings.Cut(name, ".")
	var known []string
	for _, p := range t.items("inputs", kind) {
		known = append(known, p.text("name"))
	}
	switch kind {
	case "parameters":
		if (rest == "" && len(known) > 0) || slices.Contains(known, rest) {
			return ""
		}
	case "artifacts":
		if rest = strings.TrimSuffix(rest, ".path"); slices.Contains(known, rest) {
			return ""
		}
	default:
		return "write inputs.parameters.NAME or inputs.artifacts.NAME"
	}
	return fmt.Sprintf("unknown input %s %q%s", strings.TrimSuffix(kind, "s"), message.Short(rest), c.near(rest, known))
}

// item returns why {{item}} or {{item.KEY}} has no value.
func (c *checker) item(key string, m *item) string {
	if m == nil || !loops(m) {
		return "item is only defined in the arguments of a step with withItems, withParam or withSequence"
	}
	if key == "" || m.at("withParam").given() {
		return ""
	}
	var known []string
	for _, e := range m.items("withItems") {
		for i := range e.list {
			known = append(known, fmt.Sprintf("[%d]", i))
		}
		for _, f := range e.fields {
			known = append(known, f.name)
		}
	}
	if slices.Contains(known, key) {
		return ""
	}
	return fmt.Sprintf("unknown key %q of the items%s", message.Short(key), c.near(key, known))
}

// memberReference returns why {{tasks.NAME.…}} or {{steps.NAME.…}} has no value.
func (c *checker) memberReference(group, rest string, s scope) string {
	one := strings.TrimSuffix(group, "s")
	if s.group != group {
		return fmt.Sprintf("only defined in a template with %s; pass the value in the step's arguments and use {{inputs.parameters.NAME}}", map[string]string{"tasks": "a dag", "steps": "steps"}[group])
	}
	name, what, _ := strings.Cut(rest, ".")
	m := s.members[name]
	if m == nil {
		return fmt.Sprintf("unknown %s %q%s", one, message.Short(name), c.near(name, slices.Collect(maps.Keys(s.members))))
	}
	own := m == s.member
	hooked := m.at("hooks").given() || m.at("onExit").given()
	switch {
	case what == "status" && own && (group == "steps" || hooked):
		return ""
	case s.member == nil, own && hooked, s.before(name):
	case own:
		return fmt.Sprintf("the %s cannot refer to itself", one)
	case group == "tasks":
		return fmt.Sprintf("task %s does not wait for %s; add it to dependencies or depends", s.member.text("name"), name)
	default:
		return fmt.Sprintf("step %s starts before %s ends; refer to earlier steps", s.member.text("name"), name)
	}
	return c.result(m, what)
}

// result returns why a step or task does not have {{steps.NAME.WHAT}}.
func (c *checker) result(m *item, what string) string {
	t := m.at("inline")
	if !t.given() {
		t = c.templates[m.text("template")]
	}
	if t == nil {
		return ""
	}
	kind := typeOf(t)
	prints := slices.Contains([]string{"container", "script", "data", "http", "plugin"}, kind) ||
		slices.ContainsFunc(t.items("containerSet", "containers"), func(e *item) bool { return e.text("name") == "main" })
	aggregated := m.at("withItems").given() || m.at("withParam").given()
	known := []string{"id", "startedAt", "finishedAt", "hostNodeName", "status"}
	if prints || (aggregated && kind == "containerSet") {
		known = append(known, "outputs.result", "exitCode")
	}
	if t.text("daemon") == "true" {
		known = append(known, "ip")
	}
	if aggregated {
		known = append(known, "outputs.parameters")
	}
	for _, group := range []string{"parameters", "artifacts"} {
		output, ok := strings.CutPrefix(what, "outputs."+group+".")
		if !ok {
			continue
		}
		var names []string
		for _, p := range t.items("outputs", group) {
			names = append(names, p.text("name"))
		}
		if slices.Contains(names, output) {
			return ""
		}
		return fmt.Sprintf("template %s has no output %q%s", message.Short(t.text("name")), message.Short(output), c.near(output, names))
	}
	if slices.Contains(known, what) {
		return ""
	}
	return fmt.Sprintf("the template of %s has no %q%s", m.text("name"), message.Short(what), c.near(what, known))
}
