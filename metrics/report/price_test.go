package report

import (
	"math"
	"strings"
	"testing"

	"hpcc/metrics"
)

// TestOwnership checks the price of an hour, with round numbers.
func TestOwnership(t *testing.T) {
	o := ownership{Capital: 100, Years: 4, Nodes: 2, Racks: 1, RackPower: 10, RackHosting: 7, Staff: map[string]float64{"a": 0.5, "b": 0.25}, PersonCost: 40, Utilisation: 0.5}
	n := nodePrice{ownership: o, GPUs: 4, IdleWatts: 100, MaxWatts: 100}
	p := &Prices{KWh: 0.001, PUE: 2, Node: map[string]nodePrice{"a": n}}
	if key, err := p.Check(); err != nil {
		t.Fatal(key, err)
	}
	// 100 ÷ 4; 7; 10 kW × 8760 h × 2 × 0.001; 0.75 × 40; over 2 nodes × 8760 h × 0.5.
	if y := n.yearly(p); y.capital != 25 || y.hosting != 7 || math.Abs(y.electricity-175.2) > 1e-9 || y.staff != 30 || math.Abs(n.hour(p)-237.2/8760) > 1e-12 {
		t.Errorf("%+v, %g an hour", y, n.hour(p))
	}
	h := metrics.Header{Asked: metrics.Asked{GPUs: 2}}
	f := &metrics.Footer{Wall: 7200, GPUs: []metrics.GPUUse{{Mean: 50}, {Mean: 100}}}
	x := &Task{Header: h, Footer: f, Figures: figures(&h, f)}
	p.add("a", x)
	// Half a node for two hours: the hour includes the electricity, although the energy is known.
	for name, want := range map[string]float64{costName: 237.2 / 8760, gpuHourName: 237.2 / 8760 / 4, busyHourName: 237.2 / 8760 / 4 / 0.75, energyName: 0.2} {
		if got := x.Figures[name]; math.Abs(got-want) > 1e-12 {
			t.Errorf("%s = %g; want %g", name, got, want)
		}
	}
	x.Figures = figures(&h, f)
	n.RackPower = 0
	p.Node["a"] = n
	p.add("a", x)
	if got, want := x.Figures[costName], 62./8760+0.001*0.2; math.Abs(got-want) > 1e-12 {
		t.Errorf("without the power of racks: %g; want the measured energy in addition, %g", got, want)
	}
}

// TestOwnershipMistakes checks the key and the message of invalid and missing values.
func TestOwnershipMistakes(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(n *nodePrice, p *Prices)
		key    string
		want   string
	}{
		{"none", func(*nodePrice, *Prices) {}, "", ""},
		{"an hour too", func(n *nodePrice, _ *Prices) { n.Hour = 1 }, "hour", "cannot be used with capital"},
		{"years", func(n *nodePrice, _ *Prices) { n.Years = 0 }, "capital", "years is missing"},
		{"utilisation", func(n *nodePrice, _ *Prices) { n.Utilisation = 0 }, "utilisation", "utilisation is missing"},
		{"percent", func(n *nodePrice, _ *Prices) { n.Utilisation = 90 }, "utilisation", "write 0.9 for 90 %"},
		{"nodes", func(n *nodePrice, _ *Prices) { n.NodePrice = 0 }, "nodes", "set nodes, or capital and node_price"},
		{"racks", func(n *nodePrice, _ *Prices) { n.RackPrice = 0 }, "racks", "set racks, or capital and rack_price"},
		{"racks of hosting", func(n *nodePrice, _ *Prices) { n.RackPrice, n.RackPower = 0, 0 }, "racks", "set racks"},
		{"kwh", func(_ *nodePrice, p *Prices) { p.KWh = 0 }, "rack_kw", "kwh is missing"},
		{"person", func(n *nodePrice, _ *Prices) { n.PersonCost = 0 }, "staff", "person_cost is missing"},
		{"negative", func(n *nodePrice, _ *Prices) { n.RackHosting = -1 }, "rack_hosting", "-1 is out of range"},
		{"not a number", func(n *nodePrice, _ *Prices) { n.Capital = math.NaN() }, "capital", "NaN is out of range"},
		{"negative staff", func(n *nodePrice, _ *Prices) { n.Staff = map[string]float64{"x": -1} }, "staff", "staff: x: -1 is out of range"},
		{"staff alone", func(n *nodePrice, _ *Prices) { n.ownership = ownership{Staff: map[string]float64{"x": 1}} }, "utilisation", "utilisation is missing"},
	} {
		n := nodePrice{ownership: ownership{Capital: 10, Years: 5, NodePrice: 1, RackPrice: 5, RackPower: 1, RackHosting: 1, Staff: map[string]float64{"x": 1}, PersonCost: 1, Utilisation: 1}}
		p := &Prices{KWh: 1}
		test.change(&n, p)
		p.Node = map[string]nodePrice{"a": n}
		key, err := p.Check()
		switch {
		case test.want == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || key[len(key)-1] != test.key):
			t.Errorf("%s: %q, %v; want %s, %q", test.name, key, err, test.key, test.want)
		}
	}
}
