package exports

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"go.yaml.in/yaml/v3"
)

// plainValue returns a tree as the values that another decoder returns.
func plainValue(n *yaml.Node) any {
	switch {
	case n.Kind == yaml.MappingNode:
		m := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			m[n.Content[i].Value] = plainValue(n.Content[i+1])
		}
		return m
	case n.Kind == yaml.SequenceNode:
		list := []any{}
		for _, c := range n.Content {
			list = append(list, plainValue(c))
		}
		return list
	}
	switch n.Tag {
	case "!!int":
		v, _ := strconv.ParseInt(n.Value, 0, 64)
		return v
	case "!!bool":
		return n.Value == "true"
	}
	return n.Value
}

// sameValue returns the values of BurntSushi's decoder with one type of list.
func sameValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = sameValue(v[k])
		}
	case []map[string]any:
		list := []any{}
		for _, x := range v {
			list = append(list, sameValue(x))
		}
		return list
	case []any:
		for i := range v {
			v[i] = sameValue(v[i])
		}
	}
	return v
}

const tomlSample = `# a comment
title = "a \"b\"" # more
[workspace]
channels = [
  "conda-forge", # first
  {channel = "x", priority = -1},
]
a.b.c = true
a.b.d = 'x'
[target.linux-64.dependencies]
python = "3.*"
[[package]]
name = "one"
[[package.wheels]]
url = "u"
[[package]]
name = """
two"""
[package.source]
path = "."
`

func TestTOML(t *testing.T) {
	root, _, err := parseTOML(tomlSample)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]any
	if _, err := toml.Decode(tomlSample, &want); err != nil {
		t.Fatal(err)
	}
	if got := plainValue(root); !reflect.DeepEqual(got, sameValue(want)) {
		t.Errorf("parseTOML = %v; want %v", got, want)
	}
	w := find(root, "workspace")
	packages := items(find(root, "package"))
	for what, line := range map[*yaml.Node]int{
		find(root, "title"): 2, w: 3, find(w, "channels").Content[1]: 6, find(find(find(w, "a"), "b"), "d"): 9,
		find(find(find(root, "target"), "linux-64"), "dependencies"): 10, packages[1]: 16, find(packages[1], "name"): 17, find(find(packages[1], "source"), "path"): 20,
	} {
		if what.Line != line {
			t.Errorf("line %d of %q; want %d", what.Line, what.Value, line)
		}
	}
}

func TestTOMLMistakes(t *testing.T) {
	deep := strings.Repeat("a.", maxTOML) + "a"
	for text, want := range map[string]string{
		"a = 1\na = 2":                          `2: key "a" is already in line 1; merge the two`,
		"[a]\nb = 1\n[a]":                       `3: key "a" is already in line 1; merge the two`,
		"a = {b = 1}\n[a.c]":                    `2: key "a" is already in line 1; merge the two`,
		"a = [{}]\n[[a]]":                       `2: key "a" is already in line 1; merge the two`,
		"a = 1\nb = {\"a\" = 1,\na = 2}":        `3: key "a" is already in line 2; merge the two`,
		"a.b = 1\n[a]":                          `2: key "a" is already in line 1; merge the two`,
		"[[a]]\n[a]":                            `2: key "a" is already in line 1; merge the two`,
		"\n" + deep + " = 1":                    `2: nested too deeply`,
		"[" + deep + "]":                        `1: nested too deeply`,
		"a = " + strings.Repeat("[", maxTOML+1): `1: array is incomplete`,
		"a = " + strings.Repeat("[", 64) + strings.Repeat("]", 64): `1: nested too deeply`,
		"a = 1\nb = \n": "2: unexpected character U+000A at start of value",
		"a = 1\nb = 'x": "2: unterminated literal string",
	} {
		_, line, err := parseTOML(text)
		if got := fmt.Sprintf("%d: %v", line, err); err == nil || got != want {
			t.Errorf("parseTOML(%.40q) = %s; want %s", text, got, want)
		}
	}
}

func TestIsTOML(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       bool
	}{
		{"pixi.toml", "", true}, {"dir/uv.lock", "version = 1", true}, {"poetry.lock", "", true}, {"x", "[project]\n", true}, {"x", "[[package]] # one\n", true},
		{"x", "version = 1\nrequires-python = \">=3.12\"\n[[package]]\n", true}, {"x", `["a", "b"]`, false}, {"x", "[]", false}, {"x", `[{"name": "a"}]`, false},
		{"x", "python = 3.8\n", false}, {"x", "name: x\nchannels:\n[conda-forge]\n", false},
	} {
		lines := strings.Split(c.text, "\n")
		if got := isTOML(lines[0], lines, c.name); got != c.want {
			t.Errorf("isTOML(%q, %s) = %v; want %v", c.text, c.name, got, c.want)
		}
	}
}

// FuzzTOML compares the parser with another one: it accepts the same texts, apart from its limits,
// with the same values.
func FuzzTOML(f *testing.F) {
	f.Add(tomlSample)
	f.Add("a = 1\r\n\"b.c\".d = [1, [2,\n3], {x = 0x10}]\n")
	f.Add("[a.b]\n[a]\nb.c = 1\n")
	f.Add("x = 1979-05-27T07:32:00Z\ny = 1e5\nz = inf")
	f.Fuzz(func(t *testing.T, text string) {
		root, line, err := parseTOML(text)
		if err != nil {
			if lines := strings.Count(text, "\n") + 1; line < 1 || line > lines {
				t.Fatalf("line %d of %d: %v", line, lines, err)
			}
			return
		}
		var want map[string]any
		if len(text) > 1000 {
			return
		}
		if _, err := toml.Decode(text, &want); err != nil || hasFloatOrTime(root) {
			return
		}
		if got := plainValue(root); !reflect.DeepEqual(got, sameValue(want)) {
			t.Fatalf("parseTOML(%q) = %v; want %v", text, got, want)
		}
	})
}

// hasFloatOrTime reports whether a tree has values that plainValue does not convert.
func hasFloatOrTime(n *yaml.Node) bool {
	for _, c := range n.Content {
		if hasFloatOrTime(c) {
			return true
		}
	}
	return n.Tag == "!!float" || n.Tag == "!!timestamp" || (n.Tag == "!!int" && strings.Contains(n.Value, "_")) || (n.Tag == "!!int" && strings.HasPrefix(n.Value, "+"))
}
