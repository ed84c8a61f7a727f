package solve

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// sort orders a name's packages by preference. Preferred are, in this order: the version and
// build to keep, or the nearest; packages without track_features, which mark non-default
// packages; the earlier channel, if channels mix; the higher version; the higher build number;
// compatibility with higher versions of the common dependencies; fewer outdated additional packages;
// fewer additional packages; the later timestamp.
func (l *pool) sort(f *family) {
	kept, keep := l.problem.Keep[f.name]
	var goal version
	if keep {
		var err error
		goal, err = parseVersion(kept.Version)
		keep = err == nil
	}
	rank := f.channelRanks()
	key := func(a, b *candidate) int {
		c := cmp.Or(cmp.Compare(len(a.rec.TrackFeatures), len(b.rec.TrackFeatures)), cmp.Compare(rank[a.rec.Origin], rank[b.rec.Origin]))
		if keep && a.version.text != b.version.text {
			c = cmp.Or(compareDistance(a.version, b.version, goal), c)
		} else if keep {
			c = cmp.Or(asInt(b.rec.Build == kept.Build)-asInt(a.rec.Build == kept.Build),
				asInt(b.rec.Fits(kept.Python))-asInt(a.rec.Fits(kept.Python)), c)
		}
		return cmp.Or(c, b.version.compare(a.version), cmp.Compare(b.rec.BuildNumber, a.rec.BuildNumber))
	}
	slices.SortStableFunc(f.candidates, key)
	for from := 0; from < len(f.candidates); {
		to := from + 1
		for to < len(f.candidates) && key(f.candidates[from], f.candidates[to]) == 0 {
			to++
		}
		if tied := f.candidates[from:to]; l.sortTied(tied) {
			f.tied = append(f.tied, tied)
		}
		from = to
	}
}

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// channelRanks numbers the channels of a name's packages. The packages are in channel order.
func (f *family) channelRanks() map[string]int {
	out := map[string]int{}
	for _, c := range f.candidates {
		if _, ok := out[c.rec.Origin]; !ok {
			out[c.rec.Origin] = len(out)
		}
	}
	return out
}

// sortTied orders packages that sort considers equal, such as builds of one version. It reports
// whether the order depends on which other packages will be installed.
func (l *pool) sortTied(cs []*candidate) bool {
	if len(cs) < 2 {
		return false
	}
	names := l.common(cs)
	best, old, count := map[*candidate][]quality{}, map[*candidate]int{}, map[*candidate]int{}
	for _, c := range cs {
		best[c] = l.dependencyQuality(c, names)
	}
	differ := l.differInDependencies(cs)
	if differ {
		others := l.neededWithout(cs[0].rec.Name)
		for _, c := range cs {
			added := l.closure(l.specsOf(l.needs(c.rec)), others)
			old[c], count[c] = l.outdated(added), len(added)
		}
	}
	slices.SortStableFunc(cs, func(a, b *candidate) int {
		for i := range names {
			if o := best[a][i].compare(best[b][i]); o != 0 {
				return o
			}
		}
		return cmp.Or(cmp.Compare(old[a], old[b]), cmp.Compare(count[a], count[b]),
			cmp.Compare(b.rec.time(), a.rec.time()), strings.Compare(a.rec.Subdir, b.rec.Subdir), strings.Compare(b.rec.Build, a.rec.Build))
	})
	return differ
}

// expect sets the packages that will presumably be installed.
func (l *pool) expect(pkgs []*Record) {
	l.expected = map[string]*Record{}
	for _, r := range pkgs {
		l.expected[r.Name] = r
	}
}

// prefersOthers reports whether the chosen packages, if they are expected, change the order
// among packages that are tied with one of them. Without a solution, that order assumes the
// best package of each name.
func (l *pool) prefersOthers(pkgs []*Record) bool {
	l.expect(pkgs)
	for _, r := range pkgs {
		for _, tied := range l.family(r.Name).tied {
			if !slices.ContainsFunc(tied, func(c *candidate) bool { return c.rec == r }) {
				continue
			}
			again := slices.Clone(tied)
			l.sortTied(again)
			if !slices.Equal(again, tied) {
				return true
			}
		}
	}
	return false
}

// common returns the sorted names that all of the candidates require.
func (l *pool) common(cs []*candidate) []string {
	count := map[string]int{}
	for i, c := range cs {
		for _, d := range c.rec.Depends {
			if n := l.spec(d).Name; count[n] == i {
				count[n] = i + 1
			}
		}
	}
	var out []string
	for n, k := range count {
		if k == len(cs) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// A bestPackage is the best package that a spec accepts; rec is nil if there is none.
type bestPackage struct {
	quality
	rec *Record
}

// quality holds the properties by which the best package for a requirement is chosen.
type quality struct {
	found    bool // false if no package satisfies the requirement
	features int  // number of track_features
	version  version
}

// compare returns a negative number if h is better than g.
func (h quality) compare(g quality) int {
	if h.found != g.found {
		return asInt(g.found) - asInt(h.found)
	}
	return cmp.Or(cmp.Compare(h.features, g.features), g.version.compare(h.version))
}

// dependencyQuality returns, for each name, the best package that a candidate accepts. If the
// candidate has several requirements on a name, the worst result counts.
func (l *pool) dependencyQuality(c *candidate, names []string) []quality {
	out := make([]quality, len(names))
	for i, n := range names {
		first := true
		for _, d := range c.rec.Depends {
			s := l.spec(d)
			if s.Name != n {
				continue
			}
			if h, _ := l.best(s); first || out[i].compare(h) < 0 {
				out[i], first = h, false
			}
		}
	}
	return out
}

// best returns the best package that a spec accepts and the machine can run. It does not need the
// name's packages to be sorted.
func (l *pool) best(s *Spec) (best quality, rec *Record) {
	if t, ok := l.bestBySpec[s.text]; ok {
		return t.quality, t.rec
	}
	for _, c := range l.family(s.Name).candidates {
		h := quality{true, len(c.rec.TrackFeatures), c.version}
		o := h.compare(best)
		if o == 0 && rec != nil { // of equal builds, the one with fewer requirements
			o = cmp.Or(cmp.Compare(rec.BuildNumber, c.rec.BuildNumber), cmp.Compare(len(c.rec.Depends), len(rec.Depends)))
		}
		if o < 0 && s.matches(c.rec, c.version) && l.canRun(c.rec) {
			best, rec = h, c.rec
		}
	}
	l.bestBySpec[s.text] = bestPackage{best, rec}
	return best, rec
}

// canRun reports whether the virtual packages meet all requirements of a record on them.
func (l *pool) canRun(r *Record) bool {
	for _, d := range r.Depends {
		if !strings.HasPrefix(d, "__") {
			continue
		}
		s := l.spec(d)
		if s == nil || !slices.ContainsFunc(l.problem.Virtual, s.Meets) {
			return false
		}
	}
	return true
}

// differInDependencies reports whether the candidates depend on different names.
func (l *pool) differInDependencies(cs []*candidate) bool {
	first := ""
	for i, c := range cs {
		var names []string
		for _, d := range c.rec.Depends {
			names = append(names, l.spec(d).Name)
		}
		slices.Sort(names)
		if all := strings.Join(slices.Compact(names), " "); i == 0 {
			first = all
		} else if all != first {
			return true
		}
	}
	return false
}

// neededWithout returns a name and the names that the problem needs if the packages of that
// name have no dependencies. A dependency on one of these names adds no package.
func (l *pool) neededWithout(name string) map[string]*Record {
	wants := slices.Concat(l.problem.Wants, l.specsOf(l.problem.Optional))
	needed := l.closure(wants, map[string]*Record{name: nil})
	needed[name] = nil
	return needed
}

// closure returns the packages that specs need, with their transitive dependencies, by name, except
// known names and those that only known names need. It assumes the expected package for each spec,
// or else the best; nil if there is none. Virtual packages do not count, because they are never
// installed.
func (l *pool) closure(specs []*Spec, known map[string]*Record) map[string]*Record {
	pkgs := map[string]*Record{}
	for len(specs) > 0 {
		s := specs[0]
		specs = specs[1:]
		if s == nil || strings.HasPrefix(s.Name, "__") {
			continue
		}
		if _, ok := known[s.Name]; ok {
			continue
		}
		if _, ok := pkgs[s.Name]; ok {
			continue
		}
		r := l.expected[s.Name]
		if r == nil || !s.Meets(r) {
			_, r = l.best(s)
		}
		if pkgs[s.Name] = r; r != nil {
			specs = append(specs, l.specsOf(l.needs(r))...)
		}
	}
	return pkgs
}

// outdated returns the number of packages of which a better version exists.
func (l *pool) outdated(pkgs map[string]*Record) (n int) {
	for name, r := range pkgs {
		anyOf := l.spec(name)
		if r == nil || anyOf == nil {
			continue
		}
		v, err := parseVersion(r.Version)
		if best, _ := l.best(anyOf); err == nil && best.compare(quality{true, len(r.TrackFeatures), v}) < 0 {
			n++
		}
	}
	return n
}

// specsOf parses requirements; invalid ones are nil.
func (l *pool) specsOf(texts []string) []*Spec {
	out := make([]*Spec, len(texts))
	for i, text := range texts {
		out[i] = l.spec(text)
	}
	return out
}

// compareDistance orders versions by their distance to a goal: more equal leading components
// first, then the smaller difference in the next component.
func compareDistance(a, b, goal version) int {
	i, x := a.distance(goal)
	j, y := b.distance(goal)
	return cmp.Or(cmp.Compare(j, i), cmp.Compare(x, y))
}

// distance returns the number of equal leading components, and the difference in the next.
func (v version) distance(goal version) (same int, difference uint64) {
	n := max(len(v.release), len(goal.release))
	for same < n {
		var x, y component
		if same < len(v.release) {
			x = v.release[same]
		}
		if same < len(goal.release) {
			y = goal.release[same]
		}
		if x.compare(y) == 0 {
			same++
			continue
		}
		a, b := x.at(0).value(), y.at(0).value()
		return same, max(a, b) - min(a, b)
	}
	if len(v.local)+len(goal.local) > 0 && compareComponents(v.local, goal.local) != 0 {
		return same, 1
	}
	return same + 1, 0
}

// value returns a run of digits as a number of at most 1<<62, and 0 for other runs.
func (r run) value() uint64 {
	if r.kind != number {
		return 0
	}
	n, err := strconv.ParseUint(cmp.Or(r.text, "0"), 10, 62)
	if err != nil {
		return 1 << 62
	}
	return n
}
