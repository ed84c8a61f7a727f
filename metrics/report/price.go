package report

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
)

// Prices hold the cost and the power of nodes.
type Prices struct {
	Currency string               `toml:"currency"` // appended to amounts
	KWh      float64              `toml:"kwh"`      // price of one kWh; 0: included in the price of an hour
	PUE      float64              `toml:"pue"`      // power of the site per watt of its nodes; 0: 1
	Node     map[string]nodePrice `toml:"node"`     // by a system's name, or a pattern of hosts

	// Draws, unless nil, has the tables whose watts replace these, and their PUE if set.
	Draws *Prices `toml:"-"`
}

// A nodePrice is the price of one kind of node.
type nodePrice struct {
	Hour      float64 `toml:"hour"`       // price of an hour of a full node
	CPUs      int     `toml:"cpus"`       // of a node; 0: from the run's header
	GPUs      int     `toml:"gpus"`       // of a node; 0: a run's share ignores GPUs
	Exclusive bool    `toml:"exclusive"`  // a run pays for the full node
	IdleWatts float64 `toml:"idle_watts"` // without GPUs, if those are measured
	MaxWatts  float64 `toml:"max_watts"`  // with all processors busy
}

// maxPrice bounds prices, watts and counts.
const maxPrice = 1e9

// Check refuses invalid prices and returns the key.
func (p *Prices) Check() (key []string, err error) {
	amount := func(v float64) bool { return v >= 0 && v <= maxPrice }
	switch {
	case !amount(p.KWh):
		return []string{"kwh"}, fmt.Errorf("kwh: %g is not a price", p.KWh)
	case p.PUE != 0 && !(p.PUE >= 1 && p.PUE <= 100):
		return []string{"pue"}, fmt.Errorf("pue: %g is not between 1 and 100", p.PUE)
	case len(p.Node) == 0:
		return []string{"node"}, errors.New("there is no price: a table [node.NAME] sets the price of the system NAME, [node.\"gpu*\"] that of hosts")
	}
	for _, name := range slices.Sorted(maps.Keys(p.Node)) {
		n := p.Node[name]
		at := func(field string, err error) ([]string, error) {
			return []string{"node", name, field}, fmt.Errorf("node %q: %w", name, err)
		}
		if _, err := path.Match(name, ""); err != nil {
			return at("hour", errors.New("is not a valid pattern of hosts: a [ is not closed"))
		}
		for _, x := range []struct {
			field string
			v     float64
		}{{"hour", n.Hour}, {"cpus", float64(n.CPUs)}, {"gpus", float64(n.GPUs)}, {"idle_watts", n.IdleWatts}, {"max_watts", n.MaxWatts}} {
			if !amount(x.v) {
				return at(x.field, fmt.Errorf("%s: %g is out of range", x.field, x.v))
			}
		}
		if n.MaxWatts < n.IdleWatts {
			return at("max_watts", fmt.Errorf("max_watts: %g is less than idle_watts, %g", n.MaxWatts, n.IdleWatts))
		}
	}
	return nil, nil
}

// find returns the price of a run's node: by its system's name, its host's name, or the
// longest matching pattern of hosts.
func (p *Prices) find(system, host string) (n nodePrice, ok bool) {
	for _, name := range []string{system, host} {
		if n, ok = p.Node[name]; ok {
			return n, true
		}
	}
	best := ""
	for _, name := range slices.Sorted(maps.Keys(p.Node)) {
		if fits, _ := path.Match(name, host); fits && len(name) > len(best) {
			best = name
		}
	}
	n, ok = p.Node[best]
	return n, ok
}

// joules is the number of joules in a kWh.
const joules = 3.6e6

// add adds a run's energy and cost to its figures.
func (p *Prices) add(system string, t *Task) {
	w, known := t.Figures[wallName]
	if p == nil || !known {
		return
	}
	host := t.Header.Machine.Host
	n, priced := p.find(system, host)
	d, drawn, pue := n, priced, p.PUE
	if p.Draws != nil {
		if d, drawn = p.Draws.find(system, host); p.Draws.PUE > 0 {
			pue = p.Draws.PUE
		}
	}
	kwh := 0.0
	if drawn {
		kwh = d.energy(t, w) / joules * max(pue, 1)
	}
	if kwh > 0 && kwh < most {
		t.Figures[energyName] = kwh
	}
	share, _ := n.share(t)
	if cost := n.Hour*share*w/3600 + p.KWh*kwh; priced && cost < most && (n.Hour > 0 || (p.KWh > 0 && kwh > 0)) {
		t.Figures[costName] = cost
	}
}

// energy returns the energy of a run in joules, without the PUE. wall is in seconds.
func (n *nodePrice) energy(t *Task, wall float64) float64 {
	share, _ := n.share(t)
	j := gpuEnergy(t.used()) + n.IdleWatts*share*wall
	if cpus := n.cpus(t); cpus > 0 {
		j += (n.MaxWatts - n.IdleWatts) * min(t.Figures[cpuName]/cpus, wall)
	}
	return j
}

func (n *nodePrice) cpus(t *Task) float64 {
	if n.CPUs > 0 {
		return float64(n.CPUs)
	}
	return float64(t.Header.Machine.CPUs)
}

// share returns the share of a node that a run pays for: of its processors or its GPUs,
// whichever is larger, or all of it if neither is known.
func (n *nodePrice) share(t *Task) (part float64, known bool) {
	if n.Exclusive {
		return 1, true
	}
	asked := float64(t.Header.Asked.CPUs)
	if asked <= 0 {
		asked = t.Header.Limits.CPUs
	}
	if cpus := n.cpus(t); cpus > 0 {
		part = asked / cpus
	}
	if n.GPUs > 0 {
		part = max(part, float64(t.Header.Asked.GPUs)/float64(n.GPUs))
	}
	if part <= 0 {
		return 1, false
	}
	return min(part, 1), true
}

// notes reports systems without a price.
func (p *Prices) notes(systems []*System) (notes []string) {
	for _, s := range systems {
		unpriced, unsized, unasked, undrawn, hosts := 0, 0, 0, 0, map[string]bool{}
		for _, t := range s.Tasks {
			if p.Draws != nil {
				if _, ok := p.Draws.find(s.Name, t.Header.Machine.Host); !ok {
					undrawn++
				}
			}
			n, ok := p.find(s.Name, t.Header.Machine.Host)
			_, known := n.share(t)
			switch {
			case !ok:
				unpriced++
				hosts[plain(t.Header.Machine.Host)] = true
			case !known && n.cpus(t) <= 0:
				unsized++
			case !known:
				unasked++
			}
		}
		if unsized > 0 {
			notes = append(notes, fmt.Sprintf("%s: the number of processors of a node is unknown, so %s for a full node; set cpus in the prices", s.Name, plural(unsized, "run pays", "runs pay")))
		}
		if unasked > 0 {
			notes = append(notes, fmt.Sprintf("%s: the number of processors of a run is unknown, so %s for a full node; submit with --cpus or --measure", s.Name, plural(unasked, "run pays", "runs pay")))
		}
		if undrawn > 0 {
			notes = append(notes, fmt.Sprintf("%s: the energy of %s is unknown, because the power figures name neither the system nor the host", s.Name, plural(undrawn, "run", "runs")))
		}
		if unpriced > 0 {
			notes = append(notes, fmt.Sprintf("%s: the prices name neither the system nor %s, so %d of %s have no cost", s.Name, abbreviate(slices.Sorted(maps.Keys(hosts))), unpriced, plural(len(s.Tasks), "run", "runs")))
		}
	}
	return notes
}
