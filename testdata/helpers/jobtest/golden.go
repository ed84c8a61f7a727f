package jobtest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/diff"
	"sigs.k8s.io/yaml"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
)

// Targets lists the targets in the order in which the recorded lines name them.
var Targets = []job.Target{"slurm", "lsf", "gridengine", "pbs", job.Local, job.Kubernetes, job.OpenShift, job.Argo}

// LineDiff returns the lines of to that from lacks, after a plus sign, and those that only from has, after a
// minus sign.
func LineDiff(from, to string) (lines []string) {
	_, d, _ := strings.Cut(string(diff.Diff("", []byte(from), "", []byte(to))), "@@\n")
	for line := range strings.Lines(d) {
		if line[0] == '+' || line[0] == '-' {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

// Lines returns a script with a line for each option of "hpcc task", or a manifest with a line for each value
// or flat list of values, after its path. It is meant for [LineDiff].
func Lines(t *testing.T, to job.Target, script string) string {
	t.Helper()
	if !to.Pods() || strings.HasPrefix(script, "#!") {
		return taskCommand.ReplaceAllStringFunc(script, func(line string) string { return strings.ReplaceAll(line, " --", "\n --") })
	}
	var b strings.Builder
	for _, document := range strings.Split(script, "\n---\n") {
		var v any
		testenv.Check(t, yaml.Unmarshal([]byte(document), &v))
		flatten(&b, "", v)
	}
	for _, comment := range comments.FindAllString(script, -1) {
		b.WriteString(comment + "\n")
	}
	return shorter.Replace(templates.ReplaceAllString(b.String(), "${1}main."))
}

var (
	templates   = regexp.MustCompile(`(?m)^(spec\.templates\.|spec\.templates\.main\.dag\.tasks\.)[a-z0-9-]+\.`) // of a workflow
	taskCommand = regexp.MustCompile(`(?m)^exec /usr/bin/hpcc task .*$`)
	comments    = regexp.MustCompile(`(?m)^#.*$`)
)

// shorter gives the parts of a pod the same paths in Jobs and in workflows.
var shorter = strings.NewReplacer("spec.template.spec.containers.main", "container", "spec.template.spec.", "pod.", "spec.template.metadata.", "pod.metadata.",
	"spec.templates.main.container", "container", "spec.templates.main.", "pod.", "spec.podMetadata.", "pod.metadata.")

// flatten writes the values in v after their paths. An element of a list has the value of its field name as
// its name, or its number. A map or a list of short values is one line. An argument with several lines has
// the path "script", whatever its number.
func flatten(b *strings.Builder, path string, v any) {
	if flat(v) {
		fmt.Fprintf(b, "%s: %s\n", strings.TrimPrefix(path, "."), brief(v))
		return
	}
	m, _ := v.(map[string]any)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		flatten(b, path+"."+k, m[k])
	}
	list, _ := v.([]any)
	for i, e := range list {
		fields, _ := e.(map[string]any)
		name, _ := fields["name"].(string)
		if len(fields) > 1 {
			delete(fields, "name")
		}
		if text, _ := e.(string); strings.Contains(text, "\n") {
			fmt.Fprintf(b, "%s.%d: script\n", strings.TrimPrefix(path, "."), i)
			flatten(b, ".script", text)
			continue
		}
		flatten(b, path+"."+cmp.Or(name, strconv.Itoa(i)), e)
	}
	if text, ok := v.(string); ok {
		for line := range strings.Lines(text) {
			fmt.Fprintf(b, "%s: %s\n", path[1:], strings.TrimSuffix(line, "\n"))
		}
	}
}

// flat reports whether a value fits into one line: a value of one line, or a short map or list of such values.
func flat(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			if !isScalar(e) {
				return false
			}
		}
	case []any:
		if slices.ContainsFunc(v, func(e any) bool { return !isScalar(e) }) {
			return false
		}
	default:
		return isScalar(v)
	}
	return len(brief(v)) < 100
}

func isScalar(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	case string:
		return !strings.Contains(v, "\n")
	}
	return true
}

// brief returns a flat value as YAML of one line, in which strings that look like other values have quotes.
func brief(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var list []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			list = append(list, k+": "+brief(v[k]))
		}
		return "{" + strings.Join(list, ", ") + "}"
	case []any:
		var list []string
		for _, e := range v {
			list = append(list, brief(e))
		}
		return "[" + strings.Join(list, ", ") + "]"
	case string:
		var other any
		if err := yaml.Unmarshal([]byte(v), &other); err != nil || other != any(v) {
			return strconv.Quote(v)
		}
		return v
	}
	return fmt.Sprint(v)
}

// Merged has the lines of several targets. The lines of each target are in their order.
type Merged []mergedLine

type mergedLine struct {
	line    string
	targets []job.Target
}

// Add adds the lines of a target, which precedes those that were added before in [Targets].
func (m *Merged) Add(to job.Target, lines []string) {
	at := 0
	for _, line := range lines {
		line = strings.ReplaceAll(line, "variables of "+string(to), "variables of {target}")
		next := slices.IndexFunc((*m)[at:], func(l mergedLine) bool { return l.line == line })
		if next < 0 {
			// Rows of one directive are neighbours.
			next = max(0, slices.IndexFunc((*m)[at:], func(l mergedLine) bool { return directiveOf(l.line) == directiveOf(line) }))
			*m = slices.Insert(*m, at+next, mergedLine{line: line})
		}
		at += next
		(*m)[at].targets = slices.Insert((*m)[at].targets, 0, to)
		at++
	}
}

// directiveOf returns the number and the text of the directive that a line of a report is about.
func directiveOf(line string) string {
	f := strings.SplitN(line, "|", 3)
	return strings.Join(f[:min(2, len(f))], "|")
}

// Text returns the lines after the names of their targets.
func (m Merged) Text() []byte {
	var b bytes.Buffer
	for _, l := range m {
		fmt.Fprintf(&b, "%s %s\n", targetNames(l.targets), l.line)
	}
	return b.Bytes()
}

// groups are short names for targets.
var groups = map[string]string{
	fmt.Sprint(Targets): "all", fmt.Sprint(Targets[:4]): "queues", fmt.Sprint(Targets[:5]): "scripts", fmt.Sprint(Targets[5:]): "pods", fmt.Sprint(Targets[5:7]): "kube",
}

// targetNames returns the names of targets in few words.
func targetNames(list []job.Target) string {
	if name := groups[fmt.Sprint(list)]; name != "" {
		return name
	}
	others := slices.DeleteFunc(slices.Clone(Targets), func(t job.Target) bool { return slices.Contains(list, t) })
	if len(others) < 3 {
		return "all but " + targetNames(others)
	}
	names := strings.Trim(fmt.Sprint(list), "[]")
	return strings.NewReplacer("kubernetes openshift argo", "pods", "kubernetes openshift", "kube").Replace(names)
}
