package main

import (
	"bytes"
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
	"time"

	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// measure runs a command with "hpcc run --measure" in the host's root, and reads the record. before
// is an argv prefix that starts hpcc.
func measure(t *testing.T, before []string, argv ...string) *metrics.Record {
	t.Helper()
	dir := openDir(t)
	file := filepath.Join(dir, "run.jsonl")
	// The image is read-only with all file systems that are mounted in it.
	args := append(append(before, filepath.Join(bin, "hpcc"), "run", "--measure="+file, "--no-config", "--bind="+os.TempDir(), "/", "--"), argv...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "LOAD_RECORD="+file) // see testdata/helpers/measure
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	r, err := metrics.ReadRecord(file, true)
	if err != nil || r.Footer == nil {
		t.Fatalf("%v: %v, %s", argv, err, out)
	}
	t.Logf("%v: %s", argv, footer(r))
	return r
}

// openDir returns a directory that every user may write to, because another user may measure.
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

// near reports whether two figures agree within a fraction and an amount.
func near(a, b, part, amount float64) bool { return math.Abs(a-b) <= part*b+amount }

// timed holds the output of /usr/bin/time -v.
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

// readStart returns the CPU time, in seconds, that a process had used when it wrote its
// /proc/PID/stat. The start of hpcc, which takes long on a busy machine, counts for the run but not
// for time(1).
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

// A use is a program of testdata/helpers/measure with its known resource use.
type use struct {
	name      string
	argv      []string
	memory    float64 // MiB of all processes together; 0 to skip the comparison
	processes int     // minimum number of simultaneous processes
	started   int     // approximate number of threads that start, if there are many
	written   float64 // MiB written, and also read
}

// uses returns the kinds of programs to compare. The last one writes into a directory.
func uses(dir string) []use {
	return []use{
		{"processor", []string{load, "cpu", "0.6", "2"}, 0, 1, 0, 0},
		{"memory", []string{load, "memory", "300"}, 300, 1, 0, 0},
		{"many processes", []string{load, "processes", "30", "10"}, 300, 31, 150, 0},
		{"short-lived children", []string{load, "short", "100"}, 0, 1, 500, 0},
		{"storage", []string{load, "io", dir, "64"}, 0, 1, 0, 64},
	}
}

// TestMeasureAgrees compares the measured figures of programs with /usr/bin/time for the same
// execution. docs/measure.md lists the tolerances.
func TestMeasureAgrees(t *testing.T) {
	testenv.Slow(t)
	needs(t, "userns", "time")
	dir := t.TempDir()
	for _, c := range uses(dir) {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "time")
			r := measure(t, nil, append([]string{"sh", "-c", `cat /proc/$$/stat >"$0.start"; exec "$@"`, file, "/usr/bin/time", "-v", "-o", file}, c.argv...)...)
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

// onStorage reports whether the files of a directory are on storage and not in memory.
func onStorage(dir string) bool {
	var st syscall.Statfs_t
	const tmpfs = 0x01021994
	return syscall.Statfs(dir, &st) == nil && st.Type != tmpfs
}

// TestMeasureAgreesWithPerf compares with perf stat: its user and sys times, and its counter of CPU
// time. The counter starts after a thread and ends before it, which is 5 % less for short programs.
// The CPU time of perf itself counts for the run, but not for perf, so a shell measures it.
//
// On a busy machine the counter may fall behind perf's own user and sys times. A run that other
// programs interrupted often is repeated, until both agree.
func TestMeasureAgreesWithPerf(t *testing.T) {
	testenv.Slow(t)
	needs(t, "userns", "perf")
	const tries, often = 8, 500 // involuntary switches
	dir := t.TempDir()
	for _, c := range uses(dir) {
		t.Run(c.name, func(t *testing.T) {
			for try := 1; ; try++ {
				problem, switches := perfDiffers(t, c)
				if problem == "" {
					break
				}
				if try == tries || switches < often {
					t.Error(problem)
					break
				}
				t.Logf("repeated after %d involuntary switches: %s", switches, problem)
			}
		})
	}
}

// perfDiffers measures a program with hpcc and with perf stat, and returns how the results differ, or
// "", and the number of involuntary switches.
func perfDiffers(t *testing.T, c use) (problem string, switches int64) {
	t.Helper()
	const script = `LC_ALL=C "$@"; status=$?; times >"$0.times"; exit $status` // bash prints milliseconds
	file := filepath.Join(t.TempDir(), "perf")
	f := measure(t, nil, append([]string{"bash", "-c", script, file, "perf", "stat", "-o", file, "-e", "task-clock"}, c.argv...)...).Footer
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
	cpu := f.Usage.User + f.Usage.System
	if !near(cpu, around+program, 0.02, 0.05) { // the kernel's own figures agree on any machine
		t.Errorf("%.3f s of processor time; perf says %.3f", cpu, around+program)
	}
	if around < -0.02 || around > 1 {
		t.Errorf("the shell and perf itself used %.3f s", around)
	}
	if cpu < 0.95*clock-0.05 || cpu > 1.05*clock+0.05+0.0002*float64(c.started) {
		problem = fmt.Sprintf("%.3f s of processor time; perf's counter says %.3f", cpu, clock)
	}
	return problem, f.Usage.Switches
}

// readTimes returns the CPU time, in seconds, of a shell and its children from a file that the
// builtin times wrote.
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

// TestMeasureAtATerminal checks that Ctrl-C reaches the program once, even if its input is not the
// terminal.
func TestMeasureAtATerminal(t *testing.T) {
	t.Parallel()
	needs(t, "userns")
	for name, input := range map[string]string{"terminal": "", "null": "</dev/null"} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "run.jsonl")
			line := filepath.Join(bin, "hpcc") + " run --no-config --measure=" + file + " / -- " + load + " interrupts 1.5 " + input
			s := startHpcc(t, t.TempDir(), nil, "run", "--no-config", "/", "--", "sh", "-c", "exec "+line) // hpcc replaces the shell
			s.expect("ready")
			s.typeText("\x03")
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
