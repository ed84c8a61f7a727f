package exports

import (
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/pip"
	"hpcc/text"
)

// uvLock reads uv.lock version 1, of any revision, and the lock file of a script. Its edges have
// markers, so that the packages of the target are those that a walk from the project finds.
// Packages of groups and extras of the project are left out.
func (r *reader) uvLock(root *yaml.Node) {
	r.e.Format = "uv.lock " + value(root, "version")
	if !r.oneOf(find(root, "version"), "uv.lock", `a current uv: "uv lock"`, "1") {
		return
	}
	r.settle()
	r.pythons(find(root, "requires-python"))
	r.environments(find(root, "supported-markers"))
	packages := find(root, "package")
	if packages == nil {
		packages = find(root, "distribution") // before uv 0.3
	}
	u := &uvLock{r: r, byName: map[string][]*uvPackage{}}
	for _, n := range items(packages) {
		u.add(n)
	}
	for _, p := range u.all {
		u.edges(p)
	}
	for _, p := range u.roots(find(root, "manifest")) {
		u.install(p)
	}
	for _, p := range u.all {
		for _, n := range p.needs {
			if p.wanted[n.extra] {
				p.row.Requires = append(p.row.Requires, n.row)
			}
		}
		if p.wanted[""] {
			r.e.Pip = append(r.e.Pip, p.row)
		}
	}
	r.hasLocked()
}

// A uvLock holds the packages of a uv.lock.
type uvLock struct {
	r      *reader
	all    []*uvPackage
	byName map[string][]*uvPackage
}

// A uvPackage is a package of a uv.lock.
type uvPackage struct {
	node   *yaml.Node
	row    pip.Requirement
	source string // "registry", "git", …; "" for the project of a script
	place  string // URL or path of the source
	extras []string
	needs  []uvNeed
	wanted map[string]bool // extras that the walk found; "": the package itself
}

// A uvNeed is a dependency of a package or of one of its extras.
type uvNeed struct {
	extra  string // that needs it; "": the package itself
	to     *uvPackage
	extras []string        // of to
	row    pip.Requirement // for Requires
}

// add reads a package.
func (u *uvLock) add(n *yaml.Node) {
	row, ok := u.r.lockedRow(n)
	if !ok {
		return
	}
	p := &uvPackage{node: n, row: row, extras: keysOf(find(n, "optional-dependencies")), wanted: map[string]bool{}}
	name := pip.NormalName(row.Name)
	if p.source, p.place = uvSource(find(n, "source")); u.locate(p) && !u.r.tooMany(row, len(u.byName[name])+1, len(p.extras)) {
		p.row.Needed = true
		u.all = append(u.all, p)
		u.byName[name] = append(u.byName[name], p)
	}
}

// uvSource returns the kind and the URL or path of a source.
func uvSource(n *yaml.Node) (kind, place string) {
	for _, kind := range []string{"registry", "git", "url", "path", "directory", "editable", "virtual"} {
		if v := find(n, kind); v != nil {
			return kind, v.Value
		}
	}
	return "", ""
}

// locate sets the archives of a package by its source.
func (u *uvLock) locate(p *uvPackage) bool {
	source := find(p.node, "source")
	switch p.source {
	case "registry":
		dir := p.place
		if strings.Contains(p.place, "://") {
			p.row.Index, dir = p.place, ""
		}
		return u.r.archives(&p.row, p.node, dir)
	case "git":
		g, err := url.Parse(p.place)
		if err != nil || g.Fragment == "" {
			u.r.wrong(p.row.Line, "%s: %q is not a git URL with a commit", p.row.Name, text.Short(hideText(p.place)))
			return false
		}
		commit, dir := g.Fragment, g.Query().Get("subdirectory")
		g.Fragment, g.RawFragment, g.RawQuery = "", "", ""
		p.row.URL, p.row.Specifier = repository(g.String(), commit, dir), ""
	case "url", "path":
		p.row.URL, p.row.Specifier = atSubdirectory(p.place, value(source, "subdirectory")), ""
		if p.source == "path" {
			p.row.URL = pathBelow("", p.place)
		}
		for _, a := range append(slices.Clip(items(find(p.node, "wheels"))), find(p.node, "sdist")) {
			p.row.Hashes = append(p.row.Hashes, u.r.hashes(a)...)
		}
	case "directory", "editable", "virtual":
		p.row.Virtual, p.row.Specifier = true, ""
		p.row.URL = ""
	default:
		u.r.wrong(p.row.Line, "%s: unknown source; hpcc knows registry, git, url, path, directory, editable and virtual", p.row.Name)
		return false
	}
	return true
}

// edges reads the dependencies of a package and those of its extras.
func (u *uvLock) edges(p *uvPackage) {
	for _, d := range items(find(p.node, "dependencies")) {
		u.edge(p, d, "")
	}
	optional := find(p.node, "optional-dependencies")
	for _, extra := range p.extras {
		for _, d := range items(find(optional, extra)) {
			u.edge(p, d, extra)
		}
	}
}

// edge adds one dependency to a package.
func (u *uvLock) edge(p *uvPackage, d *yaml.Node, extra string) {
	marker, err := condition(value(d, "marker"), extra)
	if err != nil {
		u.r.wrong(d.Line, "%s: %v", p.row.Name, err)
		return
	}
	found := u.named(value(d, "name"), value(d, "version"), find(d, "source"))
	switch {
	case len(found) == 1:
		u.need(p, extra, found[0], marker, values(find(d, "extra")))
	case len(u.r.bad.Texts) == 0:
		u.r.wrong(d.Line, "%s needs %s, and the file describes %d such packages: it is truncated or was edited; write it again with \"uv lock\"", p.row.Name, text.Short(value(d, "name")), len(found))
	}
}

// named returns the packages of a name, version and source. version is "" and source is nil
// unless the name is ambiguous.
func (u *uvLock) named(name, version string, source *yaml.Node) (out []*uvPackage) {
	kind, place := uvSource(source)
	for _, p := range u.byName[pip.NormalName(name)] {
		if (version == "" || version == value(p.node, "version")) && (kind == "" || (kind == p.source && place == p.place)) {
			out = append(out, p)
		}
	}
	return out
}

// need lets a package or its extra require another package, with those of the extras that it has.
func (u *uvLock) need(p *uvPackage, extra string, to *uvPackage, marker string, extras []string) {
	n := uvNeed{extra: extra, to: to}
	n.row = pip.Requirement{Line: p.row.Line, Name: to.row.Name, Specifier: to.row.Specifier,
		Index: to.row.Index, URL: to.row.URL, Marker: marker, Locked: true}
	for _, x := range extras {
		if slices.Contains(to.extras, x) {
			n.extras, n.row.Extras = append(n.extras, x), append(n.row.Extras, pip.NormalName(x))
		}
	}
	p.needs = append(p.needs, n)
}

// roots returns what to install: the project in the directory of the file, or else all members
// of the workspace, or else the requirements of a script.
func (u *uvLock) roots(manifest *yaml.Node) (out []*uvPackage) {
	members := values(find(manifest, "members"))
	for _, p := range u.all {
		if p.row.Virtual && (p.place == "." || p.place == "") {
			out = []*uvPackage{p}
			break
		}
		if p.row.Virtual && (slices.Contains(members, p.row.Name) ||
			(len(members) == 0 && (p.source == "virtual" || p.source == "editable"))) {
			out = append(out, p)
		}
	}
	if requirements := items(find(manifest, "requirements")); len(out) == 0 && len(requirements) > 0 {
		out = []*uvPackage{u.script(manifest.Line, requirements)}
	}
	if len(out) == 0 && len(u.r.bad.Texts) == 0 {
		u.r.wrong(1, "the file describes no project: a package with the source virtual or editable; write it again with \"uv lock\"")
	}
	var groups, extras []string
	for _, p := range out {
		p.row.Needed = false
		groups = append(append(groups, keysOf(find(p.node, "dev-dependencies"))...), keysOf(find(p.node, "dependency-groups"))...)
		extras = append(extras, p.extras...)
	}
	groups = append(groups, keysOf(find(manifest, "dependency-groups"))...)
	u.r.leftOut(0, "dependency groups", groups)
	u.r.leftOut(0, "the project's extras", extras)
	return out
}

// script returns a project with the requirements of a script.
func (u *uvLock) script(line int, requirements []*yaml.Node) *uvPackage {
	p := &uvPackage{row: pip.Requirement{Line: line, Name: "script", Locked: true, Virtual: true}, wanted: map[string]bool{}}
	for _, d := range requirements {
		marker, err := condition(value(d, "marker"), "")
		if err != nil {
			u.r.wrong(d.Line, "%v", err)
			continue
		}
		found := u.named(value(d, "name"), "", nil)
		for _, to := range found {
			own := marker
			if len(found) > 1 { // the forks of the resolution
				own = u.anyOf(to, marker)
			}
			u.need(p, "", to, own, values(find(d, "extras")))
		}
	}
	u.all = append(u.all, p)
	return p
}

// anyOf returns a marker that holds in the forks of a package, if marker holds too.
func (u *uvLock) anyOf(p *uvPackage, marker string) string {
	var forks []string
	for _, m := range items(find(p.node, "resolution-markers")) {
		if _, err := condition(m.Value, ""); err != nil {
			u.r.wrong(m.Line, "%s: %v", p.row.Name, err)
		}
		forks = append(forks, "("+m.Value+")")
	}
	text := strings.Join(forks, " or ")
	switch {
	case text == "":
		return marker
	case marker == "":
		return text
	}
	return "(" + marker + ") and (" + text + ")"
}

// install marks a project and all that it may need. It notes the directories of sources.
func (u *uvLock) install(root *uvPackage) {
	type part struct {
		p     *uvPackage
		extra string
	}
	for queue := []part{{p: root}}; len(queue) > 0; queue = queue[1:] {
		p, extra := queue[0].p, queue[0].extra
		if p.wanted[extra] {
			continue
		}
		p.wanted[extra] = true
		if extra == "" && p.row.Virtual && p.source != "" {
			u.r.sources(p.row.Line, p.row.Name, p.place)
		}
		for _, n := range p.needs {
			if n.extra != extra {
				continue
			}
			queue = append(queue, part{p: n.to})
			for _, x := range n.extras {
				queue = append(queue, part{n.to, x})
			}
		}
	}
}
