package pip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"hpcc/store"
)

// A pick is a candidate: one version of a distribution, in one file.
type pick struct {
	name      string // normalized
	version   pyVersion
	file      *indexFile // nil if a conda package provides it
	by        string     // the conda package that provides it
	rank      int        // of the best tag; lower is better
	meta      *distMeta
	hashes    []string // of which the file must match one; empty: any file
	with      []string // URLs of the wheels to build sources with; nil: their build requirements
	direct    bool     // a row names this file
	requested bool     // a row asks for it
	extras    []string // the extras to install
}

func (p *pick) String() string { return p.name + " " + p.version.String() }

// address returns the URL of the file, for a lock file.
func (p *pick) address() string {
	if p.file.subdir != "" {
		return p.file.url + "#subdirectory=" + (&url.URL{Fragment: p.file.subdir}).EscapedFragment()
	}
	return p.file.url
}

// demand adds the digests of the rows to the pick, before anything of it is read.
func (p *pick) demand(wants []demand) *pick {
	for _, w := range wants {
		for _, h := range w.Hashes {
			if !slices.Contains(p.hashes, h) {
				p.hashes = append(p.hashes, h)
			}
		}
	}
	return p
}

// A demand is a requirement on a distribution, and its origin.
type demand struct {
	dependencyRow
	name   string   // normalized
	origin string   // where the requirement comes from, for messages
	from   []string // the picks that it depends on; empty for rows
}

// A resolver chooses the versions of distributions.
type resolver struct {
	ctx           context.Context
	target        *Target
	options       Options
	ranks         map[string]int
	env           map[string]string
	index         *indexSet
	fetch         *fetcher
	files         map[string][]indexFile // files of the indexes, by normalized name
	provided      map[string]*pick       // distributions of conda packages
	direct        map[string][]*pick     // files named by rows
	limits        map[string][]demand    // the constraints, by normalized name
	requireHashes bool                   // pip's hash-checking mode
	refused       []refusal
	notes         []string
	tries         int
}

func newResolver(ctx context.Context, s *store.Store, t Target, o Options) (*resolver, error) {
	r := &resolver{ctx: ctx, target: &t, options: o, env: t.environment(), files: map[string][]indexFile{},
		provided: map[string]*pick{}, direct: map[string][]*pick{}, limits: map[string][]demand{}}
	var err error
	if r.ranks, err = t.ranks(); err != nil {
		return nil, err
	}
	for _, x := range t.Provided {
		v, err := parseVersion(x.Version)
		if err != nil {
			return nil, fmt.Errorf("the conda package %s provides %s: %w", x.Package, x.Name, err)
		}
		if n := NormalName(x.Name); r.provided[n] == nil {
			r.provided[n] = &pick{name: n, version: v, by: x.Package}
		}
	}
	if r.index = o.index; r.index == nil {
		if r.index, err = openIndexes(ctx, o.Indexes); err != nil {
			return nil, err
		}
	}
	if r.fetch, err = newFetcher(s, r.index.web); err != nil {
		return nil, err
	}
	if o.Build != nil {
		r.fetch.builder = &builder{Workshop: o.Build, fetch: r.fetch, index: r.index, target: t,
			options: o, built: map[string]*builtWheel{}}
	}
	return r, nil
}

// maxTries limits the number of versions that are tried.
const maxTries = 20_000

var errTries = errors.New("no solution after trying 20000 versions; pin the packages whose versions you know with ==")

// resolve chooses one version of every wanted distribution.
func (r *resolver) resolve(wants []demand) (map[string]*pick, error) {
	s := state{picked: map[string]*pick{}, wants: map[string][]demand{}, extras: map[string][]string{}}
	for _, w := range wants {
		s.wants[w.name] = append(s.wants[w.name], w)
	}
	s.queue = wants
	done, blame, err := r.solve(s)
	if err != nil {
		return nil, err
	}
	if blame != nil {
		return nil, fmt.Errorf("no versions satisfy all requirements: %s", blame.why)
	}
	for _, w := range wants {
		p := done[w.name]
		p.demand([]demand{w}).requested = p.requested || !w.Needed
	}
	return done, nil
}

// A state is a partial solution.
type state struct {
	picked map[string]*pick
	wants  map[string][]demand // by name, including those in the queue
	extras map[string][]string
	queue  []demand
}

// A blameSet explains why a partial solution cannot be completed: the picks of which one
// has to change, and the first conflict. That one is about the newest versions, so it is
// the one to report.
type blameSet struct {
	picks map[string]bool
	why   string
}

// add adds the origins of demands to the blame.
func (b *blameSet) add(wants ...demand) {
	for _, w := range wants {
		for _, f := range w.from {
			b.picks[f] = true
		}
	}
}

// solve completes a partial solution by trying versions in turn, newest first. A non-nil
// blameSet means that it cannot; picks outside that set are not tried again.
func (r *resolver) solve(s state) (map[string]*pick, *blameSet, error) {
	for len(s.queue) > 0 {
		w := s.queue[0]
		s.queue = s.queue[1:]
		p := s.picked[w.name]
		if p == nil {
			return r.branch(s, w)
		}
		if blame, err := r.follow(&s, p, w); err != nil || blame != nil {
			return nil, blame, err
		}
	}
	for n, p := range s.picked {
		p.extras = s.extras[n]
	}
	return s.picked, nil, nil
}

// branch tries the versions of one wanted distribution.
func (r *resolver) branch(s state, w demand) (map[string]*pick, *blameSet, error) {
	wants := s.wants[w.name]
	list, err := r.candidates(w.name, wants)
	if err != nil {
		return nil, nil, err
	}
	blame := &blameSet{picks: map[string]bool{}}
	blame.add(wants...)
	if len(list) == 0 {
		blame.why = r.conflict(w.name, wants)
		return nil, blame, nil
	}
	for _, p := range list {
		if r.tries++; r.tries > maxTries {
			return nil, nil, fmt.Errorf("%w (%s)", errTries, blame.why)
		}
		fresh := *p
		n := state{picked: maps.Clone(s.picked), wants: maps.Clone(s.wants), extras: maps.Clone(s.extras), queue: slices.Clip(s.queue)}
		n.picked[w.name] = &fresh
		var done map[string]*pick
		b, err := r.follow(&n, &fresh, w)
		if err == nil && b == nil {
			done, b, err = r.solve(n)
		}
		if err != nil || b == nil {
			return done, nil, err
		}
		if !b.picks[w.name] {
			return nil, b, nil
		}
		delete(b.picks, w.name)
		maps.Copy(blame.picks, b.picks)
		if blame.why == "" {
			blame.why = b.why
		}
	}
	return nil, blame, nil
}

// conflict describes the origins of contradictory demands on a distribution, and why no
// version satisfies them.
func (r *resolver) conflict(name string, wants []demand) string {
	var origins []string
	for _, w := range wants {
		origins = append(origins, fmt.Sprintf("%s wants %s%s", w.origin, name, w.spec))
	}
	why, _ := r.reason(name, wants)
	return fmt.Sprintf("%s: %s", strings.Join(slices.Compact(origins), ", "), why)
}

// follow adds the dependencies of a pick, with its extras, to the queue. A non-nil
// blameSet means that the pick conflicts with the others.
func (r *resolver) follow(s *state, p *pick, w demand) (blame *blameSet, err error) {
	news := []string{}
	if _, known := s.extras[p.name]; !known {
		news = append(news, "") // the distribution itself
		s.extras[p.name] = []string{}
	}
	for _, x := range w.Extras {
		if !slices.Contains(s.extras[p.name], x) {
			news = append(news, x)
			s.extras[p.name] = append(slices.Clip(s.extras[p.name]), x)
		}
	}
	if len(news) == 0 || r.options.Closed || p.file == nil {
		return nil, nil
	}
	if p.meta == nil {
		p.meta, err = r.fetch.metadata(r.ctx, p)
		if bad, ok := errors.AsType[*badMetadata](err); ok { // like pip since 24.1, skip such versions
			return &blameSet{map[string]bool{p.name: true}, bad.Error()}, nil
		}
		if err != nil {
			return nil, err
		}
	}
	if !p.meta.runsOn(r.target.Python) {
		return &blameSet{map[string]bool{p.name: true}, fmt.Sprintf("%s needs python %s", p, p.meta.python)}, nil
	}
	for _, d := range p.meta.requires {
		i := slices.IndexFunc(news, func(x string) bool { return d.cond.holds(r.env, x) })
		if i < 0 || (news[i] != "" && d.cond.holds(r.env, "")) {
			continue // not wanted, or already queued
		}
		n := demand{dependencyRow: d, name: NormalName(d.Name), origin: p.String(), from: []string{p.name}}
		if news[i] != "" {
			n.from = append(n.from, w.from...)
		}
		if blame, err = r.want(s, n); err != nil || blame != nil {
			return blame, err
		}
	}
	return nil, nil
}

// want adds a dependency to the queue.
func (r *resolver) want(s *state, n demand) (*blameSet, error) {
	known := r.provided[n.name] != nil || r.direct[n.name] != nil
	switch {
	case n.URL != "" && !known:
		return nil, fmt.Errorf("%s needs %s, which is not a version from an index; add it to the list as a row", n.origin, n.Requirement)
	case r.requireHashes && !known && len(s.wants[n.name]) == 0 && !isHashed(r.limits[n.name]):
		return nil, fmt.Errorf("%s needs %s, which has no row; with --hash, the list must be complete", n.origin, n.Requirement)
	}
	s.wants[n.name] = append(slices.Clip(s.wants[n.name]), n)
	if p := s.picked[n.name]; p != nil && !n.spec.match(p.version) {
		blame := &blameSet{map[string]bool{n.name: true}, r.conflict(n.name, s.wants[n.name])}
		blame.add(n)
		return blame, nil
	}
	s.queue = append(slices.Clip(s.queue), n)
	return nil, nil
}
