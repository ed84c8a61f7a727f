package exports

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/text"
)

// maxDocument limits the size of YAML and JSON files, in bytes. Parsing one needs many times
// its size in memory.
const maxDocument = 8 << 20

// maxKeys limits the keys of a mapping, which are searched one by one.
const maxKeys = 4096

// document reads YAML, or JSON as YAML, so that messages for both have line numbers.
func (r *reader) document(lines []string) {
	text := strings.Join(lines, "\n")
	if len(text) > maxDocument {
		r.wrong(1, "larger than %d bytes; check that the file is an export", maxDocument)
		return
	}
	root, err := ParseYAML(text)
	if err != nil {
		r.wrong(yamlLine(err, len(lines)), "parsing YAML: %v", err)
		return
	}
	switch {
	case root.Kind == yaml.SequenceNode:
		r.listJSON(root)
	case root.Kind != yaml.MappingNode:
		r.wrong(root.Line, "not an environment.yml or lock file")
	case find(root, "environments") != nil && find(root, "version") != nil:
		r.pixi(root)
	case find(root, "package") != nil && find(root, "version") != nil:
		r.condaLock(root)
	case find(root, "packages") != nil && find(root, "dependencies") == nil:
		r.wrong(root.Line, "unsupported format (\"packages\" without \"environments\"); export with \"conda list -e\"")
	default:
		r.environmentYAML(root)
	}
}

// ParseYAML parses a text with one document. It refuses aliases: no tool writes them into
// these files, and they can expand to more than fits in memory.
func ParseYAML(text string) (root *yaml.Node, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 {
		return nil, fmt.Errorf("yaml: line 1: empty document")
	}
	return doc.Content[0], checkNode(doc.Content[0], 0)
}

// checkNode refuses aliases, deep nesting and duplicate keys.
func checkNode(n *yaml.Node, depth int) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fmt.Errorf("yaml: line %d: aliases (& and *) are not supported; repeat the text", n.Line)
	}
	if n.Kind == yaml.MappingNode && len(n.Content) > 2*maxKeys {
		return fmt.Errorf("yaml: line %d: more than %d keys", n.Line, maxKeys)
	}
	if depth > 32 {
		return fmt.Errorf("yaml: line %d: nested too deeply", n.Line)
	}
	seen := map[string]bool{}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if c.Kind != yaml.ScalarNode {
				return fmt.Errorf("yaml: line %d: key is not a string", c.Line)
			}
			if seen[c.Value] {
				return fmt.Errorf("yaml: line %d: duplicate key %q; merge the two", c.Line, text.Short(c.Value))
			}
			seen[c.Value] = true
		}
		if err := checkNode(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

var yamlErrorLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`line (\d+)`) })

// yamlLine returns the line number in an error of the YAML parser, limited to the lines of
// the file, or 1 if the error has none.
func yamlLine(err error, lines int) int {
	if m := yamlErrorLine().FindStringSubmatch(err.Error()); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return max(1, min(n, lines))
		}
	}
	return 1
}

// find returns the value of a key in a mapping, or nil if it is missing.
func find(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// value returns the string value of a key, or "" if it is missing or null.
func value(n *yaml.Node, key string) string {
	if v := find(n, key); v != nil && v.Kind == yaml.ScalarNode && v.Tag != "!!null" {
		return v.Value
	}
	return ""
}

// items returns the elements of a list, or nil if n is not a list.
func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}
