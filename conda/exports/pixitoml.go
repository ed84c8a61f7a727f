package exports

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/input"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
	"hpcc/text"
)

// A manifest is a pixi.toml, or the tables of pixi in a pyproject.toml. An environment combines
// features, which are tables of dependencies and settings; the tables at the top level are the
// default feature.
type manifest struct {
	r         *reader
	root      *yaml.Node // the tables of pixi
	workspace *yaml.Node // [workspace], or [project] in older files
	project   *yaml.Node // pyproject.toml; nil for pixi.toml
	platforms []string   // names of the platforms of the workspace
	variant   variant    // the platform to read for
}

// A feature is a part of an environment. The table is nil if pyproject.toml has only rows of pip.
type feature struct {
	name  string
	table *yaml.Node
	rows  []*yaml.Node
}

// Keys of the tables in a manifest. All others are noted. Those of pixiUnused have no effect on the
// packages.
var (
	pixiFeature = []string{"dependencies", "host-dependencies", "build-dependencies", "constraints",
		"pypi-dependencies", "pypi-options", "system-requirements", "activation", "platforms",
		"channels", "channel-priority", "target", "dev", "tasks"}
	pixiTarget = []string{"dependencies", "host-dependencies", "build-dependencies", "constraints",
		"pypi-dependencies", "activation", "dev", "tasks"}
	pixiRoot      = []string{"workspace", "project", "package", "feature", "environments", "tool", "$schema"}
	pixiWorkspace = []string{"channels", "platforms", "channel-priority", "pypi-options", "dependencies"}
	pixiUnused    = []string{"name", "version", "description", "authors", "license", "license-file", "readme",
		"homepage", "repository", "documentation", "conda-pypi-map", "preview", "target", "build-variants",
		"build-variants-files", "requires-pixi", "s3-options"}
	pixiEnvironment = []string{"features", "solve-group", "no-default-feature"}
)

// pixiManifest reads pixi.toml, or pyproject.toml with [tool.pixi], for one environment and the
// target's platform. Dependencies become specs; limits, channels, indexes, variables and virtual
// packages are read too. Tasks are left out.
func (r *reader) pixiManifest(root *yaml.Node) {
	r.e.Format, r.e.PipOpen = "pixi.toml", true
	m := &manifest{r: r, root: root}
	if t := find(find(root, "tool"), "pixi"); t != nil {
		r.e.Format, m.root, m.project = "pyproject.toml of pixi", t, root
	}
	if m.workspace = find(m.root, "workspace"); m.workspace == nil {
		m.workspace = find(m.root, "project")
	}
	if m.workspace == nil || m.workspace.Kind != yaml.MappingNode {
		r.wrong(m.root.Line, "no [workspace] table: a manifest of a package has no environments; name the pixi.toml of its workspace")
		return
	}
	r.settle()
	m.locked()
	m.check(m.root, "the manifest", pixiRoot, pixiFeature)
	m.check(m.workspace, "[workspace]", pixiWorkspace, pixiUnused)
	name, features := m.features()
	if len(r.bad.Texts) > 0 || !m.platform(name, features) {
		return
	}
	m.channels(features)
	for _, f := range features {
		m.feature(f)
	}
	m.options(find(m.workspace, "pypi-options"))
}

// locked notes that pixi has already chosen the packages.
func (m *manifest) locked() {
	if m.r.open == nil {
		return
	}
	name := filepath.Join(filepath.Dir(m.r.e.File), "pixi.lock")
	if f, err := m.r.open(name); err == nil {
		f.Close()
		m.r.note(0, "hpcc chooses packages of today; for those that pixi has locked, use --conda %s", name)
	}
}

// check notes the keys of a table that are unknown.
func (m *manifest) check(table *yaml.Node, where string, known ...[]string) {
	if table == nil || table.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(table.Content); i += 2 {
		if k := table.Content[i]; !slices.ContainsFunc(known, func(list []string) bool { return slices.Contains(list, k.Value) }) {
			m.r.note(k.Line, "key %q of %s is not used", text.Short(k.Value), where)
		}
	}
}

// features returns the selected environment and its features, the most important one first. The
// content of the environment itself is one of them.
func (m *manifest) features() (name string, out []feature) {
	r := m.r
	all := find(m.root, "environments")
	have := keysOf(all)
	if !slices.Contains(have, "default") {
		have = append([]string{"default"}, have...)
	}
	name = cmp.Or(r.environment, "default")
	line := m.root.Line
	if all != nil {
		line = all.Line
	}
	if !slices.Contains(have, name) {
		r.noEnvironment(line, name, have)
		return name, nil
	}
	if len(have) > 1 {
		r.note(line, "the file has the environments %s; %s is read; choose another one with --environment", input.List(have), name)
	}
	e := find(all, name)
	list := e
	if e != nil && e.Kind == yaml.MappingNode {
		list = find(e, "features")
		m.check(e, "environment "+name, pixiEnvironment, pixiFeature)
		if slices.ContainsFunc(keysOf(e), func(k string) bool { return slices.Contains(pixiFeature, k) }) {
			out = append(out, feature{name: "environment " + name, table: e})
		}
		m.group(all, name)
	}
	for _, f := range m.strings(list, "features") {
		out = append(out, m.featureNamed(f))
	}
	if value(e, "no-default-feature") != "true" {
		d := feature{name: "default", table: m.root}
		if p := find(m.project, "project"); p != nil {
			d.rows = m.strings(find(p, "dependencies"), "dependencies")
		}
		out = append(out, d)
	}
	return name, out
}

// group notes the environments with which pixi solves an environment together.
func (m *manifest) group(all *yaml.Node, name string) {
	g := value(find(all, name), "solve-group")
	var others []string
	for _, other := range keysOf(all) {
		if g != "" && other != name && value(find(all, other), "solve-group") == g {
			others = append(others, other)
		}
	}
	if len(others) > 0 {
		m.r.note(find(all, name).Line, "solve-group %q: environment %s is solved alone, so its versions can differ from those of %s; use pixi.lock to have the same", text.Short(g), name, input.List(others))
	}
}

// featureNamed returns a feature of the file. As in pixi, groups and extras of a pyproject.toml are
// features too.
func (m *manifest) featureNamed(n *yaml.Node) feature {
	all := find(m.root, "feature")
	f := feature{name: n.Value, table: find(all, n.Value)}
	groups, extras := find(m.project, "dependency-groups"), find(find(m.project, "project"), "optional-dependencies")
	isGroup := find(groups, n.Value) != nil || find(extras, n.Value) != nil
	switch {
	case f.table == nil && !isGroup:
		m.r.wrong(n.Line, "there is no feature %q; the file has %s", text.Short(n.Value),
			input.List(slices.Concat(keysOf(all), keysOf(groups), keysOf(extras))))
	case f.table != nil && f.table.Kind != yaml.MappingNode:
		m.r.wrong(f.table.Line, "feature %s is not a table", text.Short(n.Value))
	}
	m.check(f.table, "feature "+f.name, pixiFeature)
	f.rows = append(m.rows(groups, n.Value, map[string]bool{}), m.rows(extras, n.Value, map[string]bool{})...)
	return f
}

// rows returns the requirements of a dependency group (PEP 735) or extra, with those of the groups
// that it includes.
func (m *manifest) rows(all *yaml.Node, name string, seen map[string]bool) (out []*yaml.Node) {
	if seen[name] {
		return nil
	}
	seen[name] = true
	self := pip.NormalName(value(find(m.project, "project"), "name"))
	for _, n := range items(find(all, name)) {
		if other := value(n, "include-group"); other != "" {
			out = append(out, m.rows(all, other, seen)...)
			continue
		}
		p, err := pip.ParseRequirement(n.Value)
		if err != nil || self == "" || pip.NormalName(p.Name) != self || len(p.Extras) == 0 {
			out = append(out, n)
			continue
		}
		for _, other := range keysOf(all) { // the project's own extras
			if slices.Contains(p.Extras, pip.NormalName(other)) {
				out = append(out, m.rows(all, other, seen)...)
			}
		}
	}
	return out
}

// strings returns the elements of a list of strings.
func (m *manifest) strings(n *yaml.Node, key string) (out []*yaml.Node) {
	if n != nil && n.Kind != yaml.SequenceNode {
		m.r.wrong(n.Line, "%s is not a list", key)
	}
	for _, c := range items(n) {
		if c.Tag != "!!str" {
			m.r.wrong(c.Line, "element of %s is not a string", key)
			continue
		}
		out = append(out, c)
	}
	return out
}

// platform chooses the platform of the environment for the target. As in pixi, the first one that
// fits wins. It notes that the file is for other platforms only.
func (m *manifest) platform(environment string, features []feature) bool {
	r := m.r
	var workspace []variant
	for _, n := range items(find(m.workspace, "platforms")) {
		if v, ok := m.declared(n); ok {
			workspace, m.platforms = append(workspace, v), append(m.platforms, v.name)
		}
	}
	all := slices.Clone(workspace)
	for _, f := range features {
		list := find(f.table, "platforms")
		if list == nil {
			continue
		}
		var only []string // the names; a subdir without a platform of that name means all of its platforms
		for _, n := range m.strings(list, "platforms") {
			named := slices.ContainsFunc(workspace, func(v variant) bool { return v.name == n.Value })
			for _, v := range workspace {
				if v.name == n.Value || (v.subdir == n.Value && !named) {
					only = append(only, v.name)
				}
			}
		}
		all = slices.DeleteFunc(all, func(v variant) bool { return !slices.Contains(only, v.name) })
	}
	own := slices.DeleteFunc(slices.Clone(all), func(v variant) bool { return v.subdir != r.target })
	m.variant = variant{name: r.target, subdir: r.target}
	switch {
	case len(own) == 0 && len(subdirsOf(all)) > 0:
		r.note(all[0].line, "environment %s is for %s, but is read for %s", environment, input.List(subdirsOf(all)), r.target)
		return true
	case len(own) == 0:
		return true
	case len(own) == 1:
		m.variant = own[0]
		r.declare(own[0])
		return true
	}
	machine, ok := r.machine(own[0].line)
	if !ok {
		return false
	}
	fit := fitting(own, machine)
	if len(fit) == 0 {
		r.wrong(own[0].line, "environment %s has the platforms %s for %s, but the target machine has the virtual packages of none: %s", environment, input.Join(names(own), "and", 8), r.target, howTo(own, machine))
		return false
	}
	m.variant = fit[0]
	r.declare(fit[0])
	r.note(fit[0].line, "the file has the platforms %s for %s; %s is read", input.Join(names(own), "and", 8), r.target, fit[0].name)
	return true
}

// pixiVirtual maps the keys of a platform and of [system-requirements] to virtual packages.
var pixiVirtual = []struct{ key, name string }{
	{"cuda", "__cuda"}, {"archspec", "__archspec"}, {"glibc", "__glibc"}, {"linux", "__linux"},
	{"macos", "__osx"}, {"osx", "__osx"}, {"windows", "__win"},
}

// declared reads a platform of the workspace: a subdir, or a table with virtual packages. Without a
// name, pixi derives one from them.
func (m *manifest) declared(n *yaml.Node) (v variant, ok bool) {
	v = variant{line: n.Line, name: n.Value, subdir: n.Value}
	if n.Kind != yaml.MappingNode {
		return v, true
	}
	v.subdir = cmp.Or(value(n, "platform"), value(n, "name"))
	name := v.subdir
	ok = true
	add := func(key, conda string, x *yaml.Node) {
		if x == nil {
			return
		}
		text := cmp.Or(value(x, "driver"), x.Value)
		e, valid := m.r.virtualEntry(x.Line, conda+"="+text)
		v.needs = append(v.needs, e)
		ok = ok && valid
		name += "-" + key + "-" + platformPart(text)
		if arch := value(x, "arch"); arch != "" {
			v.needs = append(v.needs, Entry{Line: x.Line, Name: "__cuda_arch", Version: arch})
		}
	}
	known := []string{"platform", "name"}
	for _, x := range pixiVirtual {
		add(x.key, x.name, find(n, x.key))
		known = append(known, x.key)
	}
	for _, key := range keysOf(n) {
		if strings.HasPrefix(key, "__") {
			add(platformPart(key), key, find(n, key))
			known = append(known, key)
		}
	}
	m.check(n, "the platform", known)
	v.name = cmp.Or(value(n, "name"), name)
	return v, ok
}

var notAlphanumeric = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[^A-Za-z0-9]+`) })

// platformPart returns the form of a text in the name of a platform.
func platformPart(s string) string {
	return strings.Trim(notAlphanumeric().ReplaceAllString(s, "-"), "-")
}

// systemRequirements adds the virtual packages that a feature needs. The highest version counts.
func (m *manifest) systemRequirements(n *yaml.Node) {
	m.check(n, "[system-requirements]", []string{"libc", "cuda", "linux", "macos", "archspec"})
	add := func(x *yaml.Node, text string) {
		e, ok := m.r.virtualEntry(x.Line, text)
		i := slices.IndexFunc(m.r.e.Virtual, func(have Entry) bool { return have.Name == e.Name })
		switch {
		case !ok || e.Name == "__osx":
		case i < 0:
			m.r.e.Virtual = append(m.r.e.Virtual, e)
		case (&solve.Record{Version: e.Version}).AtLeast(m.r.e.Virtual[i].Version):
			m.r.e.Virtual[i] = e
		}
	}
	for _, v := range pixiVirtual {
		if x := find(n, v.key); x != nil {
			add(x, v.name+"="+x.Value)
		}
	}
	if x := find(n, "libc"); x != nil {
		add(x, "__"+cmp.Or(value(x, "family"), "glibc")+"="+cmp.Or(value(x, "version"), x.Value))
	}
}

// channels reads the channels of the environment in the order of their priority, and in that of the
// features. Features without channels have those of the workspace.
func (m *manifest) channels(features []feature) {
	type channel struct {
		name     string
		priority int
	}
	var list []channel
	priority := find(m.workspace, "channel-priority")
	for _, f := range slices.Backward(features) {
		if p := find(f.table, "channel-priority"); p != nil {
			priority = p
		}
	}
	m.r.priority(priority)
	for _, f := range features {
		n := find(f.table, "channels")
		if n == nil {
			n = find(m.workspace, "channels")
		}
		if n != nil && n.Kind != yaml.SequenceNode {
			m.r.wrong(n.Line, "channels is not a list")
			return
		}
		for _, c := range items(n) {
			p, err := strconv.Atoi(cmp.Or(value(c, "priority"), "0"))
			name := cmp.Or(value(c, "channel"), c.Value)
			if err != nil || name == "" {
				m.r.wrong(c.Line, "channel is neither a string nor {channel = \"NAME\", priority = NUMBER}")
				continue
			}
			m.check(c, "the channel", []string{"channel", "priority"})
			list = append(list, channel{name, p})
		}
	}
	slices.SortStableFunc(list, func(a, b channel) int { return cmp.Compare(b.priority, a.priority) })
	for _, c := range list {
		if !slices.Contains(m.r.e.Channels, c.name) {
			m.r.e.Channels = append(m.r.e.Channels, c.name)
		}
	}
}

// tables returns the tables of a feature for the platform: its own, and those of the targets that
// include the platform, in the order of the file. Later ones override earlier ones.
func (m *manifest) tables(f feature) []*yaml.Node {
	out := []*yaml.Node{f.table}
	targets := find(f.table, "target")
	for i := 0; targets != nil && i+1 < len(targets.Content); i += 2 {
		key, t := targets.Content[i], targets.Content[i+1]
		if t.Kind == yaml.MappingNode && m.includes(key) {
			m.check(t, "target "+key.Value, pixiTarget)
			out = append(out, t)
		}
	}
	return out
}

// includes reports whether a target includes the platform. The target is the name of a platform,
// with "*" for any text, or linux, unix, osx, macos or win.
func (m *manifest) includes(key *yaml.Node) bool {
	name := key.Value
	if name == m.variant.name {
		return true
	}
	if strings.Contains(name, "*") {
		ok, err := path.Match(name, m.variant.name)
		return ok && err == nil
	}
	ok, known := matchesPlatform(strings.Replace(name, "macos", "osx", 1), m.variant.subdir)
	if !known && !slices.Contains(m.platforms, name) {
		m.r.note(key.Line, "target %q is not a platform of the workspace, linux, unix, osx or win; it is not used", text.Short(name))
	}
	return ok
}

// activation reads the variables of a feature. A script cannot run when an image is built.
func (m *manifest) activation(n *yaml.Node, variables map[string]string) {
	m.check(n, "[activation]", []string{"scripts", "env"})
	for _, s := range m.strings(find(n, "scripts"), "scripts") {
		m.r.note(s.Line, "activation script %s is not run; set its variables with \"hpcc run --set-env\", or in a Dockerfile", text.Short(s.Value))
	}
	env := find(n, "env")
	for i := 0; env != nil && i+1 < len(env.Content); i += 2 {
		k, v := env.Content[i], env.Content[i+1]
		switch {
		case v.Kind != yaml.ScalarNode || !IsVariable(k.Value, v.Value):
			m.r.wrong(k.Line, "%q: invalid variable name or value", text.Short(k.Value))
		case strings.Contains(v.Value, "$"):
			m.r.note(k.Line, "variable %s is left out: %s is expanded only when pixi activates the environment",
				k.Value, fmt.Sprintf("%q", text.Short(v.Value)))
		default:
			variables[k.Value] = v.Value
		}
	}
}
