package exports

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/pip"
	"hpcc/text"
)

// poetryLock reads poetry.lock 2.0 and 2.1. It has the names and digests of the archives, which an
// index finds. Since 2.1, each package has its groups and the marker that decides whether it is
// installed. 2.0 has the dependencies instead: a walk from the packages of the main group, which
// pyproject.toml lists, finds those of the target.
func (r *reader) poetryLock(root *yaml.Node) {
	metadata := find(root, "metadata")
	version := value(metadata, "lock-version")
	r.e.Format = "poetry.lock " + version
	if !r.oneOf(find(metadata, "lock-version"), "poetry.lock", `Poetry 1.3 or newer: "poetry lock"`, "2.0", "2.1") {
		return
	}
	r.settle()
	r.pythons(find(metadata, "python-versions"))
	l := &poetryLock{r: r, byName: map[string][]*poetryPackage{}}
	for _, n := range items(find(root, "package")) {
		l.add(n)
	}
	if version == "2.0" {
		l.walk()
	} else {
		l.flat()
	}
	r.leftOut(0, "dependency groups", l.groups)
	r.leftOut(0, "the project's extras", keysOf(find(root, "extras")))
	r.hasLocked()
}

// A poetryLock holds the packages of a poetry.lock.
type poetryLock struct {
	r      *reader
	all    []*poetryPackage
	byName map[string][]*poetryPackage
	groups []string // those that are left out
}

// A poetryPackage is a package of a poetry.lock.
type poetryPackage struct {
	node    *yaml.Node
	row     pip.Requirement
	place   string // of a directory of sources
	version string
	needs   []*poetryPackage
	needed  bool // another package needs it
	reached bool // by a walk, if all conditions hold
}

// add reads a package.
func (l *poetryLock) add(n *yaml.Node) {
	row, ok := l.r.lockedRow(n)
	if !ok {
		return
	}
	if row.Specifier == "" {
		l.r.wrong(n.Line, "%s has no version", row.Name)
		return
	}
	p := &poetryPackage{node: n, row: row, version: value(n, "version")}
	for _, f := range items(find(n, "files")) {
		hashes := l.r.hashes(f)
		p.row.Hashes = append(p.row.Hashes, hashes...)
		p.row.Files = append(p.row.Files, pip.Requirement{Line: f.Line, Name: value(f, "file"), Hashes: hashes, Locked: true})
	}
	name := pip.NormalName(row.Name)
	if l.locate(p) && !l.r.tooMany(row, len(l.byName[name])+1, 0) {
		l.all = append(l.all, p)
		l.byName[name] = append(l.byName[name], p)
	}
}

// locate sets the index or URL of a package by its source.
func (l *poetryLock) locate(p *poetryPackage) bool {
	source := find(p.node, "source")
	location := value(source, "url")
	switch kind := value(source, "type"); kind {
	case "", "pypi":
		return true
	case "legacy":
		p.row.Index = location
		return true
	case "git":
		p.row.URL = repository(location, value(source, "resolved_reference"), value(source, "subdirectory"))
		p.row.Hashes = nil
	case "url":
		p.row.URL = atSubdirectory(location, value(source, "subdirectory"))
	case "file":
		p.row.URL = pathBelow("", location)
	case "directory":
		p.row.Virtual, p.place, p.row.Hashes = true, location, nil
	default:
		l.r.wrong(source.Line, "%s: unknown source %q; hpcc knows legacy, git, url, file and directory", p.row.Name, text.Short(kind))
		return false
	}
	p.row.Specifier, p.row.Files = "", nil
	if location == "" {
		l.r.wrong(source.Line, "%s: the source has no url", p.row.Name)
		return false
	}
	return true
}

// flat adds the packages of the main group (2.1).
func (l *poetryLock) flat() {
	for _, p := range l.all {
		groups := values(find(p.node, "groups"))
		if !slices.Contains(groups, "main") {
			l.groups = append(l.groups, groups...)
			continue
		}
		p.row.Marker = value(p.node, "markers")
		if m := find(p.node, "markers"); m != nil && m.Kind == yaml.MappingNode {
			p.row.Marker = value(m, "main")
		}
		switch {
		case value(p.node, "optional") == "true": // of the project's extras
		case p.row.Virtual:
			l.r.sources(p.row.Line, p.row.Name, p.place)
		default:
			l.r.keepLocked(p.row)
		}
	}
}

// walk adds the packages that a walk from the main group can find (2.0).
func (l *poetryLock) walk() {
	for _, p := range l.all {
		p.row.Needed = true
		l.edges(p, find(p.node, "dependencies"))
	}
	project := l.project()
	if project != nil {
		l.edges(project, find(find(find(project.node, "tool"), "poetry"), "dependencies"))
		l.all = append(l.all, project)
		l.reach(project)
	} else {
		l.guess()
	}
	for _, p := range l.all {
		if !p.reached {
			continue
		}
		if p.row.Virtual && p != project {
			l.r.sources(p.row.Line, p.row.Name, p.place)
		}
		l.r.e.Pip = append(l.r.e.Pip, p.row)
	}
}

// reach marks a package that is asked for, and all that it may need.
func (l *poetryLock) reach(root *poetryPackage) {
	root.row.Needed = false
	for queue := []*poetryPackage{root}; len(queue) > 0; queue = queue[1:] {
		if p := queue[0]; !p.reached {
			p.reached = true
			queue = append(queue, p.needs...)
		}
	}
}

// guess walks from the packages that no other package needs: the file does not list what the
// project asks for.
func (l *poetryLock) guess() {
	var main []*poetryPackage
	for _, p := range l.all {
		if c := cmp.Or(value(p.node, "category"), "main"); c != "main" { // until Poetry 1.5
			l.groups = append(l.groups, c)
		} else if value(p.node, "optional") != "true" { // of the project's extras
			main = append(main, p)
		}
	}
	for _, p := range main {
		if !p.needed {
			l.reach(p)
		}
	}
	for _, p := range main {
		if !p.reached { // a cycle
			l.reach(p)
		}
	}
	if len(l.groups) == 0 {
		l.r.note(0, "the file does not record groups and there is no pyproject.toml next to it: the packages of all groups are installed; record the groups with \"poetry lock\" of Poetry 2")
	}
}

// project returns the pyproject.toml next to the file, or nil if there is none.
func (l *poetryLock) project() *poetryPackage {
	name := filepath.Join(filepath.Dir(l.r.e.File), "pyproject.toml")
	if l.r.open == nil {
		return nil
	}
	lines, err := l.r.includedLines(name)
	if err != nil {
		return nil
	}
	root, line, err := parseTOML(strings.Join(lines, "\n"))
	if err != nil {
		l.r.wrong(0, "%s:%d: parsing TOML: %v", name, line, err)
		return nil
	}
	poetry := find(find(root, "tool"), "poetry")
	if find(poetry, "dependencies") == nil {
		return nil
	}
	l.groups = append(l.groups, keysOf(find(poetry, "group"))...)
	if find(poetry, "dev-dependencies") != nil {
		l.groups = append(l.groups, "dev")
	}
	return &poetryPackage{node: root, row: pip.Requirement{Line: 1, Name: "project", Locked: true, Virtual: true}}
}

// edges lets a package require those of a table: NAME = "constraint", a table, or a list of tables.
func (l *poetryLock) edges(p *poetryPackage, table *yaml.Node) {
	for i := 0; table != nil && table.Kind == yaml.MappingNode && i+1 < len(table.Content); i += 2 {
		name, v := table.Content[i].Value, table.Content[i+1]
		list := items(v)
		if list == nil {
			list = []*yaml.Node{v}
		}
		for _, d := range list {
			l.edge(p, name, d)
		}
	}
}

// edge adds one dependency to a package. Packages that the file lacks belong to extras, or are
// python itself.
func (l *poetryLock) edge(p *poetryPackage, name string, d *yaml.Node) {
	constraint := d.Value
	if d.Kind == yaml.MappingNode {
		constraint = value(d, "version")
	}
	marker := value(d, "markers")
	if value(d, "optional") == "true" && !strings.Contains(marker, "extra") {
		return // of the project's extras
	}
	marker, err := projectMarker(marker, value(d, "python"), value(d, "platform"))
	if err != nil {
		l.r.wrong(p.row.Line, "%s: %v", p.row.Name, err)
		return
	}
	to, err := l.newest(name, constraint)
	if err != nil {
		l.r.wrong(p.row.Line, "%s: %v", p.row.Name, err)
	}
	if err != nil || to == nil {
		return
	}
	q := pip.Requirement{Line: p.row.Line, Name: to.row.Name, Specifier: to.row.Specifier,
		Index: to.row.Index, URL: to.row.URL, Marker: marker, Locked: true}
	for _, x := range values(find(d, "extras")) {
		q.Extras = append(q.Extras, pip.NormalName(x))
	}
	p.row.Requires = append(p.row.Requires, q)
	p.needs = append(p.needs, to)
	to.needed = to.needed || p != to
}

// projectMarker returns a marker that also requires a version of python and a platform, as
// pyproject.toml has them.
func projectMarker(marker, python, platform string) (string, error) {
	var all []string
	if marker != "" {
		all = append(all, "("+marker+")")
	}
	if platform != "" {
		all = append(all, fmt.Sprintf("sys_platform == %q", platform))
	}
	if python != "" {
		alternatives, err := constraints(python)
		if err != nil {
			return "", err
		}
		var any []string
		for _, clauses := range alternatives {
			for i, c := range clauses {
				version := strings.TrimLeft(c, "=<>!~")
				clauses[i] = fmt.Sprintf("python_full_version %s %q", c[:len(c)-len(version)], version)
			}
			any = append(any, strings.Join(clauses, " and "))
		}
		if !slices.Contains(any, "") {
			all = append(all, "("+strings.Join(any, " or ")+")")
		}
	}
	return condition(strings.Join(all, " and "), "")
}

// newest returns the newest package of a name that a constraint allows, or nil if there is none.
func (l *poetryLock) newest(name, constraint string) (*poetryPackage, error) {
	list := l.byName[pip.NormalName(name)]
	if len(list) == 1 {
		return list[0], nil
	}
	alternatives, err := constraints(constraint)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	byVersion := map[string]*poetryPackage{}
	var versions, allowed []string
	for _, p := range list {
		versions = append(versions, p.version)
		byVersion[p.version] = p
	}
	for _, clauses := range alternatives {
		allowed = append(allowed, pip.Requirement{Specifier: strings.Join(clauses, ",")}.Newest(versions))
	}
	return byVersion[pip.Requirement{}.Newest(allowed)], nil
}
