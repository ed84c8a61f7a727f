package conda

import (
	"context"
	"fmt"
)

// A problem is which packages are wanted, from where, for which machine.
type problem struct {
	subdir   string
	channels []string // URLs, in order of preference
	flexible bool     // a later channel may serve where the earlier have nothing that fits; else the first that has a name has it alone
	pip      bool     // python brings pip with it
	wants    []*spec  // all must be met; earlier ones have the better choice
	keep     map[string]kept
	from     map[string]string // channels by the names that are to come from them
	also     []string          // names to install if they fit
	virtual  []*record         // what the machine has

	found map[string][]*record // by name, when it was solved
}

// kept is a version that is to stay, or the nearest to it, if the name is installed at all.
// python is X.Y of the python that its builds are to be for, if they say.
type kept struct{ version, build, python string }

// solve finds packages that meet a problem, or says in an *unsolvable why there are none. fetch reads the records of
// names, in the order of the channels; it is asked for names in waves.
func (p *problem) solve(ctx context.Context, fetch fetcher) ([]*record, error) {
	records, err := p.gather(ctx, fetch)
	if err != nil {
		return nil, err
	}
	return p.solveWith(ctx, records)
}

// solveWith solves with the records that there are.
func (p *problem) solveWith(ctx context.Context, records []*record) ([]*record, error) {
	pool := newPool(p, records)
	s := newSolver(ctx, pool, nil)
	core, err := s.search()
	switch {
	case err != nil:
		return nil, err
	case core != nil:
		return nil, pool.explain(ctx, core)
	}
	return s.chosenRecords(), nil
}

// A fetcher reads all records of names.
type fetcher func(ctx context.Context, names map[string]bool) ([]*record, error)

// maxRecords bounds what a problem may look at: conda-forge's linux-64 has
// less than a million.
const maxRecords = 4_000_000

// gather reads the records of all names that the wished ones can need.
func (p *problem) gather(ctx context.Context, fetch fetcher) ([]*record, error) {
	known := map[string]bool{}
	wave := map[string]bool{}
	for _, s := range p.wants {
		wave[s.name] = true
	}
	for _, n := range p.also {
		wave[n] = true
	}
	if p.pip && wave["python"] {
		wave["pip"] = true
	}
	var all []*record
	for len(wave) > 0 {
		for n := range wave {
			known[n] = true
		}
		records, err := fetch(ctx, wave)
		if err != nil {
			return nil, err
		}
		if all = append(all, records...); len(all) > maxRecords {
			return nil, fmt.Errorf("the channels have more than %d packages that could be needed", maxRecords)
		}
		wave = map[string]bool{}
		for _, r := range records {
			if p.ruledOut(r) {
				continue
			}
			for _, d := range r.Depends {
				if n := dependency(d); n != "" && !known[n] {
					wave[n] = true
				}
			}
			if p.pip && r.Name == "python" && !known["pip"] {
				wave["pip"] = true
			}
		}
	}
	return all, nil
}

// ruledOut says that a wish for the very name leaves a record out: what it
// needs is of no interest.
func (p *problem) ruledOut(r *record) bool {
	for _, s := range p.wants {
		if s.name == r.Name {
			if v, err := parseVersion(r.Version); err != nil || !s.matches(r, v) {
				return true
			}
		}
	}
	return false
}
