package exports

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/input"
	"hpcc/conda/pip"
	"hpcc/text"
)

// condaLock reads conda-lock.yml version 1 (CEP 37) and pixi.lock versions 1 to 3: one list of
// packages for all platforms. The formats differ only in the names of keys. The target's
// packages are read completely. Packages of other platforms, and of categories other than
// main, are noted and left out.
func (r *reader) condaLock(root *yaml.Node) {
	v := value(root, "version")
	r.e.Format = "conda-lock.yml " + v
	if v != "1" && v != "2" && v != "3" {
		r.wrong(find(root, "version").Line, "unsupported version %q of conda-lock.yml: want 1, 2 or 3; write it with conda-lock 1 to 3", text.Short(v))
		return
	}
	r.settle()
	packages := find(root, "package")
	if packages.Kind != yaml.SequenceNode {
		r.wrong(packages.Line, "package is not a list")
		return
	}
	for _, c := range items(find(find(root, "metadata"), "channels")) {
		if u := cmp.Or(value(c, "url"), c.Value); u != "" { // conda-lock before 1.1 wrote names
			r.e.Channels = append(r.e.Channels, u)
		}
	}
	l := r.newLock()
	for _, p := range packages.Content {
		if p.Kind != yaml.MappingNode {
			r.wrong(p.Line, "not the description of a package")
			continue
		}
		platform := value(p, "platform")
		switch category := lockCategory(p); category {
		case "main":
		case baseCategory:
			if x, ok := l.entry(p, value(p, "url")); ok && platform == r.target {
				r.e.Base = append(r.e.Base, x)
			}
			continue
		default:
			l.categories[category]++
			continue
		}
		switch manager := value(p, "manager"); manager {
		case "conda":
			l.conda(platform, p, value(p, "url"))
		case "pip", "pypi":
			l.pypi(platform, p, value(p, "url"))
		default:
			r.wrong(p.Line, "%s: manager %q is neither conda nor pip", text.Short(value(p, "name")), text.Short(manager))
		}
	}
	l.custom(find(find(root, "metadata"), "custom_metadata"))
	l.choose()
}

// lockCategory returns the category of a package, "main" if it is always installed.
func lockCategory(p *yaml.Node) string {
	for _, c := range items(find(p, "categories")) {
		if c.Value == "main" {
			return "main"
		}
	}
	if cs := items(find(p, "categories")); len(cs) > 0 {
		return cs[0].Value
	}
	if c := value(p, "category"); c != "" {
		return c
	}
	return "main"
}

// A lock holds the packages of a lock file by platform.
type lock struct {
	r          *reader
	platforms  []string // in the order of the file
	entries    map[string][]Entry
	pip        map[string][]pip.Requirement
	categories map[string]int
}

func (r *reader) newLock() *lock {
	return &lock{r: r, entries: map[string][]Entry{}, pip: map[string][]pip.Requirement{}, categories: map[string]int{}}
}

// platform records that the file has packages for a platform.
func (l *lock) platform(name string) {
	if !slices.Contains(l.platforms, name) {
		l.platforms = append(l.platforms, name)
	}
}

// conda adds a conda package by its URL.
func (l *lock) conda(platform string, p *yaml.Node, location string) {
	if x, ok := l.entry(p, location); ok {
		l.platform(platform)
		l.entries[platform] = append(l.entries[platform], x)
	}
}

// entry parses a package at a URL. Digests are in the same object or below "hash".
func (l *lock) entry(p *yaml.Node, location string) (x Entry, ok bool) {
	x, err := parseURL(location)
	if err != nil {
		l.r.wrong(p.Line, "%q: %v", text.Short(hideText(location)), err)
		return x, false
	}
	x.Line = p.Line
	x.MD5, x.SHA256 = lockHash(p, "md5"), lockHash(p, "sha256")
	if (x.MD5 != "" && !isDigest(x.MD5, 32)) || (x.SHA256 != "" && !isDigest(x.SHA256, 64)) {
		l.r.wrong(p.Line, "%s: invalid md5 or sha256", x.Name)
		return x, false
	}
	x.Size, _ = strconv.ParseInt(value(p, "size"), 10, 64)
	for _, f := range []struct{ key, have string }{{"name", x.Name}, {"version", x.Version}, {"build", x.Build}} {
		if v := value(p, f.key); v != "" && !strings.EqualFold(v, f.have) {
			l.r.wrong(p.Line, "%s %q differs from the URL (%s)", f.key, text.Short(v), f.have)
			return x, false
		}
	}
	return x, true
}

// lockHash returns a digest of a package. conda-lock writes digests below "hash".
func lockHash(p *yaml.Node, kind string) string {
	if v := value(find(p, "hash"), kind); v != "" {
		return v
	}
	return value(p, kind)
}

// pypi adds a pip package by its URL.
func (l *lock) pypi(platform string, p *yaml.Node, location string) {
	q := pip.Requirement{Line: p.Line, Name: value(p, "name"), URL: location, Editable: value(p, "editable") == "true", Locked: true}
	if v := value(p, "version"); v != "" && location == "" {
		q.Specifier = "==" + v
	}
	if !q.ValidName() {
		if q.Name = q.NameInURL(); q.Name == "" {
			l.r.wrong(p.Line, "pip package without a name")
			return
		}
	}
	// For a git repository, sha256 is the commit, which is also in the URL.
	if h := lockHash(p, "sha256"); h != "" && !strings.HasPrefix(location, "git+") {
		if !isDigest(h, 64) {
			l.r.wrong(p.Line, "%s: invalid sha256", q.Name)
			return
		}
		q.Hashes = []string{"sha256:" + strings.ToLower(h)}
	}
	l.platform(platform)
	l.pip[platform] = append(l.pip[platform], q)
}

// choose selects the packages of the target's platform. If there are none, it selects those of
// the nearest platform, without URLs, so that they are looked up by name and version.
func (l *lock) choose() {
	r, e := l.r, l.r.e
	for _, name := range slices.Sorted(maps.Keys(l.categories)) {
		r.note(0, "category %s is left out: %s", name, text.Count(l.categories[name], "package", "packages"))
	}
	from := r.target
	if len(l.entries[from])+len(l.pip[from]) == 0 {
		from = l.nearest()
		if from == "" {
			return
		}
		r.note(0, "the file has no packages for %s, only for %s; those for %s are looked up by name and version",
			r.target, input.List(l.platforms), from)
	} else if len(l.platforms) > 1 {
		r.note(0, "the file is for %s; the packages for %s are read", input.List(l.platforms), from)
	}
	e.Subdir, e.Explicit = from, from == r.target && len(l.entries[from]) > 0
	e.Entries, e.Pip = l.entries[from], l.pip[from]
	if e.Explicit {
		return
	}
	for i := range e.Entries {
		x := &e.Entries[i]
		x.Channel, x.URL, x.MD5, x.SHA256, x.Size = path.Dir(path.Dir(x.URL)), "", "", "", 0
		if i := strings.Index(x.Channel, ":/"); i > 0 && !strings.HasPrefix(x.Channel[i:], "://") {
			x.Channel = x.Channel[:i] + "://" + x.Channel[i+2:] // path.Dir merged the slashes
		}
	}
	for i := range e.Pip {
		p := &e.Pip[i]
		if from != r.target {
			p.BuildWith = nil
		}
		file, _, _ := strings.Cut(p.URL, "#")
		if strings.HasSuffix(file, ".whl") && !strings.HasSuffix(file, "-none-any.whl") { // sources are for all platforms
			p.Specifier, p.URL, p.Hashes = p.Exactly(), "", nil
		}
	}
}

// nearest returns the platform whose packages to look up: linux-64, or else another Linux, or
// else the first in the file.
func (l *lock) nearest() string {
	best := ""
	for _, p := range l.platforms {
		switch {
		case p == "linux-64":
			return p
		case best == "", strings.HasPrefix(p, "linux-") && !strings.HasPrefix(best, "linux-"):
			best = p
		}
	}
	return best
}
