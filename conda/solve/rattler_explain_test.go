package solve

import (
	"cmp"
	"slices"
	"strings"
	"testing"
)

// recordsOf returns the records of rattler's packages.
func (c *comparison) recordsOf(t *testing.T, list []string) (out []*Record) {
	for _, text := range list {
		i := slices.IndexFunc(c.index.records, func(r *Record) bool { return r.Name+"="+r.Version+"="+r.Build == text })
		if i < 0 {
			t.Fatalf("%s: rattler chose %s, which the index lacks", c, text)
		}
		out = append(out, c.index.records[i])
	}
	return out
}

// explain returns why the results of both solvers are the same or differ. Each reason is proven; the
// test fails if there is none.
func (c *comparison) explain(t *testing.T) string {
	mine := builds(c.packages)
	switch {
	case c.theirs.Packages == nil && !strings.HasPrefix(c.theirs.Error, "Cannot solve the request"):
		t.Errorf("%s: rattler fails: %s", c, c.theirs.Error)
		return "rattler fails"
	case c.err != nil && c.theirs.Packages == nil:
		return "no solution"
	case c.err == nil && slices.Equal(mine, c.theirs.Packages):
		return "same"
	}
	theirs := c.recordsOf(t, c.theirs.Packages)
	reason := ""
	switch refused := c.check(theirs); {
	case c.theirs.Packages == nil:
		if c.onlyLetters(c.packages, true) && c.confirmed.Error != "" {
			reason = letters
		}
	case refused != nil:
		reason = c.unacceptable(theirs)
	case c.err == nil && slices.Equal(c.confirmed.Packages, mine):
		reason = c.preference(t, theirs)
	}
	if reason == "" {
		reason = "unexplained"
		t.Errorf("%s:\nhpcc only: %v %v\nrattler only: %v %v\ncheck of rattler's: %v\nhpcc's with rattler: %v", c, missing(mine, c.theirs.Packages), c.err, missing(c.theirs.Packages, mine), c.theirs.Error, c.check(theirs), c.confirmed)
	}
	return reason
}

// unacceptable returns why hpcc, like conda, does not accept a solution of rattler. It proves that
// the solution violates nothing else.
func (c *comparison) unacceptable(theirs []*Record) string {
	relaxed := *c
	problem := *c.problem
	relaxed.problem = &problem
	problem.Wants = nil
	for _, s := range c.problem.Wants {
		w := *s
		w.subdir = ""
		problem.Wants = append(problem.Wants, &w)
	}
	if relaxed.check(theirs) == nil {
		return "rattler ignores [subdir=...] of a spec"
	}
	if c.onlyLetters(theirs, false) {
		return letters
	}
	if valid(c.problem, theirs) == nil {
		for _, s := range c.problem.Wants {
			first := c.index.byName[s.Name][0].Origin
			chosen := func(r *Record) bool { return r.Name == s.Name && r.Origin != first }
			match := func(r *Record) bool { return r.Origin == first && s.Meets(r) }
			if slices.ContainsFunc(theirs, chosen) && !slices.ContainsFunc(c.index.byName[s.Name], match) {
				return "rattler's strict channel priority passes over channels without a match for a requested spec"
			}
		}
	}
	return ""
}

// rankVersions compares packages of one name by track_features and version. It is negative if a is
// preferred.
func rankVersions(a, b *Record) int {
	v, _ := parseVersion(a.Version)
	w, _ := parseVersion(b.Version)
	return cmp.Or(asInt(len(a.TrackFeatures) > 0)-asInt(len(b.TrackFeatures) > 0), w.compare(v))
}

// rank compares packages as both solvers do, without their dependencies: as rankVersions, and by build
// number.
func rank(a, b *Record) int {
	return cmp.Or(rankVersions(a, b), cmp.Compare(b.BuildNumber, a.BuildNumber))
}

// outdated returns the number of packages of which the index has a better version.
func (c *comparison) outdated(pkgs []*Record) (n int) {
	for _, r := range pkgs {
		n += asInt(slices.ContainsFunc(c.index.byName[r.Name], func(o *Record) bool {
			return o.Origin == r.Origin && rankVersions(o, r) < 0
		}))
	}
	return n
}

// rankDependencies compares builds of one version by the installed packages that both depend on, in
// the order of their names. It is negative if a is preferred.
func rankDependencies(a, b *Record, withA, withB map[string]*Record) int {
	var names []string
	for _, d := range b.Depends {
		names = append(names, Dependency(d))
	}
	slices.Sort(names)
	for _, n := range names {
		needs := slices.ContainsFunc(a.Depends, func(d string) bool { return Dependency(d) == n })
		if r, o := withA[n], withB[n]; a.Build != b.Build && needs && r != nil && o != nil {
			if d := rankVersions(r, o); d != 0 {
				return d
			}
		}
	}
	return 0
}

// preference returns why hpcc prefers its solution to a valid one of rattler, or "" if nothing shows
// that rattler's is not better.
func (c *comparison) preference(t *testing.T, theirs []*Record) string {
	mine, other := map[string]*Record{}, map[string]*Record{}
	for _, r := range c.packages {
		mine[r.Name] = r
	}
	for _, r := range theirs {
		other[r.Name] = r
	}
	for _, s := range c.problem.Wants {
		r, o := mine[s.Name], other[s.Name]
		d := rank(r, o)
		if d > 0 {
			return ""
		}
		if cmp.Or(d, rankDependencies(r, o, mine, other)) < 0 {
			return "hpcc has a better version or build of an earlier requested package"
		}
	}
	better, worse, worseVersions := 0, 0, 0
	for name, r := range mine {
		if o := other[name]; o != nil {
			d := cmp.Or(rank(r, o), cmp.Compare(o.time(), r.time()))
			better += asInt(d < 0)
			worse += asInt(d > 0)
			worseVersions += asInt(rank(r, o) > 0)
		}
	}
	switch {
	case len(mine) < len(other) && worseVersions == 0:
		return "hpcc needs fewer packages, with the same or better versions"
	case better > 0 && worse > 0:
		return "each has a better version or build of some dependency"
	case c.outdated(c.packages) < c.outdated(theirs):
		return "hpcc has fewer packages of which the index has a better version"
	case better > 0:
		return "hpcc has better versions or builds of dependencies"
	case worse == 0 && len(mine) == len(other):
		return "the builds are equally good"
	case len(mine) < len(other) && c.follows(t, mine, theirs):
		return "hpcc needs fewer packages; rattler's later build has better dependencies"
	case worse == 0 && c.localBest(t, mine, theirs):
		return "rattler needs fewer packages, but no single other build would save one"
	}
	return ""
}

// letters is the reason of differences at versions such as 1.1.1w.
const letters = "1.1.1.* matches 1.1.1w in hpcc and conda, but not in rattler"

// atLetters reports whether a spec has an operand such as 1.1.1.* or =1.1.1 and the version is the
// operand with letters after it.
func atLetters(s *Spec, version string) bool {
	for _, text := range strings.FieldsFunc(s.versionText, func(r rune) bool { return strings.ContainsRune(",|()", r) }) {
		op := strings.TrimLeft(text, "!=")
		line := strings.TrimRight(op, ".*")
		rest, ok := strings.CutPrefix(version, line)
		if ok && (line != op || strings.HasPrefix(text, "=")) && rest != "" && rest[0] >= 'a' && rest[0] <= 'z' {
			return true
		}
	}
	return false
}

// requirements calls f for each spec that applies to one of the packages.
func (c *comparison) requirements(pkgs []*Record, f func(s *Spec, r *Record)) {
	byName := map[string]*Record{}
	for _, r := range pkgs {
		byName[r.Name] = r
	}
	all := slices.Clone(c.problem.Wants)
	for _, r := range pkgs {
		for _, text := range slices.Concat(r.Depends, r.Constrains) {
			if s, err := ParseSpec(text); err == nil {
				all = append(all, s)
			}
		}
	}
	for _, s := range all {
		if r := byName[s.Name]; r != nil {
			f(s, r)
		}
	}
}

// onlyLetters reports whether each spec that the packages do not meet is one of atLetters. With met,
// it reports whether they meet a spec of atLetters.
func (c *comparison) onlyLetters(pkgs []*Record, met bool) bool {
	affected, others := 0, 0
	c.requirements(pkgs, func(s *Spec, r *Record) {
		if s.Meets(r) == met && atLetters(s, r.Version) {
			affected++
		} else if !met && !s.Meets(r) {
			others++
		}
	})
	return affected > 0 && others == 0
}

// follows reports whether hpcc finds the other solution if it must take its builds of the packages of
// which both have the same version and build number.
func (c *comparison) follows(t *testing.T, mine map[string]*Record, theirs []*Record) bool {
	p := *c.problem
	p.Wants = slices.Clone(p.Wants)
	for _, o := range theirs {
		if r := mine[o.Name]; r != nil && r.Build != o.Build && rank(r, o) == 0 {
			p.Wants = append(p.Wants, specs(t, o.Name+" =="+o.Version+" "+o.Build)...)
		}
	}
	pkgs, err := p.Solve(t.Context(), c.index.records)
	return err == nil && slices.Equal(builds(pkgs), builds(theirs))
}

// localBest reports whether each build of rattler, if it alone replaces that of hpcc, needs at least as
// many packages as hpcc's solution.
func (c *comparison) localBest(t *testing.T, mine map[string]*Record, theirs []*Record) bool {
	tied := func(o *Record) bool {
		r := mine[o.Name]
		return r != nil && r.Build != o.Build && rank(r, o) == 0
	}
	for _, one := range theirs {
		if !tied(one) {
			continue
		}
		p := *c.problem
		p.Wants = slices.Clone(p.Wants)
		for _, o := range theirs {
			if r := mine[o.Name]; tied(o) {
				if o == one {
					r = o
				}
				p.Wants = append(p.Wants, specs(t, r.Name+" =="+r.Version+" "+r.Build)...)
			}
		}
		if pkgs, err := p.Solve(t.Context(), c.index.records); err == nil && len(pkgs) < len(mine) {
			return false
		}
	}
	return c.follows(t, mine, theirs)
}
