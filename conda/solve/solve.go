// Package solve chooses compatible packages from conda channels.
//
// records of the channels, wants → Problem.Solve → records, or Unsolvable with the reason
//
// It implements version order (CEP 33), constraints in a [Spec] (CEP 29) and conda's
// preferences. The solver learns a clause from each conflict; its result does not depend on
// time or chance. Records and specs are not trusted: searches and explanations are limited.
// The package itself downloads nothing.
package solve

import (
	"cmp"
	"context"
	"fmt"
)

// A Problem describes which packages are wanted, from which channels, for which machine.
type Problem struct {
	Subdir   string
	Channels []string          // URLs, in order of preference
	Flexible bool              // fall back to later channels; else only the first channel with a name counts
	Pip      bool              // python implies pip
	Wants    []*Spec           // all must be satisfied; earlier ones are optimized first
	Limits   []*Spec           // limit packages that others need; they install nothing
	Keep     map[string]Kept   // versions to keep, by package name
	From     map[string]string // required channel by package name
	Optional []string          // optional names, installed if they fit
	Virtual  []*Record         // virtual packages of the machine

	Found map[string][]*Record // the records by name, set by Solve
}

// Kept is a version to keep, or to approximate, if its name is installed at all. Python is
// the X.Y that builds must support, if they depend on it.
type Kept struct{ Version, Build, Python string }

// Solve finds packages that satisfy a problem among the records from [Problem.Gather]; if there are
// none, the error is an [Unsolvable]. If the solution shows that the preferences
// counted packages that nothing else needs wrongly, it solves a second time.
func (p *Problem) Solve(ctx context.Context, records []*Record) ([]*Record, error) {
	pool := newPool(p, records, nil)
	pkgs, err := pool.solve(ctx)
	if err != nil || !pool.prefersOthers(pkgs) {
		return pkgs, err
	}
	first := pool.expected
	again, err := newPool(p, records, pkgs).solve(ctx)
	if err != nil {
		return nil, err
	}
	pool.expect(again)
	if cmp.Or(cmp.Compare(pool.outdated(pool.expected), pool.outdated(first)), cmp.Compare(len(again), len(pkgs))) > 0 {
		return pkgs, nil
	}
	return again, nil
}

// solve chooses packages of the pool.
func (l *pool) solve(ctx context.Context) ([]*Record, error) {
	s := newSolver(ctx, l, nil)
	core, err := s.search()
	switch {
	case err != nil:
		return nil, err
	case core != nil:
		return nil, l.explain(ctx, core)
	}
	return s.chosenRecords(), nil
}

// A Fetcher returns all records of the given names, in the order of the channels.
type Fetcher func(ctx context.Context, names map[string]bool) ([]*Record, error)

// maxRecords limits the records of a problem. conda-forge has fewer than a million for
// linux-64.
const maxRecords = 4_000_000

// Gather reads the records of the wanted names and of all possible dependencies.
func (p *Problem) Gather(ctx context.Context, fetch Fetcher) ([]*Record, error) {
	known := map[string]bool{}
	wave := map[string]bool{}
	for _, s := range p.Wants {
		wave[s.Name] = true
	}
	for _, n := range p.Optional {
		wave[n] = true
	}
	if p.Pip && wave["python"] {
		wave["pip"] = true
	}
	var all []*Record
	for len(wave) > 0 {
		for n := range wave {
			known[n] = true
		}
		records, err := fetch(ctx, wave)
		if err != nil {
			return nil, err
		}
		if all = append(all, records...); len(all) > maxRecords {
			return nil, fmt.Errorf("the channels have more than %d packages that could be dependencies", maxRecords)
		}
		wave = map[string]bool{}
		for _, r := range records {
			if p.ruledOut(r) {
				continue
			}
			for _, d := range r.Depends {
				if n := Dependency(d); n != "" && !known[n] {
					wave[n] = true
				}
			}
			if p.Pip && r.Name == "python" && !known["pip"] {
				wave["pip"] = true
			}
		}
	}
	return all, nil
}

// ruledOut reports whether a want for the same name excludes a record, so that its
// dependencies are irrelevant.
func (p *Problem) ruledOut(r *Record) bool {
	for _, s := range p.Wants {
		if s.Name == r.Name {
			if !s.Meets(r) {
				return true
			}
		}
	}
	return false
}
