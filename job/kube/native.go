package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/text"
)

// maxNative limits one value of --native, in bytes.
const maxNative = 64 << 10

// A native holds the pod fields of --native: a merge patch by the API's rules for strategic merge, except
// that it adds to every list.
type native struct {
	meta Meta
	spec map[string]any
}

// set sets a field of the pod's spec.
func (n *native) set(name string, v any) {
	if n.spec == nil {
		n.spec = map[string]any{}
	}
	n.spec[name] = v
}

// ownFields are the fields that hpcc sets itself, with the flags that change them. The container of the
// program has the path main, any other container the path other.
var ownFields = map[string]string{
	"restartPolicy": "use --retry", "activeDeadlineSeconds": "use --time", "serviceAccountName": "use --service-account",
	"serviceAccount":               "use --service-account",
	"automountServiceAccountToken": "--service-account NAME mounts a token",
	"shareProcessNamespace":        "the program would not receive signals without it",
	"hostname":                     "the pods of a job find each other by it", "subdomain": "the pods of a job find each other by it",
	"main.image": "write the image after the flags", "main.command": "write the program after the image",
	"main.args":  "write the program after the image",
	"main.stdin": "use --interactive", "main.stdinOnce": "use --interactive", "main.tty": "use --interactive",
	"main.restartPolicy":            "use --retry",
	"metadata.labels." + labelQueue: "use --queue",
	"metadata.labels." + jobLabel:   "hpcc finds its pods by it",
	"metadata.labels." + labelBy:    "hpcc finds its pods by it", "metadata.labels." + labelName: "use --name",
}

// weakens lists the fields that the profile "restricted" of the Pod Security Standards forbids; harmless
// lists the fields that a security context may have.
var (
	weakens = map[string]bool{"hostNetwork": true, "hostPID": true, "hostIPC": true, "volumes.hostPath": true,
		"main.ports.hostPort": true, "other.ports.hostPort": true}
	harmless = map[string]bool{"runAsUser": true, "runAsGroup": true, "fsGroup": true, "fsGroupChangePolicy": true,
		"supplementalGroups": true, "supplementalGroupsPolicy": true, "readOnlyRootFilesystem": true}
)

// readNative parses the values of --native, each a YAML mapping of fields of the pod. Later ones win.
func readNative(texts []string) (n native, err error) {
	for _, fragment := range texts {
		var doc yaml.Node
		d := yaml.NewDecoder(strings.NewReader(fragment))
		if len(fragment) > maxNative {
			return n, fmt.Errorf("--native has %d bytes; at most %d are allowed", len(fragment), maxNative)
		}
		if err = d.Decode(&doc); err == nil && !errors.Is(d.Decode(new(yaml.Node)), io.EOF) {
			err = errors.New("holds more than one YAML document")
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return n, fmt.Errorf("reading --native %q: %w", text.Short(fragment), err)
		}
		if len(doc.Content) == 0 || doc.Content[0].Kind != yaml.MappingNode {
			return n, fmt.Errorf("--native %q: not a field of a pod; write YAML, as in --native 'priorityClassName: high'", text.Short(fragment))
		}
		r := &nativeReader{}
		v, err := r.value(doc.Content[0], "", "", false)
		if err != nil {
			return n, err
		}
		n.spec, _ = merge(n.spec, v, true).(map[string]any)
	}
	meta, _ := n.spec["metadata"].(map[string]any)
	delete(n.spec, "metadata")
	n.meta = Meta{Labels: textsOf(meta["labels"]), Annotations: textsOf(meta["annotations"])}
	return n, nil
}

// textsOf returns a mapping whose values are text.
func textsOf(v any) map[string]string {
	m, _ := v.(map[string]any)
	if len(m) == 0 {
		return nil
	}
	out := map[string]string{}
	for k, v := range m {
		out[k], _ = v.(string)
	}
	return out
}

// A nativeReader converts YAML to values of JSON, and refuses the fields that hpcc sets itself.
type nativeReader struct{ seen int }

func wrongNative(n *yaml.Node, shown, format string, a ...any) error {
	return fmt.Errorf("--native:%d: %s: %s", n.Line, text.Short(shown), fmt.Sprintf(format, a...))
}

// value converts a value. path is without indices and has main or other for a container; shown is the path
// for messages. element is true for an element of a list.
func (r *nativeReader) value(n *yaml.Node, path, shown string, element bool) (any, error) {
	if r.seen++; r.seen > maxManifestFields {
		return nil, wrongNative(n, shown, "more than %d fields", maxManifestFields)
	}
	if err := refused(n, path, shown); err != nil {
		return nil, err
	}
	above, name := cutLast(path)
	kind := map[string]yaml.Kind{"securityContext": yaml.MappingNode, "metadata": yaml.MappingNode, "affinity": yaml.MappingNode}[name]
	if mergeKeys[name] != "" {
		kind = yaml.SequenceNode
	}
	if (above == "" || above == "main" || above == "other") && kind != 0 && n.Kind != kind && !element {
		return nil, wrongNative(n, shown, "want %s", map[yaml.Kind]string{yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list"}[kind])
	}
	switch n.Kind {
	case yaml.MappingNode:
		return r.mapping(n, path, shown)
	case yaml.SequenceNode:
		return r.sequence(n, path, shown)
	case yaml.ScalarNode:
		return scalarOf(n, path, shown)
	}
	return nil, wrongNative(n, shown, "references (*name) are not supported")
}

func (r *nativeReader) mapping(n *yaml.Node, path, shown string) (any, error) {
	out := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at, to := join(path, key.Value), join(shown, key.Value)
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" || out[key.Value] != nil {
			return nil, wrongNative(key, to, "not a name of a field, or given twice")
		}
		v, err := r.value(n.Content[i+1], at, to, false)
		if err != nil {
			return nil, err
		}
		out[key.Value] = v
	}
	return out, nil
}

func (r *nativeReader) sequence(n *yaml.Node, path, shown string) (any, error) {
	out := []any{}
	_, name := cutLast(path)
	for i, e := range n.Content {
		at, to := path, fmt.Sprintf("%s[%d]", shown, i)
		isContainer := path == "containers" || path == "initContainers"
		if isContainer && e.Kind != yaml.MappingNode {
			return nil, wrongNative(e, to, "want a mapping")
		}
		if isContainer {
			at = "other"
			if c := scalarAt(e, "name"); path == "containers" && (c == MainContainer || (c == "" && i == 0)) {
				at = "main"
			}
		}
		v, err := r.value(e, at, to, true)
		if err != nil {
			return nil, err
		}
		if m, ok := v.(map[string]any); ok && at == "main" {
			m["name"] = MainContainer
		} else if ok && isContainer { // the profile of the other containers
			v = merge(map[string]any{"securityContext": map[string]any{"allowPrivilegeEscalation": false,
				"capabilities": map[string]any{"drop": []any{"ALL"}}}}, v, true)
		}
		if key := mergeKeys[name]; key != "" {
			if m, _ := v.(map[string]any); m[key] == nil {
				return nil, wrongNative(e, to, "lacks %s, by which the API finds elements of this list", key)
			}
		}
		out = append(out, v)
	}
	return out, nil
}

// scalarOf converts a number, a truth value or text. Values of labels and annotations are text.
func scalarOf(n *yaml.Node, path, shown string) (v any, err error) {
	if n.ShortTag() == "!!null" {
		return nil, wrongNative(n, shown, "lacks a value")
	}
	if strings.HasPrefix(path, "metadata.") {
		return n.Value, nil
	}
	if err = n.Decode(&v); err != nil {
		return nil, wrongNative(n, shown, "%v", err)
	}
	switch x := v.(type) {
	case int, int64, bool, string:
		return v, nil
	case float64:
		if !math.IsNaN(x) && !math.IsInf(x, 0) && math.Abs(x) < 1<<62 {
			return v, nil
		}
		return nil, wrongNative(n, shown, "%q is not a number of JSON", text.Short(n.Value))
	}
	return n.Value, nil // a date
}

// refused returns an error for a field that hpcc sets itself, or that weakens the pod's security.
func refused(n *yaml.Node, path, shown string) error {
	const instead = "; for such a pod change the manifest that \"hpcc script\" prints, and submit it with kubectl"
	above, name := cutLast(path)
	switch advice, own := ownFields[path]; {
	case own:
		return wrongNative(n, shown, "hpcc sets this field: %s", advice)
	case above == "metadata" && name != "labels" && name != "annotations":
		return wrongNative(n, shown, "only labels and annotations of a pod's metadata can be set")
	case path == "main.env.name" && strings.HasPrefix(n.Value, "HPCC_"):
		return wrongNative(n, shown, "hpcc sets the variables that begin with HPCC_")
	case weakens[path] && n.Value != "false", above == "securityContext" && !harmless[name],
		strings.HasSuffix(above, ".securityContext") && !harmless[name]:
		return wrongNative(n, shown, "hpcc's pods obey the profile \"restricted\" of the Pod Security Standards, which "+
			"this field may violate"+instead)
	case name == "runAsUser" && strings.Trim(n.Value, "0xobeE._+-") == "":
		return wrongNative(n, shown, "the profile \"restricted\" of the Pod Security Standards forbids root"+instead)
	}
	return nil
}

// cutLast splits a path before its last field.
func cutLast(path string) (above, name string) {
	i := strings.LastIndexByte(path, '.')
	return path[:max(i, 0)], path[i+1:]
}

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

// mergeKeys are the lists whose elements the API identifies by a field.
var mergeKeys = map[string]string{
	"containers": "name", "initContainers": "name", "volumes": "name", "env": "name", "volumeMounts": "mountPath",
	"volumeDevices": "devicePath", "ports": "containerPort",
	"imagePullSecrets": "name", "hostAliases": "ip", "topologySpreadConstraints": "topologyKey", "resourceClaims": "name",
}

// merge returns a value with the changes of a patch. If full is false, the result has only what a strategic
// merge needs to make these changes: lists without a merge key in full, and otherwise the patch.
func merge(base, patch any, full bool) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	own, _ := base.(map[string]any)
	out := map[string]any{}
	if full {
		maps.Copy(out, own)
	}
	for name, v := range changes {
		list, isList := v.([]any)
		before, _ := own[name].([]any)
		switch {
		case isList && name == "nodeSelectorTerms": // alternatives: hpcc's only term becomes part of each
			terms := []any{}
			for _, t := range list {
				if len(before) == 1 {
					t = merge(before[0], t, true)
				}
				terms = append(terms, t)
			}
			out[name] = terms
		case isList:
			out[name] = mergeList(before, list, mergeKeys[name], full)
		default:
			out[name] = merge(own[name], v, full)
		}
	}
	return out
}

// mergeList adds elements to a list. An element with the key of another one changes it.
func mergeList(base, patch []any, key string, full bool) []any {
	out := []any{}
	if full || key == "" {
		out = append(out, base...)
	}
	for _, p := range patch {
		i := indexOfElement(out, p, key)
		switch before := indexOfElement(base, p, key); {
		case i >= 0:
			out[i] = merge(out[i], p, true)
		case before >= 0:
			out = append(out, merge(base[before], p, false))
		default:
			out = append(out, p)
		}
	}
	return out
}

// indexOfElement returns the index of the element that is equal to e, or has the same key.
func indexOfElement(list []any, e any, key string) int {
	text := func(v any) string {
		if m, ok := v.(map[string]any); ok && key != "" {
			v = m[key]
		}
		t, _ := json.Marshal(v)
		return string(t)
	}
	want := text(e)
	for i, o := range list {
		if text(o) == want {
			return i
		}
	}
	return -1
}

// plainSpec is a PodSpec without its method.
type plainSpec PodSpec

// plain returns the fields that hpcc sets, as values of JSON.
func (s PodSpec) plain() (m map[string]any, err error) {
	text, err := json.Marshal(plainSpec(s))
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return m, d.Decode(&m)
}

// MarshalJSON writes the pod with the fields of --native.
func (s PodSpec) MarshalJSON() ([]byte, error) {
	if len(s.native.spec) == 0 {
		return json.Marshal(plainSpec(s))
	}
	m, err := s.plain()
	if err != nil {
		return nil, err
	}
	return json.Marshal(merge(m, s.native.spec, true))
}

// Native returns the metadata of --native, and its other fields as a strategic merge patch, or "".
func (s PodSpec) Native() (Meta, string) {
	if len(s.native.spec) == 0 {
		return s.native.meta, ""
	}
	m, err := s.plain()
	if err != nil {
		return s.native.meta, ""
	}
	text, _ := json.Marshal(merge(m, s.native.spec, false)) // values of JSON
	return s.native.meta, string(text)
}

// newTemplate returns a template of a pod with labels.
func newTemplate(labels map[string]string, pod PodSpec) podTemplate {
	m := Meta{Labels: maps.Clone(labels), Annotations: pod.native.meta.Annotations}
	maps.Copy(m.Labels, pod.native.meta.Labels)
	return podTemplate{m, pod}
}

// scheduler returns the scheduler that --native names, or "".
func (s PodSpec) scheduler() string {
	name, _ := s.native.spec["schedulerName"].(string)
	return name
}
