package argo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/job/kube"
	"hpcc/text"
)

// Limits for users' manifests. A server rejects an object of more than 1.5 MiB; references
// (*name) may expand a small file into a large one.
const (
	maxDocuments = 100
	maxItems     = 100_000
	maxDepth     = 64
	maxProblems  = 10 // problems reported for a file
)

// A manifestDocument is one document of a user's file for Argo Workflows or Kubernetes.
type manifestDocument struct {
	APIVersion, Kind string
	Name             string // "" if the server is to choose one

	root *item
}

// readManifests reads the documents of a YAML or JSON file as servers do. It keeps all fields, because
// only the server knows which of them it supports. The error has a line for each problem.
func readManifests(file string, text []byte) ([]manifestDocument, error) {
	if len(text) > kube.MaxManifest {
		return nil, fmt.Errorf("%s has more than %d bytes, the servers' limit for an object", file, kube.MaxManifest)
	}
	r := &manifestReader{file: file}
	var list []manifestDocument
	for d := yaml.NewDecoder(bytes.NewReader(text)); len(r.problems) == 0; {
		var doc yaml.Node
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		if len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null" { // nothing between two lines of ---
			continue
		}
		if len(list) == maxDocuments {
			return nil, fmt.Errorf("%s has more than %d documents", file, maxDocuments)
		}
		list = append(list, r.document(doc.Content[0]))
	}
	switch {
	case len(r.problems) > 0:
		return nil, errors.New(strings.Join(r.problems, "\n"))
	case len(list) == 0:
		return nil, fmt.Errorf("%s is empty", file)
	}
	return list, nil
}

// A manifestReader converts the nodes of a file to items.
type manifestReader struct {
	file     string
	values   int // values read so far; references count each time
	problems []string
	ended    bool // a limit is reached: read nothing more
}

// wrong adds a problem. After maxProblems nothing more is read.
func (r *manifestReader) wrong(n *yaml.Node, path, format string, a ...any) {
	if r.ended {
		return
	}
	if path != "" {
		path += ": "
	}
	r.problems = append(r.problems, fmt.Sprintf("%s:%d: %s%s", r.file, n.Line, path, fmt.Sprintf(format, a...)))
	r.ended = len(r.problems) == maxProblems
}

func (r *manifestReader) document(n *yaml.Node) (m manifestDocument) {
	if n.Kind != yaml.MappingNode {
		r.wrong(n, "", "not a manifest: lacks apiVersion and kind")
		return m
	}
	m.root = r.value(n, "", 0)
	m.APIVersion, m.Kind, m.Name = m.root.text("apiVersion"), m.root.text("kind"), m.root.text("metadata", "name")
	for _, name := range []string{"apiVersion", "kind"} {
		if m.root.text(name) == "" {
			r.wrong(n, "", "lacks %s: is it a manifest?", name)
			return m
		}
	}
	return m
}

// value reads a value. For an invalid value it returns null.
func (r *manifestReader) value(n *yaml.Node, path string, depth int) *item {
	it := &item{line: n.Line, path: path}
	r.values++
	switch {
	case r.ended:
		return it
	case r.values > maxItems:
		r.wrong(n, path, "the file has more than %d values, including references (*name)", maxItems)
		r.ended = true
		return it
	case depth > maxDepth:
		r.wrong(n, path, "nested more than %d levels deep", maxDepth)
		r.ended = true
		return it
	case n.Kind == yaml.AliasNode:
		return r.value(n.Alias, path, depth+1)
	case n.ShortTag() == "!!null":
		return it
	}
	it.shape = n.Kind
	switch n.Kind {
	case yaml.SequenceNode:
		for i, c := range n.Content {
			it.list = append(it.list, r.value(c, path+"["+strconv.Itoa(i)+"]", depth+1))
		}
	case yaml.MappingNode:
		for _, p := range r.pairs(n, path, depth) {
			it.fields = append(it.fields, entry{p.key.Value, r.value(p.value, joinPath(path, p.key.Value), depth+1)})
		}
	default:
		v, err := scalarOf(n)
		if err != nil {
			r.wrong(n, path, "%v", err)
		}
		it.scalar = v
	}
	return it
}

type pair struct{ key, value *yaml.Node }

// pairs returns the keys and values of an object, including those merged by "<<", which its own
// keys override. A duplicate key is an error.
func (r *manifestReader) pairs(n *yaml.Node, path string, depth int) (out []pair) {
	at := map[string]*yaml.Node{}
	var merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		_, isBool := yamlBool(key)
		switch before := at[key.Value]; {
		case key.ShortTag() == "!!merge":
			merged = append(merged, value)
		case key.Kind != yaml.ScalarNode:
			r.wrong(key, path, "a key is %s; want text", shapeName(key.Kind))
		case isBool:
			r.wrong(key, path, "key %s is a boolean; put it in quotes", key.Value)
		case before != nil:
			r.wrong(key, joinPath(path, key.Value), "duplicate of line %d", before.Line)
		default:
			at[key.Value] = key
			out = append(out, pair{key, value})
		}
	}
	for _, m := range merged {
		out = r.merge(out, at, m, path, depth+1)
	}
	return out
}

// merge adds the fields of a value of "<<": an object, or a list of objects, where the first wins.
func (r *manifestReader) merge(out []pair, at map[string]*yaml.Node, n *yaml.Node, path string, depth int) []pair {
	if r.values++; r.values > maxItems || depth > maxDepth {
		r.value(n, path, maxDepth+1) // reports the depth
		return out
	}
	switch n.Kind {
	case yaml.AliasNode:
		return r.merge(out, at, n.Alias, path, depth+1)
	case yaml.SequenceNode:
		for _, c := range n.Content {
			out = r.merge(out, at, c, path, depth+1)
		}
	case yaml.MappingNode:
		for _, p := range r.pairs(n, path, depth+1) {
			if r.values++; at[p.key.Value] == nil {
				at[p.key.Value] = p.key
				out = append(out, p)
			}
		}
	default:
		r.wrong(n, path, "<< needs a mapping")
	}
	return out
}

func joinPath(path, name string) string {
	if name = text.Short(name); path == "" {
		return name
	}
	if strings.ContainsAny(name, "./ ") {
		return path + "[" + name + "]"
	}
	return path + "." + name
}

// scalarOf returns a scalar's value: string, bool, int, int64, uint64 or float64. Servers read
// YAML 1.1, where yes and off are booleans.
func scalarOf(n *yaml.Node) (any, error) {
	if b, ok := yamlBool(n); ok {
		return b, nil
	}
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp", "!!merge":
		return n.Value, nil
	case "!!int", "!!float":
		var v any
		if err := n.Decode(&v); err != nil {
			return nil, fmt.Errorf("%q is not a number", text.Short(n.Value))
		}
		if f, ok := v.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
			return nil, fmt.Errorf("JSON cannot represent the number %s", n.Value)
		}
		return v, nil
	default:
		return nil, fmt.Errorf("servers do not support the tag %s", text.Short(tag))
	}
}

// yamlBool reports whether a plain scalar is a boolean in YAML 1.1, and its value.
func yamlBool(n *yaml.Node) (value, ok bool) {
	if n.Kind != yaml.ScalarNode || n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return false, false
	}
	if tag := n.ShortTag(); tag != "!!bool" && (tag != "!!str" || n.Style&yaml.TaggedStyle != 0) {
		return false, false
	}
	switch n.Value {
	case "y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON":
		return true, true
	case "n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF":
		return false, true
	}
	return false, false
}

// shapeName returns the description of a value for messages.
func shapeName(kind yaml.Kind) string {
	switch kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	}
	return "text"
}
