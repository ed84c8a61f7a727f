package main

import (
	"os"
	"path/filepath"
	"testing"

	"hpcc/job/capacity"
	"hpcc/testdata/testenv"
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
	r := clusterReport{Utilisation: &capacity.Utilisation{Capacity: capacity.Amounts{GPUs: 8}, Jobs: 1, Untold: []string{"memory", "GPUs"}}}
	for _, row := range r.rows() {
		if told := row.part(0) != "not told"; row.name == "GPUs" && told {
			t.Errorf("a mean of %s is told", row.name)
		}
	}
}

// TestGPUsOfAttempts: what an attempt before the last had of a GPU is not in what the job held.
func TestGPUsOfAttempts(t *testing.T) {
	dir := t.TempDir()
	text := `{"kind":"header","command":["x"]}` + "\n" + `{"kind":"sample","t":3600,"gpus":[{"index":0,"utilisation":0}]}` + "\n"
	for _, name := range []string{"task.0.jsonl", "task.0.0.jsonl", "task.0.1.jsonl", "task.1.jsonl", "task.x.jsonl"} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	if w := gpusOf(dir); w != (gpuWaste{Measured: 2, Idle: 2}) {
		t.Errorf("%+v; want 2 hours, both idle", w)
	}
}
