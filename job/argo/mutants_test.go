package argo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A mutation breaks one rule in an object of a kind. It reports false if the object has nothing to
// break.
type mutation struct {
	name, kind string
	change     func(*item) bool
	// beyond is why "argo lint" accepts the mutant: it leaves the rule to the controller or to
	// Kubernetes, or checks it in fewer places than hpcc.
	beyond string
}

const runtime = "only checked when the workflow runs"

// mutations are the ways to break a workflow. Each is applied to each object of its kind.
var mutations = []mutation{
	// The workflow.
	{"no entrypoint", "WorkflowSpec", drops("entrypoint"), ""},
	{"unknown entrypoint", "WorkflowSpec", replaces("entrypoint", "nope"), ""},
	{"unknown exit handler", "WorkflowSpec", replaces("onExit", "nope"), ""},
	{"entrypoint lacks an argument", "WorkflowSpec", dropsIn("arguments"), "not checked outside of templates"},
	{"same template twice", "WorkflowSpec", repeats("templates"), ""},
	{"template without name", "WorkflowSpec", changes("templates", drops("name")), ""},
	{"template with a bad name", "WorkflowSpec", changes("templates", sets("name", "a_b")), ""},
	{"templates and a reference", "WorkflowSpec", adds("workflowTemplateRef", `{"name": "other"}`), ""},
	{"unknown deletion of pods", "WorkflowSpec", adds("podGC", `{"strategy": "OnPodFailure"}`), ""},
	{"hook without expression", "WorkflowSpec", adds("hooks", `{"running": {"template": "x"}}`), ""},
	{"long name", "Workflow", func(it *item) bool { return sets("name", strings.Repeat("x", 64))(it.at("metadata")) }, ""},
	{"bad delay of deletion", "PodGC", sets("deleteDelayDuration", "soon"), runtime},

	// Templates.
	{"no type", "Template", func(it *item) bool { return it.drop(typeOf(it)) }, ""},
	{"two types", "Template", adds("suspend", `{}`), ""},
	{"parallelism of a program", "Template", ofType(true, sets("parallelism", 2)), ""},
	{"deadline of a group", "Template", ofType(false, sets("activeDeadlineSeconds", 60)), ""},
	{"time limit of a group", "Template", ofType(false, sets("timeout", "60s")), ""},
	{"time limit without unit", "Template", ofType(true, sets("timeout", "60")), ""},
	{"negative deadline", "Template", ofType(true, sets("activeDeadlineSeconds", -1)), ""},
	{"deadline is text", "Template", ofType(true, sets("activeDeadlineSeconds", "soon")), ""},
	{"time limit is text", "Template", ofType(true, sets("timeout", "soon")), runtime},
	{"unknown retry policy", "Template", adds("retryStrategy", `{"retryPolicy": "Sometimes"}`), ""},
	{"initial container without name", "Template", adds("initContainers", `[{"image": "a"}]`), ""},
	{"metric without help", "Template", adds("metrics", `{"prometheus": [{"name": "a", "counter": {"value": "1"}}]}`), ""},
	{"metric with a bad name", "Template", adds("metrics", `{"prometheus": [{"name": "a-b", "help": "x", "counter": {"value": "1"}}]}`), ""},
	{"metric with a bad label", "Template", adds("metrics", `{"prometheus": [{"name": "a", "help": "x", "labels": [{"key": "a.b", "value": "c"}], "counter": {"value": "1"}}]}`), ""},
	{"metric without value", "Template", adds("metrics", `{"prometheus": [{"name": "a", "help": "x", "gauge": {"realtime": false}}]}`), ""},
	{"metric too early", "Template", adds("metrics", `{"prometheus": [{"name": "a", "help": "x", "gauge": {"realtime": true, "value": "{{resourcesDuration.cpu}}"}}]}`), ""},
	{"unknown reference of outputs", "Template", adds("outputs", `{"parameters": [{"name": "a", "value": "{{inputs.parameters.nope}}"}]}`), ""},
	{"bad retry delay", "RetryStrategy", adds("backoff", `{"duration": "soon"}`), runtime},
	{"unknown retry policy in place", "RetryStrategy", sets("retryPolicy", "OnFailures"), ""},

	// Programs.
	{"no image", "Container", drops("image"), ""},
	{"no image of a script", "ScriptTemplate", drops("image"), ""},
	{"two mounts", "Container", adds("volumeMounts", `[{"name": "a", "mountPath": "/x"}, {"name": "b", "mountPath": "/x"}]`), ""},
	{"unknown pull policy", "Container", sets("imagePullPolicy", "Sometimes"), "checked by Kubernetes"},
	{"unknown input parameter", "Container", sets("workingDir", "{{inputs.parameters.nope}}"), ""},
	{"unknown input artifact", "Container", sets("workingDir", "{{inputs.artifacts.nope.path}}"), ""},
	{"unknown workflow parameter", "Container", sets("workingDir", "{{workflow.parameters.nope}}"), "another object may define it"},
	{"unknown workflow variable", "Container", sets("workingDir", "{{workflow.nme}}"), ""},
	{"unknown label", "Container", sets("workingDir", "{{workflow.labels.nope}}"), ""},
	{"unknown pod variable", "Container", sets("workingDir", "{{pod.ip}}"), ""},
	{"foreign step", "Container", sets("workingDir", "{{steps.nope.outputs.result}}"), ""},
	{"foreign task", "Container", sets("workingDir", "{{tasks.nope.outputs.result}}"), ""},
	{"no containers", "ContainerSetTemplate", sets("containers", nil), ""},
	{"same container twice", "ContainerSetTemplate", repeats("containers"), ""},
	{"container waits for nothing", "ContainerNode", adds("dependencies", `["nope"]`), ""},
	{"container waits for itself", "ContainerNode", func(it *item) bool { return adds("dependencies", `["`+it.text("name")+`"]`)(it) }, ""},
	{"two mounts of a set", "ContainerSetTemplate", adds("volumeMounts", `[{"name": "a", "mountPath": "/x"}, {"name": "b", "mountPath": "/x"}]`), ""},
	{"no main container", "ContainerNode", func(it *item) bool { return it.text("name") == "main" && sets("name", "last")(it) }, ""},
	{"unknown action", "ResourceTemplate", sets("action", "make"), ""},
	{"no action", "ResourceTemplate", drops("action"), ""},
	{"no manifest", "ResourceTemplate", drops("manifest"), ""},
	{"manifest is not YAML", "ResourceTemplate", sets("manifest", "a: [b"), ""},
	{"two manifests", "ResourceTemplate", adds("manifestFrom", `{"artifact": {"name": "a"}}`), ""},

	// Tasks, steps and their arguments.
	{"no tasks", "DAGTemplate", sets("tasks", nil), ""},
	{"unknown target", "DAGTemplate", sets("target", "nope"), ""},
	{"same task twice", "DAGTemplate", repeats("tasks"), ""},
	{"both forms of dependencies", "DAGTemplate", func(it *item) bool {
		list := it.items("tasks")
		return len(list) > 1 && adds("dependencies", `["`+list[0].text("name")+`"]`)(list[1]) && sets("depends", list[0].text("name"))(list[len(list)-1]) && len(list) > 2
	}, ""},
	{"cycle", "DAGTemplate", func(it *item) bool {
		list := it.items("tasks")
		for _, t := range list {
			t.drop("dependencies")
			t.drop("continueOn")
		}
		return len(list) > 1 && sets("depends", list[1].text("name"))(list[0]) && sets("depends", list[0].text("name"))(list[1])
	}, ""},
	{"waits for itself", "DAGTask", func(it *item) bool { it.drop("dependencies"); return sets("depends", it.text("name"))(it) }, ""},
	{"waits for nothing", "DAGTask", func(it *item) bool { it.drop("dependencies"); return sets("depends", "nope")(it) }, ""},
	{"unknown result", "DAGTask", replacesText("depends", ".Succeeded", ".Succeded"), ""},
	{"result of several", "DAGTask", replacesText("depends", ".Succeeded", ".AnySucceeded"), ""},
	{"wrong dependency expression", "DAGTask", replacesText("depends", "&& ", "&& && "), runtime},
	{"continueOn with depends", "DAGTask", func(it *item) bool { return it.text("depends") != "" && adds("continueOn", `{"failed": true}`)(it) }, ""},
	{"begins with a digit", "DAGTask", func(it *item) bool { return it.text("depends") != "" && sets("name", "7th")(it) }, ""},
}

// holderMutations break tasks and steps.
var holderMutations = []mutation{
	{"unknown template", "", replaces("template", "nope"), ""},
	{"no template", "", drops("template"), ""},
	{"template and reference", "", func(it *item) bool {
		return it.text("template") != "" && adds("templateRef", `{"name": "a", "template": "b"}`)(it)
	}, ""},
	{"reference without name", "", changesIn("templateRef", drops("name")), ""},
	{"reference without template", "", changesIn("templateRef", drops("template")), ""},
	{"bad name", "", sets("name", "a.b"), ""},
	{"no name", "", drops("name"), ""},
	{"missing argument", "", dropsIn("arguments", "parameters"), ""},
	{"missing artifact", "", dropsIn("arguments", "artifacts"), ""},
	{"argument without value", "", changesIn("arguments", changes("parameters", drops("value"))), ""},
	{"argument twice", "", changesIn("arguments", repeats("parameters")), ""},
	{"argument with a bad name", "", changesIn("arguments", changes("parameters", sets("name", "a b"))), ""},
	{"argument outside of its words", "", changesIn("arguments", changes("parameters", adds("enum", `["no", "such"]`))), ""},
	{"argument from a path", "", changesIn("arguments", changes("parameters", func(it *item) bool { return it.drop("value") && adds("valueFrom", `{"path": "/x"}`)(it) })), ""},
	{"artifact from nowhere", "", changesIn("arguments", changes("artifacts", func(it *item) bool { it.fields = it.fields[:1]; return true })), ""},
	{"artifact of nobody", "", changesIn("arguments", changes("artifacts", replacesText("from", "artifacts.", "artifacts.nope"))), ""},
	{"unknown output", "", changesIn("arguments", changes("parameters", replacesText("value", "outputs.parameters.", "outputs.parameters.nope"))), ""},
	{"unknown property", "", changesIn("arguments", changes("parameters", sets("value", "{{steps.nope.ip}}{{tasks.nope.ip}}"))), ""},
	{"unknown input", "", changesIn("arguments", changes("parameters", sets("value", "{{inputs.parameters.nope}}"))), ""},
	{"two loops", "", func(it *item) bool {
		return loops(it) && adds("withParam", `"[1]"`)(it) && adds("withItems", `[1]`)(it)
	}, ""},
	{"count and end", "", changesIn("withSequence", sets("end", "3")), ""},
	{"unknown key of items", "", changesIn("arguments", changes("parameters", replacesText("value", "{{item.", "{{item.nope"))), ""},
	{"item without loop", "", func(it *item) bool {
		return !it.drop("withItems") && !it.drop("withParam") && !it.drop("withSequence") && sets("when", "{{item.a}} == 1")(it)
	}, "not checked after a step with a loop"},
	{"hook without expression", "", changesIn("hooks", func(it *item) bool {
		return slices.ContainsFunc(it.fields, func(e entry) bool { return e.name != "exit" && e.value.drop("expression") })
	}), "not checked for tasks"},
	{"hook of an unknown template", "", adds("hooks", `{"exit": {"template": "nope"}}`), runtime},
	{"condition is not closed", "", sets("when", "(a == b"), runtime},
	{"condition with =", "", sets("when", "a = b"), runtime},
	{"condition without sides", "", sets("when", "a =="), runtime},
	{"condition without operator", "", sets("when", "a == b c == d"), runtime},
	{"condition without result", "", sets("when", "Succeeded"), runtime},
	{"condition with an open quote", "", sets("when", "'a == b"), runtime},
}

// valueMutations break inputs, outputs and other objects with values.
var valueMutations = []mutation{
	{"input twice", "Inputs", repeats("parameters"), ""},
	{"input artifact twice", "Inputs", repeats("artifacts"), ""},
	{"input with a bad name", "Inputs", changes("parameters", sets("name", "a b")), ""},
	{"input artifact from another", "Inputs", changes("artifacts", sets("from", "{{steps.a.outputs.artifacts.b}}")), ""},
	{"input artifact without path", "Inputs", changes("artifacts", drops("path")), ""},
	{"input artifact above its directory", "Inputs", changes("artifacts", sets("path", "/a/../b")), ""},
	{"another input", "Inputs", changes("parameters", sets("name", "another")), ""},
	{"output twice", "Outputs", repeats("parameters"), ""},
	{"output without source", "Outputs", changes("parameters", func(it *item) bool { return it.drop("valueFrom") || it.drop("value") }), ""},
	{"output with two sources", "Outputs", changes("parameters", changesIn("valueFrom", func(it *item) bool { return sets("path", "/x")(it) && sets("expression", "1")(it) })), ""},
	{"output with value and source", "Outputs", changes("parameters", func(it *item) bool { return it.at("valueFrom").given() && sets("value", "x")(it) }), ""},
	{"output with an empty source", "Outputs", changes("parameters", func(it *item) bool { return it.at("valueFrom").given() && adds("valueFrom", `{"default": "x"}`)(it) }), ""},
	{"output from another source", "Outputs", changes("parameters", func(it *item) bool { return it.at("valueFrom").given() && adds("valueFrom", `{"jqFilter": "."}`)(it) }), ""},
	{"bad global name", "Outputs", changes("parameters", sets("globalName", "a b")), ""},
	{"output artifact without path", "Outputs", changes("artifacts", drops("path")), ""},
	{"output artifact twice", "Outputs", repeats("artifacts"), ""},
	{"git without repository", "GitArtifact", drops("repo"), ""},
	{"HDFS without path", "HDFSArtifact", drops("path"), "not checked for outputs"},
	{"HDFS with a relative path", "HDFSArtifact", sets("path", "a"), "not checked for outputs"},
	{"HDFS without user", "HDFSArtifact", drops("hdfsUser"), "not checked for outputs"},
	{"HDFS without addresses", "HDFSArtifact", drops("addresses"), "not checked for outputs"},
	{"parameter outside of its words", "Parameter", func(it *item) bool { return it.at("enum").given() && sets("value", "nope")(it) }, "not checked for inputs"},
	{"parameter twice", "Arguments", repeats("parameters"), "not checked for hooks"},
	{"bad schedule", "CronWorkflowSpec", adds("schedules", `["61 * * * *"]`), ""},
	{"short schedule", "CronWorkflowSpec", adds("schedules", `["* * * *"]`), ""},
	{"unknown schedule", "CronWorkflowSpec", adds("schedules", `["@nightly"]`), ""},
	{"two kinds of schedules", "CronWorkflowSpec", func(it *item) bool {
		return adds("schedules", `["* * * * *"]`)(it) && sets("schedule", "* * * * *")(it)
	}, ""},
	{"unknown concurrency policy", "CronWorkflowSpec", sets("concurrencyPolicy", "Wait"), ""},
	{"negative starting deadline", "CronWorkflowSpec", sets("startingDeadlineSeconds", -1), ""},
	{"long name of a CronWorkflow", "CronWorkflow", func(it *item) bool { return sets("name", strings.Repeat("x", 53))(it.at("metadata")) }, ""},
	{"bad suspension", "SuspendTemplate", sets("duration", "soon"), runtime},
}

// allMutations returns the mutations of all kinds.
func allMutations() []mutation {
	list := slices.Concat(mutations, valueMutations)
	for _, kind := range []string{"DAGTask", "WorkflowStep"} {
		for _, m := range holderMutations {
			m.kind = kind
			list = append(list, m)
		}
	}
	return list
}

// The functions below return changes of an object, which report whether they apply.

func drops(name string) func(*item) bool {
	return func(it *item) bool { return it.drop(name) }
}

func sets(name string, value any) func(*item) bool {
	return func(it *item) bool { it.set(name, scalarItem(value)); return true }
}

func replaces(name string, value any) func(*item) bool {
	return func(it *item) bool { return it.at(name) != nil && sets(name, value)(it) }
}

func replacesText(name, old, new string) func(*item) bool {
	return func(it *item) bool {
		text := it.text(name)
		return strings.Contains(text, old) && sets(name, strings.Replace(text, old, new, 1))(it)
	}
}

// adds sets a field to a value in JSON.
func adds(name, value string) func(*item) bool {
	return func(it *item) bool {
		var n yaml.Node
		if err := yaml.Unmarshal([]byte(value), &n); err != nil {
			panic(err)
		}
		it.set(name, (&manifestReader{}).value(n.Content[0], "a", name, 0))
		return true
	}
}

// repeats appends the first element of a list to it.
func repeats(name string) func(*item) bool {
	return func(it *item) bool {
		list := it.at(name)
		if list == nil || len(list.list) == 0 {
			return false
		}
		list.list = append(list.list, list.list[0])
		return true
	}
}

// changes changes the first element of a list to which the change applies.
func changes(name string, change func(*item) bool) func(*item) bool {
	return func(it *item) bool { return slices.ContainsFunc(it.items(name), change) }
}

func changesIn(name string, change func(*item) bool) func(*item) bool {
	return func(it *item) bool { return it.at(name).given() && change(it.at(name)) }
}

// dropsIn removes the last of some fields of nested objects.
func dropsIn(names ...string) func(*item) bool {
	return func(it *item) bool {
		last := len(names) - 1
		parent := it.at(names[:last]...)
		return parent != nil && parent.drop(names[last])
	}
}

// ofType applies a change to templates that run a program, or to the others.
func ofType(program bool, change func(*item) bool) func(*item) bool {
	return func(it *item) bool {
		kind := typeOf(it)
		return kind != "" && kind != "suspend" && program == (kind != "dag" && kind != "steps") && change(it)
	}
}

// A mutant is a workflow with one broken rule.
type mutant struct {
	name   string // file, rule and path
	beyond string
	text   []byte
}

// mutants returns the mutants of a file, at most limit of each mutation.
func mutants(file string, text []byte, limit int) (list []mutant, err error) {
	kinds := map[string]bool{}
	docs, err := readManifests(file, text)
	for _, d := range docs {
		d.root.walk(func(it *item) { kinds[it.kind] = true })
	}
	for _, m := range allMutations() {
		made := 0
		if !kinds[m.kind] {
			continue
		}
		for spot := 0; made < limit; spot++ {
			docs, err := readManifests(file, text)
			if err != nil {
				return nil, err
			}
			var found *item
			n := 0
			for _, d := range docs {
				d.root.walk(func(it *item) {
					if it.kind == m.kind && !strings.Contains(it.path, "templateDefaults") && found == nil {
						if n == spot {
							found = it
						}
						n++
					}
				})
			}
			if found == nil {
				break
			}
			if !m.change(found) {
				continue
			}
			made++
			var out bytes.Buffer
			for _, d := range docs {
				b, err := json.Marshal(d.root)
				if err == nil {
					fmt.Fprintf(&out, "---\n")
					err = json.Indent(&out, b, "", " ")
				}
				if err != nil {
					return nil, err
				}
				out.WriteByte('\n')
			}
			list = append(list, mutant{fmt.Sprintf("%s: %s: %s", file, m.name, found.path), m.beyond, out.Bytes()})
		}
	}
	return list, err
}
