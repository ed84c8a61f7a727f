package exports

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/pip"
	"hpcc/text"
)

// pylock reads pylock.toml 1.0 (PEP 751). Each package has the marker that decides whether it is
// installed. Its default groups are installed, and no extras.
func (r *reader) pylock(root *yaml.Node) {
	r.e.Format = "pylock.toml " + value(root, "lock-version")
	if !r.oneOf(find(root, "lock-version"), "pylock.toml",
		`the tool that wrote it, such as "uv export --format pylock.toml" or "pip lock"`, "1.0") {
		return
	}
	r.settle()
	r.pythons(find(root, "requires-python"))
	r.environments(find(root, "environments"))
	var groups, others []string
	for _, g := range values(find(root, "default-groups")) {
		groups = append(groups, pip.NormalName(g))
	}
	for _, g := range values(find(root, "dependency-groups")) {
		if !slices.Contains(groups, pip.NormalName(g)) {
			others = append(others, g)
		}
	}
	r.leftOut(0, "dependency groups", others)
	r.leftOut(0, "extras", values(find(root, "extras")))
	for _, n := range items(find(root, "packages")) {
		p, ok := r.lockedRow(n)
		if !ok {
			continue
		}
		p.Marker, p.Groups, p.Index, p.Python = value(n, "marker"), groups, value(n, "index"), value(n, "requires-python")
		if r.pylockSource(&p, n) {
			r.keepLocked(p)
		}
	}
	r.hasLocked()
}

// keepLocked adds a row unless its marker excludes the platform, the groups or the extras. It
// notes those that the platform excludes.
func (r *reader) keepLocked(p pip.Requirement) {
	if strings.Contains(p.Marker, "extra") || strings.Contains(p.Marker, "dependency_groups") {
		holds, known, err := p.Decide(r.target)
		if err == nil && known && !holds {
			return
		}
	}
	r.keepRequirement(p)
}

// pylockSource sets the archives of a package. It returns false if there is nothing to install.
func (r *reader) pylockSource(p *pip.Requirement, n *yaml.Node) bool {
	if d := find(n, "directory"); d != nil {
		r.sources(n.Line, p.Name, value(d, "path"))
		return false
	}
	if v := find(n, "vcs"); v != nil {
		location := value(v, "url")
		if kind := value(v, "type"); kind != "git" || location == "" || value(v, "commit-id") == "" {
			r.wrong(v.Line, "%s comes from a repository (%s) that is not git with url and commit-id; lock a release of it instead", p.Name, text.Short(kind))
			return false
		}
		p.URL, p.Specifier = repository(location, value(v, "commit-id"), value(v, "subdirectory")), ""
		return true
	}
	if a := find(n, "archive"); a != nil {
		f, ok := r.archive(a, "")
		p.URL, p.Specifier, p.Hashes, p.Size = atSubdirectory(f.URL, value(a, "subdirectory")), "", f.Hashes, f.Size
		return ok
	}
	return r.archives(p, n, "")
}
