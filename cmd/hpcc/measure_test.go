package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hpcc/metrics"
)

// buildLoad makes the program of known use.
func buildLoad(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	load := filepath.Join(dir, "load")
	cmd := exec.Command("go", "build", "-o", load, "../../testdata/measure/load.go")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return load
}

// measure runs words as "hpcc run --measure", in the host's own root, and reads the record. before
// are words in front of hpcc's.
func measure(t *testing.T, before []string, words ...string) *metrics.Record {
	t.Helper()
	file := filepath.Join(t.TempDir(), "run.jsonl")
	args := append(append(before, filepath.Join(bin, "hpcc"), "run", "--measure="+file, "--no-config", "/", "--"), words...)
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r, err := metrics.ReadRecord(file, true)
	if err != nil || r.Footer == nil {
		t.Fatalf("%v: %v, %s", words, err, out)
	}
	t.Logf("%v: %s", words, footer(r))
	return r
}

func footer(r *metrics.Record) string {
	b, _ := json.Marshal(r.Footer)
	return string(b)
}

// near says whether two figures agree to a part and an amount.
func near(a, b, part, amount float64) bool { return math.Abs(a-b) <= part*b+amount }

// timed is what /usr/bin/time -v wrote.
type timed struct{ cpu, largest, in, out float64 }

func readTimed(t *testing.T, file string) timed {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	value := func(name string) float64 {
		m := regexp.MustCompile(regexp.QuoteMeta(name) + `: ([0-9.]+)`).FindSubmatch(b)
		if m == nil {
			t.Fatalf("no %q in %s", name, b)
		}
		n, _ := strconv.ParseFloat(string(m[1]), 64)
		return n
	}
	return timed{value("User time (seconds)") + value("System time (seconds)"), value("Maximum resident set size (kbytes)") * 1024,
		value("File system inputs") * 512, value("File system outputs") * 512}
}

// TestMeasureAgrees: what is measured of programs of known use is what /usr/bin/time
// says of the very same execution. The tolerances stand in docs/measure.md.
func TestMeasureAgrees(t *testing.T) {
	needs(t, "userns", "time")
	load := buildLoad(t)
	dir := t.TempDir()
	for _, c := range []struct {
		name      string
		words     []string
		memory    float64 // MiB that all processes together held; 0: not looked at
		processes int     // that were there at once, at least
		written   float64 // MiB
	}{
		{"processor", []string{"cpu", "0.6", "2"}, 0, 1, 0},
		{"memory", []string{"memory", "300"}, 300, 1, 0},
		{"many processes", []string{"processes", "30", "10"}, 300, 31, 0},
		{"short-lived children", []string{"short", "100"}, 0, 1, 0},
		{"storage", []string{"io", dir, "64"}, 0, 1, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "time")
			r := measure(t, nil, append([]string{"/usr/bin/time", "-v", "-o", file, load}, c.words...)...)
			f, want := r.Footer, readTimed(t, file)
			if cpu := f.Usage.User + f.Usage.System; !near(cpu, want.cpu, 0.02, 0.05) {
				t.Errorf("%.3f s of processor time; time says %.2f", cpu, want.cpu)
			}
			if last := r.Samples[len(r.Samples)-1].CPU; !near(last, want.cpu, 0.05, 0.1) {
				t.Errorf("the last sample has %.3f s of processor time; time says %.2f", last, want.cpu)
			}
			if c.memory > 0 && !near(float64(f.Memory), c.memory*(1<<20), 0.1, 16<<20) {
				t.Errorf("%d bytes of memory from %s; want %g MiB", f.Memory, f.MemoryFrom, c.memory)
			}
			if f.MemoryFrom == "process" && !near(float64(f.Memory), want.largest, 0.05, 0) {
				t.Errorf("%d bytes of memory; time says %.0f", f.Memory, want.largest)
			}
			if !near(float64(f.Written), want.out, 0.01, 1<<20) || !near(float64(f.Read), want.in, 0.01, 1<<20) {
				t.Errorf("%d bytes written, %d read; time says %.0f, %.0f", f.Written, f.Read, want.out, want.in)
			}
			if c.written > 0 && onStorage(dir) && !near(float64(f.Written), c.written*(1<<20), 0.05, 1<<20) {
				t.Errorf("%d bytes written; want %g MiB", f.Written, c.written)
			}
			if f.Processes < c.processes {
				t.Errorf("%d processes at once; want %d", f.Processes, c.processes)
			}
		})
	}
}

// onStorage says whether a directory's files are on storage, and not in memory.
func onStorage(dir string) bool {
	var st syscall.Statfs_t
	const tmpfs = 0x01021994
	return syscall.Statfs(dir, &st) == nil && st.Type != tmpfs
}

// TestMeasureAgreesWithPerf compares with the kernel's performance counters.
func TestMeasureAgreesWithPerf(t *testing.T) {
	needs(t, "userns", "perf")
	load, file := buildLoad(t), filepath.Join(t.TempDir(), "perf")
	r := measure(t, nil, "perf", "stat", "-x,", "-o", file, "-e", "task-clock", load, "cpu", "0.6", "2")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^([0-9.]+),(?:msec)?,task-clock`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("perf counted nothing: %s", b)
	}
	want, _ := strconv.ParseFloat(string(m[1]), 64)
	if cpu := r.Footer.Usage.User + r.Footer.Usage.System; !near(cpu, want/1000, 0.05, 0.05) {
		t.Errorf("%.3f s of processor time; perf says %.3f", cpu, want/1000)
	}
}

// A testCgroup is one of version 1 that a test made.
type testCgroup struct {
	t    *testing.T
	name string
	dirs []string
}

// newTestCgroup is for root: CI runs these tests once more as that.
func newTestCgroup(t *testing.T) *testCgroup {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	needs(t, "cgroups1")
	g := &testCgroup{t: t, name: fmt.Sprintf("hpcc-test-%d", os.Getpid())}
	for _, controller := range []string{"memory", "cpu", "cpuacct", "blkio"} {
		dir := filepath.Join("/sys/fs/cgroup", controller, g.name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(dir) })
		g.dirs = append(g.dirs, dir)
	}
	return g
}

// enter are words that enter the cgroups and execute what follows.
func (g *testCgroup) enter() []string {
	script := ""
	for _, dir := range g.dirs {
		script += "echo $$ >" + dir + "/cgroup.procs; "
	}
	return []string{"sh", "-c", script + `exec "$@"`, "sh"}
}

func (g *testCgroup) set(i int, file, value string) {
	if err := os.WriteFile(filepath.Join(g.dirs[i], file), []byte(value), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

// get is the number behind a key, or of the whole file.
func (g *testCgroup) get(i int, file, key string) float64 {
	b, err := os.ReadFile(filepath.Join(g.dirs[i], file))
	if err != nil {
		g.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return n
		}
	}
	g.t.Fatalf("no %q in %s", key, b)
	return 0
}

// TestMeasureAgreesWithCgroup: in a cgroup of its own a run has that one's figures and limits.
func TestMeasureAgreesWithCgroup(t *testing.T) {
	needs(t, "userns")
	g, load := newTestCgroup(t), buildLoad(t)
	g.set(0, "memory.limit_in_bytes", "1073741824")
	g.set(1, "cpu.cfs_quota_us", "50000")
	r := measure(t, g.enter(), load, "cpu", "0.3", "2")
	if l := r.Header.Limits; l.CPUs != 0.5 || l.Memory != 1<<30 || l.Cgroup != "v1" || l.Shared || !strings.HasSuffix(l.CgroupPath, g.name) {
		t.Errorf("limits %+v; want half a processor, 1 GiB, a cgroup of its own", l)
	}
	u := r.Footer.Cgroup
	if want := g.get(1, "cpu.stat", "throttled_time") / 1e9; u == nil || u.Throttled == 0 || !near(u.Throttled, want, 0.05, 0.1) {
		t.Fatalf("%+v; the cgroup was throttled for %.3f s", u, want)
	}
	if want := g.get(2, "cpuacct.usage", "") / 1e9; !near(u.CPU, want, 0.05, 0.1) {
		t.Errorf("%.3f s of processor time; the cgroup says %.3f", u.CPU, want)
	}
	g.set(1, "cpu.cfs_quota_us", "-1")
	r = measure(t, g.enter(), load, "memory", "300")
	want := g.get(0, "memory.max_usage_in_bytes", "")
	if f := r.Footer; f.MemoryFrom != "cgroup" || !near(float64(f.Memory), want, 0.02, 0) || f.Memory < 300<<20 {
		t.Errorf("%d bytes from %s; the cgroup says %.0f", f.Memory, f.MemoryFrom, want)
	}
}

// TestMeasureOutOfMemory: of a program that the kernel kills for its memory the record is whole, and says so.
func TestMeasureOutOfMemory(t *testing.T) {
	needs(t, "userns")
	g, load := newTestCgroup(t), buildLoad(t)
	g.set(0, "memory.limit_in_bytes", "134217728")
	f := measure(t, g.enter(), load, "memory", "300").Footer
	if f.Exit != -1 || f.Signal != "SIGKILL" || f.Cgroup == nil || f.Cgroup.OOMKills != 1 || f.MemoryFrom != "cgroup" || !near(float64(f.Memory), 128<<20, 0.01, 0) {
		t.Errorf("%+v, %+v; want a kill by the kernel at 128 MiB", f, f.Cgroup)
	}
}

// TestMeasureAtATerminal: what is typed reaches the program once, also where its input is not the
// terminal.
func TestMeasureAtATerminal(t *testing.T) {
	needs(t, "userns")
	load := buildLoad(t)
	for name, input := range map[string]string{"terminal": "", "null": "</dev/null"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "run.jsonl")
			line := filepath.Join(bin, "hpcc") + " run --no-config --measure=" + file + " / -- " + load + " interrupts 1.5 " + input
			s := sit(t, t.TempDir(), "run", "--no-config", "/", "--", "sh", "-c", "exec "+line) // a shell that becomes hpcc
			s.expect("ready")
			s.typed("\x03")
			s.expect(`in all: 1\s`)
			if status := s.end(); status != 7 {
				t.Errorf("status %d; want the program's, 7", status)
			}
			if r, err := metrics.ReadRecord(file, false); err != nil || r.Footer == nil || r.Footer.Exit != 7 {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}
