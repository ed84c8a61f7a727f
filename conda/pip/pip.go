// Package pip installs packages of Python package indexes into image layers, without pip
// and for any platform.
//
//	requirements → Resolve: indexes, wheels, sdists, markers → Plan → Plan.Layers
//
// [Resolve] chooses one version of everything that the rows and, if asked, their
// dependencies need. [Plan.Layers] fetches the wheels, checks every byte against RECORD
// and the index's digests, and writes layers. Sources are built in the image, without
// network, by what a [Workshop] runs. The same rows, indexes and target give the same
// layers. Repositories and directories of sources are refused, with the command that
// installs them instead.
package pip

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/store"
)

// A Target is what wheels are chosen and installed for. Nothing of it is read
// off this machine.
type Target struct {
	Subdir       string // conda's name of the platform, such as linux-ppc64le
	Python       string // the version of the environment's CPython, such as 3.11.4
	FreeThreaded bool   // that python has no global lock
	Glibc        string // the version of the C library that wheels may need, such as 2.36; "" for none
	Musl         string // of musl, where python is linked with that; "" for none
	Prefix       string // where the environment stands in the image
	SitePackages string // below Prefix; "" is lib/pythonX.Y/site-packages

	Provided []Provided       // what is there already
	Paths    map[string]Owner // what the layers below have, by the path below Prefix
}

// A Provided is a distribution that a conda package brings.
type Provided struct{ Name, Version, Package string }

// A Owner is the conda package that a path is of.
type Owner struct {
	Package string
	Dir     bool // a directory, and no link to one
}

func (t *Target) site() string {
	if t.SitePackages != "" {
		return t.SitePackages
	}
	return "lib/python" + Minor(t.Python) + "/site-packages"
}

// interpreter is the python that programs name.
func (t *Target) interpreter() string { return t.Prefix + "/bin/python" + Minor(t.Python) }

// Options say how rows become distributions.
type Options struct {
	File     string // the name of the list in messages; "" is "the list"
	Dir      string // where relative paths of rows begin; "" is the working directory
	Indexes  Indexes
	Closed   bool      // the list is complete: what the wheels need besides is told and not looked for
	Build    *Workshop // nil: sources are refused
	NoBuild  string    // why sources are refused, for the message; may be ""
	Progress func(done, total int64)

	index *indexSet // Indexes, opened; nil where they are not yet
	under []string  // packages whose builds need this one

	// As in Options:
	PackageLayers, NoCache bool
	Tee                    layer.Tee
}

// A Plan is the distributions that rows stand for.
type Plan struct {
	Wheels []Wheel  // sorted by name
	Notes  []string // what differs from the rows, for people

	target Target
	picks  []*pick
	fetch  *fetcher
}

// A Wheel is a package of pip that was chosen.
type Wheel struct {
	Name, Version string // the name is normal (PEP 503)
	File          string // the wheel's name
	URL           string // without credentials; "" for a file of this machine
	SHA256        string // hexadecimal; "" where nothing is known of it before Layers has fetched it

	BuiltWith []Wheel // what it was built with, where it came as sources; nil where it did not

	Address       string // the URL, of a file of this machine too
	Asked, Direct bool   // the export names it, and by its address
}

// A refusal is a row that cannot be installed as it is.
type refusal struct {
	Line int    // 0 when the row has none
	Row  string // without credentials
	Why  string
	Run  string // the Dockerfile line that does it instead; "" where none would
}

// A refusedError is all the rows that cannot be installed.
type refusedError struct {
	File    string
	Refused []refusal
}

func (e *refusedError) Error() string {
	var f input.Faults
	for _, r := range e.Refused {
		text := r.Row + ": " + r.Why
		if r.Line > 0 {
			text = fmt.Sprintf("line %d: %s", r.Line, text)
		}
		if r.Run != "" {
			text += " (instead: " + r.Run + ")"
		}
		f.Add(r.Line, text)
	}
	return fmt.Sprintf("%s: %d pip packages cannot be installed: %s", e.File, len(e.Refused), f.List("; "))
}

// Resolve chooses a wheel for every row, and, where the list is not closed,
// for what those need. All rows that cannot be had are told at once, as a
// [refusedError]. The same rows, indexes and target give the same plan.
func Resolve(ctx context.Context, s *store.Store, rows []Requirement, t Target, o Options) (*Plan, error) {
	if err := layer.CheckPrefix(t.Prefix); err != nil {
		return nil, err
	}
	if o.File == "" {
		o.File = "the list"
	}
	if t.SitePackages != "" && !filepath.IsLocal(t.SitePackages) {
		return nil, fmt.Errorf("site-packages %q: not a path below the prefix", t.SitePackages)
	}
	r, err := newResolver(ctx, s, t, o)
	if err != nil {
		return nil, err
	}
	wants := r.rows(rows)
	if err := r.lookup(wants); err != nil {
		return nil, err
	}
	if len(r.refused) > 0 {
		slices.SortStableFunc(r.refused, func(a, b refusal) int { return a.Line - b.Line })
		return nil, &refusedError{o.File, r.refused}
	}
	if err := r.describe(); err != nil {
		return nil, fmt.Errorf("%s: %w", o.File, err)
	}
	picked, err := r.resolve(wants)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.File, err)
	}
	p := &Plan{Notes: r.notes, target: t, fetch: r.fetch}
	p.take(picked)
	return p, nil
}

// take makes the plan of what was picked.
func (p *Plan) take(picked map[string]*pick) {
	var present, loose, bare, sources []string
	for _, x := range picked {
		if x.file == nil {
			if x.requested {
				present = append(present, x.name)
			}
			if len(x.extras) > 0 {
				bare = append(bare, x.name+"["+strings.Join(x.extras, ",")+"]")
			}
			continue
		}
		p.picks = append(p.picks, x)
		if !slices.ContainsFunc(slices.Concat(x.file.hashes, x.hashes), strong) && !strings.HasPrefix(x.file.url, "file:") {
			loose = append(loose, x.name)
		}
	}
	slices.SortFunc(p.picks, func(a, b *pick) int { return strings.Compare(a.name, b.name) })
	for _, x := range p.picks {
		p.Wheels = append(p.Wheels, Wheel{x.name, x.version.String(), x.file.name, fetch.Public(x.file.url), x.sha256(), nil, x.address(), x.requested, x.direct})
		if x.file.wheel == nil {
			sources = append(sources, x.name)
		}
	}
	if len(sources) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%d pip packages are built from their sources: %s", len(sources), input.List(sources)))
	}
	if len(present) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%d pip packages come with conda's: %s", len(present), input.List(present)))
	}
	if len(bare) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: what the extras need is not looked for where conda has the package; name it in rows of its own", input.List(bare)))
	}
	if len(loose) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%d of %d pip packages are taken as they come, without a sha256 of the index or the list: %s", len(loose), len(p.picks), input.List(loose)))
	}
}

// strong says whether a digest is one that nobody can forge.
func strong(h string) bool {
	alg, _, _ := strings.Cut(h, ":")
	return hashSizes[alg] >= 32
}

// run is the Dockerfile line that has pip itself install something.
func (t *Target) run(what string) string {
	return fmt.Sprintf("RUN %s -m pip install --no-deps %q", t.interpreter(), what)
}

// InstalledDist is the distribution that a path proves: site-packages/NAME-
// VERSION.dist-info/METADATA, or an .egg-info of older tools.
func InstalledDist(dst, site string) (name, version string, ok bool) {
	rest, ok := strings.CutPrefix(dst, site+"/")
	if !ok {
		return "", "", false
	}
	dir, file := path.Split(rest)
	stem, isInfo := strings.CutSuffix(strings.TrimSuffix(dir, "/"), ".dist-info")
	switch {
	case isInfo && file == "METADATA":
	case file == "PKG-INFO":
		if stem, ok = strings.CutSuffix(strings.TrimSuffix(dir, "/"), ".egg-info"); !ok {
			return "", "", false
		}
	case dir == "":
		if stem, ok = strings.CutSuffix(file, ".egg-info"); !ok {
			return "", "", false
		}
	default:
		return "", "", false
	}
	f := strings.Split(stem, "-")
	if len(f) < 2 || !nameText().MatchString(f[0]) {
		return "", "", false
	}
	if _, err := parseVersion(f[1]); err != nil {
		return "", "", false
	}
	return NormalName(f[0]), f[1], true
}

// Archives are the archives of the Wheels, in their order.
func (p *Plan) Archives() (out []*fetch.File) {
	for _, x := range p.picks {
		out = append(out, x.record())
	}
	return out
}

// IsVersion reports whether s is a version of a distribution (PEP 440).
func IsVersion(s string) bool {
	_, err := parseVersion(s)
	return err == nil
}
