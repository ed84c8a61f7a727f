package argo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/job/kube"
	"hpcc/job/message"
)

// Limits for users' manifests. A server rejects an object of more than 1.5 MiB; references
// (*name) may expand a small file into a large one.
const (
	maxDocuments = 100
	maxItems     = 100_000
	maxDepth     = 64
	maxProblems  = 10 // problems reported for a file
)

// A manifestDocument is one document of a user's file for Argo Workflows or Kubernetes. It has
// only fields that the server knows.
type manifestDocument struct {
	APIVersion, Kind string
	Name             string // "" if the server is to choose one

	root *item
}

// A manifestError lists the problems of users' manifests, each with file, line and path.
type manifestError struct{ Problems []string }

func (e *manifestError) Error() string { return strings.Join(e.Problems, "\n") }

// readManifests reads the documents of a YAML or JSON file strictly, because servers silently drop
// unknown fields. Field names are case-sensitive. Workflows follow [rules], and their references
// resolve. The error is a [*manifestError] with all problems.
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
		return nil, &manifestError{r.problems}
	case len(list) == 0:
		return nil, fmt.Errorf("%s is empty", file)
	}
	for i := range list {
		if err := list[i].check(file); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// A manifestReader checks values against a schema.
type manifestReader struct {
	file     string
	schema   *schema
	values   int        // values read so far; references count each time
	within   []position // enclosing objects, the outermost first
	problems []string
	ended    bool // a limit is reached: read nothing more
}

// A position is the path and the type of an object that is being read.
type position struct{ path, kind string }

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
	m.APIVersion, m.Kind = top(n, "apiVersion"), top(n, "kind")
	for _, name := range []string{"apiVersion", "kind"} {
		if top(n, name) == "" {
			r.wrong(n, "", "lacks %s: is it a manifest?", name)
			return m
		}
	}
	if r.schema = schemaOf(m.APIVersion, m.Kind); r.schema == nil {
		var known []string
		for _, s := range []*schema{argoSchema(), kubernetesSchema()} {
			for root := range s.roots {
				version, kind, _ := strings.Cut(root, " ")
				known = append(known, kind+" of "+version)
			}
		}
		slices.Sort(known)
		r.wrong(n, "", "unknown kind %q of apiVersion %q; known: %s", message.Short(m.Kind), message.Short(m.APIVersion), strings.Join(known, ", "))
		return m
	}
	m.root = r.value(n, r.schema.roots[m.APIVersion+" "+m.Kind], "", 0)
	m.Name = m.root.text("metadata", "name")
	return m
}

// value reads a value of a kind; see testdata/fields. For an invalid value it returns null.
func (r *manifestReader) value(n *yaml.Node, kind, path string, depth int) *item {
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
		return r.value(n.Alias, kind, path, depth+1)
	case n.ShortTag() == "!!null":
		return it
	}
	of, isList := strings.CutPrefix(kind, "[]")
	each, isMap := strings.CutPrefix(kind, "{}")
	it.shape = n.Kind
	switch {
	case n.Kind == yaml.SequenceNode && (isList || kind == "a"):
		if !isList {
			of = "a"
		}
		for i, c := range n.Content {
			it.list = append(it.list, r.value(c, of, path+"["+strconv.Itoa(i)+"]", depth+1))
		}
	case n.Kind == yaml.MappingNode && (isMap || kind == "a"):
		if !isMap {
			each = "a"
		}
		r.object(it, n, depth, func(*yaml.Node, string) string { return each })
	case n.Kind == yaml.MappingNode && r.schema.types[kind] != nil:
		r.typed(it, n, kind, depth)
	case n.Kind == yaml.ScalarNode:
		it.scalar = r.scalar(n, kind, path)
	default:
		r.wrong(n, path, "is %s; want %s", shapeOf(n), wanted(kind))
	}
	return it
}

// typed reads an object whose fields must all be known.
func (r *manifestReader) typed(it *item, n *yaml.Node, kind string, depth int) {
	it.kind = kind
	r.within = append(r.within, position{it.path, kind})
	defer func() { r.within = r.within[:len(r.within)-1] }()
	fields := r.schema.types[kind]
	r.object(it, n, depth, func(key *yaml.Node, name string) string {
		f, ok := fields[name]
		if !ok {
			r.wrong(key, joinPath(it.path, name), "unknown field%s", r.meant(name))
		}
		return f.kind
	})
	for _, name := range r.schema.fieldNames(kind) {
		if fields[name].required && it.at(name) == nil {
			r.wrong(n, it.path, "lacks %s", name)
		}
	}
}

// object reads an object. kindOf returns the kind of a field, or "" if it is invalid.
func (r *manifestReader) object(it *item, n *yaml.Node, depth int, kindOf func(key *yaml.Node, name string) string) {
	for _, p := range r.pairs(n, it.path, depth) {
		name := p.key.Value
		if kind := kindOf(p.key, name); kind != "" {
			it.fields = append(it.fields, entry{name, r.value(p.value, kind, joinPath(it.path, name), depth+1)})
		}
	}
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
			r.wrong(key, path, "a key is %s; want text", shapeOf(key))
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
		r.value(n, "a", path, maxDepth+1) // reports the depth
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

// meant suggests the field that was intended instead of an unknown one: a similar name, or the same
// name in an enclosing object, as with wrong indentation.
func (r *manifestReader) meant(name string) string {
	parent := r.within[len(r.within)-1]
	known := r.schema.fieldNames(parent.kind)
	for _, k := range known {
		if strings.EqualFold(k, name) {
			return fmt.Sprintf(" (did you mean %s? names are case-sensitive)", k)
		}
	}
	for _, p := range slices.Backward(r.within[:len(r.within)-1]) {
		if _, ok := r.schema.types[p.kind][name]; ok && len(r.within) > 1 {
			return fmt.Sprintf("; %s has a field of that name (indented too far?)", orFile(p.path))
		}
	}
	if near := message.Nearest(message.Short(name), known); near != "" {
		return fmt.Sprintf(" (did you mean %s?)", near)
	}
	for _, k := range known {
		kind := strings.TrimLeft(r.schema.types[parent.kind][k].kind, "[]{}")
		if _, ok := r.schema.types[kind][name]; ok {
			return fmt.Sprintf("; %s has a field of that name (not indented enough?)", joinPath(parent.path, k))
		}
	}
	if len(known) == 0 {
		return "; this object has no known fields"
	}
	return "; known: " + strings.Join(known[:min(len(known), 30)], ", ")
}

func orFile(path string) string {
	if path == "" {
		return "the document"
	}
	return path
}

func joinPath(path, name string) string {
	if name = message.Short(name); path == "" {
		return name
	}
	if strings.ContainsAny(name, "./ ") {
		return path + "[" + name + "]"
	}
	return path + "." + name
}

// scalar reads text, a number or a boolean.
func (r *manifestReader) scalar(n *yaml.Node, kind, path string) any {
	v, err := scalarOf(n)
	if err != nil {
		r.wrong(n, path, "%v", err)
		return nil
	}
	fits := false
	switch x := v.(type) {
	case string:
		fits = strings.Contains("s x a", kind)
		if kind == "q" {
			if fits = quantityText().MatchString(x); !fits {
				r.wrong(n, path, "%q is not a quantity such as 500m, 2, 4Gi or 4G", message.Short(x))
				return nil
			}
		}
	case bool:
		fits = strings.Contains("b a", kind)
	case float64:
		fits = strings.Contains("n q a", kind)
	default:
		fits = strings.Contains("i n q x a", kind)
	}
	if fits {
		return v
	}
	advice := ""
	if _, isText := v.(string); kind == "s" && !isText {
		advice = "; put it in quotes"
	}
	r.wrong(n, path, "%s is %s; want %s%s", message.Short(n.Value), scalarName(v), wanted(kind), advice)
	return nil
}

var quantityText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$`)
})

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
			return nil, fmt.Errorf("%q is not a number", message.Short(n.Value))
		}
		if f, ok := v.(float64); ok && (math.IsInf(f, 0) || math.IsNaN(f)) {
			return nil, fmt.Errorf("JSON cannot represent the number %s", n.Value)
		}
		return v, nil
	default:
		return nil, fmt.Errorf("servers do not support the tag %s", message.Short(tag))
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

// wanted returns the description of a kind for messages.
func wanted(kind string) string {
	names := map[string]string{"s": "text", "b": "true or false", "i": "a whole number", "n": "a number", "q": "a quantity such as 500m or 4Gi",
		"x": "a whole number or text", "a": "anything"}
	switch {
	case names[kind] != "":
		return names[kind]
	case strings.HasPrefix(kind, "[]"):
		return "a list"
	}
	return "a mapping"
}

func shapeOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "a mapping"
	}
	return "text"
}

func scalarName(v any) string {
	switch v.(type) {
	case string:
		return "text"
	case bool:
		return "a boolean"
	case float64:
		return "a number with a fraction"
	}
	return "a number"
}

// top returns the text of a top-level field of a document, or "".
func top(n *yaml.Node, name string) string {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if v := n.Content[i+1]; n.Content[i].Value == name && v.Kind == yaml.ScalarNode {
			return v.Value
		}
	}
	return ""
}
