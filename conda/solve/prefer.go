package solve

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// sort orders a name's packages by preference: without track_features, which mark
// non-default packages; if channels mix, from the earlier channel; as in the export, or
// closest to it; higher version; higher build number; compatible with higher versions of
// its dependencies; fewer dependencies; later timestamp.
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
			c = cmp.Or(nearer(a.version, b.version, goal), c)
		} else if keep {
			c = cmp.Or(asInt(b.rec.Build == kept.Build)-asInt(a.rec.Build == kept.Build), asInt(b.rec.Fits(kept.Python))-asInt(a.rec.Fits(kept.Python)), c)
		}
		return cmp.Or(c, b.version.compare(a.version), cmp.Compare(b.rec.BuildNumber, a.rec.BuildNumber))
	}
	slices.SortStableFunc(f.candidates, key)
	for from := 0; from < len(f.candidates); {
		to := from + 1
		for to < len(f.candidates) && key(f.candidates[from], f.candidates[to]) == 0 {
			to++
		}
		l.sortTied(f.candidates[from:to])
		from = to
	}
}

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// channelRanks numbers the channels of a name's packages, which are in channel order.
func (f *family) channelRanks() map[string]int {
	out := map[string]int{}
	for _, c := range f.candidates {
		if _, ok := out[c.rec.Origin]; !ok {
			out[c.rec.Origin] = len(out)
		}
	}
	return out
}

// sortTied orders the builds of one version and build number.
func (l *pool) sortTied(cs []*candidate) {
	if len(cs) < 2 {
		return
	}
	names := l.common(cs)
	best, count := map[*candidate][]heights{}, map[*candidate]int{}
	for _, c := range cs {
		best[c] = l.reach(c, names)
	}
	if l.differ(cs) {
		for _, c := range cs {
			count[c] = l.closure(c.rec)
		}
	}
	slices.SortStableFunc(cs, func(a, b *candidate) int {
		for i := range names {
			if o := best[a][i].compare(best[b][i]); o != 0 {
				return o
			}
		}
		return cmp.Or(cmp.Compare(count[a], count[b]), cmp.Compare(b.rec.Timestamp, a.rec.Timestamp), strings.Compare(a.rec.Subdir, b.rec.Subdir), strings.Compare(b.rec.Build, a.rec.Build))
	})
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

type top struct {
	heights
	rec *Record
}

// heights describes the best package that a requirement accepts.
type heights struct {
	found    bool
	features int
	version  version
}

// compare sorts the better first.
func (h heights) compare(g heights) int {
	if h.found != g.found {
		return asInt(g.found) - asInt(h.found)
	}
	return cmp.Or(cmp.Compare(h.features, g.features), g.version.compare(h.version))
}

// reach returns the best packages of the names that a candidate accepts. If it has several
// requirements on a name, the worst counts.
func (l *pool) reach(c *candidate, names []string) []heights {
	out := make([]heights, len(names))
	for i, n := range names {
		first := true
		for _, d := range c.rec.Depends {
			s := l.spec(d)
			if s.Name != n {
				continue
			}
			if h, _ := l.highest(s); first || out[i].compare(h) < 0 {
				out[i], first = h, false
			}
		}
	}
	return out
}

// highest returns the best package that a spec accepts. The name's packages need not be
// sorted yet.
func (l *pool) highest(s *Spec) (best heights, rec *Record) {
	if t, ok := l.tops[s.text]; ok {
		return t.heights, t.rec
	}
	for _, c := range l.family(s.Name).candidates {
		h := heights{true, len(c.rec.TrackFeatures), c.version}
		o := h.compare(best)
		if (o < 0 || (o == 0 && c.rec.BuildNumber > rec.BuildNumber)) && s.matches(c.rec, c.version) {
			best, rec = h, c.rec
		}
	}
	l.tops[s.text] = top{best, rec}
	return best, rec
}

// differ reports whether the candidates require different names.
func (l *pool) differ(cs []*candidate) bool {
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

// closure counts the direct and indirect dependencies of a package, using the best package
// of each name.
func (l *pool) closure(r *Record) int {
	seen := map[string]bool{r.Name: true}
	queue := []*Record{r}
	for len(queue) > 0 {
		r, queue = queue[0], queue[1:]
		for _, d := range r.Depends {
			s := l.spec(d)
			if s == nil || seen[s.Name] {
				continue
			}
			seen[s.Name] = true
			if _, next := l.highest(s); next != nil {
				queue = append(queue, next)
			}
		}
	}
	return len(seen)
}

// nearer orders versions by distance to a goal: more equal leading numbers, then the smaller
// difference in the next number, then the higher version.
func nearer(a, b, goal version) int {
	i, x := a.distance(goal)
	j, y := b.distance(goal)
	return cmp.Or(cmp.Compare(j, i), cmp.Compare(x, y))
}

// distance returns the number of equal leading numbers, and the difference in the next.
func (v version) distance(goal version) (same int, off uint64) {
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

// value returns a run of digits as a number, saturating at the maximum.
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
