package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"hpcc/metrics"
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
	g := &testCgroup{t: t, name: fmt.Sprintf("hpcc-test-%d", os.Getpid()), two: err == nil, dirs: map[string]string{}}
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

// limitCPU gives so many microseconds in each tenth of a second; 0: all.
func (g *testCgroup) limitCPU(µs int) {
	value := map[bool]string{false: "-1", true: "max"}[g.two]
	if µs > 0 {
		value = strconv.Itoa(µs)
	}
	g.limit("cpu", "cpu.cfs_quota_us", "cpu.max", value)
}

// files are where the kernel counts.
func (g *testCgroup) files() []string {
	if g.two {
		return []string{filepath.Join(g.dirs["cpu"], "cpu.stat"), filepath.Join(g.dirs["memory"], "memory.peak")}
	}
	return []string{filepath.Join(g.dirs["cpu"], "cpu.stat"), filepath.Join(g.dirs["cpuacct"], "cpuacct.usage"), filepath.Join(g.dirs["memory"], "memory.max_usage_in_bytes")}
}

// A cgroupUse is what the kernel counted: seconds of processors and of throttling, and the peak in bytes.
type cgroupUse struct{ cpu, throttled, peak float64 }

// used reads the files, or copies of them in a directory.
func (g *testCgroup) used(dir string) cgroupUse {
	g.t.Helper()
	figure := func(file int, key string) float64 {
		name := g.files()[file]
		if dir != "" {
			name = filepath.Join(dir, filepath.Base(name))
		}
		b, err := os.ReadFile(name)
		if err != nil {
			g.t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, key); ok {
				n, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
				if err != nil {
					g.t.Fatal(err)
				}
				return n
			}
		}
		g.t.Fatalf("no %q in %s", key, b)
		return 0
	}
	if g.two {
		return cgroupUse{figure(0, "usage_usec ") / 1e6, figure(0, "throttled_usec ") / 1e6, figure(1, "")}
	}
	return cgroupUse{figure(1, "") / 1e9, figure(0, "throttled_time ") / 1e9, figure(2, "")}
}

// TestMeasureAgreesWithCgroup: in a cgroup of its own a run has that one's figures and limits: no less than
// it counted while the program ran, no more than it counted since hpcc entered it.
func TestMeasureAgreesWithCgroup(t *testing.T) {
	needs(t, "userns")
	g := newTestCgroup(t)
	g.limitMemory(1 << 30)
	g.limitCPU(50000)
	dir := openDir(t)
	script := fmt.Sprintf(`cd %s; mkdir before after; cp %[2]s before; "$@"; status=$?; cp %[2]s after; exit $status`, dir, strings.Join(g.files(), " "))
	r := measure(t, g.enter(), "sh", "-c", script, "sh", load, "cpu", "0.5", "2")
	if l := r.Header.Limits; l.CPUs != 0.5 || l.Memory != 1<<30 || l.Cgroup != g.version() || l.Shared || !strings.HasSuffix(l.CgroupPath, g.name) {
		t.Errorf("limits %+v; want half a processor, 1 GiB, a cgroup of its own, %s", l, g.version())
	}
	u, before, after, all := r.Footer.Cgroup, g.used(filepath.Join(dir, "before")), g.used(filepath.Join(dir, "after")), g.used("")
	if u == nil {
		t.Fatal("nothing of the cgroup")
	}
	between := func(what string, got, least, most float64) {
		if got < 0.95*least-0.1 || got > 1.05*most+0.1 {
			t.Errorf("%s: %.3f s; the cgroup says %.3f while the program ran, %.3f in all", what, got, least, most)
		}
	}
	between("processor time", u.CPU, after.cpu-before.cpu, all.cpu)
	between("throttled", u.Throttled, after.throttled-before.throttled, all.throttled)
	if after.cpu-before.cpu < 1 || after.throttled-before.throttled < 0.3 {
		t.Errorf("the cgroup counted %+v, then %+v; the program should have been throttled", before, after)
	}
	if p := r.Footer.Pressure; g.two && (p == nil || p.Machine || p.CPU < 0.1) {
		t.Errorf("pressure %+v; want that of the cgroup, which waited for processors", p)
	}
	g.limitCPU(0)
	r = measure(t, g.enter(), load, "memory", "300")
	peak := g.used("").peak
	if f := r.Footer; f.MemoryFrom != "cgroup" || !near(float64(f.Memory), peak, 0.02, 0) || f.Memory < 300<<20 {
		t.Errorf("%d bytes from %s; the cgroup says %.0f", f.Memory, f.MemoryFrom, peak)
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
