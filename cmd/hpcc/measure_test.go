package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/metrics"
	"hpcc/testdata/testenv"
)

// measure runs words as "hpcc run --measure", in the host's own root, and reads the record. before
// are words in front of hpcc's.
func measure(t *testing.T, before []string, words ...string) *metrics.Record {
	t.Helper()
	dir := openDir(t)
	file := filepath.Join(dir, "run.jsonl")
	args := append(append(before, filepath.Join(bin, "hpcc"), "run", "--measure="+file, "--no-config", "/", "--"), words...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LOAD_RECORD="+file) // see testdata/measure
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

// openDir is a directory where everybody may write: who measures may be another user than the test's.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		testenv.Check(t, os.Chmod(d, 0o777))
	}
	return dir
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
	testenv.Check(t, err)
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

// readStart is the processor time, in seconds, that a process had used when it wrote its /proc/PID/stat: what it takes hpcc
// to become the program, which a busy machine makes much, is the run's and not what time(1) counts.
func readStart(t *testing.T, file string) float64 {
	t.Helper()
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, err := strconv.ParseFloat(fields[11], 64)
	system, serr := strconv.ParseFloat(fields[12], 64)
	if err != nil || serr != nil {
		t.Fatalf("%s: %v, %v", b, err, serr)
	}
	return (user + system) / 100
}

// A use is a program of testdata/measure, and what is known of it.
type use struct {
	name      string
	words     []string
	memory    float64 // MiB that all processes together held; 0: not looked at
	processes int     // that were there at once, at least
	started   int     // threads that begin meanwhile, about, where they are many
	written   float64 // MiB, and as many read
}

// uses are the kinds of program whose figures are compared; the last writes into a directory.
func uses(dir string) []use {
	return []use{
		{"processor", []string{load, "cpu", "0.6", "2"}, 0, 1, 0, 0},
		{"memory", []string{load, "memory", "300"}, 300, 1, 0, 0},
		{"many processes", []string{load, "processes", "30", "10"}, 300, 31, 150, 0},
		{"short-lived children", []string{load, "short", "100"}, 0, 1, 500, 0},
		{"storage", []string{load, "io", dir, "64"}, 0, 1, 0, 64},
	}
}

// TestMeasureAgrees: what is measured of programs of known use is what /usr/bin/time
// says of the very same execution. The tolerances stand in docs/measure.md.
func TestMeasureAgrees(t *testing.T) {
	testenv.Slow(t)
	needs(t, "userns", "time")
	dir := t.TempDir()
	for _, c := range uses(dir) {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "time")
			r := measure(t, nil, append([]string{"sh", "-c", `cat /proc/$$/stat >"$0.start"; exec "$@"`, file, "/usr/bin/time", "-v", "-o", file}, c.words...)...)
			f, want := r.Footer, readTimed(t, file)
			want.cpu += readStart(t, file+".start")
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

// TestMeasureAgreesWithPerf compares with what perf stat says at its end: user and sys, and its counter of processor time. That
// one begins after a thread does and ends before it: a twentieth less for programs that end at once, with or without hpcc. What
// perf itself uses, which a busy machine makes much, is the run's, and in neither: the shell around it tells.
func TestMeasureAgreesWithPerf(t *testing.T) {
	testenv.Slow(t)
	needs(t, "userns", "perf")
	dir := t.TempDir()
	const script = `LC_ALL=C "$@"; status=$?; times >"$0.times"; exit $status` // bash: in milliseconds
	for _, c := range uses(dir) {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "perf")
			f := measure(t, nil, append([]string{"bash", "-c", script, file, "perf", "stat", "-o", file, "-e", "task-clock"}, c.words...)...).Footer
			b, err := os.ReadFile(file)
			testenv.Check(t, err)
			figure := func(pattern string) float64 {
				m := regexp.MustCompile(`(?m)^ *([0-9.,]+) ` + pattern).FindSubmatch(b)
				if m == nil {
					t.Fatalf("no %s: %s", pattern, b)
				}
				n, err := strconv.ParseFloat(strings.ReplaceAll(string(m[1]), ",", ""), 64)
				testenv.Check(t, err)
				return n
			}
			program := figure("seconds user") + figure("seconds sys")
			around := readTimes(t, file+".times") - program
			clock := around + figure("msec task-clock")/1000
			t.Logf("perf: %.3f s, counter %.3f, both with %.3f of the shell and perf itself", around+program, clock, around)
			if around < -0.02 || around > 1 {
				t.Errorf("the shell and perf used %.3f s themselves", around)
			}
			if cpu := f.Usage.User + f.Usage.System; !near(cpu, around+program, 0.02, 0.05) || cpu < 0.95*clock-0.05 || cpu > 1.05*clock+0.05+0.0002*float64(c.started) {
				t.Errorf("%.3f s of processor time; perf says %.3f, its counter %.3f", cpu, around+program, clock)
			}
		})
	}
}

// readTimes returns the processor time, in seconds, that the shell's times wrote to a file: the
// shell's own and its children's.
func readTimes(t *testing.T, file string) float64 {
	t.Helper()
	b, err := os.ReadFile(file)
	testenv.Check(t, err)
	var sum float64
	for _, field := range strings.Fields(string(b)) { // such as 0m1.250s
		d, err := time.ParseDuration(field)
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		sum += d.Seconds()
	}
	return sum
}

// TestMeasureAtATerminal: what is typed reaches the program once, also where its input is not the
// terminal.
func TestMeasureAtATerminal(t *testing.T) {
	needs(t, "userns")
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
