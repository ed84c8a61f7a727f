package kube

import (
	"bytes"
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
)

// toYAML writes a value like kubectl and argo: by its JSON names, sorted.
func toYAML(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var plain any
	if err := d.Decode(&plain); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	e.CompactSeqIndent()
	err = e.Encode(forYAML(plain))
	return b.Bytes(), err
}

// forYAML converts a JSON value for yaml.v3. It double-quotes text that yaml.v3 would write in a form
// that readers reject or misread: with a tab, with non-ASCII characters, or with an empty line or a
// space before other lines.
func forYAML(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = forYAML(v[k])
		}
	case []any:
		for i := range v {
			v[i] = forYAML(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		x, _ := v.Float64()
		return x
	case string:
		odd := func(r rune) bool { return (r < ' ' && r != '\n') || r > '~' }
		if strings.ContainsFunc(v, odd) || (strings.Contains(v, "\n") && (v[0] == '\n' || v[0] == ' ')) {
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: v, Style: yaml.DoubleQuotedStyle}
		}
	}
	return v
}
