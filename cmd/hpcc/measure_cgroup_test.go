package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hpcc/metrics"
	"hpcc/testdata/testenv"
)

// A testCgroup is one that a test made, of the version that the machine has.
type testCgroup struct {
	t    *testing.T
	name string
	two  bool
	dirs map[string]string // by controller; of version 2 all are the same
}

// newTestCgroup is for root, who alone may make one everywhere: CI runs these tests once more as that, and again
// in testdata/vm. What is measured runs as nobody.
func newTestCgroup(t *testing.T) *testCgroup {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	needs(t, "cgroups")
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	g := &testCgroup{t: t, name: fmt.Sprintf("hpcc-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-")), two: err == nil, dirs: map[string]string{}}
	for _, controller := range []string{"memory", "cpu", "cpuacct", "blkio"} {
		g.dirs[controller] = filepath.Join("/sys/fs/cgroup", controller, g.name)
		if g.two {
			g.dirs[controller] = filepath.Join("/sys/fs/cgroup", g.name)
		}
		if err := os.Mkdir(g.dirs[controller], 0o755); err != nil && !(g.two && os.IsExist(err)) {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(g.dirs[controller]) })
	}
	return g
}

// version is how a record calls it.
func (g *testCgroup) version() string {
	if g.two {
		return "v2"
	}
	return "v1"
}

// enter are words that enter the cgroup as root and execute what follows as nobody.
func (g *testCgroup) enter() []string {
	script := ""
	for _, dir := range g.dirs {
		script += "echo $$ >" + dir + "/cgroup.procs; "
	}
	return []string{"sh", "-c", script + `exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"`, "sh"}
}

// limit sets what the file of the version takes.
func (g *testCgroup) limit(controller, one, two, value string) {
	file := one
	if g.two {
		file = two
	}
	if err := os.WriteFile(filepath.Join(g.dirs[controller], file), []byte(value), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

func (g *testCgroup) limitMemory(bytes int64) {
	g.limit("memory", "memory.limit_in_bytes", "memory.max", strconv.FormatInt(bytes, 10))
}

// limitCPU gives so many microseconds in each tenth of a second.
func (g *testCgroup) limitCPU(µs int) {
	g.limit("cpu", "cpu.cfs_quota_us", "cpu.max", strconv.Itoa(µs))
}

// countStorage has the kernel count what the cgroup reads and writes where a directory is: of version 1 newer ones do
// so only of disks for which it has a limit. The one set here no storage reaches.
func (g *testCgroup) countStorage(dir string) {
	g.t.Helper()
	err := errors.New("the directory of temporary files is in memory")
	if onStorage(dir) {
		err = g.limitStorage(dir, 1<<40)
	}
	testenv.Need(g.t, "files on a whole disk", err)
}

// limitStorage limits the bytes in a second, of version 1.
func (g *testCgroup) limitStorage(dir string, bytes int64) error {
	fi, err := os.Stat(dir)
	if err != nil || g.two {
		return err
	}
	dev := fi.Sys().(*syscall.Stat_t).Dev
	limit := fmt.Appendf(nil, "%d:%d %d", unix.Major(dev), unix.Minor(dev), bytes)
	for _, way := range []string{"read", "write"} {
		if err == nil {
			err = os.WriteFile(filepath.Join(g.dirs["blkio"], "blkio.throttle."+way+"_bps_device"), limit, 0o644)
		}
	}
	return err
}

// files are where the kernel counts: processors, throttling, memory, storage.
func (g *testCgroup) files() []string {
	one := []string{"cpuacct/cpuacct.usage", "cpu/cpu.stat", "memory/memory.max_usage_in_bytes", "blkio/blkio.throttle.io_service_bytes"}
	two := []string{"cpu/cpu.stat", "cpu/cpu.stat", "memory/memory.peak", "blkio/io.stat"}
	if g.two {
		one = two
	}
	for i, f := range one {
		one[i] = filepath.Join(g.dirs[filepath.Dir(f)], filepath.Base(f))
	}
	return one
}

// A cgroupUse is what the kernel counted: seconds of processors and of throttling, bytes of the peak, read and written.
type cgroupUse struct{ cpu, throttled, peak, read, written float64 }

// used reads the files, or copies of them in a directory.
func (g *testCgroup) used(dir string) cgroupUse {
	g.t.Helper()
	figure := func(file int, pattern string) (sum float64) {
		name := g.files()[file]
		if dir != "" {
			name = filepath.Join(dir, filepath.Base(name))
		}
		b, err := os.ReadFile(name)
		if err != nil {
			g.t.Fatal(err)
		}
		found := regexp.MustCompile(`(?m)`+pattern+`([0-9]+)`).FindAllSubmatch(b, -1)
		if len(found) == 0 && !strings.Contains(name, "io") { // of storage: one line for each device that was used
			g.t.Fatalf("no %q in %s: %s", pattern, name, b)
		}
		for _, m := range found {
			n, err := strconv.ParseFloat(string(m[1]), 64)
			if err != nil {
				g.t.Fatal(err)
			}
			sum += n
		}
		return sum
	}
	if g.two {
		return cgroupUse{figure(0, "^usage_usec ") / 1e6, figure(1, "^throttled_usec ") / 1e6, figure(2, "^"), figure(3, "rbytes="), figure(3, "wbytes=")}
	}
	return cgroupUse{figure(0, "^") / 1e9, figure(1, "^throttled_time ") / 1e9, figure(2, "^"), figure(3, " Read "), figure(3, " Write ")}
}

// TestMeasureAgreesWithCgroup: in a cgroup of its own a run has that one's figures: no less than
// it counted while the program ran, no more than it counted since hpcc entered it.
func TestMeasureAgreesWithCgroup(t *testing.T) {
	needs(t, "userns")
	for _, c := range uses(openDir(t)) {
		t.Run(c.name, func(t *testing.T) {
			g := newTestCgroup(t)
			g.limitMemory(1 << 30)
			if c.written > 0 {
				g.countStorage(c.words[2])
			}
			r, before, after := g.measureCounted(c.words...)
			f := r.Footer
			all := g.used("")
			t.Logf("the cgroup: %+v, %+v, in all %+v", before, after, all)
			if f.Cgroup == nil {
				t.Fatal("nothing of the cgroup")
			}
			g.between("processor time", f.Cgroup.CPU, after.cpu-before.cpu, all.cpu, 0.1)
			g.between("read", float64(f.Cgroup.Read), after.read-before.read, all.read, 1<<20)
			g.between("written", float64(f.Cgroup.Written), after.written-before.written, all.written, 1<<20)
			if want := c.written * (1 << 20); c.written > 0 && (f.Cgroup.Read < int64(want) || f.Cgroup.Written < int64(want)) {
				t.Errorf("%d bytes read, %d written; want %g MiB of each", f.Cgroup.Read, f.Cgroup.Written, c.written)
			}
			amount := 0.0
			if c.memory == 0 { // 2 % of what little it holds is less than the kernel hands out at once
				amount = 1 << 20
			}
			if !near(float64(f.Cgroup.Peak), all.peak, 0.02, amount) {
				t.Errorf("the most memory: %d; the cgroup says %.0f", f.Cgroup.Peak, all.peak)
			}
			if c.memory > 0 && (f.MemoryFrom != "cgroup" || f.Memory != f.Cgroup.Peak || float64(f.Memory) < c.memory*(1<<20)) {
				t.Errorf("%d bytes from %s; want those of the cgroup, at least %g MiB", f.Memory, f.MemoryFrom, c.memory)
			}
		})
	}
}

// TestMeasureThrottled: a run has the limits of its cgroup, and how long those held it up.
func TestMeasureThrottled(t *testing.T) {
	needs(t, "userns")
	g := newTestCgroup(t)
	g.limitMemory(1 << 30)
	g.limitCPU(50000)
	r, before, after := g.measureCounted(load, "cpu", "0.5", "2")
	if r.Footer.Cgroup == nil {
		t.Fatal("nothing of the cgroup")
	}
	u, all := r.Footer.Cgroup, g.used("")
	g.between("processor time", u.CPU, after.cpu-before.cpu, all.cpu, 0.1)
	g.between("throttled", u.Throttled, after.throttled-before.throttled, all.throttled, 0.1)
	if after.cpu-before.cpu < 1 || after.throttled-before.throttled < 0.3 {
		t.Errorf("the cgroup counted %+v, then %+v; the program should have been throttled", before, after)
	}
	if l := r.Header.Limits; l.CPUs != 0.5 || l.Memory != 1<<30 || l.Cgroup != g.version() || l.Shared || !strings.HasSuffix(l.CgroupPath, g.name) {
		t.Errorf("limits %+v; want half a processor, 1 GiB, a cgroup of its own, %s", l, g.version())
	}
	if p := r.Footer.Pressure; g.two && (p == nil || p.Machine || p.CPU < 0.1) {
		t.Errorf("pressure %+v; want that of the cgroup, which waited for processors", p)
	}
}

// measureCounted measures words in the cgroup, and reads that one's files just before and after they run.
func (g *testCgroup) measureCounted(words ...string) (r *metrics.Record, before, after cgroupUse) {
	g.t.Helper()
	dir := openDir(g.t)
	script := fmt.Sprintf(`cd %s; mkdir before after; cp %[2]s before; "$@"; status=$?; cp %[2]s after; exit $status`, dir, strings.Join(slices.Compact(g.files()), " "))
	r = measure(g.t, g.enter(), append([]string{"sh", "-c", script, "sh"}, words...)...)
	return r, g.used(filepath.Join(dir, "before")), g.used(filepath.Join(dir, "after"))
}

// between compares a figure with the least and the most that it can be, to a twentieth and an amount.
func (g *testCgroup) between(what string, got, least, most, amount float64) {
	g.t.Helper()
	if got < 0.95*least-amount || got > 1.05*most+amount {
		g.t.Errorf("%s: %.3f; the cgroup says %.3f while the program ran, %.3f in all", what, got, least, most)
	}
}

// TestMeasureOutOfMemory: of a program that the kernel kills for its memory the record is whole, and says so.
func TestMeasureOutOfMemory(t *testing.T) {
	needs(t, "userns")
	g := newTestCgroup(t)
	g.limitMemory(128 << 20)
	f := measure(t, g.enter(), load, "memory", "300").Footer
	if f.Exit != -1 || f.Signal != "SIGKILL" || f.Cgroup == nil || f.Cgroup.OOMKills != 1 || f.MemoryFrom != "cgroup" || !near(float64(f.Memory), 128<<20, 0.01, 0) {
		t.Errorf("%+v, %+v; want a kill by the kernel at 128 MiB", f, f.Cgroup)
	}
}

// TestMeasureKilledWhole: where the kernel ends all that is in the cgroup at once, as Kubernetes asks it to of version 2,
// the record has no end, and what was known until then.
func TestMeasureKilledWhole(t *testing.T) {
	needs(t, "userns")
	g := newTestCgroup(t)
	if !g.two {
		t.Skip("cgroups of version 1 end one process")
	}
	g.limitMemory(128 << 20)
	g.limit("memory", "", "memory.oom.group", "1")
	dir := openDir(t)
	file := filepath.Join(dir, "run.jsonl")
	words := append(g.enter(), filepath.Join(bin, "hpcc"), "entry", "--measure="+file, "--",
		"sh", "-c", `until grep -q '"kind":"sample"' "$1"; do sleep 0.1; done; exec "$0" memory 300`, load, file)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%v, %s; want an end by SIGKILL", err, out)
	}
	r, err := metrics.ReadRecord(file, true)
	if err != nil || r.Footer != nil || len(r.Samples) == 0 || r.Header.Limits.Memory != 128<<20 {
		t.Errorf("%+v, %v; want a header, samples, and no end", r, err)
	}
}
