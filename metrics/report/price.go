package report

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"hpcc/text"
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
	ownership         // replaces the price of an hour
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
		if n.Hour > 0 && n.any() {
			return at("hour", errors.New("hour cannot be used with capital, staff and other costs of a year, from which the price of an hour follows"))
		}
		if field, err := n.check(p.KWh); err != nil {
			return at(field, err)
		}
	}
	return nil, nil
}

// find returns the name of the price of a run's node: its system's name, its host's name, or the
// longest matching pattern of hosts.
func (p *Prices) find(system, host string) (name string, ok bool) {
	for _, name := range []string{system, host} {
		if _, ok = p.Node[name]; ok {
			return name, true
		}
	}
	best := ""
	for _, name := range slices.Sorted(maps.Keys(p.Node)) {
		if fits, _ := path.Match(name, host); fits && len(name) > len(best) {
			best = name
		}
	}
	_, ok = p.Node[best]
	return best, ok
}

// of returns the price of a run's node, as find finds it.
func (p *Prices) of(system, host string) (nodePrice, bool) {
	name, ok := p.find(system, host)
	return p.Node[name], ok
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
	n, priced := p.of(system, host)
	d, drawn, pue := n, priced, p.PUE
	if p.Draws != nil {
		if d, drawn = p.Draws.of(system, host); p.Draws.PUE > 0 {
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
	hour, electricity := n.hour(p), n.electricity(p)
	cost := hour*share*w/3600 + electricity*kwh
	if !priced || cost >= most || (hour <= 0 && (electricity <= 0 || kwh <= 0)) {
		return
	}
	t.Figures[costName] = cost
	if hours := t.gpus() * w / 3600; hours > 0 && cost/hours < most {
		t.Figures[gpuHourName] = cost / hours
		if busy := t.Figures[gpuName]; busy >= leastShare {
			t.Figures[busyHourName] = cost / hours / busy
		}
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
				if _, ok := p.Draws.of(s.Name, t.Header.Machine.Host); !ok {
					undrawn++
				}
			}
			n, ok := p.of(s.Name, t.Header.Machine.Host)
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
			notes = append(notes, fmt.Sprintf("%s: the number of processors of a node is unknown, so %s for a full node; set cpus in the prices", s.Name, text.Count(unsized, "run pays", "runs pay")))
		}
		if unasked > 0 {
			notes = append(notes, fmt.Sprintf("%s: the number of processors of a run is unknown, so %s for a full node; submit with --cpus or --measure", s.Name, text.Count(unasked, "run pays", "runs pay")))
		}
		if undrawn > 0 {
			notes = append(notes, fmt.Sprintf("%s: the energy of %s is unknown, because the power figures name neither the system nor the host", s.Name, text.Count(undrawn, "run", "runs")))
		}
		if unpriced > 0 {
			notes = append(notes, fmt.Sprintf("%s: the prices name neither the system nor %s, so %d of %s have no cost", s.Name, abbreviate(slices.Sorted(maps.Keys(hosts))), unpriced, text.Count(len(s.Tasks), "run", "runs")))
		}
	}
	return notes
}

// An ownership is the yearly cost of a system, for those who own it. The price of an hour of one
// of its nodes follows: the cost of a year ÷ the node-hours that jobs use in it.
type ownership struct {
	Capital     float64            `toml:"capital"`      // price of the system
	Years       float64            `toml:"years"`        // in which the capital is written off
	Nodes       float64            `toml:"nodes"`        // 0: capital ÷ node_price
	NodePrice   float64            `toml:"node_price"`   // of one node
	Racks       float64            `toml:"racks"`        // 0: capital ÷ rack_price
	RackPrice   float64            `toml:"rack_price"`   // of one rack with its nodes
	RackPower   float64            `toml:"rack_kw"`      // without the PUE
	RackHosting float64            `toml:"rack_hosting"` // of a year
	Staff       map[string]float64 `toml:"staff"`        // full-time equivalents, by their work
	PersonCost  float64            `toml:"person_cost"`  // of a full-time equivalent and year
	Utilisation float64            `toml:"utilisation"`  // share of all node-hours that jobs use
}

// hoursPerYear is the number of hours of a year of 365 days.
const hoursPerYear = 8760

// owned reports whether the price of an hour follows from an ownership.
func (o *ownership) owned() bool { return o.Utilisation > 0 }

// any reports whether a key of an ownership is set.
func (o *ownership) any() bool {
	return len(o.Staff) > 0 || slices.ContainsFunc(o.amounts(), func(a amountOf) bool { return a.v != 0 })
}

// An amountOf is the value of a key.
type amountOf struct {
	key string
	v   float64
}

func (o *ownership) amounts() []amountOf {
	return []amountOf{{"capital", o.Capital}, {"years", o.Years}, {"nodes", o.Nodes},
		{"node_price", o.NodePrice}, {"racks", o.Racks}, {"rack_price", o.RackPrice},
		{"rack_kw", o.RackPower}, {"rack_hosting", o.RackHosting}, {"person_cost", o.PersonCost}, {"utilisation", o.Utilisation}}
}

// check returns the first invalid or missing key, and why. kwh is the price of one kWh.
func (o *ownership) check(kwh float64) (key string, err error) {
	if !o.any() {
		return "", nil
	}
	for _, a := range o.amounts() {
		if !(a.v >= 0 && a.v <= maxPrice) {
			return a.key, fmt.Errorf("%s: %g is out of range", a.key, a.v)
		}
	}
	for _, work := range slices.Sorted(maps.Keys(o.Staff)) {
		if n := o.Staff[work]; !(n >= 0 && n <= maxPrice) {
			return "staff", fmt.Errorf("staff: %s: %g is out of range", work, n)
		}
	}
	switch {
	case o.Utilisation > 1:
		return "utilisation", fmt.Errorf("utilisation: %g is above 1; write 0.9 for 90 %%", o.Utilisation)
	case o.Utilisation == 0:
		return "utilisation", errors.New("utilisation is missing: the share of all node-hours that jobs use, such as 0.9")
	case o.nodes() == 0:
		return "nodes", errors.New("the number of nodes is missing: set nodes, or capital and node_price")
	case o.Capital > 0 && o.Years == 0:
		return "capital", errors.New("years is missing: in how many years the capital is written off")
	case (o.RackPower > 0 || o.RackHosting > 0) && o.racks() == 0:
		return "racks", errors.New("the number of racks is missing: set racks, or capital and rack_price")
	case o.RackPower > 0 && kwh == 0:
		return "rack_kw", errors.New("kwh is missing at the top of the file: the price of one kWh")
	case o.people() > 0 && o.PersonCost == 0:
		return "staff", errors.New("person_cost is missing: the cost of a full-time equivalent and year")
	}
	return "", nil
}

// per divides the capital by a price, unless the number is known.
func (o *ownership) per(known, price float64) float64 {
	if known == 0 && price > 0 {
		return o.Capital / price
	}
	return known
}

func (o *ownership) nodes() float64 { return o.per(o.Nodes, o.NodePrice) }
func (o *ownership) racks() float64 { return o.per(o.Racks, o.RackPrice) }

// people returns the full-time equivalents of all staff.
func (o *ownership) people() (n float64) {
	for _, work := range slices.Sorted(maps.Keys(o.Staff)) { // in one order, because sums of floats depend on it
		n += o.Staff[work]
	}
	return n
}

// A yearly holds the parts of the cost of a year.
type yearly struct{ capital, hosting, electricity, staff float64 }

func (y yearly) sum() float64 { return y.capital + y.hosting + y.electricity + y.staff }

// yearly returns the cost of a year.
func (o *ownership) yearly(p *Prices) (y yearly) {
	if o.Years > 0 {
		y.capital = o.Capital / o.Years
	}
	y.hosting = o.racks() * o.RackHosting
	y.electricity = o.racks() * o.RackPower * hoursPerYear * max(p.PUE, 1) * p.KWh
	y.staff = o.people() * o.PersonCost
	return y
}

// used returns the node-hours that jobs use in a year.
func (o *ownership) used() float64 { return o.nodes() * hoursPerYear * o.Utilisation }

// hour returns the price of an hour of a full node.
func (n *nodePrice) hour(p *Prices) float64 {
	if n.owned() {
		return n.yearly(p).sum() / n.used()
	}
	return n.Hour
}

// electricity returns the price of one kWh of a run, which is 0 if the hour of a node includes it.
func (n *nodePrice) electricity(p *Prices) float64 {
	if n.owned() && n.RackPower > 0 {
		return 0
	}
	return p.KWh
}

// ownedBy returns the names of the tables with an ownership that the runs use, in the order of
// the systems.
func (p *Prices) ownedBy(systems []*System) (names []string) {
	for _, s := range systems {
		for _, t := range s.Tasks {
			if name, ok := p.find(s.Name, t.Header.Machine.Host); ok && !slices.Contains(names, name) {
				if n := p.Node[name]; n.owned() {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// ownershipSection shows how the price of a node's hour follows from the cost of a year. It is nil
// if no run uses such a price.
func (p *Prices) ownershipSection(systems []*System) []Section {
	names := p.ownedBy(systems)
	if len(names) == 0 {
		return nil
	}
	money := func(v float64) string { return inMoney.format(v, p.Currency) }
	t := &Table{Head: []string{"cost"}, Caption: "Electricity is that of racks at full power; an hour of a node costs the sum ÷ the node-hours in use."}
	row := func(title string, of func(n *nodePrice) string) {
		cells, known := []string{title}, false
		for _, name := range names {
			n := p.Node[name]
			c := of(&n)
			known = known || c != unknown
			cells = append(cells, c)
		}
		if known {
			t.Rows = append(t.Rows, cells)
		}
	}
	for _, name := range names {
		t.Head = append(t.Head, plain(name))
	}
	part := func(of func(y yearly) float64) func(*nodePrice) string {
		return func(n *nodePrice) string { return money(of(n.yearly(p))) }
	}
	share := func(of func(n *nodePrice) int) func(*nodePrice) string {
		return func(n *nodePrice) string {
			if of(n) == 0 {
				return unknown
			}
			return money(n.hour(p) / float64(of(n)))
		}
	}
	row("capital per year", part(func(y yearly) float64 { return y.capital }))
	row("hosting per year", part(func(y yearly) float64 { return y.hosting }))
	row("electricity per year", part(func(y yearly) float64 { return y.electricity }))
	row("staff per year", part(func(y yearly) float64 { return y.staff }))
	row("sum per year", part(yearly.sum))
	row("nodes", func(n *nodePrice) string { return digits(n.nodes()) })
	row("utilisation", func(n *nodePrice) string { return formatPercent(n.Utilisation) })
	row("node-hours in use per year", func(n *nodePrice) string { return digits(n.used()) })
	row("an hour of a node", func(n *nodePrice) string { return money(n.hour(p)) })
	row("an hour of a processor", share(func(n *nodePrice) int { return n.CPUs }))
	row("an hour of a GPU", share(func(n *nodePrice) int { return n.GPUs }))
	return []Section{{Title: "Cost of the systems", Table: t}}
}
