// Package pip installs packages of Python package indexes into image layers, without pip
// and for any platform.
//
//	requirements → Resolve: indexes, wheels, sdists, markers → Plan → Plan.Layers
//
// [Resolve] chooses one version of everything that the rows and, on request, their
// dependencies need. [Plan.Layers] fetches the wheels, checks every byte against RECORD
// and the index's digests, and writes layers. A [Workshop] builds sources in the image,
// without network. The same rows, indexes and target give the same layers. Repositories
// and directories of sources are refused, with the Dockerfile line that installs them.
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
	"hpcc/text"
)

// A Target is the environment that wheels are chosen for and installed into. No field is
// taken from the build host.
type Target struct {
	Subdir       string // conda's name of the platform, such as linux-ppc64le
	Python       string // version of the environment's CPython, such as 3.11.4
	FreeThreaded bool   // free-threaded build of CPython
	Glibc        string // glibc version that wheels may need at most, such as 2.36; "": glibc is not supported
	Musl         string // the same for musl, if python is linked with it
	Prefix       string // path of the environment in the image
	SitePackages string // below Prefix; "": lib/pythonX.Y/site-packages

	Provided []Provided       // distributions of the conda packages
	Paths    map[string]Owner // paths in the layers below, relative to Prefix
}

// A Provided is a distribution that a conda package provides.
type Provided struct{ Name, Version, Package string }

// An Owner is the conda package that a path belongs to.
type Owner struct {
	Package string
	Dir     bool // a directory, not a link to one
}

func (t *Target) site() string {
	if t.SitePackages != "" {
		return t.SitePackages
	}
	return "lib/python" + Minor(t.Python) + "/site-packages"
}

// interpreter returns the python in the first line of installed scripts.
func (t *Target) interpreter() string { return t.Prefix + "/bin/python" + Minor(t.Python) }

// Options control how rows are resolved and installed.
type Options struct {
	File        string // name of the list in messages; "": "the list"
	Dir         string // base of the rows' relative paths; "": the working directory
	Indexes     Indexes
	Constraints []Requirement // limit the versions that are chosen; they install nothing
	Closed      bool          // the list is complete: missing dependencies are reported, not added
	Build       *Workshop     // nil: sources are refused
	NoBuild     string        // why sources are refused, for the message; optional
	Progress    func(done, total int64)

	index    *indexSet // the opened Indexes; nil: not opened yet
	building []string  // packages whose builds need this one, outermost first

	// As in Options:
	PackageLayers, NoCache bool
	Tee                    layer.Tee
}

// A Plan is the set of distributions chosen for the rows.
type Plan struct {
	Wheels []Wheel  // sorted by name
	Notes  []string // differences from the rows, for people

	target Target
	picks  []*pick
	fetch  *fetcher
}

// A Wheel is a chosen package.
type Wheel struct {
	Name, Version string // Name is normalized (PEP 503)
	File          string // file name
	URL           string // without credentials; "" for a local file
	SHA256        string // hexadecimal; "" if unknown before Layers has fetched the file

	BuiltWith []Wheel // wheels of its build environment; nil if it was not built from sources

	Address       string // the URL, of a local file too
	Asked, Direct bool   // named by the export; named by its address
}

// A refusal is a row that cannot be installed as written.
type refusal struct {
	Line int    // 0 if unknown
	Row  string // without credentials
	Why  string
	Run  string // the Dockerfile line to use instead; "" if there is none
}

// A refusedError lists all rows that cannot be installed.
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
		f.Add("", r.Line, text)
	}
	return fmt.Sprintf("%s: %s cannot be installed: %s", e.File, text.Count(len(e.Refused), "pip package", "pip packages"), f.List("; "))
}

// Resolve chooses a wheel for every row and, unless the list is closed, for their
// dependencies. A [refusedError] reports all rows that cannot be installed. The same
// rows, indexes and target give the same plan.
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
	if err := r.readSourceVersions(); err != nil {
		return nil, fmt.Errorf("%s: %w", o.File, err)
	}
	picked, err := r.resolve(wants)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.File, err)
	}
	p := &Plan{Notes: r.notes, target: t, fetch: r.fetch}
	p.fill(picked)
	return p, nil
}

// fill fills the plan with the chosen picks.
func (p *Plan) fill(picked map[string]*pick) {
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
		p.Wheels = append(p.Wheels, Wheel{x.name, x.version.String(), x.file.name, fetch.Public(x.file.url),
			x.sha256(), nil, x.address(), x.requested, x.direct})
		if x.file.wheel == nil {
			sources = append(sources, x.name)
		}
	}
	if len(sources) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s from their sources: %s",
			text.Count(len(sources), "pip package is built", "pip packages are built"), input.List(sources)))
	}
	if len(present) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s of conda packages: %s",
			text.Count(len(present), "pip package is part", "pip packages are part"), input.List(present)))
	}
	if len(bare) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("%s: dependencies of extras are not resolved for packages from conda; add rows for them", input.List(bare)))
	}
	if len(loose) > 0 {
		p.Notes = append(p.Notes, fmt.Sprintf("not verified without a sha256 in the index or the list: %d of %s: %s",
			len(loose), text.Count(len(p.picks), "pip package", "pip packages"), input.List(loose)))
	}
}

// strong reports whether the digest is collision-resistant.
func strong(h string) bool {
	alg, _, _ := strings.Cut(h, ":")
	return hashSizes[alg] >= 32
}

// run returns the Dockerfile line that installs a package with pip.
func (t *Target) run(what string) string {
	return fmt.Sprintf("RUN %s -m pip install --no-deps %q", t.interpreter(), what)
}

// InstalledDist returns the distribution that a path proves to be installed:
// site-packages/NAME-VERSION.dist-info/METADATA, or an .egg-info of older tools.
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

// Archives returns the archives of the Wheels, in the same order.
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
