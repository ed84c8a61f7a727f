package solve

import (
	"slices"
	"strings"
)

// A pool holds all available packages by name, in order of preference. Names are prepared
// on first use.
type pool struct {
	problem    *Problem
	families   map[string]*family
	specs      map[string]*Spec // by text; nil if invalid
	matches    map[string]*match
	edges      map[edgeKey]*edge
	bestBySpec map[string]bestPackage // the best package by the text of a spec
	count      int                    // number of candidates, and the ID of the next
	expected   map[string]*Record     // a former solution by name; nil without one
	root       *candidate
	all        []*candidate // by ID
}

// A family is the set of packages of one name.
type family struct {
	name       string
	candidates []*candidate   // best first
	tied       [][]*candidate // parts of candidates that differ only in their dependencies and dates
	hidden     []*Record      // excluded by strict channel priority
	broken     []*Record      // with an invalid version or requirement
}

// A candidate is a package that can be chosen.
type candidate struct {
	id, at  int // at is the index in the family
	rec     *Record
	version version
	family  *family
	demands []*demand
}

// A demand is a requirement of a candidate on another name: one matching package must be
// installed (need), or no other package may be.
type demand struct {
	*match
	by   *candidate
	edge *edge
}

// A match is the set of packages of a name that a spec accepts.
type match struct {
	spec *Spec
	to   *family
	ok   []bool // by candidate.at
	any  bool   // at least one
}

// An edge is the set of requirements of one name's packages on another name. Explanations
// consist of edges.
type edge struct {
	edgeKey
	demands []*demand
}

type edgeKey struct {
	from, to string
	need     bool
	want     int // index of the want; then from is ""
}

// newPool returns a pool of the records, which are in the order of the channels. expected is a
// former solution, or nil.
func newPool(p *Problem, records, expected []*Record) *pool {
	l := &pool{problem: p, families: map[string]*family{}, specs: map[string]*Spec{},
		matches: map[string]*match{}, edges: map[edgeKey]*edge{}, bestBySpec: map[string]bestPackage{}}
	l.expect(expected)
	byName := map[string][]*Record{}
	for _, r := range records {
		byName[r.Name] = append(byName[r.Name], r)
	}
	for _, r := range p.Virtual {
		byName[r.Name] = []*Record{r}
	}
	p.Found = byName
	for name, rs := range byName {
		f := &family{name: name}
		l.families[name] = f
		for _, r := range l.allowed(f, rs) {
			l.admit(f, r)
		}
	}
	l.root = &candidate{rec: &Record{}, family: &family{}}
	for i, s := range p.Wants {
		l.demand(l.root, edgeKey{to: s.Name, need: true, want: i + 1}, s)
	}
	for i, s := range p.Limits {
		l.demand(l.root, edgeKey{to: s.Name, want: len(p.Wants) + i + 1}, s)
	}
	return l
}

// allowed removes records that strict channel priority hides, and archives in the old
// format that also exist in the new one.
func (l *pool) allowed(f *family, rs []*Record) []*Record {
	named := l.problem.From[f.name]
	for _, s := range l.problem.Wants {
		if s.Name == f.name && s.channel != "" {
			named = s.channel
		}
	}
	rs = slices.DeleteFunc(slices.Clone(rs), func(r *Record) bool { return named != "" && !r.From(named) })
	var out []*Record
	twins := map[string]int{}
	for _, r := range rs {
		if !l.problem.Flexible && r.Origin != rs[0].Origin {
			f.hidden = append(f.hidden, r)
			continue
		}
		key := r.Origin + " " + r.Subdir + " " + r.Version + " " + r.Build
		if i, ok := twins[key]; !ok {
			twins[key] = len(out)
			out = append(out, r)
		} else if strings.HasSuffix(r.FileName, ".conda") {
			out[i] = r
		}
	}
	return out
}

// admit adds a record to its family as a candidate.
func (l *pool) admit(f *family, r *Record) {
	v, err := parseVersion(r.Version)
	if err != nil {
		f.broken = append(f.broken, r)
		return
	}
	f.candidates = append(f.candidates, &candidate{rec: r, version: v, family: f})
}

// spec parses a requirement of a package; nil if invalid.
func (l *pool) spec(text string) *Spec {
	s, ok := l.specs[text]
	if !ok {
		s, _ = ParseSpec(text)
		l.specs[text] = s
	}
	return s
}

// family returns all packages of a name.
func (l *pool) family(name string) *family {
	f := l.families[name]
	if f == nil {
		f = &family{name: name}
		l.families[name] = f
	}
	return f
}

// match returns the packages that a spec accepts.
func (l *pool) match(s *Spec) *match {
	m := l.matches[s.text]
	if m == nil {
		f := l.ready(s.Name)
		m = &match{spec: s, to: f, ok: make([]bool, len(f.candidates))}
		for i, c := range f.candidates {
			m.ok[i] = s.matches(c.rec, c.version)
			m.any = m.any || m.ok[i]
		}
		l.matches[s.text] = m
	}
	return m
}

// ready returns a name's packages, best first, with IDs.
func (l *pool) ready(name string) *family {
	f := l.family(name)
	if len(f.candidates) == 0 || f.candidates[0].id > 0 {
		return f
	}
	f.candidates = slices.DeleteFunc(f.candidates, func(c *candidate) bool {
		for _, d := range slices.Concat(c.rec.Depends, c.rec.Constrains) {
			if l.spec(d) == nil {
				f.broken = append(f.broken, c.rec)
				return true
			}
		}
		return false
	})
	l.sort(f)
	for i, c := range f.candidates {
		c.at = i
		l.count++
		c.id = l.count
		l.all = append(l.all, c)
	}
	return f
}

// ask returns the demands of a candidate, computed on first use.
func (l *pool) ask(c *candidate) []*demand {
	if c.demands != nil || c == l.root {
		return c.demands
	}
	c.demands = []*demand{}
	for _, d := range l.needs(c.rec) {
		s := l.spec(d)
		l.demand(c, edgeKey{from: c.rec.Name, to: s.Name, need: true}, s)
	}
	for _, d := range c.rec.Constrains {
		s := l.spec(d)
		l.demand(c, edgeKey{from: c.rec.Name, to: s.Name}, s)
	}
	return c.demands
}

// needs returns a record's requirements. Like conda, it adds pip to python, because users
// expect it.
func (l *pool) needs(r *Record) []string {
	if l.problem.Pip && r.Name == "python" && l.families["pip"] != nil {
		return append(slices.Clip(r.Depends), "pip")
	}
	return r.Depends
}

func (l *pool) demand(by *candidate, key edgeKey, s *Spec) {
	e := l.edges[key]
	if e == nil {
		e = &edge{edgeKey: key}
		l.edges[key] = e
	}
	d := &demand{match: l.match(s), by: by, edge: e}
	e.demands = append(e.demands, d)
	by.demands = append(by.demands, d)
}
