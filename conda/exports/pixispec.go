package exports

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/pip"
	"hpcc/conda/solve"
	"hpcc/text"
)

// An ordered is a map that keeps the order in which keys were added.
type ordered[T any] struct {
	names []string
	all   map[string]T
}

// set adds or replaces the value of a key.
func (o *ordered[T]) set(name string, v T) {
	if o.all == nil {
		o.all = map[string]T{}
	}
	if _, ok := o.all[name]; !ok {
		o.names = append(o.names, name)
	}
	o.all[name] = v
}

// values returns the values in order.
func (o *ordered[T]) values() (out []T) {
	for _, n := range o.names {
		out = append(out, o.all[n])
	}
	return out
}

// feature adds the dependencies and settings of a feature. Those of features that were added before
// take precedence where only one can count.
func (m *manifest) feature(f feature) {
	e := m.r.e
	var specs, limits ordered[Spec]
	var packages ordered[pip.Requirement]
	variables := map[string]string{}
	m.requiresPython(f, &specs)
	for _, t := range m.tables(f) {
		for _, key := range []string{"dependencies", "host-dependencies", "build-dependencies"} {
			m.dependencies(find(t, key), key, &specs)
		}
		m.dependencies(find(t, "constraints"), "constraints", &limits)
		m.pypiDependencies(find(t, "pypi-dependencies"), &packages)
		m.activation(find(t, "activation"), variables)
		for _, name := range keysOf(find(t, "dev")) {
			m.r.wrong(find(t, "dev").Line, "dev: %s: pixi builds packages from source; hpcc does not read what they depend on: list it below dependencies", text.Short(name))
		}
	}
	m.systemRequirements(find(f.table, "system-requirements"))
	m.options(find(f.table, "pypi-options"))
	e.Specs = append(e.Specs, specs.values()...)
	e.Limits = append(e.Limits, limits.values()...)
	for _, n := range f.rows {
		p, err := pip.ParseRequirement(n.Value)
		if err != nil {
			m.r.wrong(n.Line, "%q: %v", text.Short(hideText(n.Value)), err)
			continue
		}
		p.Line = n.Line
		m.r.keepRequirement(p)
	}
	for _, p := range packages.values() {
		m.r.keepRequirement(p)
	}
	for _, k := range slices.Sorted(maps.Keys(variables)) {
		if e.Variables == nil {
			e.Variables = map[string]string{}
		}
		if _, ok := e.Variables[k]; !ok {
			e.Variables[k] = variables[k]
		}
	}
}

// requiresPython adds the python that a pyproject.toml requires; a dependency of the default feature
// replaces it.
func (m *manifest) requiresPython(f feature, specs *ordered[Spec]) {
	n := find(find(m.project, "project"), "requires-python")
	if n == nil || f.table != m.root {
		return
	}
	if s, err := solve.ParseSpec("python " + n.Value); err == nil {
		specs.set("python", Spec{Line: n.Line, Text: s.String()})
	} else {
		m.r.wrong(n.Line, "requires-python: %v", err)
	}
}

// dependencies adds the specs of a table.
func (m *manifest) dependencies(n *yaml.Node, table string, specs *ordered[Spec]) {
	if n != nil && n.Kind != yaml.MappingNode {
		m.r.wrong(n.Line, "%s is not a table", table)
		return
	}
	for i := 0; n != nil && i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		if text, ok := m.spec(key, v); ok {
			specs.set(strings.ToLower(key.Value), Spec{Line: key.Line, Text: text})
		}
	}
}

// pixiConditions maps the keys of a spec to those of a MatchSpec.
var pixiConditions = map[string]string{"build": "build", "build-number": "build_number", "subdir": "subdir",
	"file-name": "fn", "md5": "md5", "sha256": "sha256"}

// blankInVersion matches a blank without an operator next to it.
var blankInVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[\w*]\s+[\w*]`) })

// spec returns a dependency as a MatchSpec. The value is a version, or a table of conditions.
func (m *manifest) spec(key, v *yaml.Node) (spec string, ok bool) {
	fail := func(line int, format string, a ...any) (string, bool) {
		m.r.wrong(line, "%s: %s", text.Short(key.Value), fmt.Sprintf(format, a...))
		return "", false
	}
	if value(v, "workspace") == "true" {
		shared := find(find(m.workspace, "dependencies"), key.Value)
		if shared == nil {
			return fail(v.Line, "[workspace.dependencies] has no such package")
		}
		v = merged(shared, v)
	}
	version, name := value(v, "version"), key.Value
	var conditions []string
	switch v.Kind {
	case yaml.ScalarNode:
		version = v.Value
	case yaml.MappingNode:
	default:
		return fail(v.Line, "neither a version nor a table")
	}
	for i := 0; v.Kind == yaml.MappingNode && i+1 < len(v.Content); i += 2 {
		k, x := v.Content[i], v.Content[i+1]
		condition := pixiConditions[k.Value]
		switch {
		case k.Value == "version", k.Value == "workspace":
		case k.Value == "path", k.Value == "git", k.Value == "url":
			return fail(k.Line, "%s: pixi builds or fetches this package itself; upload its archive to a channel and depend on that", k.Value)
		case x.Kind != yaml.ScalarNode, strings.ContainsAny(x.Value, "\"'\n"):
			return fail(k.Line, "%q cannot be used: not a plain string", text.Short(k.Value))
		case k.Value == "channel":
			name = x.Value + "::" + name
		case condition == "":
			return fail(k.Line, "the condition %q is not supported; remove it", text.Short(k.Value))
		default:
			conditions = append(conditions, condition+`="`+x.Value+`"`)
		}
	}
	if blankInVersion().MatchString(version) || strings.ContainsAny(version, "\"'") {
		return fail(v.Line, "%q is not a version", text.Short(version))
	}
	simple := name
	if version = strings.Join(strings.Fields(version), ""); version != "" && version != "*" {
		conditions = append([]string{`version="` + version + `"`}, conditions...)
		simple += " " + version
	}
	spec = name
	if len(conditions) > 0 { // unlike the simple form, it cannot hide a build in the version
		spec += "[" + strings.Join(conditions, ",") + "]"
	}
	s, err := solve.ParseSpec(spec)
	switch {
	case err != nil:
		return fail(v.Line, "%v", err)
	case s.Name != strings.ToLower(key.Value):
		return fail(key.Line, "not the name of a package")
	case len(conditions) == 1 && simple != name:
		return simple, true
	}
	return spec, true
}

// merged returns a table with the content of both; that of over wins. A scalar is a version.
func merged(under, over *yaml.Node) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Line: over.Line}
	if under.Kind == yaml.ScalarNode {
		under = &yaml.Node{Kind: yaml.MappingNode,
			Content: []*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!str", Line: under.Line, Value: "version"}, under}}
	}
	for i := 0; i+1 < len(under.Content); i += 2 {
		if find(over, under.Content[i].Value) == nil {
			n.Content = append(n.Content, under.Content[i], under.Content[i+1])
		}
	}
	n.Content = append(n.Content, over.Content...)
	return n
}

// pypiDependencies adds the packages of a table of pip packages.
func (m *manifest) pypiDependencies(n *yaml.Node, packages *ordered[pip.Requirement]) {
	if n != nil && n.Kind != yaml.MappingNode {
		m.r.wrong(n.Line, "pypi-dependencies is not a table")
		return
	}
	for i := 0; n != nil && i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		if p, ok := m.pypiDependency(key, v); ok {
			packages.set(pip.NormalName(key.Value), p)
		}
	}
}

// pypiDependency returns a pip package. The value is a version, or a table.
func (m *manifest) pypiDependency(key, v *yaml.Node) (p pip.Requirement, ok bool) {
	version := value(v, "version")
	if v.Kind == yaml.ScalarNode {
		version = v.Value
	}
	m.check(v, key.Value, []string{"version", "extras", "git", "branch", "tag", "rev", "subdirectory",
		"url", "path", "editable", "index", "env-markers", "lfs"})
	row := key.Value
	var extras []string
	for _, x := range m.strings(find(v, "extras"), "extras") {
		extras = append(extras, x.Value)
	}
	if len(extras) > 0 {
		row += "[" + strings.Join(extras, ",") + "]"
	}
	if version != "*" {
		row += version
	}
	if marker := value(v, "env-markers"); marker != "" {
		row += " ; " + marker
	}
	p, err := pip.ParseRequirement(row)
	if err == nil && p.Name != key.Value {
		err = errors.New("the name of a package is expected")
	}
	if err != nil {
		m.r.wrong(v.Line, "%s: %q is not a requirement of pip: %v", text.Short(key.Value), text.Short(row), err)
		return p, false
	}
	p.Line = key.Line
	fragment := ""
	if dir := value(v, "subdirectory"); dir != "" {
		fragment = "#subdirectory=" + dir
	}
	git, commit := value(v, "git"), cmp.Or(value(v, "rev"), value(v, "tag"), value(v, "branch"))
	switch {
	case git != "" && commit != "":
		p.URL = "git+" + strings.TrimPrefix(git, "git+") + "@" + commit + fragment
	case git != "":
		p.URL = "git+" + strings.TrimPrefix(git, "git+") + fragment
	case value(v, "url") != "":
		p.URL = value(v, "url") + fragment
	case value(v, "path") != "":
		p.URL, p.Editable = value(v, "path")+fragment, value(v, "editable") == "true"
	}
	if x := find(v, "index"); x != nil && !slices.Contains(m.r.e.PipIndexes.Extra, x.Value) {
		m.r.note(x.Line, "the index of %s is searched for all pip packages", text.Short(key.Value))
		m.r.e.PipIndexes.Extra = append(m.r.e.PipIndexes.Extra, x.Value)
	}
	return p, true
}

// options adds the indexes of pip packages. The main index of a feature that was added before stays.
func (m *manifest) options(n *yaml.Node) {
	m.check(n, "pypi-options", []string{"index-url", "extra-index-urls", "find-links"})
	x := &m.r.e.PipIndexes
	x.URL = cmp.Or(x.URL, value(n, "index-url"))
	for _, u := range m.strings(find(n, "extra-index-urls"), "extra-index-urls") {
		x.Extra = append(x.Extra, u.Value)
	}
	for _, l := range items(find(n, "find-links")) {
		if u := cmp.Or(value(l, "url"), value(l, "path")); u != "" {
			x.FindLinks = append(x.FindLinks, u)
		}
	}
}
