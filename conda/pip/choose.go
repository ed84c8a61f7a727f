package pip

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"hpcc/conda/input"
	"hpcc/text"
)

// sourceRank is the rank of sources, after all wheels of a version.
const sourceRank = math.MaxInt

// rank returns the rank of the wheel's best tag, or 0 if the target can use none of them.
func (r *resolver) rank(w *wheelName) int {
	best := 0
	for _, tag := range w.tags {
		if n := r.ranks[tag]; n > 0 && (best == 0 || n < best) {
			best = n
		}
	}
	return best
}

// rateFiles stores the files that the indexes offer for a distribution, and rates each for
// the target.
func (r *resolver) rateFiles(name string, list []indexFile) {
	for i := range list {
		f := &list[i]
		f.fits = pythonFits(f.python, r.target.Python)
		if f.rank = sourceRank; f.wheel != nil {
			f.rank = r.rank(f.wheel)
		}
	}
	r.files[name] = list
}

// candidates returns the files that satisfy all wants and constraints, best first: one file per
// version.
func (r *resolver) candidates(name string, wants []demand) ([]*pick, error) {
	wants = slices.Concat(wants, r.limits[name])
	if p := r.provided[name]; p != nil {
		return slices.DeleteFunc([]*pick{p}, func(p *pick) bool { return !fulfils(p.version, wants) }), nil
	}
	if list := r.direct[name]; list != nil {
		return slices.DeleteFunc(slices.Clone(list), func(p *pick) bool { return !fulfils(p.version, wants) }), nil
	}
	if _, ok := r.files[name]; !ok {
		list, err := r.index.files(r.ctx, name, "")
		if err != nil {
			return nil, err
		}
		r.rateFiles(name, list)
	}
	exact := slices.ContainsFunc(wants, func(w demand) bool { return w.spec.exact() })
	pre := slices.ContainsFunc(wants, func(w demand) bool { return w.spec.pre() })
	var finals, pres []*pick
	for i := range r.files[name] {
		f := &r.files[name][i]
		if !fulfils(f.version, wants) || r.fault(f, wants) != "" || (f.yanked && !exact) {
			continue
		}
		p := (&pick{name: name, version: f.version, file: f, rank: f.rank}).demand(wants)
		if f.version.isPre() && !pre {
			pres = append(pres, p)
		} else {
			finals = append(finals, p)
		}
	}
	if finals == nil {
		finals = pres // only pre-releases match
	}
	slices.SortStableFunc(finals, func(a, b *pick) int {
		return cmp.Or(b.version.compare(a.version), cmp.Compare(a.rank, b.rank), b.file.wheel.compareBuild(a.file.wheel))
	})
	return slices.CompactFunc(finals, func(a, b *pick) bool { return a.version.compare(b.version) == 0 }), nil
}

func fulfils(v pyVersion, wants []demand) bool {
	return !slices.ContainsFunc(wants, func(w demand) bool { return !w.spec.match(v) })
}

// fault returns the reason why a file of a wanted version cannot be used, or "" if it can.
func (r *resolver) fault(f *indexFile, wants []demand) string {
	switch {
	case f.wheel == nil && r.options.Build == nil:
		return "sources"
	case f.rank == 0:
		return strings.TrimSuffix(strings.TrimPrefix(f.name, strings.Join(strings.SplitN(f.name, "-", 3)[:2], "-")+"-"), ".whl")
	}
	if !f.fits {
		return "needs python " + f.python
	}
	for _, w := range wants {
		if len(w.Hashes) > 0 && !agree(f.hashes, w.Hashes) {
			return "a digest other than " + input.List(w.Hashes)
		}
	}
	return ""
}

// agree reports whether a file whose digests are has may be one of the allowed files: a digest
// is equal, or no algorithm occurs on both sides.
func agree(has, allowed []string) bool {
	kind := func(h string) string { k, _, _ := strings.Cut(h, ":"); return k }
	sameKind := false
	for _, h := range has {
		for _, a := range allowed {
			if sameKind = sameKind || kind(a) == kind(h); a == h {
				return true
			}
		}
	}
	return !sameKind
}

// reason explains why nothing satisfies the wants and the constraints. run is the Dockerfile line
// that builds the sources instead, if there are any.
func (r *resolver) reason(name string, wants []demand) (why, run string) {
	why, run = r.shortage(name, slices.Concat(wants, r.limits[name]))
	for _, w := range r.limits[name] {
		why += fmt.Sprintf("; %s constrains it to %s%s", w.origin, name, w.spec)
	}
	return why, run
}

func (r *resolver) shortage(name string, wants []demand) (why, run string) {
	if p := r.provided[name]; p != nil {
		return fmt.Sprintf("the conda package %s provides %s %s; remove one of the two rows", p.by, name, p.version), ""
	}
	if list := r.direct[name]; list != nil {
		return fmt.Sprintf("a row names the file %s, whose version does not match", list[0].file.name), ""
	}
	files := r.files[name]
	if len(files) == 0 {
		var sources []string
		for _, x := range r.index.all() {
			sources = append(sources, display(x))
		}
		if len(sources) == 0 {
			return fmt.Sprintf("nowhere to look for %s: no index is enabled; name a directory of wheels with --wheel-dir", name), ""
		}
		return fmt.Sprintf("there is no package %s in %s", name, strings.Join(sources, ", ")), ""
	}
	var versions, faults []string
	sources, yanked := "", ""
	for i := range files {
		f := &files[i]
		versions = append(versions, f.version.String())
		switch fault := r.fault(f, wants); {
		case !fulfils(f.version, wants):
		case fault == "sources":
			sources = f.version.String()
		case fault == "" && f.yanked:
			yanked = f.version.String() + ": " + text.Short(f.reason)
		default:
			faults = append(faults, fault)
		}
	}
	switch {
	case len(faults) > 0:
		why = fmt.Sprintf("no wheel fits: the environment is %s; available: %s", r.target.describe(), input.List(faults))
	case sources != "":
		why = "only sources are available, which have to be built" + r.because()
	case yanked != "":
		why = "the matching version was yanked by its authors (" + yanked + "); pin it with == to use it anyway"
	default:
		return "available versions: " + input.Near(versions, wants[0].spec.near()) + localHint(wants, files), ""
	}
	if sources != "" {
		run = r.target.run(name + "==" + sources)
	}
	return why, run
}

// because returns a clause for messages with the reason why sources are not built, or "".
func (r *resolver) because() string {
	if r.options.NoBuild == "" {
		return ""
	}
	return "; sources are not built: " + r.options.NoBuild
}

// near returns a version that the specifier contains, so that messages list the available
// versions closest to it.
func (s specifier) near() string {
	for _, c := range s {
		if c.v.release != nil {
			return c.v.String()
		}
	}
	return ""
}

// localHint returns a hint for demands on local versions such as 2.1.2+cu118, which only
// other indexes offer, or "".
func localHint(wants []demand, files []indexFile) string {
	for _, w := range wants {
		for _, c := range w.spec {
			if c.v.local != nil && slices.ContainsFunc(files, func(f indexFile) bool { return f.version.compare(c.v.public()) == 0 }) {
				return fmt.Sprintf("; +%s marks a build from another index; name that index with --extra-index-url",
					strings.Join(c.v.local, "."))
			}
		}
	}
	return ""
}
