package argo

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"hpcc/job/message"
)

// isDuration reports whether Argo reads text as a duration: Go's notation, or seconds.
func isDuration(text string) bool {
	_, err := time.ParseDuration(text)
	_, errNumber := strconv.Atoi(text)
	return err == nil || errNumber == nil || strings.Contains(text, "{{")
}

// typeOf returns the field that says what a template runs, or "".
func typeOf(t *item) string {
	if found := t.which(templateTypes); len(found) > 0 {
		return found[0]
	}
	return ""
}

// form checks the fields of a template that depend on its type.
func (c *checker) form(t *item) {
	kind := typeOf(t)
	group := kind == "dag" || kind == "steps"
	leaf := !group && kind != "suspend"
	for _, name := range []string{"activeDeadlineSeconds", "timeout", "parallelism"} {
		v := t.at(name)
		if !v.given() {
			continue
		}
		number, err := strconv.Atoi(v.text())
		switch {
		case name == "parallelism" && !group:
			c.wrong(v, "only a template with dag or steps has parallelism")
		case (name == "timeout" && !leaf) || (name == "activeDeadlineSeconds" && group):
			c.wrong(v, "a template with %s has no %s", kind, name)
		case name == "timeout" && (err == nil || !isDuration(v.text())):
			c.wrong(v, "%q is not a duration with a unit, such as 30s, 5m or 2h", message.Short(v.text()))
		case name == "activeDeadlineSeconds" && !strings.HasPrefix(v.text(), "{{") && (err != nil || number < 0):
			c.wrong(v, "%q is not a positive number of seconds", message.Short(v.text()))
		}
	}
	if main := t.at(kind); (kind == "container" || kind == "script") && !main.at("image").given() && !c.spec.at("templateDefaults", kind, "image").given() {
		c.wrong(main, "lacks image")
	}
	c.inputs(t, leaf)
	c.outputs(t, kind, leaf)
	if set := t.items("containerSet", "containers"); kind == "containerSet" {
		exchanges := slices.Concat(t.items("inputs", "artifacts"), t.items("outputs", "artifacts"), t.items("outputs", "parameters"))
		if len(exchanges) > 0 && !slices.ContainsFunc(set, func(e *item) bool { return e.text("name") == "main" }) {
			c.wrong(t.at("containerSet"), "lacks a container of the name main, which has the inputs and outputs")
		}
	}
}

// artifactPath checks that the path of an artifact does not leave its directory.
func (c *checker) artifactPath(a *item) {
	at := a.text("path")
	above, _, up := strings.Cut(at+"/", "/../")
	if up && above != "" && !strings.HasPrefix(path.Clean(at), above+"/") {
		c.wrong(a.at("path"), "%q leaves %s", message.Short(at), message.Short(above))
	}
}

// paths checks that artifacts have a path where a program runs, and only there.
func (c *checker) paths(list []*item, leaf bool) {
	for _, a := range list {
		switch at := a.at("path"); {
		case leaf && a.shape == yaml.MappingNode && !at.given():
			c.wrong(a, "lacks path")
		case !leaf && at.given():
			c.wrong(at, "only the artifacts of a template that runs a program have a path")
		}
	}
}

func (c *checker) inputs(t *item, leaf bool) {
	list := t.items("inputs", "artifacts")
	c.paths(list, leaf)
	for _, a := range list {
		if from := a.at("from"); from.given() {
			c.wrong(from, "an input has no from; give it in the arguments of the step")
		}
	}
	if from := t.at("resource", "manifestFrom", "artifact"); from.given() && !slices.ContainsFunc(list, func(a *item) bool { return a.text("name") == from.text("name") }) {
		c.wrong(from, "unknown input artifact %q", message.Short(from.text("name")))
	}
	for _, kind := range []string{"container", "script"} {
		if t.at(kind) != nil {
			before := map[string]bool{}
			for _, m := range t.items(kind, "volumeMounts") {
				before[m.text("mountPath")] = true
			}
			c.mounted(list, before)
		}
	}
}

// outputTypes are the sources of an output parameter, and for each type of template those it needs
// one of.
var (
	outputTypes = []string{"path", "jqFilter", "jsonPath", "parameter", "expression", "supplied"}
	outputsOf   = map[string][]string{"container": outputTypes[:1], "containerSet": outputTypes[:1], "script": outputTypes[:1], "resource": outputTypes[1:3],
		"dag": outputTypes[3:5], "steps": outputTypes[3:5]}
)

func (c *checker) outputs(t *item, kind string, leaf bool) {
	c.paths(t.items("outputs", "artifacts"), leaf)
	for _, p := range t.items("outputs", "parameters") {
		from := p.at("valueFrom")
		sources, allowed := from.which(outputTypes), outputsOf[kind]
		switch value := p.at("value").present(); {
		case p.shape != yaml.MappingNode:
		case value && from.present():
			c.wrong(p, "has value and valueFrom; only one of them is possible")
		case value:
		case !from.present():
			c.wrong(p, "lacks valueFrom")
		case len(sources) == 0:
			c.wrong(from, "lacks one of %s", strings.Join(outputTypes, ", "))
		case len(sources) > 1:
			c.wrong(from, "has %s; only one of them is possible", strings.Join(sources, " and "))
		case len(allowed) > 0 && !slices.Contains(allowed, sources[0]):
			c.wrong(from, "has %s, but a template with %s needs %s", sources[0], kind, strings.Join(allowed, " or "))
		}
	}
}

// containerSet checks the dependencies and mounts of a set of containers.
func (c *checker) containerSet(it *item) {
	c.mounts(it)
	list := it.items("containers")
	waits := map[string][]*item{}
	for _, e := range list {
		waits[e.text("name")] = e.items("dependencies")
	}
	for _, e := range list {
		for _, d := range e.items("dependencies") {
			if _, ok := waits[d.text()]; !ok {
				c.wrong(d, "unknown container %q%s", message.Short(d.text()), c.near(d.text(), slices.Collect(maps.Keys(waits))))
			}
		}
	}
	c.circle(list, func(e *item) (names []string) {
		for _, d := range waits[e.text("name")] {
			names = append(names, d.text())
		}
		return names
	})
}

// circle reports a dependency cycle among the elements of a list.
func (c *checker) circle(list []*item, after func(*item) []string) {
	byName := map[string]*item{}
	for _, e := range list {
		byName[e.text("name")] = e
	}
	done := map[*item]bool{}
	var way []string
	var look func(e *item) bool
	look = func(e *item) bool {
		name := e.text("name")
		if i := slices.Index(way, name); i >= 0 {
			c.wrong(e, "waits for itself: %s", message.Short(strings.Join(append(way[i:], name), " → ")))
			return true
		}
		if done[e] {
			return false
		}
		way = append(way, name)
		for _, n := range after(e) {
			if b := byName[n]; b != nil && look(b) {
				return true
			}
		}
		way = way[:len(way)-1]
		done[e] = true
		return false
	}
	for _, e := range list {
		if look(e) {
			return
		}
	}
}

var (
	// dependsTask matches a task in "depends", with the required result.
	dependsTask = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`([A-Za-z0-9][A-Za-z0-9-]*)(?:\.([A-Za-z]+))?`) })
	// anyTag matches {{…}} in the manifest of a resource, which is not YAML before Argo replaces it.
	anyTag = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{\{.*?\}\}`) })
)

// results are the results of a task to which "depends" refers; the last two are those of tasks that
// run several times.
var results = []string{"Succeeded", "Failed", "Errored", "Skipped", "Omitted", "Daemoned", "AnySucceeded", "AllFailed"}

// dag checks the order of the tasks of a DAG.
func (c *checker) dag(dag *item, tasks map[string]*item) {
	list := dag.items("tasks")
	known := slices.Collect(maps.Keys(tasks))
	depends := slices.ContainsFunc(list, func(e *item) bool { return e.text("depends") != "" })
	for _, m := range list {
		name, after := m.text("name"), m.at("dependencies")
		switch {
		case depends && after.given():
			c.wrong(after, "a DAG has either dependencies or depends, and another task has depends")
		case depends && m.at("continueOn").given():
			c.wrong(m.at("continueOn"), "a DAG with depends has no continueOn; write NAME.Failed or NAME.Errored in depends")
		case (depends || after.given()) && name != "" && name[0] <= '9':
			c.wrong(m.at("name"), "name %q begins with a digit, which depends and dependencies do not allow", message.Short(name))
		}
		for _, d := range after.items() {
			if tasks[d.text()] == nil {
				c.wrong(d, "unknown task %q%s", message.Short(d.text()), c.near(d.text(), known))
			}
		}
		c.depends(m, tasks, known)
	}
	c.circle(list, waitsFor)
	if target := dag.at("target"); target != nil && !strings.Contains(target.text(), "{{") {
		for _, name := range strings.Fields(target.text()) {
			if tasks[name] == nil {
				c.wrong(target, "unknown task %q%s", message.Short(name), c.near(name, known))
			}
		}
	}
}

// depends checks the expression in "depends" of a task.
func (c *checker) depends(m *item, tasks map[string]*item, known []string) {
	d := m.at("depends")
	if d.text() == "" || strings.Contains(d.text(), "{{") {
		return
	}
	c.condition(d, true)
	for _, w := range dependsTask().FindAllStringSubmatch(d.text(), -1) {
		switch other := tasks[w[1]]; {
		case other == nil:
			c.wrong(d, "unknown task %q%s", message.Short(w[1]), c.near(w[1], known))
		case w[2] != "" && !slices.Contains(results, w[2]):
			c.wrong(d, "unknown result %q of task %s%s", message.Short(w[2]), w[1], c.near(w[2], slices.Clone(results)))
		case slices.Contains(results[6:], w[2]) && !loops(other):
			c.wrong(d, "task %s runs once; %s is the result of tasks with withItems, withParam or withSequence", w[1], w[2])
		}
	}
}

// loops reports whether a task or step runs once for each of several items.
func loops(m *item) bool {
	return m.at("withItems").given() || m.at("withParam").given() || m.at("withSequence").given()
}

// waitsFor returns the names of the tasks that a task waits for.
func waitsFor(m *item) (names []string) {
	for _, d := range m.items("dependencies") {
		names = append(names, d.text())
	}
	for _, w := range dependsTask().FindAllStringSubmatch(m.text("depends"), -1) {
		names = append(names, w[1])
	}
	return names
}

// ancestors returns the tasks that have ended when a task starts.
func ancestors(m *item, tasks map[string]*item) map[string]bool {
	found := map[string]bool{}
	var gather func(m *item)
	gather = func(m *item) {
		for _, n := range waitsFor(m) {
			if tasks[n] != nil && !found[n] {
				found[n] = true
				gather(tasks[n])
			}
		}
	}
	gather(m)
	return found
}

// supplied checks that arguments contain all inputs of a template that have no value of their own.
func (c *checker) supplied(at *item, t, arguments *item) {
	for _, kind := range []string{"parameters", "artifacts"} {
		given := map[string]bool{}
		for _, p := range arguments.items(kind) {
			given[p.text("name")] = true
		}
		for _, p := range t.items("inputs", kind) {
			if c.full() {
				return
			}
			own := p.at("value").present() || p.at("default").present() || p.at("valueFrom", "configMapKeyRef").given()
			if kind == "artifacts" {
				own = p.text("optional") == "true" || located(p)
			}
			if name := p.text("name"); !own && name != "" && !given[name] {
				c.wrong(at, "lacks %s %q, an input of template %s", strings.TrimSuffix(kind, "s"), message.Short(name), message.Short(t.text("name")))
			}
		}
	}
}

// resource checks the manifest of a resource.
func (c *checker) resource(it *item) {
	text := it.text("manifest")
	if action := it.text("action"); text == "" && !it.at("manifestFrom").given() && action != "" && action != "delete" && action != "get" {
		c.wrong(it, "lacks manifest or manifestFrom")
	}
	var any yaml.Node
	if err := yaml.Unmarshal([]byte(anyTag().ReplaceAllString(text, "x")), &any); err != nil {
		c.wrong(it.at("manifest"), "not YAML: %v", err)
	}
}
