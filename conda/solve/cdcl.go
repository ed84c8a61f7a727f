package solve

import (
	"context"
	"fmt"
	"strings"
)

// A literal states that a candidate is chosen or (negative) not chosen.
type literal int32

func is(c *candidate) literal    { return literal(c.id << 1) }
func isNot(c *candidate) literal { return literal(c.id<<1 | 1) }
func (l literal) not() literal   { return l ^ 1 }
func (l literal) id() int        { return int(l >> 1) }
func (l literal) negative() bool { return l&1 == 1 }
func (l literal) truth() int8    { return 1 - 2*int8(l&1) }

// A clause is a list of literals of which at least one must be true.
type clause struct {
	literals []literal // the first two are watched
	edge     *edge     // origin of the clause; nil if it was learned
	from     []*clause // clauses that a learned one follows from
	edges    []*edge   // edges that a learned one follows from
}

// A reason explains why a literal is true: either all others of a clause are false, or one
// other literal is true.
type reason struct {
	clause *clause
	other  literal // if clause is nil; then edge is the rule, or nil for the rule of one package per name
	edge   *edge
	given  bool // a decision
}

// A solver decides on candidates, propagates the consequences, and learns a clause from each
// conflict (conflict-driven clause learning). Dependencies become clauses only when their
// package is first chosen. Results do not depend on time or chance.
type solver struct {
	ctx     context.Context
	pool    *pool
	only    map[*edge]bool // the active edges; nil: all
	value   []int8         // by candidate: 1 chosen, -1 not chosen, 0 undecided
	level   []int32
	why     []reason
	seen    []bool
	asked   []bool // whether the demands are active
	trail   []literal
	marks   []int // starts of the decision levels in the trail
	next    int   // number of propagated entries of the trail
	watch   [][]*clause
	needs   []*demand // in order of activation
	rules   map[*family][]*demand
	chosen  map[*family]*candidate
	heat    map[*family]int // number of recent conflicts
	learned int
	pause   int // conflicts until the next restart
	gap     int
}

// Limits of a search.
const (
	maxConflicts = 1 << 20
	firstGap     = 100
)

func newSolver(ctx context.Context, pool *pool, only map[*edge]bool) *solver {
	return &solver{ctx: ctx, pool: pool, only: only, rules: map[*family][]*demand{}, chosen: map[*family]*candidate{}, heat: map[*family]int{}, pause: firstGap, gap: firstGap}
}

// grow extends the tables for new candidates.
func (s *solver) grow() {
	n := s.pool.count + 1 - len(s.value)
	if n <= 0 {
		return
	}
	s.value = append(s.value, make([]int8, n)...)
	s.level = append(s.level, make([]int32, n)...)
	s.why = append(s.why, make([]reason, n)...)
	s.seen = append(s.seen, make([]bool, n)...)
	s.asked = append(s.asked, make([]bool, n)...)
	s.watch = append(s.watch, make([][]*clause, 2*n)...)
}

// search finds an assignment that satisfies all clauses. If there is none, it returns the
// conflicting edges.
func (s *solver) search() ([]*edge, error) {
	s.grow()
	s.set(is(s.pool.root), reason{given: true})
	for steps := 0; ; steps++ {
		if steps%256 == 0 && s.ctx.Err() != nil {
			return nil, s.ctx.Err()
		}
		if conflict := s.follow(); conflict != nil {
			if len(s.marks) == 0 {
				return s.core(conflict), nil
			}
			if s.learned++; s.learned > maxConflicts {
				return nil, fmt.Errorf("solving the environment: no solution after %d conflicts; pin more packages to exact versions", maxConflicts)
			}
			c, level := s.learn(conflict)
			s.back(level)
			s.add(c)
			if s.pause--; s.pause == 0 {
				s.gap += s.gap / 2
				s.pause = s.gap
				s.back(0)
			}
			continue
		}
		l := s.decide()
		if l == 0 {
			return nil, nil
		}
		s.marks = append(s.marks, len(s.trail))
		s.set(l, reason{given: true})
	}
}

// truth returns 1 for a true literal, -1 for a false one, and 0 for an undecided one.
func (s *solver) truth(l literal) int8 { return s.value[l.id()] * l.truth() }

// set makes a literal true. It returns the violated clause if that is a conflict.
func (s *solver) set(l literal, why reason) *clause {
	switch s.truth(l) {
	case 1:
		return nil
	case -1:
		if why.clause != nil {
			return why.clause
		}
		return &clause{literals: []literal{l, why.other.not()}, edge: why.edge}
	}
	id := l.id()
	s.value[id], s.level[id], s.why[id] = l.truth(), int32(len(s.marks)), why
	if !l.negative() && id > 0 {
		c := s.pool.all[id-1]
		s.chosen[c.family] = c
	}
	s.trail = append(s.trail, l)
	return nil
}

// follow propagates the newest literals.
func (s *solver) follow() *clause {
	for s.next < len(s.trail) {
		l := s.trail[s.next]
		s.next++
		if !l.negative() {
			if c := s.choose(l); c != nil {
				return c
			}
		}
		if c := s.visit(l.not()); c != nil {
			return c
		}
	}
	return nil
}

// choose propagates the choice of a candidate. It excludes other candidates of the name,
// those with conflicting demands and those that its own demands exclude, and adds a clause
// for each dependency.
func (s *solver) choose(l literal) *clause {
	c := s.pool.root
	if l.id() > 0 {
		c = s.pool.all[l.id()-1]
		for _, other := range c.family.candidates {
			if other != c {
				if broken := s.set(isNot(other), reason{other: l}); broken != nil {
					return broken
				}
			}
		}
		for _, d := range s.rules[c.family] {
			if !d.ok[c.at] {
				if broken := s.set(isNot(d.by), reason{other: l, edge: d.edge}); broken != nil {
					return broken
				}
			}
		}
	}
	demands := s.pool.ask(c)
	s.grow()
	if !s.asked[c.id] {
		s.asked[c.id] = true
		if broken := s.admit(demands); broken != nil {
			return broken
		}
	}
	for _, d := range demands {
		if s.only != nil && !s.only[d.edge] {
			continue
		}
		if d.edge.need && !d.any {
			return &clause{literals: []literal{l.not()}, edge: d.edge}
		}
		for i, x := range d.to.candidates {
			if !d.ok[i] {
				if broken := s.set(isNot(x), reason{other: l, edge: d.edge}); broken != nil {
					return broken
				}
			}
		}
	}
	return nil
}

// admit activates the demands of a candidate.
func (s *solver) admit(demands []*demand) (broken *clause) {
	for _, d := range demands {
		if s.only != nil && !s.only[d.edge] {
			continue
		}
		s.rules[d.to] = append(s.rules[d.to], d)
		if !d.edge.need || !d.any {
			continue // choose excludes candidates with missing dependencies
		}
		s.needs = append(s.needs, d)
		c := &clause{literals: []literal{isNot(d.by)}, edge: d.edge}
		for i, x := range d.to.candidates {
			if d.ok[i] {
				c.literals = append(c.literals, is(x))
			}
		}
		if b := s.add(c); broken == nil {
			broken = b
		}
	}
	return broken
}

// add activates a clause. It watches the two literals that become false last, and
// propagates a unit clause immediately.
func (s *solver) add(c *clause) *clause {
	for i := range min(2, len(c.literals)) {
		for j := i + 1; j < len(c.literals); j++ {
			if s.lasts(c.literals[j], c.literals[i]) {
				c.literals[i], c.literals[j] = c.literals[j], c.literals[i]
			}
		}
	}
	if len(c.literals) == 1 {
		return s.set(c.literals[0], reason{clause: c})
	}
	for _, l := range c.literals[:2] {
		s.watch[l] = append(s.watch[l], c)
	}
	if s.truth(c.literals[1]) < 0 {
		return s.set(c.literals[0], reason{clause: c})
	}
	return nil
}

// lasts reports whether a is the better literal to watch.
func (s *solver) lasts(a, b literal) bool {
	x, y := s.truth(a), s.truth(b)
	return x > y || (x == y && x < 0 && s.level[a.id()] > s.level[b.id()])
}

// visit checks the clauses that watch a literal that became false.
func (s *solver) visit(l literal) *clause {
	old := s.watch[l]
	keep := old[:0]
	for n, c := range old {
		if c.literals[0] == l {
			c.literals[0], c.literals[1] = c.literals[1], c.literals[0]
		}
		if s.truth(c.literals[0]) > 0 || !s.rewatch(c) {
			keep = append(keep, c)
			if s.truth(c.literals[0]) > 0 {
				continue
			}
			if broken := s.set(c.literals[0], reason{clause: c}); broken != nil {
				keep = append(keep, old[n+1:]...)
				s.watch[l] = keep
				return broken
			}
		}
	}
	clear(old[len(keep):])
	s.watch[l] = keep
	return nil
}

// rewatch replaces the second watched literal, which became false.
func (s *solver) rewatch(c *clause) bool {
	for i := 2; i < len(c.literals); i++ {
		if l := c.literals[i]; s.truth(l) >= 0 {
			c.literals[1], c.literals[i] = l, c.literals[1]
			s.watch[l] = append(s.watch[l], c)
			return true
		}
	}
	return false
}

// decide chooses the next candidate: the best for the first unmet want, then for
// dependencies, those with recent conflicts first, then for optional packages. It returns
// 0 if everything is decided.
func (s *solver) decide() literal {
	var best *demand
	for _, d := range s.needs {
		if s.value[d.by.id] < 1 || s.chosen[d.to] != nil {
			continue
		}
		if d.by == s.pool.root {
			best = d
			break
		}
		if best == nil || s.heat[d.to] > s.heat[best.to] {
			best = d
		}
	}
	if best != nil {
		for i, c := range best.to.candidates {
			if best.ok[i] && s.value[c.id] == 0 {
				return is(c)
			}
		}
	}
	for _, name := range s.pool.problem.Also {
		f := s.pool.ready(name)
		s.grow()
		if s.chosen[f] != nil {
			continue
		}
		for _, c := range f.candidates {
			if s.value[c.id] == 0 {
				return is(c)
			}
		}
	}
	return 0
}

// learn returns the clause that a conflict proves, which has one literal of the newest
// level, and the level to return to.
func (s *solver) learn(conflict *clause) (*clause, int) {
	now := int32(len(s.marks))
	c := &clause{literals: []literal{0}}
	var marked []int
	open, level := 0, int32(0)
	literals := conflict.literals
	c.follows(conflict)
	for i := len(s.trail) - 1; ; i-- {
		for _, l := range literals {
			id := l.id()
			if s.seen[id] {
				continue
			}
			s.seen[id] = true
			marked = append(marked, id)
			s.warm(id)
			if s.level[id] == now {
				open++
			} else {
				c.literals = append(c.literals, l)
				level = max(level, s.level[id])
			}
		}
		for !s.seen[s.trail[i].id()] {
			i--
		}
		if open--; open == 0 {
			c.literals[0] = s.trail[i].not()
			break
		}
		why := s.because(s.trail[i])
		c.follows(why)
		literals = why.literals
	}
	for _, id := range marked {
		s.seen[id] = false
	}
	if s.learned%64 == 0 { // halve old counts
		for f := range s.heat {
			s.heat[f] /= 2
		}
	}
	return c, int(level)
}

func (s *solver) warm(id int) {
	if id > 0 {
		s.heat[s.pool.all[id-1].family]++
	}
}

// because returns the clause that implies a literal.
func (s *solver) because(l literal) *clause {
	why := s.why[l.id()]
	if why.clause != nil || why.given {
		return why.clause
	}
	return &clause{literals: []literal{l, why.other.not()}, edge: why.edge}
}

// follows records the origins of a learned clause.
func (c *clause) follows(from *clause) {
	if from.learned() {
		c.from = append(c.from, from)
	} else if from.edge != nil {
		c.edges = append(c.edges, from.edge)
	}
}

func (c *clause) learned() bool { return c.edge == nil && len(c.from)+len(c.edges) > 0 }

// back undoes everything above a level.
func (s *solver) back(level int) {
	if level >= len(s.marks) {
		return
	}
	for _, l := range s.trail[s.marks[level]:] {
		s.value[l.id()] = 0
		if !l.negative() && l.id() > 0 {
			delete(s.chosen, s.pool.all[l.id()-1].family)
		}
	}
	s.trail, s.marks = s.trail[:s.marks[level]], s.marks[:level]
	s.next = min(s.next, len(s.trail))
}

// core returns the edges that cause a conflict without decisions.
func (s *solver) core(conflict *clause) []*edge {
	var out []*edge
	edges, clauses, ids := map[*edge]bool{}, map[*clause]bool{}, map[int]bool{}
	add := func(e *edge) {
		if e != nil && !edges[e] {
			edges[e] = true
			out = append(out, e)
		}
	}
	var origins func(c *clause)
	origins = func(c *clause) {
		if clauses[c] {
			return
		}
		clauses[c] = true
		add(c.edge)
		for _, e := range c.edges {
			add(e)
		}
		for _, f := range c.from {
			origins(f)
		}
	}
	queue := []*clause{conflict}
	for len(queue) > 0 {
		c := queue[0]
		queue = queue[1:]
		origins(c)
		for _, l := range c.literals {
			if id := l.id(); !ids[id] {
				ids[id] = true
				if why := s.because(l.not()); why != nil {
					queue = append(queue, why)
				}
			}
		}
	}
	return out
}

// chosenRecords returns the solution, without virtual packages.
func (s *solver) chosenRecords() []*Record {
	var out []*Record
	for _, l := range s.trail {
		if !l.negative() && l.id() > 0 {
			if r := s.pool.all[l.id()-1].rec; !strings.HasPrefix(r.Name, "__") {
				out = append(out, r)
			}
		}
	}
	return out
}
