package exports

import (
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/text"
)

// environmentYAML reads environment.yml and environment.json (CEP 24), as written by
// "conda env export" with any flags, by mamba, or by hand. The format lacks the channel
// of each package, digests, the platform, and the origin of pip packages. Rows of the form
// name=version=build become entries; all others become specs, in which "=1.2" means any 1.2.x.
func (r *reader) environmentYAML(root *yaml.Node) {
	r.e.Format, r.e.PipOpen = "environment.yml", true
	r.settle()
	known := false
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, v := root.Content[i], root.Content[i+1]
		switch key.Value {
		case "name":
		case "prefix":
			r.note(key.Line, "prefix %q is not used: it is a directory of the machine that wrote the file", text.Short(v.Value))
		case "channels":
			for _, c := range r.texts(v, "channels") {
				r.e.Channels = append(r.e.Channels, c.Value)
			}
		case "dependencies":
			known = true
			r.dependencies(v)
		case "variables":
			r.variables(v)
		case "platforms":
			r.platforms(v)
		case "category":
			r.note(key.Line, "category %q is not used", text.Short(v.Value))
		default:
			r.note(key.Line, "unknown key %q is not used", text.Short(key.Value))
		}
	}
	if !known {
		r.wrong(root.Line, "not an environment.yml: no \"dependencies:\"; write one with \"conda env export\", or a list with \"conda list -e\"")
	}
}

// elements returns the elements of a list; a null value is an empty list.
func (r *reader) elements(n *yaml.Node, key, example string) []*yaml.Node {
	if n.Kind != yaml.SequenceNode && n.Tag != "!!null" {
		r.wrong(n.Line, "%s is not a list; write each element on its own line, as %q", key, "- "+example)
		return nil
	}
	return n.Content
}

// texts returns the elements of a list of strings.
func (r *reader) texts(n *yaml.Node, key string) []*yaml.Node {
	var out []*yaml.Node
	for _, c := range r.elements(n, key, "x") {
		switch {
		case c.Kind != yaml.ScalarNode || c.Tag == "!!null":
			r.wrong(c.Line, "element of %s is not a string", key)
		case r.selected(c):
			out = append(out, c)
		}
	}
	return out
}

func (r *reader) dependencies(n *yaml.Node) {
	for _, c := range r.elements(n, "dependencies", "numpy=1.26") {
		switch {
		case c.Kind == yaml.MappingNode:
			for i := 0; i+1 < len(c.Content); i += 2 {
				r.dependencyKey(c.Content[i], c.Content[i+1])
			}
		case c.Kind != yaml.ScalarNode || c.Tag == "!!null":
			r.wrong(c.Line, "dependency is not a string or \"pip:\"")
		case r.selected(c):
			r.dependency(c.Line, c.Value)
		}
	}
}

// dependencyKey reads a key below dependencies: "pip:", or a selector such as "sel(linux):".
func (r *reader) dependencyKey(key, v *yaml.Node) {
	if key.Value == "pip" {
		for _, c := range r.texts(v, "pip") {
			r.addRequirement(c.Line, c.Value)
		}
		return
	}
	name, ok := strings.CutPrefix(key.Value, "sel(")
	name, end := strings.CutSuffix(name, ")")
	if !ok || !end {
		r.wrong(key.Line, "unknown key %q in dependencies: want pip, sel(linux), sel(unix), sel(osx) or sel(win)", text.Short(key.Value))
		return
	}
	holds, known := selector(name, r.target)
	switch {
	case !known:
		r.wrong(key.Line, "unknown platform sel(%s): want linux, unix, osx or win", text.Short(name))
	case !holds:
		r.note(key.Line, "sel(%s) is not for %s and is left out", name, r.target)
	case v.Kind == yaml.ScalarNode:
		r.dependency(v.Line, v.Value)
	default:
		for _, c := range r.texts(v, key.Value) {
			r.dependency(c.Line, c.Value)
		}
	}
}

// dependency reads one conda dependency. A row with a version and a build becomes an entry.
func (r *reader) dependency(line int, row string) {
	row = r.withoutExtras(line, strings.TrimSpace(row))
	x, ok := pipRow(row)
	if !ok {
		var err error
		if x, ok, err = parseRow(row); err != nil {
			r.wrong(line, "%q: %v", text.Short(row), err)
			return
		}
	}
	if x.Line = line; ok && x.Build != "" {
		r.add(x)
		return
	}
	r.e.Specs = append(r.e.Specs, Spec{Line: line, Text: row})
}

func (r *reader) variables(n *yaml.Node) {
	if n.Kind != yaml.MappingNode && n.Tag != "!!null" {
		r.wrong(n.Line, "variables is not a mapping; write each variable as \"NAME: value\"")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case v.Kind != yaml.ScalarNode:
			r.wrong(v.Line, "the value of variable %s is not a string", text.Short(k.Value))
		case !IsVariable(k.Value, v.Value):
			r.wrong(k.Line, "%q: invalid variable name or value", text.Short(k.Value))
		default:
			if r.e.Variables == nil {
				r.e.Variables = map[string]string{}
			}
			r.e.Variables[k.Value] = v.Value
		}
	}
}

// platforms reads the platforms that the file was solved for. If the target is not among them,
// it adds a note.
func (r *reader) platforms(n *yaml.Node) {
	var list []string
	for _, c := range r.texts(n, "platforms") {
		list = append(list, c.Value)
		if c.Value == r.target {
			return
		}
	}
	if len(list) > 0 {
		r.note(n.Line, "the file is for %s, but is read for %s", input.List(list), r.target)
	}
}

// selected reports whether a row applies to the target, by a selector in its comment such as
// "# [linux]". conda-lock evaluates selectors, but conda ignores them. Therefore selected notes
// the rows that it leaves out, and keeps rows with unknown selectors.
func (r *reader) selected(n *yaml.Node) bool {
	_, c, ok := strings.Cut(n.LineComment, "[")
	c, _, end := strings.Cut(c, "]")
	if !ok || !end || strings.Trim(strings.SplitN(n.LineComment, "[", 2)[0], "# \t") != "" {
		return true
	}
	holds, known := selector(c, r.target)
	switch {
	case !known:
		r.note(n.Line, "unknown selector %q; %s is kept", text.Short(n.LineComment), text.Short(n.Value))
	case !holds:
		r.note(n.Line, "%s is not for %s (%s) and is left out", text.Short(n.Value), r.target, text.Short(n.LineComment))
	}
	return holds || !known
}

// selector evaluates an expression such as "linux", "not win" or "linux64 or osx" for a
// platform. known is false if it contains an unknown name.
func selector(text, subdir string) (holds, known bool) {
	for _, alternative := range strings.Split(text, " or ") {
		all := true
		for _, term := range strings.Split(alternative, " and ") {
			name, negated := strings.CutPrefix(strings.TrimSpace(term), "not ")
			matches, ok := matchesPlatform(strings.TrimSpace(name), subdir)
			if !ok {
				return false, false
			}
			all = all && matches != negated
		}
		holds = holds || all
	}
	return holds, true
}

// selectorPlatforms maps conda-build's short names to platforms.
var selectorPlatforms = map[string]string{"linux64": "linux-64", "linux32": "linux-32", "osx64": "osx-64",
	"win64": "win-64", "win32": "win-32"}

// matchesPlatform reports whether a name in a selector includes a platform. known is false for
// an unknown name.
func matchesPlatform(name, subdir string) (matches, known bool) {
	system, machine, _ := strings.Cut(subdir, "-")
	if s, ok := selectorPlatforms[name]; ok {
		name = s
	}
	if fetch.IsPlatform(name) {
		return name == subdir, true
	}
	switch name {
	case "linux", "osx", "win":
		return name == system, true
	case "unix":
		return system == "linux" || system == "osx", true
	case "x86_64":
		return machine == "64", true
	case "aarch64", "arm64", "ppc64le", "s390x", "riscv64":
		return name == machine, true
	}
	return false, false
}

// variableText matches the name of an environment variable.
var variableText = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`) })

// IsVariable reports whether an image can have an environment variable with this name and value.
func IsVariable(name, value string) bool {
	return variableText().MatchString(name) && !strings.ContainsRune(value, 0)
}
