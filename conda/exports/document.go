package exports

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/input"
)

// maxDocument bounds YAML and JSON, of which a parser keeps many times the size.
const maxDocument = 8 << 20

// document reads what is YAML or JSON, which is YAML for our purpose: so both
// have lines in messages.
func (r *reader) document(lines []string) {
	text := strings.Join(lines, "\n")
	if len(text) > maxDocument {
		r.wrong(1, "it has more than %d bytes: is this an export?", maxDocument)
		return
	}
	root, err := ParseYAML(text)
	if err != nil {
		r.wrong(yamlLine(err, len(lines)), "reading it as YAML: %v", err)
		return
	}
	switch {
	case root.Kind == yaml.SequenceNode:
		r.listJSON(root)
	case root.Kind != yaml.MappingNode:
		r.wrong(root.Line, "neither an environment.yml nor a lock file")
	case find(root, "environments") != nil && find(root, "version") != nil:
		r.pixi(root)
	case find(root, "package") != nil && find(root, "version") != nil:
		r.condaLock(root)
	case find(root, "packages") != nil && find(root, "dependencies") == nil:
		r.wrong(root.Line, "a file with \"packages\" and no \"environments\" is no format that hpcc knows; export with \"conda list -e\"")
	default:
		r.environmentYAML(root)
	}
}

// ParseYAML gives the one document of a text. References are refused: no tool
// writes them into these files, and they can stand for more than fits memory.
func ParseYAML(text string) (root *yaml.Node, err error) {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 {
		return nil, fmt.Errorf("yaml: line 1: it is empty")
	}
	return doc.Content[0], checkNode(doc.Content[0], 0)
}

// checkNode refuses references, deep nesting and keys that stand twice.
func checkNode(n *yaml.Node, depth int) error {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return fmt.Errorf("yaml: line %d: references (& and *) are not read; write the text out", n.Line)
	}
	if depth > 32 {
		return fmt.Errorf("yaml: line %d: nested too deeply", n.Line)
	}
	seen := map[string]bool{}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if c.Kind != yaml.ScalarNode {
				return fmt.Errorf("yaml: line %d: a key that is no text", c.Line)
			}
			if seen[c.Value] {
				return fmt.Errorf("yaml: line %d: key %q stands twice; join the two", c.Line, input.Text(c.Value))
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

// yamlLine is the line that a message of the parser names.
func yamlLine(err error, lines int) int {
	if m := yamlErrorLine().FindStringSubmatch(err.Error()); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			return max(1, min(n, lines))
		}
	}
	return 1
}

// find is the value of a key; nil without one.
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

// value is the text of a key; "" without one, and for null.
func value(n *yaml.Node, key string) string {
	if v := find(n, key); v != nil && v.Kind == yaml.ScalarNode && v.Tag != "!!null" {
		return v.Value
	}
	return ""
}

// items are the elements of a list; nil when it is none.
func items(n *yaml.Node) []*yaml.Node {
	if n == nil || n.Kind != yaml.SequenceNode {
		return nil
	}
	return n.Content
}
