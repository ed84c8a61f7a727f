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

	"hpcc/job"
	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// A testCgroup is a cgroup that a test created, of the version of the machine.
type testCgroup struct {
	t    *testing.T
	name string
	two  bool
	dirs map[string]string // by controller; all the same for version 2
}

// newTestCgroup creates a cgroup, which needs root. CI runs these tests as root and again in
// testdata/clusters/vm. The measured programs run as nobody.
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

// version returns the version as records name it.
func (g *testCgroup) version() string {
	if g.two {
		return "v2"
	}
	return "v1"
}

// enter returns an argv prefix that enters the cgroup as root and executes a command as nobody.
func (g *testCgroup) enter() []string {
	script := ""
	for _, dir := range g.dirs {
		script += "echo $$ >" + dir + "/cgroup.procs; "
	}
	return []string{"sh", "-c", script + `exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@"`, "sh"}
}

// limit writes value to the file one or two of a controller, for version 1 or 2.
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

// limitCPU limits the CPU time to µs microseconds in each tenth of a second.
func (g *testCgroup) limitCPU(µs int) {
	g.limit("cpu", "cpu.cfs_quota_us", "cpu.max", strconv.Itoa(µs))
}

// countStorage makes the kernel count what the cgroup reads and writes on the storage of a directory.
// For version 1, newer kernels count only disks with a limit, so it sets one that is never reached.
func (g *testCgroup) countStorage(dir string) {
	g.t.Helper()
	err := errors.New("the directory of temporary files is in memory")
	if onStorage(dir) {
		err = g.limitStorage(dir, 1<<40)
	}
	testenv.Need(g.t, "files on a whole disk", err)
}

// limitStorage limits the bytes per second, for version 1.
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

// files returns the files of the kernel's counters: processors, throttling, memory and storage.
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

// A cgroupUse holds counters of the kernel: seconds of CPU time and of throttling, and bytes of peak
// memory, read and written.
type cgroupUse struct{ cpu, throttled, peak, read, written float64 }

// used reads the counters from their files, or from copies in a directory.
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
		if len(found) == 0 && !strings.Contains(name, "io") { // storage has a line for each used device
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

// TestMeasureAgreesWithCgroup compares a run in its own cgroup with the counters of the cgroup. The
// figures must be at least those of the program's run time, and at most those since hpcc entered.
func TestMeasureAgreesWithCgroup(t *testing.T) {
	needs(t, "userns")
	for _, c := range uses(openDir(t)) {
		t.Run(c.name, func(t *testing.T) {
			g := newTestCgroup(t)
			g.limitMemory(1 << 30)
			if c.written > 0 {
				g.countStorage(c.argv[2])
			}
			r, before, after := g.measureCounted(c.argv...)
			f := r.Footer
			all := g.used("")
			t.Logf("the cgroup: %+v, %+v, in all %+v", before, after, all)
			if f.Cgroup == nil {
				t.Fatal("the record has no cgroup")
			}
			g.between("processor time", f.Cgroup.CPU, after.cpu-before.cpu, all.cpu, 0.1)
			g.between("read", float64(f.Cgroup.Read), after.read-before.read, all.read, 1<<20)
			g.between("written", float64(f.Cgroup.Written), after.written-before.written, all.written, 1<<20)
			if want := c.written * (1 << 20); c.written > 0 && (f.Cgroup.Read < int64(want) || f.Cgroup.Written < int64(want)) {
				t.Errorf("%d bytes read, %d written; want %g MiB of each", f.Cgroup.Read, f.Cgroup.Written, c.written)
			}
			amount := 0.0
			if c.memory == 0 { // for little memory, 2 % is less than the kernel allocates at once
				amount = 1 << 20
			}
			if !near(float64(f.Cgroup.Peak), all.peak, 0.02, amount) {
				t.Errorf("peak memory: %d; the cgroup counts %.0f", f.Cgroup.Peak, all.peak)
			}
			if c.memory > 0 && (f.MemoryFrom != "cgroup" || f.Memory != f.Cgroup.Peak || float64(f.Memory) < c.memory*(1<<20)) {
				t.Errorf("%d bytes from %s; want those of the cgroup, at least %g MiB", f.Memory, f.MemoryFrom, c.memory)
			}
		})
	}
}

// TestMeasureThrottled checks that a record has the limits of its cgroup and the time of throttling.
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

// measureCounted measures a command in the cgroup, and reads the counters just before and after it.
func (g *testCgroup) measureCounted(argv ...string) (r *metrics.Record, before, after cgroupUse) {
	g.t.Helper()
	dir := openDir(g.t)
	script := fmt.Sprintf(`cd %s; mkdir before after; cp %[2]s before; "$@"; status=$?; cp %[2]s after; exit $status`, dir, strings.Join(slices.Compact(g.files()), " "))
	r = measure(g.t, g.enter(), append([]string{"sh", "-c", script, "sh"}, argv...)...)
	return r, g.used(filepath.Join(dir, "before")), g.used(filepath.Join(dir, "after"))
}

// between checks that a figure is between least and most, with a tolerance of 5 % and an amount.
func (g *testCgroup) between(what string, got, least, most, amount float64) {
	g.t.Helper()
	if got < 0.95*least-amount || got > 1.05*most+amount {
		g.t.Errorf("%s: %.3f; the cgroup counts %.3f while the program ran, %.3f in total", what, got, least, most)
	}
}

// TestMeasureOutOfMemory checks that the record of a program that the kernel killed for its memory is
// complete and reports that.
func TestMeasureOutOfMemory(t *testing.T) {
	needs(t, "userns")
	g := newTestCgroup(t)
	g.limitMemory(128 << 20)
	f := measure(t, g.enter(), load, "memory", "300").Footer
	if f.Exit != -1 || f.Signal != "SIGKILL" || f.Cgroup == nil || f.Cgroup.OOMKills != 1 || f.MemoryFrom != "cgroup" || !near(float64(f.Memory), 128<<20, 0.01, 0) {
		t.Errorf("%+v, %+v; want a kill by the kernel at 128 MiB", f, f.Cgroup)
	}
}

// TestTaskOutOfMemory checks that the record of a task that may grow counts the kernel's kill, also if
// its program outlives the killed child.
func TestTaskOutOfMemory(t *testing.T) {
	needs(t, "userns")
	g := newTestCgroup(t)
	g.limitMemory(128 << 20)
	dir, err := os.MkdirTemp("/tmp", "hpcc-store-") // other users cannot replace its parents
	testenv.Check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	testenv.Check(t, os.Chown(dir, 65534, 65534))
	for _, c := range []struct {
		script string
		lacked bool
	}{{`exec "$0" memory 300`, true}, {`"$0" memory 300; exit 1`, true}, {"exit 1", false}} {
		argv := append(g.enter(), filepath.Join(bin, "hpcc"), "task", "--store="+dir, "--job=main", "--grow", "--", "sh", "-c", c.script, load)
		out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		task := job.Task{}
		if err := job.ReadJSON(filepath.Join(dir, "jobs", "main", task.FileName()), &task); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if lacked, _ := task.Lacked(job.Request{}); lacked != c.lacked {
			t.Errorf("%s: %v, %s: %+v; want a lack of memory: %v", c.script, err, out, task, c.lacked)
		}
	}
}

// TestMeasureCgroupKilled checks the record if the kernel kills all processes of a cgroup at once, as
// Kubernetes requests for version 2. The record has samples but no end.
func TestMeasureCgroupKilled(t *testing.T) {
	needs(t, "userns")
	g := newTestCgroup(t)
	if !g.two {
		t.Skip("cgroups of version 1 end one process")
	}
	g.limitMemory(128 << 20)
	g.limit("memory", "", "memory.oom.group", "1")
	dir := openDir(t)
	file := filepath.Join(dir, "run.jsonl")
	argv := append(g.enter(), filepath.Join(bin, "hpcc"), "entry", "--measure="+file, "--",
		"sh", "-c", `until grep -q '"kind":"sample"' "$1"; do sleep 0.1; done; exec "$0" memory 300`, load, file)
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%v, %s; want an end by SIGKILL", err, out)
	}
	r, err := metrics.ReadRecord(file, true)
	if err != nil || r.Footer != nil || len(r.Samples) == 0 || r.Header.Limits.Memory != 128<<20 {
		t.Errorf("%+v, %v; want a header, samples, and no end", r, err)
	}
}
