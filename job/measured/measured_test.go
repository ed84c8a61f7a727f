package measured

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/metrics"
	"hpcc/metrics/report"
	"hpcc/testdata/helpers/testenv"
	"hpcc/text"
)

// TestRequestAdvice: large and small jobs get advice, unless their records have one process of several.
func TestRequestAdvice(t *testing.T) {
	const hour, gib = 3600.0, 1 << 30
	for _, test := range []struct {
		name      string
		asked     metrics.Asked
		wall, cpu float64
		from      string
		ranks     int
		known     bool // by the job's record alone
		want      string
	}{
		{"64 processors for long", metrics.Asked{CPUs: 64}, 10 * hour, 10 * hour * 64 * .98, "cgroup", 0, false, ""},
		{"few of them busy", metrics.Asked{CPUs: 64}, 1e6 * hour, 1e6 * hour * 8, "cgroup", 0, false, "8.0 of 64 processors were busy: ask for 8"},
		{"30 days of 60", metrics.Asked{Time: 60 * 24 * hour}, 30 * 24 * hour, hour, "cgroup", 0, false, ""},
		{"a duration is not long enough", metrics.Asked{CPUs: 4, Time: 1e17}, 1e16, 4e16, "cgroup", 0, false, ""},
		{"memory of all", metrics.Asked{CPUs: 8, Memory: 64 * gib}, hour, 8 * hour, "cgroup", 0, false, "6G of 64G of memory were used: --mem 9G would do"},
		{"of the largest process", metrics.Asked{CPUs: 8, Memory: 64 * gib}, hour, 8 * hour, "process", 0, true, ""},
		{"of the only one", metrics.Asked{CPUs: 1, Memory: 64 * gib}, hour, hour, "process", 0, true, "6G of 64G of memory were used: --mem 9G would do"},
		{"of one rank of eight", metrics.Asked{CPUs: 1, Memory: 64 * gib}, hour, hour, "process", 8, true, ""},
		{"what srun used", metrics.Asked{CPUs: 8}, hour, 2, "process", 8, true, ""},
		{"ranks that were measured", metrics.Asked{CPUs: 8}, hour, hour, "cgroup", 8, false, "1.0 of 8 processors were busy: ask for 1"},
	} {
		f := &metrics.Footer{Wall: test.wall, Usage: metrics.Usage{User: test.cpu}, Memory: 6 * gib, MemoryFrom: test.from}
		x := &report.Task{Ending: report.Done, Header: metrics.Header{Asked: test.asked}, Footer: f, Ranks: test.ranks, Measured: !test.known,
			Figures: map[string]float64{"wall_s": test.wall, "cpu_s": test.cpu, "memory_peak_bytes": 6 * gib}}
		if got := strings.Join(adviseRequests(&report.System{Tasks: []*report.Task{x}}), "\n"); got != test.want {
			t.Errorf("%s: %q; want %q", test.name, got, test.want)
		}
	}
}

// TestNoRequestAdvice: there is no advice if a run lacks its processor time, or the requests differ.
func TestNoRequestAdvice(t *testing.T) {
	const hour = 3600.0
	run := func(cpus int, figures map[string]float64) *report.Task {
		return &report.Task{Ending: report.Done, Header: metrics.Header{Asked: metrics.Asked{CPUs: cpus}}, Footer: &metrics.Footer{}, Figures: figures}
	}
	used := func(wall, cpu float64) map[string]float64 { return map[string]float64{"wall_s": wall, "cpu_s": cpu} }
	for _, test := range []struct {
		name  string
		tasks []*report.Task
		want  string
	}{
		{"equal requests, little used", []*report.Task{run(8, used(hour, hour)), run(8, used(hour, hour))}, "1.0 of 8 processors were busy: ask for 1"},
		{"unknown of one", []*report.Task{run(8, used(hour, hour)), run(8, map[string]float64{"wall_s": hour})}, ""},
		{"one that took no time", []*report.Task{run(8, used(hour, hour)), run(8, map[string]float64{"wall_s": 0})}, "1.0 of 8 processors were busy: ask for 1"},
		{"a long run on 1, and a short one on 16, both busy", []*report.Task{run(1, used(15*hour, 15*hour)), run(16, used(hour, 16*hour))}, ""},
	} {
		if got := strings.Join(adviseRequests(&report.System{Tasks: test.tasks}), "\n"); got != test.want {
			t.Errorf("%s: %q; want %q", test.name, got, test.want)
		}
	}
}

// TestAdviceOfRuns: runs that waited for processors, could use fewer than they asked for, or failed
// early do not show that fewer are enough.
func TestAdviceOfRuns(t *testing.T) {
	const hour = 3600.0
	const fewer = "1.0 of 8 processors were busy: ask for 1"
	for _, test := range []struct {
		name   string
		change func(h *metrics.Header, f *metrics.Footer)
		want   string
	}{
		{"idle processors", func(*metrics.Header, *metrics.Footer) {}, fewer},
		{"little pressure", func(_ *metrics.Header, f *metrics.Footer) { f.Pressure = &metrics.Pressure{CPU: 0.02 * hour} }, fewer},
		{"full pressure", func(_ *metrics.Header, f *metrics.Footer) { f.Pressure = &metrics.Pressure{CPU: hour, Machine: true} }, ""},
		{"throttled", func(_ *metrics.Header, f *metrics.Footer) { f.Cgroup = &metrics.CgroupUse{Throttled: hour} }, ""},
		{"preempted, on a kernel without pressure", func(_ *metrics.Header, f *metrics.Footer) { f.Usage.Switches = 100 * hour }, ""},
		{"confined to one", func(h *metrics.Header, _ *metrics.Footer) { h.Limits.CPUs = 1 }, ""},
		{"failed at once", func(h *metrics.Header, f *metrics.Footer) { h.Asked.Time, f.Exit, f.Wall = 24*hour, 1, 2 }, ""},
	} {
		var known metrics.Record
		known.Header.Asked.CPUs = 8
		known.Footer = &metrics.Footer{Wall: hour, Usage: metrics.Usage{User: hour}}
		test.change(&known.Header, known.Footer)
		r, err := report.Read([]report.Source{{Name: "a", Runs: []report.Run{{Known: known}}}}, report.Options{})
		testenv.Check(t, err)
		if got := strings.Join(adviseRequests(r.Systems[0]), "\n"); got != test.want {
			t.Errorf("%s: %q; want %q", test.name, got, test.want)
		}
	}
}

// TestRecordsBelow: only records count towards the limit, a link is followed if it is the root, and
// an unreadable directory is a warning.
func TestRecordsBelow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run1")
	testenv.Check(t, os.Mkdir(dir, 0o755))
	for _, name := range []string{"task.1.json", "task.1.jsonl", "task.2.jsonl", "task.1.out", "job.json", "x", "y"} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	latest := filepath.Join(filepath.Dir(dir), "latest")
	testenv.Check(t, os.Symlink("run1", latest))
	if _, files, err := recordsBelow(latest, 4); err != nil || len(files[latest]) != 2 {
		t.Errorf("%v, %v; want two measured runs and no error for four records", files, err)
	}
	if _, _, err := recordsBelow(dir, 3); err == nil || err.(*text.Error).Advice == "" {
		t.Errorf("%v; want an error with a hint", err)
	}
	if src, err := runsBelow(latest, false); err != nil || src.Name != "latest" || len(src.Runs) != 2 || len(src.Warnings) == 0 {
		t.Errorf("%+v, %v", src, err)
	}
	src := report.Source{}
	if runsIn(&src, filepath.Join(dir, "x"), nil, false); len(src.Warnings) == 0 || !strings.Contains(src.Warnings[0], "reading the job's records") {
		t.Errorf("%q; want a warning that this is not a directory", src.Warnings)
	}
}

// TestResultsOfAttempts: the results of a task are those of its last attempt.
func TestResultsOfAttempts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "task.1", "metrics.json")
	testenv.Check(t, os.Mkdir(filepath.Dir(file), 0o700))
	testenv.Check(t, os.WriteFile(file, []byte(`{"loss": 1}`), 0o600))
	now := time.Now()
	testenv.Check(t, os.Chtimes(file, now, now.Add(-time.Hour)))
	p, err := openResults(dir, "task.{task}")
	testenv.Check(t, err)
	defer p.root.Close()
	p.own = true
	for attempt, want := range []int{1, 0} {
		r, err := p.read(&dispatch.Submission{Job: &job.Job{}}, &report.SweepTask{Index: 1, Attempt: attempt, Start: now})
		if err != nil || len(r) != want {
			t.Errorf("attempt %d has %d results, %v; want %d", attempt, len(r), err, want)
		}
	}
}

// TestHiddenPlace: a job's directory that cannot be opened has no results. It is an error only if
// the command line names it.
func TestHiddenPlace(t *testing.T) {
	hidden := filepath.Join(t.TempDir(), "hidden")
	if err := os.WriteFile(hidden, nil, 0o600); err != nil { // root could open a directory without permissions
		t.Fatal(err)
	}
	sub := &dispatch.Submission{Job: &job.Job{Dir: hidden}}
	tasks := []report.SweepTask{{Index: 1}, {Index: 2}}
	p, err := new(Sweeps).findResults(sub, t.TempDir(), tasks)
	if err != nil || !p.own {
		t.Fatalf("%+v, %v; want the task's own directory", p, err)
	}
	p.root.Close()
	if _, err := (&Sweeps{Results: "out/{task}"}).findResults(sub, t.TempDir(), tasks); err == nil {
		t.Error("there is no error for a named directory that cannot be opened")
	}
}
