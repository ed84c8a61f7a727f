package solve

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
)

// An Unsolvable is the error for a problem without a solution. It explains the conflict: a
// headline, then the conflicting requirements.
type Unsolvable struct {
	lines []string
	Names []string // names of the wants that are part of the conflict
}

func (e *Unsolvable) Error() string { return strings.Join(e.lines, "\n  ") }

// Limits of an explanation.
const (
	maxExplain = 200 // solver runs that minimize it
	maxLines   = 6
)

// explain returns an Unsolvable for conflicting edges, after minimizing their number.
func (l *pool) explain(ctx context.Context, core []*edge) error {
	core, err := l.minimize(ctx, core)
	if err != nil {
		return err
	}
	t := &explanation{pool: l, core: core, remaining: map[string][]*candidate{}}
	return t.unsolvable()
}

// minimize removes edges as long as the others still conflict. It tries to remove wants last.
func (l *pool) minimize(ctx context.Context, core []*edge) ([]*edge, error) {
	slices.SortStableFunc(core, func(a, b *edge) int { return cmp.Compare(a.want, b.want) })
	need := map[*edge]bool{}
	for n := 0; n < maxExplain; n++ {
		i := slices.IndexFunc(core, func(e *edge) bool { return !need[e] })
		if i < 0 {
			break
		}
		only := map[*edge]bool{}
		for _, e := range core {
			only[e] = e != core[i]
		}
		smaller, err := newSolver(ctx, l, only).search()
		if err != nil {
			return nil, err
		}
		if smaller == nil {
			need[core[i]] = true
			continue
		}
		core = slices.DeleteFunc(core, func(e *edge) bool { return !slices.Contains(smaller, e) })
	}
	return core, nil
}

// An explanation collects the lines of an error for conflicting requirements.
type explanation struct {
	pool      *pool
	core      []*edge
	remaining map[string][]*candidate // by name: the candidates that the requirements so far allow
}

// unsolvable returns the Unsolvable for the conflicting requirements.
func (t *explanation) unsolvable() error {
	e := &Unsolvable{}
	var wants, rest, dead []string
	for _, x := range t.core {
		if x.want > 0 {
			m := x.demands[0].match
			wants, e.Names = append(wants, m.spec.text), append(e.Names, m.spec.Name)
			if !m.any {
				rest = append(rest, t.noMatch(m))
			}
			t.narrow(m.spec.Name, func(c *candidate) bool { return m.ok[c.at] })
		}
	}
	for _, x := range t.inOrder() {
		line, deadEnd := t.describe(x)
		if deadEnd {
			dead = append(dead, line)
		} else {
			rest = append(rest, line)
		}
	}
	rest = append(rest, dead...)
	for _, line := range t.contested() {
		if len(rest) < maxLines-1 {
			rest = append(rest, line)
		}
	}
	where := t.pool.problem.Subdir
	switch {
	case len(t.core) == 1 && len(wants) == 1:
		e.lines = rest
		return e
	case len(wants) == 1:
		e.lines = append(e.lines, fmt.Sprintf("%s cannot be installed for %s:", wants[0], where))
	default:
		e.lines = append(e.lines, fmt.Sprintf("%s cannot be installed together for %s:", input.Join(wants, "and", 5), where))
	}
	if n := len(rest) - (maxLines - 1); n > 0 {
		left := fmt.Sprintf("… and %d requirements in between", n+1)
		rest = slices.Concat(rest[:2], []string{left}, rest[len(rest)-(maxLines-4):])
	}
	e.lines = append(e.lines, rest...)
	return e
}

// contested lists the available versions of names that several packages, but no wants, require.
func (t *explanation) contested() (lines []string) {
	count := map[string]int{}
	for _, x := range t.core {
		count[x.to]++
		if x.want > 0 {
			count[x.to] -= len(t.core)
		}
		if count[x.to] != 2 || strings.HasPrefix(x.to, "__") {
			continue
		}
		var versions []string
		for _, c := range t.pool.ready(x.to).candidates {
			versions = append(versions, c.rec.Version)
		}
		if len(versions) > 0 {
			lines = append(lines, fmt.Sprintf("available versions of %s: %s", x.to, input.List(versions)))
		}
	}
	return lines
}

// narrow keeps only the packages of a name for which ok returns true.
func (t *explanation) narrow(name string, ok func(*candidate) bool) {
	left, known := t.remaining[name]
	if !known {
		left = t.pool.ready(name).candidates
	}
	var out []*candidate
	for _, c := range left {
		if ok(c) {
			out = append(out, c)
		}
	}
	t.remaining[name] = out
}

// inOrder sorts the requirements by their distance from the wants, and narrows the
// candidates of each name.
func (t *explanation) inOrder() []*edge {
	var names []string // still to visit
	for _, x := range t.core {
		if x.want > 0 {
			names = append(names, x.to)
		}
	}
	rest := slices.DeleteFunc(slices.Clone(t.core), func(x *edge) bool { return x.want > 0 })
	slices.SortFunc(rest, func(a, b *edge) int {
		return cmp.Or(strings.Compare(a.from, b.from), strings.Compare(a.to, b.to), asInt(b.need)-asInt(a.need))
	})
	var out []*edge
	for len(rest) > 0 {
		name := rest[0].from // used if the wants do not lead to it
		if len(names) > 0 {
			name, names = names[0], names[1:]
		}
		rest = slices.DeleteFunc(rest, func(x *edge) bool {
			if x.from != name {
				return false
			}
			out, names = append(out, x), append(names, x.to)
			if _, known := t.remaining[x.to]; !known && x.need {
				t.narrowTo(x)
			}
			return true
		})
	}
	return out
}

// narrowTo narrows the packages of an edge's target to those that its source accepts.
func (t *explanation) narrowTo(x *edge) {
	passes := map[int]bool{}
	for _, d := range t.demands(x) {
		for i, ok := range d.ok {
			passes[i] = passes[i] || ok
		}
	}
	t.narrow(x.to, func(c *candidate) bool { return passes[c.at] })
}

// demands returns the demands of an edge, without those of candidates that are ruled out.
func (t *explanation) demands(x *edge) []*demand {
	left, known := t.remaining[x.from]
	var out []*demand
	for _, d := range x.demands {
		if !known || slices.Contains(left, d.by) {
			out = append(out, d)
		}
	}
	slices.SortStableFunc(out, func(a, b *demand) int { return cmp.Compare(a.by.at, b.by.at) })
	return out
}

// describe returns a line about the packages that those of one name require of another. deadEnd
// reports that no package satisfies the requirement.
func (t *explanation) describe(x *edge) (line string, deadEnd bool) {
	var texts []string
	var last *match
	var by []*candidate
	deadEnd = x.need
	for _, d := range t.demands(x) {
		text := cmp.Or(strings.TrimSpace(strings.TrimPrefix(d.spec.text, x.to)), "of any version")
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
		by = append(by, d.by)
		last = cmp.Or(last, d.match)
		deadEnd = deadEnd && !d.any
	}
	if last == nil {
		return fmt.Sprintf("%s needs %s", x.from, x.to), false
	}
	verb := "needs"
	if !x.need {
		verb = "is only compatible with"
	}
	if n := len(texts) - 3; n > 0 {
		texts = append(texts[:3:3], fmt.Sprintf("%d more", n))
	}
	line = fmt.Sprintf("%s %s %s %s", versionsText(x.from, by), verb, x.to, strings.Join(texts, " | "))
	switch {
	case deadEnd:
		line += "; " + t.noMatch(last)
	case strings.HasPrefix(x.to, "__"):
		line += fmt.Sprintf("; the image has %s", versionsText(x.to, last.to.candidates))
	}
	return line, deadEnd
}

// noMatch explains why a match finds no package, and lists alternatives.
func (t *explanation) noMatch(m *match) string {
	p, s := t.pool.problem, m.spec
	in := "in the channels"
	if len(p.Channels) > 0 {
		var names []string
		for _, c := range p.Channels {
			names = append(names, fetch.Hide(c))
		}
		in = "in " + input.Join(names, "and", 3)
	}
	for _, r := range m.to.hidden {
		if v, err := parseVersion(r.Version); err == nil && s.matches(r, v) {
			return fmt.Sprintf("%s is excluded by strict channel priority: %s has it, but %s, which comes first, has other packages of that name (the newest is %s)",
				s.text, fetch.Hide(r.Origin), fetch.Hide(m.to.firstOrigin()), m.to.newest())
		}
	}
	var builds []string
	for _, c := range m.to.candidates {
		if s.version != nil && s.version(c.version) {
			builds = append(builds, c.rec.Build)
		}
	}
	switch {
	case strings.HasPrefix(s.Name, "__"):
		how := "--virtual-package " + s.Name + "=VERSION"
		if s.Name == "__cuda" {
			how = "--with-cuda VERSION"
		}
		if len(m.to.candidates) > 0 {
			return fmt.Sprintf("the image has %s (override it with %s)", versionsText(s.Name, m.to.candidates), how)
		}
		return fmt.Sprintf("it is not declared for the image (declare it with %s)", how)
	case len(m.to.candidates) == 0 && len(m.to.broken) > 0:
		return fmt.Sprintf("no package of %s for %s %s can be used: unsupported versions or requirements", s.Name, p.Subdir, in)
	case len(m.to.candidates) == 0:
		return fmt.Sprintf("there is no package named %s for %s %s", s.Name, p.Subdir, in)
	case len(builds) > 0:
		return fmt.Sprintf("%s has no such build for %s %s; available builds: %s", s.text, p.Subdir, in, input.List(builds))
	}
	return fmt.Sprintf("%s has no build for %s %s; the newest is %s", s.text, p.Subdir, in, m.to.newest())
}

// firstOrigin returns the channel of the packages of a name, or "" if there are none.
func (f *family) firstOrigin() string {
	if len(f.candidates) == 0 {
		return ""
	}
	return f.candidates[0].rec.Origin
}

// newest returns the highest version of a name, or "none".
func (f *family) newest() string {
	if len(f.candidates) == 0 {
		return "none"
	}
	return slices.MaxFunc(f.candidates, func(a, b *candidate) int { return a.version.compare(b.version) }).rec.Version
}

// versionsText returns a name and the range of its versions, such as "numpy 1.19.2 to 1.21.2".
func versionsText(name string, cs []*candidate) string {
	if len(cs) == 0 {
		return name
	}
	by := func(a, b *candidate) int { return a.version.compare(b.version) }
	low, high := slices.MinFunc(cs, by).rec.Version, slices.MaxFunc(cs, by).rec.Version
	if low == high {
		return name + " " + low
	}
	return fmt.Sprintf("%s %s to %s", name, low, high)
}
