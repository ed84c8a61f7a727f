package conda

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"path/filepath"
	"sort"
	"strings"
)

// Options say where packages come from and where they go.
type Options struct {
	Channels []string // URLs, directories or names, in order of preference
	Subdir   string   // the platform to install for, such as linux-64
	Prefix   string   // where the environment stands in the image; "" is /opt/conda
	Progress func(done, total int64)
}

// DefaultPrefix is where the environment stands: people's scripts call
// /opt/conda/bin/python.
const DefaultPrefix = "/opt/conda"

// A Plan is the list of packages to install, each one after those it needs.
type Plan struct {
	Subdir string
	Prefix string
	Notes  []string // what differs from the export, for people
	python string   // X.Y; "" without python
	site   string   // site-packages below the prefix
	pkgs   []*record
}

// Names lists the packages as name-version-build, in the order of installation.
func (p *Plan) Names() []string {
	var out []string
	for _, r := range p.pkgs {
		out = append(out, r.Name+"-"+r.Version+"-"+r.Build)
	}
	return out
}

// Resolve looks every entry of an export up. What is missing is listed at once,
// with the nearest that the channels have. For another platform than the
// export's own, another build of the same version is taken and noted.
func Resolve(ctx context.Context, e *Export, o Options) (*Plan, error) {
	p := &Plan{Subdir: o.Subdir, Prefix: o.Prefix}
	if p.Prefix == "" {
		p.Prefix = DefaultPrefix
	}
	if err := checkPrefix(p.Prefix); err != nil {
		return nil, err
	}
	var err error
	if e.Explicit {
		err = p.explicit(e)
	} else {
		err = p.lookup(ctx, e, o)
	}
	if err != nil {
		return nil, err
	}
	p.finish()
	return p, nil
}

// maxPrefix is the longest prefix: packages before 2017 have placeholders of 80 bytes.
const maxPrefix = 80

func checkPrefix(prefix string) error {
	if !path.IsAbs(prefix) || path.Clean(prefix) != prefix || prefix == "/" || strings.ContainsAny(prefix, " \t\n\x00:") {
		return fmt.Errorf("prefix %q: not a clean absolute path without blanks and colons", prefix)
	}
	if len(prefix) > maxPrefix {
		return fmt.Errorf("prefix %q: longer than %d bytes, which is all that some packages have room for", prefix, maxPrefix)
	}
	return nil
}

// finish orders the packages and finds python.
func (p *Plan) finish() {
	p.pkgs = order(p.pkgs)
	for _, r := range p.pkgs {
		if r.Name == "python" {
			f := strings.SplitN(r.Version, ".", 3)
			if len(f) >= 2 {
				p.python = f[0] + "." + f[1]
				p.site = "lib/python" + p.python + "/site-packages"
			}
			if s := r.SitePackages; s != "" && filepath.IsLocal(s) {
				p.site = s
			}
		}
	}
}

// explicit takes the URLs as they are; the packages themselves say the rest.
func (p *Plan) explicit(e *Export) error {
	for _, x := range e.Entries {
		u := x.URL
		if !strings.Contains(u, "://") {
			abs, err := filepath.Abs(u)
			if err != nil {
				return &LineError{e.File, x.Line, err}
			}
			u = "file://" + abs
		}
		parsed, err := url.Parse(u)
		if err != nil {
			return &LineError{e.File, x.Line, fmt.Errorf("reading the URL: %w", err)}
		}
		sub := path.Base(path.Dir(parsed.Path))
		if sub != "noarch" && sub != p.Subdir && strings.HasPrefix(sub, "linux-") || strings.HasPrefix(sub, "osx-") || strings.HasPrefix(sub, "win-") {
			return &LineError{e.File, x.Line, fmt.Errorf("%s is for %s, the image for %s; export with \"conda list -e\" to move to another platform", path.Base(parsed.Path), sub, p.Subdir)}
		}
		if x.MD5 == "" && x.SHA256 == "" {
			p.Notes = append(p.Notes, fmt.Sprintf("%s:%d: %s has no digest: it is taken as it comes; export with \"conda list --explicit --sha256\"", e.File, x.Line, path.Base(parsed.Path)))
		}
		p.pkgs = append(p.pkgs, &record{Name: x.Name, Version: x.Version, Build: x.Build, MD5: x.MD5, SHA256: x.SHA256, Subdir: sub,
			url: u, fn: path.Base(parsed.Path), origin: strings.TrimSuffix(u, "/"+sub+"/"+path.Base(parsed.Path))})
	}
	return nil
}

// lookup finds name=version=build entries in the channels.
func (p *Plan) lookup(ctx context.Context, e *Export, o Options) error {
	if len(o.Channels) == 0 {
		return &LineError{e.File, e.Entries[0].Line, errors.New("an export of \"conda list -e\" does not say from which channel; name it with --channel")}
	}
	wanted := map[string]bool{}
	for _, x := range e.Entries {
		wanted[x.Name] = true
	}
	var all []*record
	for _, name := range o.Channels {
		c, err := openChannel(name)
		if err != nil {
			return err
		}
		found := 0
		for _, sub := range []string{p.Subdir, "noarch"} {
			rs, err := c.index(ctx, sub, wanted)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			found++
			all = append(all, rs...)
		}
		if found == 0 {
			return fmt.Errorf("channel %s has no index for %s or noarch (repodata.json): is the address right?", hide(c.url), p.Subdir)
		}
	}
	byName := map[string][]*record{}
	for _, r := range all {
		byName[r.Name] = append(byName[r.Name], r)
	}
	var missing, rebuilt []string
	line := 0
	for _, x := range e.Entries {
		r, note := choose(x, byName[x.Name], e.Subdir != p.Subdir)
		if r == nil {
			if line == 0 {
				line = x.Line
			}
			missing = append(missing, fmt.Sprintf("%s (%s)", x, note))
			continue
		}
		if x.Build != "" && r.Build != x.Build {
			rebuilt = append(rebuilt, r.Name)
		}
		p.pkgs = append(p.pkgs, r)
	}
	if len(rebuilt) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: %d of %d packages are the same versions in their builds for %s: %s", e.File, len(rebuilt), len(e.Entries), p.Subdir, strings.Join(rebuilt, " ")))
	}
	if len(missing) > 0 {
		return &LineError{e.File, line, fmt.Errorf("%d of %d packages are not in the channels for %s: %s", len(missing), len(e.Entries), p.Subdir, strings.Join(missing, "; "))}
	}
	p.closure()
	return nil
}

// choose finds the record of an entry. Without one, note says what there is
// instead.
func choose(x Entry, rs []*record, relax bool) (best *record, note string) {
	var builds, versions []string
	for _, r := range rs {
		if x.Channel != "" && r.origin != x.Channel && path.Base(r.origin) != path.Base(x.Channel) {
			continue
		}
		if r.Version != x.Version {
			versions = append(versions, r.Version)
			continue
		}
		builds = append(builds, r.Build)
		if (x.Build == "" || r.Build == x.Build) && better(r, best) {
			best = r
		}
	}
	if best != nil {
		return best, ""
	}
	if relax {
		for _, r := range rs {
			if r.Version == x.Version && better(r, best) {
				best = r
			}
		}
		if best != nil {
			return best, ""
		}
	}
	switch {
	case len(builds) > 0:
		return nil, "there are the builds " + some(builds)
	case len(versions) > 0:
		return nil, "there are the versions " + some(versions)
	}
	return nil, "no package of that name"
}

// better prefers, among records of one name and version in one channel, the
// higher build number, then the .conda archive, which is faster to read.
func better(r, best *record) bool {
	switch {
	case best == nil:
		return true
	case r.origin != best.origin:
		return false // the first channel wins
	case r.BuildNumber != best.BuildNumber:
		return r.BuildNumber > best.BuildNumber
	case r.Build != best.Build:
		return r.Timestamp > best.Timestamp
	}
	return strings.HasSuffix(r.fn, ".conda") && !strings.HasSuffix(best.fn, ".conda")
}

// some lists a few of many, sorted, without repeats.
func some(list []string) string {
	sort.Strings(list)
	var out []string
	for i, s := range list {
		if i == 0 || s != list[i-1] {
			out = append(out, s)
		}
	}
	if len(out) > 5 {
		out = append([]string{"…"}, out[len(out)-5:]...)
	}
	return strings.Join(out, ", ")
}

// closure notes dependencies that the export does not list.
func (p *Plan) closure() {
	have := map[string]bool{}
	for _, r := range p.pkgs {
		have[r.Name] = true
	}
	for _, r := range p.pkgs {
		for _, d := range r.Depends {
			if n := dependency(d); n != "" && !have[n] {
				p.Notes = append(p.Notes, fmt.Sprintf("%s needs %s, which the export does not list", r.Name, d))
			}
		}
	}
}

// dependency is the name in a MatchSpec; "" for virtual packages, which stand
// for the machine.
func dependency(spec string) string {
	if i := strings.Index(spec, "::"); i >= 0 {
		spec = spec[i+2:]
	}
	n := strings.ToLower(strings.TrimSpace(spec))
	if i := strings.IndexAny(n, " =<>!~[("); i >= 0 {
		n = n[:i]
	}
	if strings.HasPrefix(n, "__") {
		return ""
	}
	return n
}

// order sorts packages so that each comes after what it needs; where that says
// nothing, and in circles, by name.
func order(pkgs []*record) []*record {
	sort.Slice(pkgs, func(i, j int) bool { return pkgs[i].Name < pkgs[j].Name })
	byName := map[string]*record{}
	for _, r := range pkgs {
		byName[r.Name] = r
	}
	var out []*record
	state := map[*record]int{}
	var visit func(r *record)
	visit = func(r *record) {
		if state[r] != 0 {
			return
		}
		state[r] = 1
		names := make([]string, 0, len(r.Depends))
		for _, d := range r.Depends {
			names = append(names, dependency(d))
		}
		sort.Strings(names)
		for _, n := range names {
			if d := byName[n]; d != nil {
				visit(d)
			}
		}
		out = append(out, r)
	}
	for _, r := range pkgs {
		visit(r)
	}
	return out
}
