// Package solve chooses packages of conda channels that go together.
//
//	Records of the channels, wishes → Problem.Solve → Records, or Unsolvable: why not
//
// It knows the order of versions (CEP 33), the conditions in a [Spec] (CEP 29), and
// conda's preferences. The solver learns a clause from each contradiction; what it
// answers does not depend on time or chance. Records and specs of an index are not
// trusted: a search and an explanation are bounded. It fetches nothing itself.
package solve

import (
	"context"
	"fmt"
)

// A Problem is which packages are wanted, from where, for which machine.
type Problem struct {
	Subdir   string
	Channels []string // URLs, in order of preference
	Flexible bool     // a later channel may serve where the earlier have nothing that fits; else the first that has a name has it alone
	Pip      bool     // python brings pip with it
	Wants    []*Spec  // all must be met; earlier ones have the better choice
	Keep     map[string]Kept
	From     map[string]string // channels by the names that are to come from them
	Also     []string          // names to install if they fit
	Virtual  []*Record         // what the machine has

	Found map[string][]*Record // by name, when it was solved
}

// Kept is a version that is to stay, or the nearest to it, if the name is installed at all.
// python is X.Y of the python that its builds are to be for, if they say.
type Kept struct{ Version, Build, Python string }

// Solve finds packages that meet a problem, or says in an *unsolvable why there are none. fetch
// reads the records of names, in the order of the channels; it is asked for names in waves.
func (p *Problem) Solve(ctx context.Context, fetch Fetcher) ([]*Record, error) {
	records, err := p.Gather(ctx, fetch)
	if err != nil {
		return nil, err
	}
	return p.SolveWith(ctx, records)
}

// SolveWith solves with the records that there are.
func (p *Problem) SolveWith(ctx context.Context, records []*Record) ([]*Record, error) {
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

// A Fetcher reads all records of names.
type Fetcher func(ctx context.Context, names map[string]bool) ([]*Record, error)

// maxRecords bounds what a problem may look at: conda-forge's linux-64 has
// less than a million.
const maxRecords = 4_000_000

// Gather reads the records of all names that the wished ones can need.
func (p *Problem) Gather(ctx context.Context, fetch Fetcher) ([]*Record, error) {
	known := map[string]bool{}
	wave := map[string]bool{}
	for _, s := range p.Wants {
		wave[s.Name] = true
	}
	for _, n := range p.Also {
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
			return nil, fmt.Errorf("the channels have more than %d packages that could be needed", maxRecords)
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

// ruledOut says that a wish for the very name leaves a record out: what it
// needs is of no interest.
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
