// Package conda turns a conda export into image layers, without conda, without
// running anything, for any architecture.
//
//	exports.Read → Resolve → Plan.Layers
//
// [Resolve] looks up every entry of an export in the channels. Package solve chooses
// packages for version constraints and for other platforms. [Plan.Layers] downloads and
// verifies the packages, replaces placeholders by the prefix, and writes layers whose
// digests depend only on the packages and the prefix. Layers of pip packages go above
// them: see package pip.
//
// Channels and packages are not trusted: every byte is checked against the digest in the
// export or index, every path must stay in the prefix, and sizes are limited. Scripts of
// packages run only if the caller provides [Options.Step].
package conda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"hpcc/conda/exports"
	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/conda/pip"
	"hpcc/conda/program"
	"hpcc/conda/solve"
	"hpcc/files"
	"hpcc/text"
)

// A Request is what the user asks for, besides the export.
type Request struct {
	Channels []string    // URLs, directories or names, in order of preference
	Relax    bool        // replace packages that the export pins if they do not fit the others
	Python   string      // X.Y for an export of pip packages only; "": the newest in the channels
	Indexes  pip.Indexes // indexes of wheels, before those of the export
	Prefix   string      // path of the environment in the image; "": /opt/conda

	// Packages are MatchSpecs of packages to install too, unless the export names them or has
	// exact packages only.
	Packages []string

	// PackageLayers gives each package a layer of its own. It is the same for all
	// environments with the package at the same prefix and, if the package is noarch,
	// for the same python. Otherwise small packages share layers.
	PackageLayers bool
}

// Options are the inputs of an environment: a request, and what the target machine and the base image
// add to it; and the [Host].
type Options struct {
	Request
	Flexible bool                 // use a later channel if the earlier ones have no match; else (strict) the first channel with a name owns it
	Subdir   string               // the platform to install for, such as linux-64
	Virtual  []*solve.Record      // virtual packages of the target machine, from [Options.SetVirtual]
	Libc     func() (Libc, error) // returns the image's C library, called only to solve; nil: glibc 2.28
	Step     program.StepFunc     // runs scripts of packages; nil: nothing can run
	NoStep   string               // why nothing can run, for people
	Host
}

// A Host is what an installation uses besides its inputs. It cannot change a byte of a layer.
type Host struct {
	Mirrors  [][]string              // URLs of one channel each, from [Condarc.Mirrors], tried in turn
	Cache    string                  // directory of cached indexes; "": no cache
	NoCache  bool                    // ignore layers in the store
	Progress func(done, total int64) // reports the bytes of downloads

	// Installed reports the size of the packages whose files were written to layers, as
	// archives in bytes. Calls do not overlap.
	Installed func(done, total int64)

	Tee layer.Tee // receives the layers while they are written; may be nil
}

// DefaultPrefix is the default path of the environment: existing scripts often call
// /opt/conda/bin/python.
const DefaultPrefix = "/opt/conda"

// A Plan is the list of packages to install, dependencies first.
type Plan struct {
	Subdir string
	Prefix string
	Notes  []string // differences from the export, for people
	Moves  []Move   // packages that could not be used as exported

	export   *exports.Export
	channels []string // as written by the user
	python   string   // X.Y; "": no python
	site     string   // site-packages below the prefix
	pkgs     []*solve.Record
	sysroot  *solve.Record // of a base: the package with the C library; nil for an environment
}

// Names returns the packages as name-version-build, in the order of installation.
func (p *Plan) Names() []string {
	var out []string
	for _, r := range p.pkgs {
		out = append(out, r.Name+"-"+r.Version+"-"+r.Build)
	}
	return out
}

// A Package is one package of a plan.
type Package struct {
	Name, Version, Build, Subdir string
	URL                          string // without credentials; "" for a local directory
	SHA256, MD5                  string // hexadecimal; "" if unknown
}

// Packages returns the packages in the order of installation.
func (p *Plan) Packages() []Package {
	var out []Package
	for _, r := range p.pkgs {
		out = append(out, Package{r.Name, r.Version, r.Build, r.Subdir, fetch.Public(r.URL), r.SHA256, r.MD5})
	}
	return out
}

// Resolve looks up every entry of an export. One error lists all missing packages and the
// closest ones that the channels have. If the channels lack only the versions or builds,
// as on another platform, Resolve solves for the closest ones; see [Plan.Moves].
func Resolve(ctx context.Context, e *exports.Export, o Options) (*Plan, error) {
	e = withPackages(e, o.Packages)
	alone := len(e.Entries)+len(e.UnmetSpecs()) == 0
	switch {
	case alone && len(o.Channels) == 0:
		return nil, &exports.LineError{File: e.File, Line: e.Pip[0].Line,
			Err: errors.New("pip packages need python from a conda channel; name a channel with --channel")}
	case o.Python != "" && !solve.IsVersion(o.Python):
		return nil, fmt.Errorf("python %q: not a version (for example 3.11)", text.Short(o.Python))
	case alone:
		if s := excludesPython(e, o.Python); s != nil {
			return nil, &exports.LineError{File: cmp.Or(s.File, e.File), Line: s.Line,
				Err: fmt.Errorf("the file needs %s, which excludes python %s; choose a version that it allows with --python", s.Text, o.Python)}
		}
		e = withPython(e, o.Python)
	case o.Python != "":
		return nil, fmt.Errorf("%s: the export lists conda packages: add python %s to it, as python=%s", e.File, o.Python, o.Python)
	}
	p := &Plan{Subdir: o.Subdir, Prefix: o.Prefix, export: e, channels: o.Channels}
	if p.Prefix == "" {
		p.Prefix = DefaultPrefix
	}
	if err := layer.CheckPrefix(p.Prefix); err != nil {
		return nil, err
	}
	var err error
	switch {
	case alone && o.Python == "" && p.solveForWheels(ctx, e, o):
	case e.Explicit:
		err = p.explicit(e, o)
	case len(e.UnmetSpecs()) > 0:
		err = p.solve(ctx, e, o)
	default:
		err = p.lookup(ctx, e, o)
	}
	if err != nil {
		return nil, foreign(e, err)
	}
	p.finish()
	if own := pinnedPip(e); len(own) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: conda's pip is not installed, because the file lists %s", e.File, input.List(own)))
	}
	if alone && o.Python == "" {
		allowed := "no python version given"
		for i, s := range e.Python {
			if i == 0 {
				allowed = "the file allows " + s.Text
			} else {
				allowed += " and " + s.Text
			}
		}
		p.Notes = append(p.Notes, fmt.Sprintf("%s: %s; using %s (choose another with --python)", e.File, allowed, p.python))
	}
	return p, nil
}

// withPackages returns an export with packages added.
func withPackages(e *exports.Export, specs []string) *exports.Export {
	if len(e.Entries) > 0 && len(e.UnmetSpecs()) == 0 {
		return e
	}
	with, named := *e, names(e)
	with.Specs = slices.Clone(e.Specs)
	for _, text := range specs {
		if s, err := solve.ParseSpec(text); err != nil || !slices.Contains(named, s.Name) {
			with.Specs = append(with.Specs, exports.Spec{Text: text})
		}
	}
	return &with
}

// Pythons 3.oldestMinor to 3.newestMinor are tried with the wheels of a lock file. The glibc of the
// image is unknown at that time.
const (
	oldestMinor = 6
	newestMinor = 20
	newestGlibc = "2.50"
)

// solveForWheels chooses a python for which all packages of a lock file have wheels, unless they
// have none for any python. It reports whether there is one.
func (p *Plan) solveForWheels(ctx context.Context, e *exports.Export, o Options) bool {
	unfit := map[string][]string{} // by version of python
	never := map[string]int{}      // the number of pythons, by package
	for minor := oldestMinor; minor <= newestMinor; minor++ {
		version := fmt.Sprintf("3.%d", minor)
		if excludesPython(e, version) == nil {
			unfit[version] = pip.Target{Subdir: p.Subdir, Python: version + ".0", Glibc: newestGlibc, Prefix: p.Prefix}.Unfit(e.Pip)
		}
		for _, name := range unfit[version] {
			never[name]++
		}
	}
	var fit, lacking []string
	for version, names := range unfit {
		names = slices.DeleteFunc(names, func(name string) bool { return never[name] == len(unfit) })
		if lacking = append(lacking, names...); len(names) == 0 {
			fit = append(fit, version+".*")
		}
	}
	if len(fit) == 0 || len(lacking) == 0 {
		return false
	}
	slices.SortFunc(fit, input.Compare)
	slices.Sort(lacking)
	lacking = slices.Compact(lacking)
	with := *e
	with.Specs = append(slices.Clip(e.Specs), exports.Spec{Line: e.Specs[0].Line, Text: "python " + strings.Join(fit, "|")})
	before := *p
	if err := p.solve(ctx, &with, o); err != nil {
		*p = before
		return false
	}
	p.Notes = append(p.Notes, fmt.Sprintf("%s: python is one of %s, for which all packages have wheels; others lack those of %s", e.File, input.List(fit), input.List(lacking)))
	return true
}

// excludesPython returns the row of a lock file that excludes a version of python, such as 3.11,
// with all its patch releases; else nil. "" is any version.
func excludesPython(e *exports.Export, version string) *exports.Spec {
	for _, row := range e.Python {
		s, err := solve.ParseSpec(row.Text)
		if version == "" || err != nil {
			continue
		}
		allowed := s.Meets(&solve.Record{Name: "python", Version: version})
		for patch := 0; patch < 100 && !allowed; patch++ {
			allowed = s.Meets(&solve.Record{Name: "python", Version: fmt.Sprintf("%s.%d", version, patch)})
		}
		if !allowed {
			return &row
		}
	}
	return nil
}

// withPython returns an export of pip packages with a python added. version is a conda
// specifier, such as 3.11.
func withPython(e *exports.Export, version string) *exports.Export {
	with := *e
	with.Specs = []exports.Spec{{Line: e.Pip[0].Line, Text: "python"}}
	if version != "" {
		with.Specs[0].Text += "=" + version
	}
	with.Specs = append(with.Specs, e.Python...)
	return &with
}

// pinnedPip returns the pinned rows for packages that conda would install with pip, in an export
// of pip packages only. The versions that conda chooses would contradict them.
func pinnedPip(e *exports.Export) (out []string) {
	if len(e.Entries) > 0 || slices.ContainsFunc(e.UnmetSpecs(),
		func(s exports.Spec) bool { return solve.Dependency(s.Text) != "python" }) {
		return nil
	}
	for _, r := range e.Pip {
		if name := pip.NormalName(r.Name); (name == "pip" || name == "setuptools" || name == "wheel") &&
			strings.HasPrefix(r.Specifier, "==") {
			out = append(out, r.String())
		}
	}
	return out
}

// finish orders the packages and finds python.
func (p *Plan) finish() {
	p.pkgs = inOrder(p.pkgs)
	for _, r := range p.pkgs {
		if r.Name == "python" {
			if p.python = pip.Minor(r.Version); p.python != "" {
				p.site = "lib/python" + p.python + "/site-packages"
			}
			if s := r.SitePackages; s != "" && filepath.IsLocal(s) {
				p.site = s
			}
		}
	}
}

// explicit uses the URLs unchanged; the rest of the metadata comes from the packages.
func (p *Plan) explicit(e *exports.Export, o Options) error {
	elsewhere := map[string]*fetch.Mirrors{} // mirrors by channel
	for _, x := range e.Entries {
		u, err := absolute(x.URL)
		if err != nil {
			return &exports.LineError{File: cmp.Or(x.File, e.File), Line: x.Line, Err: fmt.Errorf("reading the URL: %w", fetch.Plain(err))}
		}
		fn := path.Base(u.Path)
		sub := path.Base(path.Dir(u.Path))
		switch {
		case sub == "noarch" || sub == p.Subdir:
		case fetch.IsPlatform(sub):
			return &exports.LineError{File: cmp.Or(x.File, e.File), Line: x.Line,
				Err: fmt.Errorf("%s is for %s, but the image is for %s; export with \"conda list -e\" to move to another platform", fn, sub, p.Subdir)}
		default:
			sub = "" // a directory of packages; the platform is in each package
		}
		r := &solve.Record{Name: x.Name, Version: x.Version, Build: x.Build, Subdir: sub,
			File: fetch.File{MD5: x.MD5, SHA256: x.SHA256, Size: x.Size, URL: u.String(), FileName: fn}}
		r.Origin = strings.TrimSuffix(strings.TrimSuffix(r.URL, "/"+path.Base(u.EscapedPath())), "/"+sub)
		if r.MD5 != "" || r.SHA256 != "" { // without a digest, a mirror could have different content
			m, known := elsewhere[r.Origin]
			if !known {
				m = o.withMirrors(r.Origin)
				elsewhere[r.Origin] = m
			}
			r.Mirrors = m
		}
		p.pkgs = append(p.pkgs, r)
	}
	p.unproven(e, "the export; write it with \"conda list --explicit --sha256\"")
	return nil
}

// unproven notes packages that have no digest to verify.
func (p *Plan) unproven(e *exports.Export, where string) {
	var names []string
	for _, r := range p.pkgs {
		if r.MD5 == "" && r.SHA256 == "" {
			names = append(names, r.Name)
		}
	}
	if len(names) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: %s not verified (%s): no digest in %s", e.File,
			input.Share(len(names), len(p.pkgs), "is", "are"), input.List(names), where))
	}
}

// absolute parses the URL or path of an explicit entry. As in conda, paths may begin with
// "~" and contain variables.
func absolute(s string) (*url.URL, error) {
	if strings.Contains(s, "://") {
		return expandURL(s)
	}
	if rest, ok := strings.CutPrefix(s, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		s = filepath.Join(home, rest)
	}
	abs, err := filepath.Abs(os.ExpandEnv(s))
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "file", Path: abs}, nil
}

// lookup finds name=version=build entries in the channels.
func (p *Plan) lookup(ctx context.Context, e *exports.Export, o Options) error {
	if len(o.Channels) == 0 {
		return &exports.LineError{File: cmp.Or(e.Entries[0].File, e.File), Line: e.Entries[0].Line,
			Err: errors.New("an export of \"conda list -e\" names no channel; name one with --channel")}
	}
	wanted := map[string]bool{}
	python := ""
	for _, x := range e.Entries {
		wanted[x.Name] = true
		if x.Name == "python" {
			python = pip.Minor(x.Version)
		}
	}
	channels, err := o.open()
	if err != nil {
		return err
	}
	all, err := records(ctx, channels, p.Subdir, wanted)
	if err != nil {
		return err
	}
	byName := map[string][]*solve.Record{}
	for _, r := range all {
		byName[r.Name] = append(byName[r.Name], r)
	}
	var absent input.Faults
	exact, gone := true, false
	near := similar(ctx, channels, p.Subdir)
	for _, x := range e.Entries {
		r, note := choose(x, byName[x.Name], python, e.Subdir != p.Subdir)
		if note == noPackage && (e.Subdir == "" || e.Subdir == p.Subdir) {
			note = noneNamed(x.Name, near)
		}
		if r == nil {
			absent.Add(x.File, x.Line, fmt.Sprintf("%s (%s)", x, note))
			gone = gone || len(byName[x.Name]) == 0
			continue
		}
		exact = exact && (x.Build == "" || r.Build == x.Build)
		p.pkgs = append(p.pkgs, r)
	}
	switch {
	case exact && len(absent.Texts) == 0 && isClosed(p.pkgs):
		p.unproven(e, "the channel's index")
		return nil
	case gone && (e.Subdir == "" || e.Subdir == p.Subdir):
		return &exports.LineError{File: cmp.Or(absent.File, e.File), Line: absent.Line,
			Err: fmt.Errorf("%s not in the channels for %s: %s",
				input.Share(len(absent.Texts), len(e.Entries), "is", "are"), p.Subdir, absent.Join("; "))}
	}
	return p.move(ctx, e, o, channels)
}

// solve solves for the specs of an export, together with its entries.
func (p *Plan) solve(ctx context.Context, e *exports.Export, o Options) error {
	if len(o.Channels) == 0 {
		s := e.UnmetSpecs()[0]
		return &exports.LineError{File: cmp.Or(s.File, e.File), Line: s.Line,
			Err: errors.New("the file names no channel; name one with --channel")}
	}
	channels, err := o.open()
	if err != nil {
		return err
	}
	return p.move(ctx, e, o, channels)
}

// move solves for replacements of what the channels do not have as exported.
func (p *Plan) move(ctx context.Context, e *exports.Export, o Options, channels []channel) error {
	m := &move{export: e, options: o, source: map[string]*solve.Record{}, similar: similar(ctx, channels, o.Subdir)}
	m.fetch = func(ctx context.Context, names map[string]bool) ([]*solve.Record, error) {
		return records(ctx, channels, o.Subdir, names)
	}
	names := map[string]bool{}
	for _, x := range e.Entries {
		names[x.Name] = true
	}
	var all []*solve.Record
	var err error
	if len(names) > 0 {
		all, err = records(ctx, channels, cmp.Or(e.Subdir, o.Subdir), names)
	}
	if err != nil && ctx.Err() != nil { // channels that only have the target are enough
		return err
	}
	for _, x := range e.Entries {
		for _, r := range all {
			if r.Name == x.Name && r.Version == x.Version && r.Build == x.Build {
				m.source[x.Name] = r
			}
		}
	}
	var u *solve.Unsolvable
	p.pkgs, p.Moves, err = m.solve(ctx)
	p.Notes = append(p.Notes, m.notes...)
	if errors.As(err, &u) {
		if slices.ContainsFunc(u.Names, func(name string) bool { return m.pins[name] != nil }) {
			err = fmt.Errorf("%w\nthe export pins some of these packages; change its pins, or let the solver replace them with --relax", err)
		}
		file, line := m.line(u)
		return &exports.LineError{File: cmp.Or(file, e.File), Line: line, Err: err}
	}
	if err != nil {
		return err
	}
	p.unproven(e, "the channel's index")
	return nil
}

// open opens the channels.
func (o Options) open() (opened []channel, err error) {
	for _, name := range o.Channels {
		c, err := openChannel(name)
		if err != nil {
			return nil, err
		}
		c.cache, c.asked, c.mirrors = o.Cache, &sync.Map{}, o.mirrorsOf(c.url)
		if o.Cache != "" {
			c.tables = &sync.Map{}
		}
		opened = append(opened, c)
	}
	return opened, nil
}

// records reads the records of the wanted names from all channels, in the order
// of the channels.
func records(ctx context.Context, opened []channel, subdir string, wanted map[string]bool) ([]*solve.Record, error) {
	subs := []string{subdir, "noarch"}
	found := make([][]*solve.Record, len(opened)*len(subs))
	absent := make([]bool, len(found))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(files.MaxParallel(4, 4))
	for i := range found {
		g.Go(func() (err error) {
			found[i], err = opened[i/len(subs)].index(gctx, subs[i%len(subs)], wanted)
			if absent[i] = errors.Is(err, fs.ErrNotExist); absent[i] {
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, c := range opened {
		if absent[i*2] && absent[i*2+1] {
			hint := "check the URL"
			if u, err := url.Parse(c.url); err == nil && u.Scheme == "oci" {
				hint += fmt.Sprintf(", or log in to a private channel with \"hpcc login %s\"", u.Host)
			}
			return nil, fmt.Errorf("channel %s has no index for %s or noarch (repodata.json): %s", fetch.Hide(c.url), subdir, hint)
		}
	}
	return slices.Concat(found...), nil
}

// choose finds the record of an entry: exactly that build or, if relax allows it, another
// build of the version for the same python. If there is none, note lists alternatives.
func choose(x exports.Entry, rs []*solve.Record, python string, relax bool) (best *solve.Record, note string) {
	var builds, versions []string
	var other *solve.Record
	for _, r := range rs {
		switch {
		case !r.From(x.Channel):
		case r.Version != x.Version:
			versions = append(versions, r.Version)
		default:
			builds = append(builds, r.Build)
			if r.Build == x.Build && r.Better(best) {
				best = r
			}
			if r.Fits(python) && r.Better(other) {
				other = r
			}
		}
	}
	if best == nil && (relax || x.Build == "") {
		best = other
	}
	switch {
	case best != nil:
		return best, ""
	case len(builds) > 0:
		return nil, "available builds: " + input.List(builds)
	case len(versions) > 0:
		return nil, "available versions: " + input.Near(versions, x.Version)
	}
	return nil, noPackage
}

const noPackage = "no package of that name"

// similar returns a function that suggests the package of the channels with the name that is
// most similar to another; "" if there is none. It reads the indexes at the first call.
func similar(ctx context.Context, channels []channel, subdir string) func(name string) string {
	known := sync.OnceValue(func() []string {
		found := &sync.Map{}
		for _, c := range channels {
			c.names = found
			_, _ = records(ctx, []channel{c}, subdir, map[string]bool{}) // a suggestion is optional
		}
		var names []string
		for name := range found.Range {
			names = append(names, name.(string))
		}
		slices.Sort(names)
		return names
	})
	return func(name string) string { return text.Nearest(name, known()) }
}

// noneNamed describes a name that no channel has.
func noneNamed(name string, similar func(string) string) string {
	if s := similar(name); s != "" {
		return fmt.Sprintf("%s; did you mean %s?", noPackage, s)
	}
	return noPackage
}

// isClosed reports whether the packages include all dependencies, by name.
func isClosed(pkgs []*solve.Record) bool {
	have := map[string]bool{"": true} // the name of virtual packages
	for _, r := range pkgs {
		have[r.Name] = true
	}
	return !slices.ContainsFunc(pkgs, func(r *solve.Record) bool {
		return slices.ContainsFunc(r.Depends, func(d string) bool { return !have[solve.Dependency(d)] })
	})
}

// inOrder sorts packages so that dependencies come first.
func inOrder(pkgs []*solve.Record) []*solve.Record {
	return layer.Order(pkgs, func(r *solve.Record) layer.Package {
		p := inLayers(r)
		for _, d := range r.Depends {
			p.Needs = append(p.Needs, solve.Dependency(d))
		}
		return p
	})
}

// inLayers returns the part of a record that determines the grouping into layers.
func inLayers(r *solve.Record) layer.Package { return layer.Package{Name: r.Name, Size: r.Size} }

// expandURL parses a URL that may contain variables.
func expandURL(s string) (*url.URL, error) {
	s, err := fetch.Expand(s)
	if err != nil {
		return nil, err
	}
	return url.Parse(s)
}
