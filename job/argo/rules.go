package argo

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/job/message"
)

// A rule lists the conditions that Argo sets for the objects of a type, in addition to the types of
// the fields. A value with {{ is accepted as a word or a duration.
type rule struct {
	required  []string              // fields that must not be empty
	one       []string              // exactly one of these fields has a value
	most      [][]string            // at most one field of each group has a value
	named     []string              // lists of elements with different, valid names
	allowed   map[string]string     // allowed values of a field, separated by spaces
	durations []string              // fields such as 30s, 2h or a number of seconds
	check     func(*checker, *item) // conditions that depend on several fields
}

// rules are the rules by type, as in fields_argo.txt. They are those of the validation of Argo 3.7,
// and of Kubernetes for the pods of templates.
var rules = sync.OnceValue(func() map[string]rule {
	holder := []string{"template", "templateRef", "inline"}
	loop := [][]string{{"withItems", "withParam", "withSequence"}}
	io := []string{"parameters", "artifacts"}
	pull := map[string]string{"imagePullPolicy": "Always IfNotPresent Never"}
	gc := map[string]string{"strategy": "OnWorkflowCompletion OnWorkflowDeletion Never"}
	return map[string]rule{
		"WorkflowSpec":             {most: [][]string{{"workflowTemplateRef", "templates"}}, named: []string{"templates"}, check: (*checker).hooks},
		"CronWorkflowSpec":         {most: [][]string{{"schedule", "schedules"}}, allowed: map[string]string{"concurrencyPolicy": "Allow Forbid Replace"}, check: (*checker).schedules},
		"WorkflowTemplateRef":      {required: []string{"name"}},
		"TemplateRef":              {required: []string{"name", "template"}},
		"Template":                 {one: templateTypes},
		"DAGTemplate":              {required: []string{"tasks"}, named: []string{"tasks"}},
		"DAGTask":                  {one: holder, most: loop, check: (*checker).hooks},
		"WorkflowStep":             {one: holder, most: loop, check: (*checker).hooks},
		"Sequence":                 {most: [][]string{{"count", "end"}}},
		"ContainerSetTemplate":     {required: []string{"containers"}, named: []string{"containers"}, check: (*checker).containerSet},
		"ResourceTemplate":         {required: []string{"action"}, allowed: map[string]string{"action": "get create apply delete replace patch"}, most: [][]string{{"manifest", "manifestFrom"}}, check: (*checker).resource},
		"Container":                {allowed: pull, check: (*checker).mounts},
		"ScriptTemplate":           {allowed: pull, check: (*checker).mounts},
		"UserContainer":            {required: []string{"name"}, allowed: pull, check: (*checker).mounts},
		"ContainerNode":            {allowed: pull, check: (*checker).mounts},
		"Arguments":                {named: io, check: (*checker).arguments},
		"Inputs":                   {named: io},
		"Outputs":                  {named: io, check: (*checker).globalNames},
		"Artifact":                 {most: [][]string{{"from", "fromExpression"}}, check: (*checker).artifactPath},
		"GitArtifact":              {required: []string{"repo"}},
		"HDFSArtifact":             {required: []string{"addresses", "path"}, check: (*checker).hdfs},
		"RetryStrategy":            {allowed: map[string]string{"retryPolicy": "Always OnFailure OnError OnTransientError"}},
		"Backoff":                  {durations: []string{"duration", "maxDuration", "cap"}},
		"SuspendTemplate":          {durations: []string{"duration"}},
		"PodGC":                    {allowed: map[string]string{"strategy": "OnPodCompletion OnPodSuccess OnWorkflowCompletion OnWorkflowSuccess"}, durations: []string{"deleteDelayDuration"}},
		"ArtifactGC":               {allowed: gc},
		"WorkflowLevelArtifactGC":  {allowed: gc},
		"VolumeClaimGC":            {allowed: map[string]string{"strategy": "OnWorkflowCompletion OnWorkflowSuccess"}},
		"Prometheus":               {required: []string{"name", "help"}, check: (*checker).metric},
		"Gauge":                    {required: []string{"value"}},
		"Counter":                  {required: []string{"value"}},
		"Histogram":                {required: []string{"value"}},
		"LabelSelectorRequirement": {required: []string{"key", "operator"}, allowed: map[string]string{"operator": "In NotIn Exists DoesNotExist"}, check: (*checker).selector},
		"Toleration":               {allowed: map[string]string{"operator": "Exists Equal", "effect": "NoSchedule PreferNoSchedule NoExecute"}},
	}
})

// templateTypes are the fields of a template that say what it runs.
var templateTypes = []string{"container", "script", "containerSet", "resource", "dag", "steps", "suspend", "data", "http", "plugin"}

// A checker applies Argo's rules to one document.
type checker struct {
	file      string
	kind      string
	meta      *item
	spec      *item            // of the workflow itself
	templates map[string]*item // nil if another object may define more
	open      bool             // other objects may define parameters and global outputs
	globals   map[string]bool  // X of {{workflow.X}}
	problems  []problem
}

type problem struct {
	line int
	text string
}

// wrong adds a problem of an item.
func (c *checker) wrong(it *item, format string, a ...any) {
	if c.full() {
		return
	}
	text := fmt.Sprintf(format, a...)
	if it.path != "" {
		text = it.path + ": " + text
	}
	c.problems = append(c.problems, problem{it.line, fmt.Sprintf("%s:%d: %s", c.file, it.line, text)})
}

// full reports whether there are far more problems than err returns.
func (c *checker) full() bool { return len(c.problems) >= 20*maxProblems }

// err returns the problems found, in the order of their lines.
func (c *checker) err() error {
	if len(c.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(c.problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
	var list []string
	for _, p := range c.problems {
		if !slices.Contains(list, p.text) && len(list) < maxProblems {
			list = append(list, p.text)
		}
	}
	return &manifestError{list}
}

// apply checks the rules of an item and of all items below it. Defaults of templates need not be
// complete.
func (c *checker) apply(it *item) {
	r := rules()[it.kind]
	for _, name := range r.required {
		if v := it.at(name); !v.given() {
			c.wrong(it, "lacks %s", name)
		}
	}
	for _, group := range r.most {
		if found := it.which(group); len(found) > 1 {
			c.wrong(it, "has %s; only one of them is possible", strings.Join(found, " and "))
		}
	}
	switch found := it.which(r.one); {
	case len(r.one) == 0:
	case len(found) == 0:
		c.wrong(it, "lacks one of %s", strings.Join(r.one, ", "))
	case len(found) > 1:
		c.wrong(it, "has %s; only one of them is possible", strings.Join(found, " and "))
	}
	for _, name := range r.named {
		c.names(it.items(name))
	}
	for name, allowed := range r.allowed {
		v := it.at(name)
		if text := v.text(); text != "" && !strings.Contains(text, "{{") && !slices.Contains(strings.Fields(allowed), text) {
			c.wrong(v, "%q is not one of %s", message.Short(text), strings.ReplaceAll(allowed, " ", ", "))
		}
	}
	for _, name := range r.durations {
		if v := it.at(name); v.text() != "" && !isDuration(v.text()) {
			c.wrong(v, "%q is not a duration such as 30s, 5m or 2h", message.Short(v.text()))
		}
	}
	if r.check != nil {
		r.check(c, it)
	}
	for _, e := range it.list {
		c.apply(e)
	}
	for _, e := range it.fields {
		if e.name != "templateDefaults" {
			c.apply(e.value)
		}
	}
}

// given reports whether an item has a value. A list without elements counts as none.
func (it *item) given() bool {
	return it != nil && (it.shape == yaml.MappingNode || len(it.list) > 0 || (it.scalar != nil && it.scalar != ""))
}

// which returns those of the named fields that have a value. An empty list counts as one.
func (it *item) which(names []string) (found []string) {
	for _, name := range names {
		if v := it.at(name); v.given() || (v != nil && v.shape == yaml.SequenceNode) {
			found = append(found, name)
		}
	}
	return found
}

var (
	stepName  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9]{0,127}$`) })
	valueName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[-a-zA-Z0-9_]+$`) })
)

// names checks that the elements of a list have different names of the allowed characters.
func (c *checker) names(list []*item) {
	line := map[string]int{}
	for _, e := range list {
		name := e.text("name")
		form, chars := stepName(), "letters, digits and -, begin with a letter or digit and have at most 128 characters"
		if e.kind == "Parameter" || e.kind == "Artifact" {
			form, chars = valueName(), "letters, digits, - and _"
		}
		switch {
		case e.shape != yaml.MappingNode:
			c.wrong(e, "is empty")
		case name == "":
			c.wrong(e, "lacks name")
		case !form.MatchString(name):
			c.wrong(e.at("name"), "invalid name %q; use %s", message.Short(name), chars)
		case line[name] > 0:
			c.wrong(e.at("name"), "name %q is not unique; it is also in line %d", message.Short(name), line[name])
		default:
			line[name] = e.at("name").line
		}
	}
}

// hooks checks that hooks other than "exit" say when they run.
func (c *checker) hooks(it *item) {
	h := it.at("hooks")
	if h == nil {
		return
	}
	for _, e := range h.fields {
		if e.name != "exit" && e.value.text("expression") == "" {
			c.wrong(e.value, "lacks expression; only the hook exit needs none")
		}
	}
}

// arguments checks the values that arguments pass. Those of the workflow itself may be missing,
// because a submission can set them.
func (c *checker) arguments(it *item) {
	for _, p := range it.items("parameters") {
		value, from := p.at("value"), p.at("valueFrom")
		switch {
		case !value.present() && !from.given() && it != c.spec.at("arguments"):
			c.wrong(p, "lacks value")
		case from.given() && len(from.which([]string{"configMapKeyRef", "event", "supplied"})) == 0:
			c.wrong(from, "an argument comes from configMapKeyRef, event or supplied")
		case from.given() && len(from.which([]string{"path", "jsonPath", "parameter", "expression"})) > 0:
			c.wrong(from, "%s is only possible in outputs", from.which([]string{"path", "jsonPath", "parameter", "expression"})[0])
		}
		c.enum(p, value)
	}
	for _, a := range it.items("artifacts") {
		if a.shape == yaml.MappingNode && !a.at("from").given() && !located(a) {
			c.wrong(a, "lacks from or a location such as s3")
		}
	}
}

// enum checks the value of a parameter that allows only some.
func (c *checker) enum(p, value *item) {
	var allowed []string
	for _, e := range p.items("enum") {
		allowed = append(allowed, e.text())
	}
	if len(allowed) > 0 && value.present() && !slices.Contains(allowed, value.text()) {
		c.wrong(value, "%q is not one of %s", message.Short(value.text()), strings.Join(allowed, ", "))
	}
}

// present reports whether an item has a value, which may be empty text.
func (it *item) present() bool { return it != nil && it.shape != 0 }

// located reports whether an artifact has a location, or a key in the artifact repository.
func located(a *item) bool {
	return len(a.which([]string{"artifactory", "azure", "gcs", "git", "hdfs", "http", "oss", "raw", "s3"})) > 0
}

// globalNames checks the names under which outputs are outputs of the workflow.
func (c *checker) globalNames(it *item) {
	for _, g := range slices.Concat(it.items("parameters"), it.items("artifacts")) {
		if name := g.text("globalName"); name != "" && !strings.Contains(name, "{{") && !valueName().MatchString(name) {
			c.wrong(g.at("globalName"), "invalid name %q; use letters, digits, - and _", message.Short(name))
		}
	}
}

// mounts checks that nothing is mounted twice at one path.
func (c *checker) mounts(it *item) { c.mounted(it.items("volumeMounts"), map[string]bool{}) }

// mounted adds the paths of volume mounts or input artifacts to those of before.
func (c *checker) mounted(list []*item, before map[string]bool) {
	for _, m := range list {
		name := "mountPath"
		if m.kind == "Artifact" {
			name = "path"
		}
		at := m.text(name)
		if at != "" && before[at] {
			c.wrong(m.at(name), "another volume or artifact is mounted at %s", message.Short(at))
		}
		before[at] = true
	}
}

var metricName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`) })

func (c *checker) metric(it *item) {
	names := []*item{it.at("name")}
	for _, l := range it.items("labels") {
		names = append(names, l.at("key"))
	}
	for _, n := range names {
		if n.text() != "" && !metricName().MatchString(n.text()) {
			c.wrong(n, "invalid name %q; use letters, digits and _", message.Short(n.text()))
		}
	}
	if it.text("gauge", "realtime") == "true" && strings.Contains(it.text("gauge", "value"), "resourcesDuration.") {
		c.wrong(it.at("gauge", "value"), "resourcesDuration is only known at the end, not in realtime")
	}
}

func (c *checker) selector(it *item) {
	values := len(it.items("values")) > 0
	switch operator := it.text("operator"); operator {
	case "In", "NotIn":
		if !values {
			c.wrong(it, "operator %s lacks values", operator)
		}
	case "Exists", "DoesNotExist":
		if values {
			c.wrong(it.at("values"), "operator %s has no values", operator)
		}
	}
}

func (c *checker) hdfs(it *item) {
	keytab, cache := it.at("krbKeytabSecret").given(), it.at("krbCCacheSecret").given()
	if at := it.text("path"); at != "" && !strings.HasPrefix(at, "/") && !strings.HasPrefix(at, "{{") {
		c.wrong(it.at("path"), "%q is not an absolute path", message.Short(at))
	}
	var need []string
	switch {
	case keytab:
		need = []string{"krbServicePrincipalName", "krbConfigConfigMap", "krbUsername", "krbRealm"}
	case cache:
		need = []string{"krbServicePrincipalName", "krbConfigConfigMap"}
	case !it.at("hdfsUser").given():
		c.wrong(it, "lacks one of hdfsUser, krbCCacheSecret, krbKeytabSecret")
	}
	for _, name := range need {
		if !it.at(name).given() {
			c.wrong(it, "lacks %s", name)
		}
	}
}
