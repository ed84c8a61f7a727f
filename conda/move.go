package conda

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"hpcc/conda/exports"
	"hpcc/conda/input"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
)

// A Move records what happened to a package that could not be installed as exported: on
// another platform, or because the channel no longer has it.
type Move struct {
	Name string // in the export; of an added package, its own
	From string // version=build in the export; "" for an added package
	To   string // the chosen name=version=build; "" for a missing package
	Fate Fate
	Why  string // for people; "" if the fate suffices

	// Degraded marks a package that is worse than the exported one: missing, replaced, of another
	// version, or another build of the same platform.
	Degraded bool
}

// A Fate states how close the chosen package is to the exported one.
type Fate string

const (
	exact       Fate = "exact"         // the same version and build
	rebuilt     Fate = "same version"  // another build of the same version
	changed     Fate = "other version" // another version of the same package
	substituted Fate = "substituted"   // another package replaces it
	missing     Fate = "missing"       // left out
	added       Fate = "added"         // a new dependency, not in the export
)

// Fates returns all fates, from the worst to the best.
func Fates() []Fate { return []Fate{missing, substituted, changed, rebuilt, added, exact} }

// IsExact reports whether exactly the exported package was chosen.
func (f Fate) IsExact() bool { return f == exact }

// A substitute names replacements for packages that only some platforms have.
type substitute struct {
	names []string // "x*" matches all names with that prefix
	by    []string // replacements; the first one in the solution counts
	why   string
}

var substitutes = []substitute{
	{[]string{"mkl", "mkl-include", "mkl-devel", "mkl-static"}, []string{"libopenblas", "openblas", "nomkl"},
		"Intel's library is for x86 only"},
	{[]string{"mkl-service", "mkl_fft", "mkl_random"}, []string{"libopenblas", "openblas", "numpy"},
		"it speaks to Intel's library, which is for x86 only"},
	{[]string{"intel-openmp", "llvm-openmp", "libgomp"}, []string{"libgomp", "llvm-openmp", "libgcc-ng", "libgcc"},
		"another runtime of OpenMP is there"},
	{[]string{"icc_rt", "intel-*", "dal", "dal-devel", "daal4py", "scikit-learn-intelex", "dpcpp*", "onemkl*"},
		nil, "Intel's packages are for x86 only"},
	{[]string{"_libgcc_mutex", "_openmp_mutex", "_sysroot_*", "*-cos6-x86_64", "*-cos7-x86_64"}, nil,
		"it only holds other packages of its platform together"},
}

// substituteOf returns the substitute of a name, or nil.
func substituteOf(name string) *substitute {
	for i, s := range substitutes {
		for _, n := range s.names {
			head, isHead := strings.CutSuffix(n, "*")
			tail, isTail := strings.CutPrefix(n, "*")
			if n == name || (isHead && strings.HasPrefix(name, head)) || (isTail && strings.HasSuffix(name, tail)) {
				return &substitutes[i]
			}
		}
	}
	return nil
}

// renamed returns a package's name on another platform: ld_impl_linux-64 becomes
// ld_impl_linux-ppc64le.
func renamed(name, from, to string) string {
	if rest, ok := strings.CutSuffix(name, from); ok && from != "" {
		return rest + to
	}
	return name
}

// A move is the state of moving an export to other packages.
type move struct {
	export  *exports.Export
	options Options
	fetch   solve.Fetcher
	source  map[string]*solve.Record // known records of the export's own packages, by name
	has     map[string]bool          // names that the target has, as renamed
	alias   map[string]string        // names on the target, by the export's names
	entries map[string]exports.Entry // by name on the target
	roots   map[string]bool          // names on which no other package of the export depends
	pins    map[string]*solve.Record // records of entries that must stay as exported, by name
	problem *solve.Problem
	specs   map[string]exports.Spec  // of the export, by name
	similar func(name string) string // suggests a package of the channels
	notes   []string                 // for people
}

// solve finds the packages for the target that are closest to the export and fit together.
// Pins and packages on which nothing else depends, and python X.Y, are required; the others
// are kept if possible. Versions stay, or become the nearest.
func (m *move) solve(ctx context.Context) ([]*solve.Record, []Move, error) {
	all, err := m.prepare(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := m.refuse(); err != nil {
		return nil, nil, err
	}
	if err := m.constrain(); err != nil {
		return nil, nil, err
	}
	p := m.problem
	pkgs, err := p.Solve(ctx, all)
	if err != nil {
		return nil, nil, err
	}
	pkgs = inOrder(pkgs)
	return pkgs, m.table(pkgs), nil
}

// constrain adds constraints for the required packages. python comes first, since most packages
// depend on it.
func (m *move) constrain() error {
	p := m.problem
	for _, e := range m.export.Entries {
		name := m.alias[e.Name]
		text := name
		switch {
		case !m.has[name]:
			continue
		case m.pins[name] != nil:
			text = name + "==" + e.Version
			if e.Build != "" {
				text += "=" + e.Build
			}
		case name == "python" && pip.Minor(e.Version) != "":
			text = "python=" + pip.Minor(e.Version)
		case !m.roots[e.Name]:
			p.Optional = append(p.Optional, name)
			continue
		}
		s, err := solve.ParseSpec(text)
		if err != nil {
			return &exports.LineError{File: cmp.Or(e.File, m.export.File), Line: e.Line, Err: err}
		}
		if name == "python" {
			p.Wants = slices.Insert(p.Wants, 0, s)
		} else {
			p.Wants = append(p.Wants, s)
		}
	}
	return nil
}

// prepare reads the target's records of the export's names and of their dependencies.
func (m *move) prepare(ctx context.Context) ([]*solve.Record, error) {
	virtual, notes, err := virtualPackages(m.options, m.export.Virtual, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	for _, n := range notes {
		m.notes = append(m.notes, m.export.File+": "+n)
	}
	p := &solve.Problem{Subdir: m.options.Subdir, Channels: m.options.Channels, Flexible: m.options.Flexible,
		Virtual: virtual, Keep: map[string]solve.Kept{}, From: map[string]string{}}
	m.problem, m.alias, m.entries, m.has = p, map[string]string{}, map[string]exports.Entry{}, map[string]bool{}
	if err := m.want(); err != nil {
		return nil, err
	}
	python := ""
	for _, e := range m.export.Entries {
		if e.Name == "python" {
			python = pip.Minor(e.Version)
		}
	}
	for _, e := range m.export.Entries {
		name := renamed(e.Name, m.export.Subdir, m.options.Subdir)
		m.alias[e.Name], m.entries[name] = name, e
		p.Keep[name] = solve.Kept{Version: e.Version, Build: e.Build, Python: python}
		p.From[name] = e.Channel
		p.Optional = append(p.Optional, name)
	}
	all, err := p.Gather(ctx, m.fetch)
	p.Optional = nil
	for _, r := range all {
		m.has[r.Name] = true
	}
	m.roots = m.findRoots()
	m.pin(all)
	return all, err
}

// pin finds the entries that must stay as exported: those whose version and build a channel has, on
// the platform of the export. Each comes from the first channel that has it.
func (m *move) pin(all []*solve.Record) {
	m.pins = map[string]*solve.Record{}
	if m.options.Relax || !m.onSamePlatform() {
		return
	}
	for _, r := range all {
		e, ok := m.entries[r.Name]
		if ok && m.pins[r.Name] == nil && r.From(e.Channel) && r.Version == e.Version && (r.Build == e.Build || e.Build == "") {
			m.pins[r.Name], m.problem.From[r.Name] = r, r.Origin
		}
	}
}

// onSamePlatform reports whether the export is for the platform of the image, or does not record
// its own.
func (m *move) onSamePlatform() bool {
	return m.export.Subdir == "" || m.export.Subdir == m.options.Subdir
}

// want adds constraints for the export's specs in their order, but python first, since most
// packages depend on it. As in conda, python implies pip.
func (m *move) want() error {
	m.specs = map[string]exports.Spec{}
	for _, w := range m.export.UnmetSpecs() {
		s, err := solve.ParseSpec(w.Text)
		if err != nil {
			return &exports.LineError{File: cmp.Or(w.File, m.export.File), Line: w.Line, Err: err}
		}
		m.specs[s.Name] = w
		if s.Name == "python" {
			m.problem.Wants = slices.Insert(m.problem.Wants, 0, s)
		} else {
			m.problem.Wants = append(m.problem.Wants, s)
		}
		m.problem.Pip = len(pinnedPip(m.export)) == 0
	}
	for _, w := range m.export.Limits {
		s, err := solve.ParseSpec(w.Text)
		if err != nil {
			return &exports.LineError{File: cmp.Or(w.File, m.export.File), Line: w.Line, Err: err}
		}
		m.specs[s.Name] = w
		m.problem.Limits = append(m.problem.Limits, s)
	}
	return nil
}

// findRoots returns the packages on which no other package of the export depends. Without
// records of the export's packages, that is all of them.
func (m *move) findRoots() map[string]bool {
	needed := map[string]bool{}
	for name, r := range m.source {
		for _, d := range r.Depends {
			if n := solve.Dependency(d); n != name {
				needed[n] = true
			}
		}
	}
	roots := map[string]bool{}
	for _, e := range m.export.Entries {
		if !needed[e.Name] && substituteOf(e.Name) == nil {
			roots[e.Name] = true
		}
	}
	return roots
}

// refuse returns an error that lists the required packages missing on the target.
func (m *move) refuse() error {
	var f input.Faults
	for _, e := range m.export.Entries {
		if m.roots[e.Name] && !m.has[m.alias[e.Name]] {
			f.Add(e.File, e.Line, e.String()+" ("+noPackage+")")
		}
	}
	for _, w := range m.export.UnmetSpecs() {
		if s, err := solve.ParseSpec(w.Text); err == nil && !m.has[s.Name] && !strings.HasPrefix(s.Name, "__") {
			f.Add(w.File, w.Line, fmt.Sprintf("%s (%s)", w.Text, noneNamed(s.Name, m.similar)))
		}
	}
	if len(f.Texts) == 0 {
		return nil
	}
	return &exports.LineError{File: cmp.Or(f.File, m.export.File), Line: f.Line,
		Err: fmt.Errorf("%s not in the channels for %s: %s",
			input.Share(len(f.Texts), len(m.export.Entries)+len(m.export.UnmetSpecs()), "is", "are"), m.options.Subdir, f.Join("; "))}
}

// line returns the first line of the export that is part of a conflict, and its file if the export
// has several.
func (m *move) line(u *solve.Unsolvable) (file string, line int) {
	for _, e := range m.export.Entries {
		if slices.Contains(u.Names, m.alias[e.Name]) {
			return e.File, e.Line
		}
	}
	for _, w := range slices.Concat(m.problem.Wants, m.problem.Limits) {
		if s, ok := m.specs[w.Name]; ok && slices.Contains(u.Names, w.Name) {
			return s.File, s.Line
		}
	}
	if len(m.export.Entries) > 0 {
		return m.export.Entries[0].File, m.export.Entries[0].Line
	}
	s := m.export.UnmetSpecs()[0]
	return s.File, s.Line
}

// table returns what happened to each package of the export, and the added packages.
func (m *move) table(pkgs []*solve.Record) []Move {
	taken := map[string]*solve.Record{}
	for _, r := range pkgs {
		taken[r.Name] = r
	}
	var out []Move
	used := map[string]bool{}
	for _, e := range m.export.Entries {
		row := Move{Name: e.Name, From: strings.TrimSuffix(e.Version+"="+e.Build, "=")}
		if r := taken[m.alias[e.Name]]; r != nil {
			used[r.Name] = true
			row.To = r.Name + "=" + r.Version + "=" + r.Build
			row.Fate, row.Why = m.fate(e, r)
		} else {
			row.Fate, row.To, row.Why = m.gone(e, taken)
		}
		row.Degraded = row.Fate != exact && (row.Fate != rebuilt || (e.Build != "" && m.onSamePlatform()))
		out = append(out, row)
	}
	for _, r := range pkgs { // constraints always add dependencies
		if !used[r.Name] && len(m.specs) == 0 {
			out = append(out, Move{Name: r.Name, To: r.Name + "=" + r.Version + "=" + r.Build, Fate: added, Why: neededBy(r.Name, pkgs)})
		}
	}
	return out
}

// fate compares a chosen package with the exported one.
func (m *move) fate(e exports.Entry, r *solve.Record) (Fate, string) {
	switch {
	case r.Version == e.Version && r.Build == e.Build && m.alias[e.Name] == e.Name:
		return exact, ""
	case r.Version == e.Version:
		return rebuilt, ""
	}
	for _, x := range m.problem.Found[r.Name] {
		if x.Version == e.Version {
			return changed, "version " + e.Version + " is there and does not go with the others"
		}
	}
	return changed, "there is no version " + e.Version
}

// gone explains why a package of the export is not used, and what replaces it.
func (m *move) gone(e exports.Entry, taken map[string]*solve.Record) (Fate, string, string) {
	if s := substituteOf(e.Name); s != nil && !m.has[m.alias[e.Name]] {
		for _, by := range s.by {
			if r := taken[by]; r != nil {
				return substituted, r.Name + "=" + r.Version + "=" + r.Build, s.why
			}
		}
		return missing, "", s.why
	}
	if m.has[m.alias[e.Name]] {
		return missing, "", "it does not go with the others"
	}
	return missing, "", "there is no package of that name, and nothing needs it there"
}

// neededBy names the first packages that depend on a name.
func neededBy(name string, pkgs []*solve.Record) string {
	var who []string
	for _, r := range pkgs {
		for _, d := range r.Depends {
			if solve.Dependency(d) == name && !slices.Contains(who, r.Name) {
				who = append(who, r.Name)
			}
		}
	}
	return "needed by " + input.Join(who, "and", 3)
}
