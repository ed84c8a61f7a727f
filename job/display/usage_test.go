package display

import (
	"strings"
	"testing"
	"time"

	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/text/terminal"
)

func TestTopText(t *testing.T) {
	now := &dispatch.Usage{ID: "big-1\x1b[2J", Target: "slurm", State: "running", Total: 1000, Running: 1000}
	for k := range 1000 {
		now.Tasks = append(now.Tasks, dispatch.TaskUsage{Task: k, Host: "n\x1b]0;x\a1", CPUs: float64(k % 7), Granted: 8, Limit: 1 << 30, Start: time.Now().Add(-time.Hour), Age: 120})
		now.Sum.Add(&now.Tasks[k])
	}
	SortUsage(now.Tasks, "cpu")
	lines := strings.Split(strings.TrimSuffix(Usage(now, 20, 0), "\n"), "\n")
	if len(lines) != 3+1000 || strings.Join(lines[23:], "") != "" {
		t.Errorf("%d lines, of which the last are %q", len(lines), strings.Join(lines[23:], "|"))
	}
	if !strings.HasPrefix(lines[3], "6 ") || !strings.Contains(lines[3], "6.00/8") || !strings.HasSuffix(lines[3], "as of 2m00s ago") || !strings.HasPrefix(lines[4], "13 ") {
		t.Errorf("the busiest first, and how old that is: %q, %q", lines[3], lines[4])
	}
	if strings.ContainsAny(strings.Join(lines, ""), "\x1b\a") {
		t.Errorf("control characters: %q", lines[:4])
	}
	if want := "CPU 2997.0 of 8000 (37%)  memory 0 B of 1073.7 GB  read 0 B/s  write 0 B/s"; lines[1] != want {
		t.Errorf("%q; want %q", lines[1], want)
	}
}

// TestTopNarrow checks that narrow terminals lose columns, but never the diagnosis.
func TestTopNarrow(t *testing.T) {
	now := &dispatch.Usage{ID: "train-261121-090000", Target: "slurm", State: "running", Total: 1, Running: 1}
	now.Tasks = []dispatch.TaskUsage{{
		Task: 1234, Host: "login-node-with-a-long-name.cluster.example", CPUs: 31.25, Granted: 32, Memory: 123e9, Peak: 124e9, Limit: 128e9,
		Read: 1e8, Written: 1e8, Threads: 99, Stalled: 12.5, GPUs: []metrics.GPUSample{{Utilisation: 50, Memory: 1e9}},
		Pressure: &metrics.Pressure{Memory: .61}, Start: time.Now().Add(-90 * time.Minute),
	}}
	now.Sum.Add(&now.Tasks[0])
	for _, c := range []struct {
		columns int
		titles  string
	}{
		{0, "TASK HOST TIME CPU MEM PEAK LIMIT READ/S WRITE/S THREADS GPU GPUMEM THROTTLED WAITS"},
		{120, "TASK HOST TIME CPU MEM LIMIT GPU THROTTLED WAITS"},
		{79, "TASK CPU MEM LIMIT GPU THROTTLED WAITS"},
		{40, "TASK CPU MEM THROTTLED WAITS"},
	} {
		lines := strings.Split(Usage(now, 20, c.columns), "\n")
		if got := strings.Join(strings.Fields(lines[2]), " "); got != c.titles || !strings.HasSuffix(lines[3], "12.50      memory 61%") {
			t.Errorf("%d columns: %q, %q; want %q", c.columns, got, lines[3], c.titles)
		}
		if c.columns > 70 && terminal.Width(lines[3]) > c.columns {
			t.Errorf("%d columns: a line has %d", c.columns, terminal.Width(lines[3]))
		}
	}
}

// TestTopGPUs: what is not known of parts of GPUs is not idle.
func TestTopGPUs(t *testing.T) {
	for _, c := range []struct {
		name string
		gpus []metrics.GPUSample
		want string
	}{
		{"known", []metrics.GPUSample{{Utilisation: 50, Memory: 1e9}, {Memory: 1e9}}, "GPU 25% of 2, 2.0 GB"},
		{"one of two", []metrics.GPUSample{{Utilisation: 50, Memory: 1e9}, {Unknown: true, Memory: 1e9}}, "GPU 50% of 2, 2.0 GB"},
		{"parts", []metrics.GPUSample{{Unknown: true, Memory: 1e9}, {Unknown: true, Memory: 1e9}}, "GPU – of 2, 2.0 GB"},
	} {
		now := &dispatch.Usage{Tasks: []dispatch.TaskUsage{{GPUs: c.gpus}}}
		now.Sum.Add(&now.Tasks[0])
		text := Usage(now, 9, 0)
		row := strings.NewReplacer("GPU ", "", " of 2, ", " ").Replace(c.want)
		if !strings.Contains(text, c.want+"  read ") || !strings.Contains(strings.Join(strings.Fields(text), " "), " 0 "+row) {
			t.Errorf("%s: %q; want %q and %q", c.name, text, c.want, row)
		}
	}
}
