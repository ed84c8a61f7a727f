package exports

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2/unstable"
	"go.yaml.in/yaml/v3"

	"hpcc/text"
)

// isTOML reports whether a file is TOML, by its name or by its first line: a table header, or a
// value in a file with table headers.
func isTOML(first string, lines []string, file string) bool {
	switch name := path.Base(file); {
	case strings.HasSuffix(name, ".toml"), name == "uv.lock", name == "poetry.lock":
		return true
	case tomlHeader().MatchString(first):
		return true
	}
	return tomlValue().MatchString(first) && slices.ContainsFunc(lines, tomlHeader().MatchString)
}

// tomlHeader matches a line with the header of a table, which a list in YAML or JSON never
// resembles.
var tomlHeader = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^\s*(?:\[\s*[A-Za-z_][\w.\s"'-]*\]|\[\[\s*[A-Za-z_][\w.\s"'-]*\]\])\s*(?:#.*)?$`)
})

// tomlValue matches a line with a key and a value.
var tomlValue = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][\w.-]*\s*=\s*[\["'{0-9tf]`) })

// toml reads a TOML file.
func (r *reader) toml(lines []string) {
	text := strings.Join(lines, "\n")
	if len(text) > maxDocument {
		r.wrong(1, "larger than %d bytes; check that the file is an export", maxDocument)
		return
	}
	root, line, err := parseTOML(text)
	if err != nil {
		r.wrong(line, "parsing TOML: %v", err)
		return
	}
	switch {
	case find(root, "lock-version") != nil:
		r.pylock(root)
	case find(find(root, "metadata"), "lock-version") != nil:
		r.poetryLock(root)
	case find(root, "version") != nil && (find(root, "requires-python") != nil || path.Base(r.e.File) == "uv.lock"):
		r.uvLock(root)
	case find(find(root, "tool"), "pixi") != nil, find(root, "workspace") != nil,
		find(find(root, "project"), "channels") != nil, path.Base(r.e.File) == "pixi.toml":
		r.pixiManifest(root)
	case path.Base(r.e.File) == "pyproject.toml":
		r.wrong(root.Line, "the file has no [tool.pixi]; name a lock file of the project, or a requirements.txt")
	default:
		r.wrong(root.Line, "not a TOML file with an environment")
	}
}

// maxTOML limits the nesting of tables and values, as in YAML.
const maxTOML = 32

// parseTOML parses a text into the tree that ParseYAML returns, so that readers of both formats
// are alike. It sets the lines and the tags of all nodes: !!str, !!int, !!float, !!bool, !!timestamp.
// line is that of the error.
func parseTOML(content string) (root *yaml.Node, line int, err error) {
	t := &tomlTree{data: []byte(content), root: &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: 1},
		child: map[tomlKey]*yaml.Node{}, state: map[*yaml.Node]tomlState{}}
	for i, c := range t.data {
		if c == '\n' {
			t.newlines = append(t.newlines, i)
		}
	}
	p := &unstable.Parser{}
	p.Reset(t.data)
	current := t.root
	for p.NextExpression() {
		x := p.Expression()
		if x.Kind == unstable.KeyValue {
			err = t.set(current, x, 0)
		} else {
			current, err = t.header(x)
		}
		if err != nil {
			return nil, t.line, err
		}
	}
	var bad *unstable.ParserError
	if errors.As(p.Error(), &bad) {
		line := len(t.newlines) + 1
		if len(bad.Highlight) > 0 {
			line = t.lineOf(int(p.Range(bad.Highlight).Offset))
		}
		return nil, line, errors.New(text.Short(bad.Message))
	}
	return t.root, 0, p.Error()
}

// A tomlTree is a tree of nodes that grows by expressions of TOML.
type tomlTree struct {
	data     []byte
	newlines []int // offsets
	line     int   // the last that was read
	root     *yaml.Node
	child    map[tomlKey]*yaml.Node
	state    map[*yaml.Node]tomlState
}

type tomlKey struct {
	table *yaml.Node
	key   string
}

// A tomlState restricts the additions to a node. The zero value is a table without a header of its
// own, or a value.
type tomlState int

const (
	tomlDefined tomlState = iota + 1 // a table that must not have another header
	tomlTables                       // a list of tables: headers add elements
	tomlFixed                        // an inline value: nothing can be added
)

// lineOf returns the line of an offset.
func (t *tomlTree) lineOf(offset int) int { return sort.SearchInts(t.newlines, offset) + 1 }

// keys returns the parts of a dotted key, with their lines.
func (t *tomlTree) keys(it unstable.Iterator, depth int) ([]*yaml.Node, error) {
	var out []*yaml.Node
	for it.Next() {
		k := it.Node()
		t.line = t.lineOf(int(k.Raw.Offset))
		out = append(out, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Line: t.line, Value: string(k.Data)})
		if depth+len(out) > maxTOML {
			return nil, errors.New("nested too deeply")
		}
	}
	return out, nil
}

// add adds a value to a table.
func (t *tomlTree) add(table, key, v *yaml.Node) error {
	if len(table.Content) == 2*maxKeys {
		return fmt.Errorf("more than %d keys in a table", maxKeys)
	}
	table.Content = append(table.Content, key, v)
	t.child[tomlKey{table, key.Value}] = v
	return nil
}

// table returns the table of a key. It adds a missing one with the given state.
func (t *tomlTree) table(parent, key *yaml.Node, s tomlState) (*yaml.Node, error) {
	n := t.child[tomlKey{parent, key.Value}]
	switch {
	case n == nil:
		n = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: key.Line}
		t.state[n] = s
		if err := t.add(parent, key, n); err != nil {
			return nil, err
		}
	case t.state[n] == tomlTables:
		n = n.Content[len(n.Content)-1]
	case n.Kind != yaml.MappingNode || t.state[n] == tomlFixed:
		return nil, t.defined(n, key)
	}
	return n, nil
}

func (t *tomlTree) defined(n, key *yaml.Node) error {
	return fmt.Errorf("key %q is already in line %d; merge the two", text.Short(key.Value), n.Line)
}

// header returns the table of a header.
func (t *tomlTree) header(x *unstable.Node) (*yaml.Node, error) {
	keys, err := t.keys(x.Key(), 0)
	if err != nil {
		return nil, err
	}
	n := t.root
	last := keys[len(keys)-1]
	for _, k := range keys[:len(keys)-1] {
		if n, err = t.table(n, k, 0); err != nil {
			return nil, err
		}
	}
	have := t.child[tomlKey{n, last.Value}]
	if x.Kind == unstable.ArrayTable {
		if have == nil {
			have = &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Line: last.Line}
			t.state[have] = tomlTables
			if err := t.add(n, last, have); err != nil {
				return nil, err
			}
		}
		if t.state[have] != tomlTables {
			return nil, t.defined(have, last)
		}
		v := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: last.Line}
		have.Content = append(have.Content, v)
		return v, nil
	}
	if have != nil && (have.Kind != yaml.MappingNode || t.state[have] != 0) {
		return nil, t.defined(have, last)
	}
	if n, err = t.table(n, last, 0); err == nil {
		t.state[n] = tomlDefined
		n.Line = last.Line
	}
	return n, err
}

// set adds the value of a key, which may be dotted, to a table.
func (t *tomlTree) set(table *yaml.Node, x *unstable.Node, depth int) error {
	keys, err := t.keys(x.Key(), depth)
	if err != nil {
		return err
	}
	last := keys[len(keys)-1]
	for _, k := range keys[:len(keys)-1] {
		if table, err = t.table(table, k, tomlDefined); err != nil {
			return err
		}
	}
	if have := t.child[tomlKey{table, last.Value}]; have != nil {
		return t.defined(have, last)
	}
	v, err := t.value(x.Value(), depth+len(keys))
	if err != nil {
		return err
	}
	return t.add(table, last, v)
}

var tomlTags = map[unstable.Kind]string{unstable.String: "!!str", unstable.Integer: "!!int",
	unstable.Float: "!!float", unstable.Bool: "!!bool"}

// value returns the node of a value.
func (t *tomlTree) value(x *unstable.Node, depth int) (*yaml.Node, error) {
	if depth > maxTOML {
		return nil, errors.New("nested too deeply")
	}
	if x.Raw.Length > 0 {
		t.line = t.lineOf(int(x.Raw.Offset))
	}
	n := &yaml.Node{Line: t.line}
	var err error
	switch x.Kind {
	case unstable.Array:
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		for it := x.Children(); it.Next() && err == nil; {
			var v *yaml.Node
			v, err = t.value(it.Node(), depth+1)
			n.Content = append(n.Content, v)
		}
		t.state[n] = tomlFixed
	case unstable.InlineTable:
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
		for it := x.Children(); it.Next() && err == nil; {
			err = t.set(n, it.Node(), depth)
		}
		t.state[n] = tomlFixed
	default:
		n.Kind, n.Tag, n.Value = yaml.ScalarNode, tomlTags[x.Kind], string(x.Data)
		if n.Tag == "" {
			n.Tag = "!!timestamp"
		}
	}
	return n, err
}
