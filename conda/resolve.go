// Package conda turns a conda export into image layers, without conda, without
// running anything, for any architecture.
//
//	exports.Read → Resolve → Plan.Layers
//
// [Resolve] looks every entry of an export up in the channels, and has package solve
// choose for what is named by conditions or has to move to another platform.
// [Plan.Layers] fetches the packages, verifies them, puts the prefix where packages have
// a placeholder, and writes layers whose digests depend on the packages and the prefix
// alone. What the export has of pip comes above them: see package pip.
//
// Channels and packages are not trusted: every byte is checked against the export's or
// the index's digest, every path must stay in the prefix, and sizes are bounded. Scripts
// of packages run only where the caller gives a way to run them ([Options.Step]).
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
	"hpcc/store/disk"
)

// Options say where packages come from and where they go.
type Options struct {
	Channels []string             // URLs, directories or names, in order of preference
	Mirrors  [][]string           // places of one channel each, as [Condarc.Mirrors] has them: asked in turn when one does not answer
	Subdir   string               // the platform to install for, such as linux-64
	Prefix   string               // where the environment stands in the image; "" is /opt/conda
	Cache    string               // a directory that keeps the channels' indexes from one time to the next; "" is none
	Flexible bool                 // a later channel may serve where the earlier have nothing that fits; else (strict) the first that has a name has it alone
	Libc     func() (Libc, error) // the image's C library, asked for when something is solved; nil is taken to be glibc 2.28
	Cuda     string               // version of CUDA that the image's machines have; "" is none
	Python   string               // X.Y for an export that lists packages of pip alone; "" is the newest that the channels have
	Indexes  pip.Indexes          // where wheels are looked for, before where the export says
	Step     program.StepFunc     // carries out what packages have to run; nil: nothing can run
	NoStep   string               // why nothing can run, for people
	Progress func(done, total int64)

	// PackageLayers gives each package a layer of its own, which is the same in all
	// environments that have the package at the same prefix and, if it is noarch, for
	// the same python. Else small ones share layers.
	PackageLayers bool

	NoCache bool      // make layers anew that the store has
	Tee     layer.Tee // gets the layers that are made; may be nil
}

// virtual is the virtual packages of the image's machine.
func (o Options) virtual() ([]*solve.Record, error) { return virtualPackages(o, os.LookupEnv) }

// DefaultPrefix is where the environment stands: people's scripts call
// /opt/conda/bin/python.
const DefaultPrefix = "/opt/conda"

// A Plan is the list of packages to install, each one after those it needs.
type Plan struct {
	Subdir string
	Prefix string
	Notes  []string // what differs from the export, for people
	Moves  []Move   // what became of the export's packages where they could not be taken as they stood

	export   *exports.Export
	channels []string // as the user names them
	python   string   // X.Y; "" without python
	site     string   // site-packages below the prefix
	pkgs     []*solve.Record
	sysroot  *solve.Record // of the packages, the one with the C library of a base; nil of an environment
}

// Names lists the packages as name-version-build, in the order of installation.
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
	URL                          string // without credentials; "" for a directory of this machine
	SHA256, MD5                  string // hexadecimal; "" where the channel or export has none
}

// Packages lists the packages in the order of installation.
func (p *Plan) Packages() []Package {
	var out []Package
	for _, r := range p.pkgs {
		out = append(out, Package{r.Name, r.Version, r.Build, r.Subdir, fetch.Public(r.URL), r.SHA256, r.MD5})
	}
	return out
}

// Resolve looks every entry of an export up. What is missing is listed at once,
// with the nearest that the channels have. Where the channels have the packages and
// not these versions or builds of them, as on another platform than the
// export's, what is nearest is solved for; [Plan.Moves] says what became of each.
func Resolve(ctx context.Context, e *exports.Export, o Options) (*Plan, error) {
	alone := len(e.Entries)+len(e.Wishes()) == 0
	switch {
	case alone && len(o.Channels) == 0:
		return nil, &exports.LineError{File: e.File, Line: e.Pip[0].Line, Err: errors.New("its packages need a python, which a channel of conda has; name one with --channel")}
	case o.Python != "" && !solve.IsVersion(o.Python):
		return nil, fmt.Errorf("python %q: no version; write 3.11", input.Text(o.Python))
	case alone:
		e = withPython(e, o.Python)
	case o.Python != "":
		return nil, fmt.Errorf("%s: it lists packages of conda, so that python %s has to stand there: python=%s", e.File, o.Python, o.Python)
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
	case e.Explicit:
		err = p.explicit(e, o)
	case len(e.Wishes()) > 0:
		err = p.wished(ctx, e, o)
	default:
		err = p.lookup(ctx, e, o)
	}
	if err != nil {
		return nil, foreign(e, err)
	}
	p.finish()
	if alone && o.Python == "" {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: it does not say for which python it is; %s is taken, --python names another", e.File, p.python))
	}
	return p, nil
}

// withPython is a list of packages of pip with the python that they are to be
// for: a specifier of conda's, such as 3.11.
func withPython(e *exports.Export, version string) *exports.Export {
	with := *e
	with.Specs = []exports.Spec{{Line: e.Pip[0].Line, Text: "python"}}
	if version != "" {
		with.Specs[0].Text += "=" + version
	}
	return &with
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

// explicit takes the URLs as they are; the packages themselves say the rest.
func (p *Plan) explicit(e *exports.Export, o Options) error {
	elsewhere := map[string]*fetch.Mirrors{} // by channel
	for _, x := range e.Entries {
		u, err := absolute(x.URL)
		if err != nil {
			return &exports.LineError{File: e.File, Line: x.Line, Err: fmt.Errorf("reading the URL: %w", fetch.Plain(err))}
		}
		fn := path.Base(u.Path)
		sub := path.Base(path.Dir(u.Path))
		switch {
		case sub == "noarch" || sub == p.Subdir:
		case fetch.IsPlatform(sub):
			return &exports.LineError{File: e.File, Line: x.Line, Err: fmt.Errorf("%s is for %s, the image for %s; export with \"conda list -e\" to move to another platform", fn, sub, p.Subdir)}
		default:
			sub = "" // a directory of packages; each says what it is for
		}
		r := &solve.Record{Name: x.Name, Version: x.Version, Build: x.Build, Subdir: sub,
			File: fetch.File{MD5: x.MD5, SHA256: x.SHA256, Size: x.Size, URL: u.String(), FileName: fn}}
		r.Origin = strings.TrimSuffix(strings.TrimSuffix(r.URL, "/"+path.Base(u.EscapedPath())), "/"+sub)
		if r.MD5 != "" || r.SHA256 != "" { // else nothing says that another place has the same
			m, known := elsewhere[r.Origin]
			if !known {
				m = o.mirrorsBeside(r.Origin)
				elsewhere[r.Origin] = m
			}
			r.Mirrors = m
		}
		p.pkgs = append(p.pkgs, r)
	}
	p.unproven(e, "the export; write it with \"conda list --explicit --sha256\"")
	return nil
}

// unproven notes packages that nothing is known of to hold them to.
func (p *Plan) unproven(e *exports.Export, where string) {
	var names []string
	for _, r := range p.pkgs {
		if r.MD5 == "" && r.SHA256 == "" {
			names = append(names, r.Name)
		}
	}
	if len(names) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: %d of %d packages are not verified (%s): no digest in %s", e.File, len(names), len(p.pkgs), input.List(names), where))
	}
}

// absolute reads the URL or path of an explicit entry. Paths may begin with "~"
// and hold variables, as conda has it.
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
		return &exports.LineError{File: e.File, Line: e.Entries[0].Line, Err: errors.New("an export of \"conda list -e\" does not say from which channel; name it with --channel")}
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
	for _, x := range e.Entries {
		r, note := choose(x, byName[x.Name], python, e.Subdir != p.Subdir)
		if r == nil {
			absent.Add(x.Line, fmt.Sprintf("%s (%s)", x, note))
			gone = gone || len(byName[x.Name]) == 0
			continue
		}
		exact = exact && (x.Build == "" || r.Build == x.Build)
		p.pkgs = append(p.pkgs, r)
	}
	switch {
	case exact && len(absent.Texts) == 0:
		p.unproven(e, "the channel's index")
		p.closure()
		return nil
	case gone && (e.Subdir == "" || e.Subdir == p.Subdir):
		return &exports.LineError{File: e.File, Line: absent.Line, Err: fmt.Errorf("%d of %d packages are not in the channels for %s: %s", len(absent.Texts), len(e.Entries), p.Subdir, absent.Join("; "))}
	}
	return p.move(ctx, e, o, channels)
}

// wished solves for the specs of an export, together with its entries.
func (p *Plan) wished(ctx context.Context, e *exports.Export, o Options) error {
	if len(o.Channels) == 0 {
		return &exports.LineError{File: e.File, Line: e.Wishes()[0].Line, Err: errors.New("the file names no channel to take packages from; name it with --channel")}
	}
	channels, err := o.open()
	if err != nil {
		return err
	}
	return p.move(ctx, e, o, channels)
}

// move solves for what the channels do not have as the export names it.
func (p *Plan) move(ctx context.Context, e *exports.Export, o Options, channels []channel) error {
	m := &move{export: e, options: o, source: map[string]*solve.Record{}}
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
	if err != nil && ctx.Err() != nil { // channels that have the target alone will do
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
	if errors.As(err, &u) {
		return &exports.LineError{File: e.File, Line: m.line(u), Err: err}
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
	g.SetLimit(disk.AtOnce(4, 4))
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
			return nil, fmt.Errorf("channel %s has no index for %s or noarch (repodata.json): is the address right?", fetch.Hide(c.url), subdir)
		}
	}
	return slices.Concat(found...), nil
}

// choose finds the record of an entry: the very build, else, where relax lets
// it, another build of the version for the same python. Without one, note says
// what there is instead.
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
		return nil, "there are the builds " + input.List(builds)
	case len(versions) > 0:
		return nil, "available versions: " + input.Near(versions, x.Version)
	}
	return nil, "no package of that name"
}

// closure notes dependencies that the export does not list.
func (p *Plan) closure() {
	have := map[string]bool{}
	for _, r := range p.pkgs {
		have[r.Name] = true
	}
	for _, r := range p.pkgs {
		for _, d := range r.Depends {
			if n := solve.Dependency(d); n != "" && !have[n] {
				p.Notes = append(p.Notes, fmt.Sprintf("%s needs %s, which the export does not list", r.Name, d))
			}
		}
	}
}

// inOrder sorts packages so that each comes after those it needs.
func inOrder(pkgs []*solve.Record) []*solve.Record {
	return layer.Order(pkgs, func(r *solve.Record) layer.Package {
		p := inLayers(r)
		for _, d := range r.Depends {
			p.Needs = append(p.Needs, solve.Dependency(d))
		}
		return p
	})
}

// inLayers returns what the layers of an environment depend on, without the order.
func inLayers(r *solve.Record) layer.Package { return layer.Package{Name: r.Name, Size: r.Size} }

// expandURL reads a URL in which variables may stand.
func expandURL(s string) (*url.URL, error) {
	s, err := fetch.Expand(s)
	if err != nil {
		return nil, err
	}
	return url.Parse(s)
}
