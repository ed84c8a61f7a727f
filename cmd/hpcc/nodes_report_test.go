package main

import "testing"

// TestBars: a level that no cluster has, as a site may tell it, is drawn as full.
func TestBars(t *testing.T) {
	r := capacityRow{of: 4, told: true, levels: []float64{0, 0.1, 2, 4, 1e300}}
	if got := r.bars(); got != ".▁▅██" {
		t.Errorf("the bars are %q", got)
	}
}
