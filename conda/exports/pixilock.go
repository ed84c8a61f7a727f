package exports

import (
	"cmp"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/input"
	"hpcc/text"
)

// pixi reads pixi.lock versions 4 to 7. Each environment lists its channels, and the URLs of
// its packages for each platform; another list describes every package. From version 7 on,
// platforms have virtual packages, and several can have the same subdir. Versions 1 to 3 have
// conda-lock's format. The selected environment is read for one platform; notes list the others.
// Packages that pixi builds from source have no archive and are refused.
func (r *reader) pixi(root *yaml.Node) {
	v := value(root, "version")
	r.e.Format = "pixi.lock " + v
	if len(v) != 1 || v < "4" || v > "7" {
		r.wrong(find(root, "version").Line, "unsupported version %q of pixi.lock: want 1 to 7; use a newer hpcc, or export with \"pixi workspace export conda-environment\"", text.Short(v))
		return
	}
	r.settle()
	env, name := r.pixiEnvironment(find(root, "environments"))
	if env == nil {
		return
	}
	r.pixiSources(env)
	platforms := find(env, "packages")
	if platforms == nil || platforms.Kind != yaml.MappingNode {
		r.noPackages(env.Line, name, keysOf(find(root, "environments")))
		return
	}
	l := r.newLock()
	declared := r.pixiPlatforms(find(root, "platforms"))
	var variants []variant
	for _, p := range keysOf(platforms) {
		v := declared[p]
		if v.name == "" {
			v = variant{line: find(platforms, p).Line, name: p, subdir: p}
		}
		variants = append(variants, v)
		if len(items(find(platforms, p))) > 0 {
			l.platform(v.subdir)
		}
	}
	from := r.target
	if !slices.Contains(l.platforms, from) {
		from = l.nearest()
	}
	list := slices.DeleteFunc(slices.Clone(variants), func(v variant) bool { return v.subdir != from })
	if len(list) == 0 {
		r.noPackages(env.Line, name, keysOf(find(root, "environments")))
		return
	}
	chosen, ok := r.variant(name, list)
	if !ok {
		return
	}
	if len(list) > 1 {
		r.note(chosen.line, "the file has the platforms %s for %s; %s is read", input.Join(names(list), "and", 8), from, chosen.name)
	}
	r.declare(chosen)
	described := pixiPackages(find(root, "packages"))
	for _, p := range items(find(platforms, chosen.name)) {
		l.pixiPackage(from, p, described)
	}
	if len(r.bad.Texts) == 0 {
		l.choose()
	}
}

// pixiSources reads where the packages of an environment come from.
func (r *reader) pixiSources(env *yaml.Node) {
	for _, c := range items(find(env, "channels")) {
		if u := value(c, "url"); u != "" {
			r.e.Channels = append(r.e.Channels, strings.TrimRight(u, "/"))
		}
	}
	for i, c := range items(find(env, "indexes")) {
		if i == 0 {
			r.e.PipIndexes.URL = c.Value
		} else {
			r.e.PipIndexes.Extra = append(r.e.PipIndexes.Extra, c.Value)
		}
	}
	for _, c := range items(find(env, "find-links")) {
		if l := cmp.Or(value(c, "url"), value(c, "path")); l != "" {
			r.e.PipIndexes.FindLinks = append(r.e.PipIndexes.FindLinks, l)
		}
	}
	r.priority(find(find(env, "options"), "channel-priority"))
}

// priority reads the order of the channels.
func (r *reader) priority(n *yaml.Node) {
	switch {
	case n == nil:
	case n.Value == "disabled":
		r.note(n.Line, "channel-priority \"disabled\" is read as \"flexible\": a later channel has a package only if the earlier ones have none that fits")
		r.e.Flexible = true
	case n.Value == "strict" || n.Value == "flexible":
		r.e.Flexible = n.Value == "flexible"
	default:
		r.wrong(n.Line, "channel-priority %q is not strict, flexible or disabled", text.Short(n.Value))
	}
}

// pixiEnvironment returns the selected environment.
func (r *reader) pixiEnvironment(all *yaml.Node) (env *yaml.Node, name string) {
	name = cmp.Or(r.environment, "default")
	have := keysOf(all)
	env = find(all, name)
	if env == nil || env.Kind != yaml.MappingNode {
		r.noEnvironment(all.Line, name, have)
		return nil, name
	}
	if len(have) > 1 {
		r.note(all.Line, "the file has the environments %s; %s is read; choose another one with --environment", input.List(have), name)
	}
	return env, name
}

// noEnvironment refuses an environment that the file does not have.
func (r *reader) noEnvironment(line int, name string, have []string) {
	r.wrong(line, "there is no environment %q; choose one with --environment: the file has %s",
		text.Short(name), input.Join(have, "and", 30))
}

// noPackages refuses an environment without packages.
func (r *reader) noPackages(line int, name string, have []string) {
	others := slices.DeleteFunc(have, func(s string) bool { return s == name })
	if len(others) == 0 {
		r.wrong(line, "environment %s has no packages; add dependencies to its manifest and lock it again", name)
		return
	}
	r.wrong(line, "environment %s has no packages; choose another one with --environment: the file has %s",
		name, input.Join(others, "and", 30))
}

// pixiPlatforms returns the platforms that the file defines (version 7) by name.
func (r *reader) pixiPlatforms(n *yaml.Node) map[string]variant {
	m := map[string]variant{}
	for _, p := range items(n) {
		v := variant{line: p.Line, name: value(p, "name")}
		v.subdir = cmp.Or(value(p, "subdir"), v.name)
		for _, x := range items(find(p, "virtual-packages")) {
			if e, ok := r.virtualEntry(x.Line, x.Value); ok {
				v.needs = append(v.needs, e)
			}
		}
		m[v.name] = v
	}
	return m
}

// pixiPackages returns the descriptions of packages by kind and URL. Up to version 5 the key
// "kind" holds the kind; from version 6 on the kind is the key of the URL.
func pixiPackages(n *yaml.Node) map[string]*yaml.Node {
	m := map[string]*yaml.Node{}
	for _, p := range items(n) {
		for _, kind := range []string{"conda", "pypi"} {
			if u := value(p, kind); u != "" {
				m[kind+" "+u] = p
			}
		}
		if k := value(p, "kind"); k != "" {
			m[k+" "+cmp.Or(value(p, "url"), value(p, "path"))] = p
		}
	}
	return m
}

// pixiPackage adds one package of an environment.
func (l *lock) pixiPackage(platform string, p *yaml.Node, described map[string]*yaml.Node) {
	ks := keysOf(p)
	kind := ""
	if len(ks) > 0 {
		kind = ks[0]
	}
	u := value(p, kind)
	d := described[kind+" "+u]
	isArchive := strings.HasSuffix(u, ".conda") || strings.HasSuffix(u, ".tar.bz2")
	switch {
	case kind == "conda_source", kind == "source", kind == "conda" && u != "" && !isArchive:
		if name := cmp.Or(value(p, "name"), value(d, "name")); name != "" {
			u = name + " @ " + u
		}
		l.r.wrong(p.Line, "%s is built from source by pixi and has no archive; build it with \"pixi build\", upload the archive to a channel, and depend on that", text.Short(hideText(u)))
	case kind != "conda" && kind != "pypi", u == "":
		l.r.wrong(p.Line, "unknown kind of package: %s", text.Short(strings.Join(ks, ", ")))
	case d == nil:
		l.r.wrong(p.Line, "%s is not described below packages: the file is truncated or was edited", text.Short(hideText(u)))
	case kind == "conda":
		if !strings.Contains(u, "://") && !filepath.IsAbs(u) { // relative to the file
			u = filepath.Join(filepath.Dir(l.r.e.File), u)
		}
		l.conda(platform, d, u)
	default:
		l.pypi(platform, d, pixiLocation(u))
	}
}

// pixiLocation returns a URL in pip's form. pixi writes direct+https://… for a file, and
// git+https://…?rev=…&subdirectory=…#COMMIT for a repository.
func pixiLocation(s string) string {
	if rest, ok := strings.CutPrefix(s, "direct+"); ok {
		return rest
	}
	u, err := url.Parse(s)
	if err != nil || !strings.HasPrefix(s, "git+") {
		return s
	}
	q := u.Query()
	commit := cmp.Or(u.Fragment, q.Get("rev"), q.Get("tag"), q.Get("branch"))
	u.RawQuery, u.Fragment, u.RawFragment = "", "", ""
	out := u.String()
	if commit != "" {
		out += "@" + commit
	}
	if dir := q.Get("subdirectory"); dir != "" {
		out += "#subdirectory=" + dir
	}
	return out
}
