package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"hpcc/metrics/report"
	"hpcc/testdata/helpers/testenv"
)

// costs reports the records of testdata/corpora/costs with the prices there.
func costs(t *testing.T) *report.Report {
	t.Helper()
	dir := "../../testdata/corpora/costs/"
	p, err := readAllPrices(dir+"prices.toml", "")
	testenv.Check(t, err)
	r, err := report.Read([]report.Source{{Name: "metal", Runs: []report.Run{{File: dir + "metal.jsonl"}}}, {Name: "cloud", Runs: []report.Run{{File: dir + "cloud.jsonl"}}}}, report.Options{Prices: p})
	testenv.Check(t, err)
	return r
}

// TestCosts checks the costs of the example against a calculation by hand.
func TestCosts(t *testing.T) {
	// metal: 4.4 racks and 88 nodes.
	//   capital      4,400,000 ÷ 5                          = 880,000.000
	//   hosting      4.4 × 3,300                            =  14,520.000
	//   electricity  4.4 × 25 kW × 8,760 h × 1.2 × 0.0839   =  97,015.248
	//   staff        (0.25 + 0.25) × 140,000                =  70,000.000
	//                                                       1,061,535.248
	//   node-hours   88 × 8,760 × 0.9                       = 693,792
	//   an hour      1,061,535.248 ÷ 693,792                = 1.53004826
	// cloud: 3 racks and 60 nodes.
	//   capital      3,000,000 ÷ 5                          = 600,000.00
	//   hosting      3 × 3,300                              =   9,900.00
	//   electricity  3 × 25 kW × 8,760 h × 1.2 × 0.0839     =  66,146.76
	//   staff        0.5 × 125,000                          =  62,500.00
	//                                                         738,546.76
	//   node-hours   60 × 8,760 × 0.6                       = 315,360
	//   an hour      738,546.76 ÷ 315,360                   = 2.34191641
	// One of four GPUs is a quarter of a node, more than 4 or 1 of 80 processors. The records have
	// 41.2346 s and 84.5005 s, and GPUs that were 87.93 % and 36.90 % busy.
	for i, want := range []map[string]float64{
		{"cost": 0.00438131, "cost_per_gpu_hour": 0.38251206, "cost_per_busy_gpu_hour": 0.43501883},
		{"cost": 0.01374257, "cost_per_gpu_hour": 0.58547910, "cost_per_busy_gpu_hour": 1.58666423},
	} {
		s := costs(t).Systems[i]
		for name, v := range want {
			if got := s.Tasks[0].Figures[name]; math.Abs(got-v) > 5e-8 {
				t.Errorf("%s: %s = %.8f; want %.8f", s.Name, name, got, v)
			}
		}
	}
}

// TestCostsPage checks that docs/costs.md shows the prices and the report of the example.
func TestCostsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/costs.md")
	testenv.Check(t, err)
	prices, err := os.ReadFile("../../testdata/corpora/costs/prices.toml")
	testenv.Check(t, err)
	var text bytes.Buffer
	testenv.Check(t, costs(t).Text(&text))
	shown := regexp.MustCompile(`(?m)^(wall clock|processors? (time|busy)|busy share|GPU util|energy|cost|capital|hosting|electricity|staff|sum|nodes|node-hours|an hour).*`)
	for _, line := range append(shown.FindAllString(text.String(), -1), strings.Split(string(prices), "\n")...) {
		if line != "" && !strings.Contains(string(page), "\n    "+line+"\n") {
			t.Errorf("docs/costs.md lacks the line %q", line)
		}
	}
}

// TestCostsOfReport checks that the prices of the example are those of the report that they are
// taken from, a table with two systems. HPCC_TEST_BIGGAN names a directory with its REPORT.md.
func TestCostsOfReport(t *testing.T) {
	dir := os.Getenv("HPCC_TEST_BIGGAN")
	if dir == "" {
		t.Skip("HPCC_TEST_BIGGAN does not name a checkout of the project whose REPORT.md has the prices")
	}
	b, err := os.ReadFile(filepath.Join(dir, "REPORT.md"))
	testenv.Check(t, err)
	prices, err := os.ReadFile("../../testdata/corpora/costs/prices.toml")
	testenv.Check(t, err)
	head, metal, _ := strings.Cut(string(prices), "[node.metal]")
	metal, cloud, _ := strings.Cut(metal, "[node.cloud]")
	for row, key := range map[string]string{
		"Cost of electricity": "kwh", "PUE": "pue", "Capital": "capital", "Power consumption": "rack_kw", "Person Cost": "person_cost", "User support": "user_support",
		"System management": "system_management", "Cost of hosting": "rack_hosting", "Price per rack": "rack_price", "Price per node": "node_price", "Cores per node": "cpus", "Utilization": "utilisation",
	} {
		m := regexp.MustCompile(`(?m)^\| *` + row + `[^|]*\|([^|]*)\|([^|]*)\|`).FindStringSubmatch(string(b))
		if m == nil {
			t.Errorf("REPORT.md has no row %q", row)
			continue
		}
		for i, text := range []string{metal, cloud} {
			if key == "kwh" || key == "pue" {
				text = head
			}
			if got, want := valueOf(t, text, key), amountOf(t, m[1+i]); math.Abs(got-want) > 1e-9 {
				t.Errorf("%s of system %d is %g; REPORT.md has %g", key, i, got, want)
			}
		}
	}
}

// valueOf returns the number of a key in a part of a TOML file.
func valueOf(t *testing.T, text, key string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)\b` + key + ` = ([0-9_.]+)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in %q", key, text)
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(m[1], "_", ""), 64)
	testenv.Check(t, err)
	return v
}

// amountOf reads an amount such as $4.4M, 25kW, $125k or 90%.
func amountOf(t *testing.T, cell string) float64 {
	t.Helper()
	m := regexp.MustCompile(`^\s*\$?([0-9.]+)(kW|M|[kK]|%)?\s*$`).FindStringSubmatch(cell)
	if m == nil {
		t.Fatalf("%q is not an amount", cell)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	testenv.Check(t, err)
	return v * map[string]float64{"": 1, "kW": 1, "M": 1e6, "k": 1e3, "K": 1e3, "%": 0.01}[m[2]]
}
