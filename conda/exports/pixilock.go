package exports

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/input"
)

// pixi reads pixi.lock versions 4 to 7. Each environment lists its channels, and the URLs of
// its packages for each platform; another list describes every package. Versions 1 to 3 have
// conda-lock's format. The selected environment is read completely; a note lists the others.
// Packages that pixi builds from source have no archive and are refused.
func (r *reader) pixi(root *yaml.Node) {
	v := value(root, "version")
	r.e.Format = "pixi.lock " + v
	if len(v) != 1 || v < "4" || v > "7" {
		r.wrong(find(root, "version").Line, "unsupported version %q of pixi.lock: want 1 to 7; use a newer hpcc, or export with \"pixi workspace export conda-environment\"", input.Text(v))
		return
	}
	r.settle()
	env := r.pixiEnvironment(find(root, "environments"))
	if env == nil {
		return
	}
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
	described := pixiPackages(find(root, "packages"))
	subdirs := pixiPlatforms(find(root, "platforms"))
	platforms := find(env, "packages")
	if platforms == nil || platforms.Kind != yaml.MappingNode {
		r.wrong(env.Line, "the environment has no packages")
		return
	}
	l := r.newLock()
	for i := 0; i+1 < len(platforms.Content); i += 2 {
		name := platforms.Content[i].Value
		if s := subdirs[name]; s != "" {
			name = s
		}
		l.platform(name)
		for _, p := range items(platforms.Content[i+1]) {
			l.pixiPackage(name, p, described)
		}
	}
	l.choose()
}

// pixiEnvironment returns the selected environment.
func (r *reader) pixiEnvironment(all *yaml.Node) *yaml.Node {
	want := r.environment
	if want == "" {
		want = "default"
	}
	var names []string
	for i := 0; all.Kind == yaml.MappingNode && i+1 < len(all.Content); i += 2 {
		names = append(names, all.Content[i].Value)
	}
	env := find(all, want)
	if env == nil || env.Kind != yaml.MappingNode {
		r.wrong(all.Line, "there is no environment %q, only %s", want, input.List(names))
		return nil
	}
	if len(names) > 1 {
		r.note(all.Line, "the file has the environments %s; %s is read", input.List(names), want)
	}
	return env
}

// pixiPlatforms maps the file's names of platforms (version 7) to conda's.
func pixiPlatforms(n *yaml.Node) map[string]string {
	m := map[string]string{}
	for _, p := range items(n) {
		if s := value(p, "subdir"); s != "" {
			m[value(p, "name")] = s
		}
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
			u := value(p, "url")
			if u == "" {
				u = value(p, "path")
			}
			m[k+" "+u] = p
		}
	}
	return m
}

// pixiPackage adds one package of an environment.
func (l *lock) pixiPackage(platform string, p *yaml.Node, described map[string]*yaml.Node) {
	if u := value(p, "conda"); u != "" {
		d := described["conda "+u]
		switch {
		case d == nil:
			l.r.wrong(p.Line, "%s is not described below packages: the file is truncated or was edited", input.Text(hideText(u)))
		case !strings.HasSuffix(u, ".conda") && !strings.HasSuffix(u, ".tar.bz2"):
			l.r.wrong(p.Line, "%s is built from source by pixi and has no archive; build it and upload it to a channel", input.Text(hideText(u)))
		default:
			l.conda(platform, d, u)
		}
		return
	}
	if u := value(p, "pypi"); u != "" {
		if d := described["pypi "+u]; d != nil {
			l.pypi(platform, d, u)
		} else {
			l.r.wrong(p.Line, "%s is not described below packages: the file is truncated or was edited", input.Text(hideText(u)))
		}
		return
	}
	var keys []string
	for i := 0; p.Kind == yaml.MappingNode && i+1 < len(p.Content); i += 2 {
		keys = append(keys, p.Content[i].Value)
	}
	if slices.Contains(keys, "conda_source") || slices.Contains(keys, "source") {
		l.r.wrong(p.Line, "a package that pixi builds from source has no archive; build it and upload it to a channel")
		return
	}
	l.r.wrong(p.Line, "unknown kind of package: %s", input.Text(strings.Join(keys, ", ")))
}
