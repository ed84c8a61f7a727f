package main

import (
	"testing"

	"hpcc/job"
)

// TestBars: a level that no cluster has, as a site may tell it, is drawn as full.
func TestBars(t *testing.T) {
	r := capacityRow{of: 4, told: true, levels: []float64{0, 0.1, 2, 4, 1e300}}
	if got := r.bars(); got != ".▁▅██" {
		t.Errorf("the bars are %q", got)
	}
}

// TestUntold: of what an accounting says nothing there is no mean of zero.
func TestUntold(t *testing.T) {
	r := clusterReport{Utilisation: &job.Utilisation{Capacity: job.Amounts{GPUs: 8}, Jobs: 1, Untold: []string{"memory", "GPUs"}}}
	for _, row := range r.rows() {
		if told := row.part(0) != "not told"; row.name == "GPUs" && told {
			t.Errorf("a mean of %s is told", row.name)
		}
	}
}
