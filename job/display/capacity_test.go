package display

import (
	"os"
	"path/filepath"
	"testing"

	"hpcc/job/capacity"
	"hpcc/testdata/testenv"
)

// TestBars checks that an impossible level, as a site may report it, is drawn as full.
func TestBars(t *testing.T) {
	r := capacityRow{total: 4, known: true, levels: []float64{0, 0.1, 2, 4, 1e300}}
	if got := r.bars(); got != ".▁▅██" {
		t.Errorf("the bars are %q", got)
	}
}

// TestUntold checks that a mean is unknown, not zero, if the accounting does not report it.
func TestUntold(t *testing.T) {
	r := ClusterReport{Utilisation: &capacity.Utilisation{Capacity: capacity.Amounts{GPUs: 8}, Jobs: 1, Unknown: []string{"memory", "GPUs"}}}
	for _, row := range r.rows() {
		if got := row.part(0); row.name == "GPUs" && got != "unknown" {
			t.Errorf("the mean of %s is %q; want unknown", row.name, got)
		}
	}
}

// TestGPUsOfAttempts checks that only the last attempt of a task counts for the use of GPUs.
func TestGPUsOfAttempts(t *testing.T) {
	dir := t.TempDir()
	text := `{"kind":"header","command":["x"]}` + "\n" + `{"kind":"sample","t":3600,"gpus":[{"index":0,"utilisation":0}]}` + "\n"
	for _, name := range []string{"task.0.jsonl", "task.0.0.jsonl", "task.0.1.jsonl", "task.1.jsonl", "task.x.jsonl"} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	if w := GPUsOf(dir); w != (GPUWaste{Measured: 2, Idle: 2}) {
		t.Errorf("%+v; want 2 hours, both idle", w)
	}
}
