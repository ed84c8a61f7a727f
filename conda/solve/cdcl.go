package solve

import (
	"context"
	"fmt"
	"strings"
)

// A literal states that a candidate is chosen or (negative) not chosen.
type literal int32

func chooses(c *candidate) literal  { return literal(c.id << 1) }
func excludes(c *candidate) literal { return literal(c.id<<1 | 1) }
func (l literal) not() literal      { return l ^ 1 }
func (l literal) id() int           { return int(l >> 1) }
func (l literal) negative() bool    { return l&1 == 1 }

// truth returns the value of the candidate that makes the literal true.
func (l literal) truth() int8 { return 1 - 2*int8(l&1) }

// A clause is a list of literals of which at least one must be true.
type clause struct {
	literals []literal // the first two are watched
	edge     *edge     // origin of the clause; nil if it was learned
	from     []*clause // of a learned clause: the learned clauses that imply it
	edges    []*edge   // of a learned clause: the edges that imply it
}

// A reason explains why a literal is true: either all others of a clause are false, or one
// other literal is true.
type reason struct {
	clause   *clause
	other    literal // the one literal, if clause is nil
	edge     *edge   // origin of other's implication; nil: only one package per name can be chosen
	decision bool    // the literal is a decision and has no cause
}

// A solver decides on candidates, propagates the consequences, and learns a clause from each
// conflict (conflict-driven clause learning). Dependencies become clauses only when their
// package is first chosen. Results do not depend on time or chance.
type solver struct {
	ctx             context.Context
	pool            *pool
	enabled         map[*edge]bool         // the active edges; nil: all
	value           []int8                 // by candidate: 1 chosen, -1 not chosen, 0 undecided
	level           []int32                // by candidate: decision level of the value
	reasons         []reason               // by candidate: reason for the value
	seen            []bool                 // by candidate: used by learn
	active          []bool                 // by candidate: its demands are active
	trail           []literal              // true literals, in the order of assignment
	levelStarts     []int                  // starts of the decision levels in the trail
	propagated      int                    // number of propagated entries of the trail
	watch           [][]*clause            // by literal: the clauses that watch it
	needs           []*demand              // active dependencies, in order of activation
	rules           map[*family][]*demand  // active demands by required name
	chosen          map[*family]*candidate // by name
	activity        map[*family]int        // number of recent conflicts
	learned         int                    // number of learned clauses
	untilRestart    int                    // conflicts until the next restart
	restartInterval int                    // conflicts between restarts
}

// Limits of a search, in conflicts.
const (
	maxConflicts = 1 << 20
	firstRestart = 100 // before the first restart
)

func newSolver(ctx context.Context, pool *pool, enabled map[*edge]bool) *solver {
	return &solver{ctx: ctx, pool: pool, enabled: enabled, rules: map[*family][]*demand{},
		chosen: map[*family]*candidate{}, activity: map[*family]int{}, untilRestart: firstRestart, restartInterval: firstRestart}
}

// grow extends the slices indexed by candidate or literal for new candidates.
func (s *solver) grow() {
	n := s.pool.count + 1 - len(s.value)
	if n <= 0 {
		return
	}
	s.value = append(s.value, make([]int8, n)...)
	s.level = append(s.level, make([]int32, n)...)
	s.reasons = append(s.reasons, make([]reason, n)...)
	s.seen = append(s.seen, make([]bool, n)...)
	s.active = append(s.active, make([]bool, n)...)
	s.watch = append(s.watch, make([][]*clause, 2*n)...)
}

// search finds an assignment that satisfies all clauses. If there is none, it returns the
// conflicting edges.
func (s *solver) search() ([]*edge, error) {
	s.grow()
	s.assign(chooses(s.pool.root), reason{decision: true})
	for steps := 0; ; steps++ {
		if steps%256 == 0 && s.ctx.Err() != nil {
			return nil, s.ctx.Err()
		}
		if conflict := s.propagate(); conflict != nil {
			if len(s.levelStarts) == 0 {
				return s.core(conflict), nil
			}
			if s.learned++; s.learned > maxConflicts {
				return nil, fmt.Errorf("solving the environment: no solution after %d conflicts; pin more packages to exact versions", maxConflicts)
			}
			c, level := s.learn(conflict)
			s.backtrack(level)
			s.add(c)
			if s.untilRestart--; s.untilRestart == 0 {
				s.restartInterval += s.restartInterval / 2
				s.untilRestart = s.restartInterval
				s.backtrack(0)
			}
			continue
		}
		l := s.decide()
		if l == 0 {
			return nil, nil
		}
		s.levelStarts = append(s.levelStarts, len(s.trail))
		s.assign(l, reason{decision: true})
	}
}

// truth returns 1 for a true literal, -1 for a false one, and 0 for an undecided one.
func (s *solver) truth(l literal) int8 { return s.value[l.id()] * l.truth() }

// assign makes a literal true. If the literal is already false, it returns the violated clause.
func (s *solver) assign(l literal, why reason) *clause {
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
	s.value[id], s.level[id], s.reasons[id] = l.truth(), int32(len(s.levelStarts)), why
	if !l.negative() && id > 0 {
		c := s.pool.all[id-1]
		s.chosen[c.family] = c
	}
	s.trail = append(s.trail, l)
	return nil
}

// propagate propagates the literals that were set since the last call. It returns the violated
// clause if there is a conflict.
func (s *solver) propagate() *clause {
	for s.propagated < len(s.trail) {
		l := s.trail[s.propagated]
		s.propagated++
		if !l.negative() {
			if c := s.choose(l); c != nil {
				return c
			}
		}
		if c := s.visitWatchers(l.not()); c != nil {
			return c
		}
	}
	return nil
}

// choose propagates the choice of a candidate. It excludes the other candidates of the name,
// candidates whose demands do not accept it, and candidates that its own demands do not accept.
// It adds a clause for each dependency.
func (s *solver) choose(l literal) *clause {
	c := s.pool.root
	if l.id() > 0 {
		c = s.pool.all[l.id()-1]
		for _, other := range c.family.candidates {
			if other != c {
				if violated := s.assign(excludes(other), reason{other: l}); violated != nil {
					return violated
				}
			}
		}
		for _, d := range s.rules[c.family] {
			if !d.ok[c.at] {
				if violated := s.assign(excludes(d.by), reason{other: l, edge: d.edge}); violated != nil {
					return violated
				}
			}
		}
	}
	demands := s.pool.ask(c)
	s.grow()
	if !s.active[c.id] {
		s.active[c.id] = true
		if violated := s.activate(demands); violated != nil {
			return violated
		}
	}
	for _, d := range demands {
		if s.enabled != nil && !s.enabled[d.edge] {
			continue
		}
		if d.edge.need && !d.any {
			return &clause{literals: []literal{l.not()}, edge: d.edge}
		}
		for i, x := range d.to.candidates {
			if !d.ok[i] {
				if violated := s.assign(excludes(x), reason{other: l, edge: d.edge}); violated != nil {
					return violated
				}
			}
		}
	}
	return nil
}

// activate activates the demands of a candidate. It returns the first violated clause.
func (s *solver) activate(demands []*demand) (violated *clause) {
	for _, d := range demands {
		if s.enabled != nil && !s.enabled[d.edge] {
			continue
		}
		s.rules[d.to] = append(s.rules[d.to], d)
		if !d.edge.need || !d.any {
			continue // choose excludes a candidate with a missing dependency
		}
		s.needs = append(s.needs, d)
		c := &clause{literals: []literal{excludes(d.by)}, edge: d.edge}
		for i, x := range d.to.candidates {
			if d.ok[i] {
				c.literals = append(c.literals, chooses(x))
			}
		}
		if b := s.add(c); violated == nil {
			violated = b
		}
	}
	return violated
}

// add activates a clause. It watches the two literals that become false last, and
// propagates a unit clause immediately.
func (s *solver) add(c *clause) *clause {
	for i := range min(2, len(c.literals)) {
		for j := i + 1; j < len(c.literals); j++ {
			if s.isBetterWatch(c.literals[j], c.literals[i]) {
				c.literals[i], c.literals[j] = c.literals[j], c.literals[i]
			}
		}
	}
	if len(c.literals) == 1 {
		return s.assign(c.literals[0], reason{clause: c})
	}
	for _, l := range c.literals[:2] {
		s.watch[l] = append(s.watch[l], c)
	}
	if s.truth(c.literals[1]) < 0 {
		return s.assign(c.literals[0], reason{clause: c})
	}
	return nil
}

// isBetterWatch reports whether a is the better literal to watch.
func (s *solver) isBetterWatch(a, b literal) bool {
	x, y := s.truth(a), s.truth(b)
	return x > y || (x == y && x < 0 && s.level[a.id()] > s.level[b.id()])
}

// visitWatchers checks the clauses that watch a literal that became false.
func (s *solver) visitWatchers(l literal) *clause {
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
			if violated := s.assign(c.literals[0], reason{clause: c}); violated != nil {
				keep = append(keep, old[n+1:]...)
				s.watch[l] = keep
				return violated
			}
		}
	}
	clear(old[len(keep):])
	s.watch[l] = keep
	return nil
}

// rewatch replaces the second watched literal, which became false. It returns false if all
// others except the first are false.
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

// decide returns the next decision: the best candidate for the first unmet want, then for
// unmet dependencies, those with most recent conflicts first, then for optional packages. It
// returns 0 if everything is decided.
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
		if best == nil || s.activity[d.to] > s.activity[best.to] {
			best = d
		}
	}
	if best != nil {
		for i, c := range best.to.candidates {
			if best.ok[i] && s.value[c.id] == 0 {
				return chooses(c)
			}
		}
	}
	for _, name := range s.pool.problem.Optional {
		f := s.pool.ready(name)
		s.grow()
		if s.chosen[f] != nil {
			continue
		}
		for _, c := range f.candidates {
			if s.value[c.id] == 0 {
				return chooses(c)
			}
		}
	}
	return 0
}

// learn returns a clause that follows from a conflict and has exactly one literal of the newest
// level (the first unique implication point), and the level to backtrack to.
func (s *solver) learn(conflict *clause) (*clause, int) {
	now := int32(len(s.levelStarts))
	c := &clause{literals: []literal{0}}
	var marked []int
	open, level := 0, int32(0)
	literals := conflict.literals
	c.addOrigin(conflict)
	for i := len(s.trail) - 1; ; i-- {
		for _, l := range literals {
			id := l.id()
			if s.seen[id] {
				continue
			}
			s.seen[id] = true
			marked = append(marked, id)
			s.bump(id)
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
		why := s.reasonClause(s.trail[i])
		c.addOrigin(why)
		literals = why.literals
	}
	for _, id := range marked {
		s.seen[id] = false
	}
	if s.learned%64 == 0 { // halve old counts
		for f := range s.activity {
			s.activity[f] /= 2
		}
	}
	return c, int(level)
}

// bump counts a conflict for the name of a candidate.
func (s *solver) bump(id int) {
	if id > 0 {
		s.activity[s.pool.all[id-1].family]++
	}
}

// reasonClause returns the clause that implies a literal, or nil for a decision.
func (s *solver) reasonClause(l literal) *clause {
	why := s.reasons[l.id()]
	if why.clause != nil || why.decision {
		return why.clause
	}
	return &clause{literals: []literal{l, why.other.not()}, edge: why.edge}
}

// addOrigin records that the learned clause c follows from another clause.
func (c *clause) addOrigin(from *clause) {
	if from.learned() {
		c.from = append(c.from, from)
	} else if from.edge != nil {
		c.edges = append(c.edges, from.edge)
	}
}

func (c *clause) learned() bool { return c.edge == nil && len(c.from)+len(c.edges) > 0 }

// backtrack undoes all assignments above a decision level.
func (s *solver) backtrack(level int) {
	if level >= len(s.levelStarts) {
		return
	}
	for _, l := range s.trail[s.levelStarts[level]:] {
		s.value[l.id()] = 0
		if !l.negative() && l.id() > 0 {
			delete(s.chosen, s.pool.all[l.id()-1].family)
		}
	}
	s.trail, s.levelStarts = s.trail[:s.levelStarts[level]], s.levelStarts[:level]
	s.propagated = min(s.propagated, len(s.trail))
}

// core returns the edges that cause a conflict at level 0, where nothing was decided.
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
				if why := s.reasonClause(l.not()); why != nil {
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
