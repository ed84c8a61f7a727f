package metrics

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// A controller counts or limits one kind of resource in one cgroup. Version 1 has one
// hierarchy for each, version 2 one for all, and a host may have both, so the version is
// determined for each controller.
type controller struct {
	dir     string // directory of its files; empty if this process has none
	top     string // where the search for ancestors ends
	version int
}

// cgroups are the cgroups of this process, and therefore of the program.
type cgroups struct {
	cpu, quota, memory, io controller // quota refers to the cgroup with the smallest quota of all ancestors
	processors             float64    // processors within the quotas; +Inf without quota
	path                   string     // of the memory or processor cgroup
	read                   reader
	base                   CgroupUse // counters at the start of the run
}

// A cgroupMount is the mount point of a hierarchy.
type cgroupMount struct {
	root, at    string
	version     int
	controllers []string // only for version 1
}

// parseMounts returns the cgroup hierarchies in /proc/PID/mountinfo, up to the first line that
// is invalid: the file may be cut off.
func parseMounts(b []byte) (out []cgroupMount) {
	_, _ = mountinfo.GetMountsFromReader(bytes.NewReader(b), func(i *mountinfo.Info) (skip, stop bool) {
		m := cgroupMount{root: i.Root, at: i.Mountpoint}
		switch i.FSType {
		case "cgroup2":
			m.version = 2
		case "cgroup":
			m.version, m.controllers = 1, strings.Split(i.VFSOptions, ",")
		}
		if m.version != 0 && filepath.IsAbs(m.at) {
			out = append(out, m)
		}
		return true, false
	})
	return out
}

// parseCgroup parses /proc/PID/cgroup. It returns paths by controller of version 1; "" is
// version 2.
func parseCgroup(b []byte) map[string]string {
	out := map[string]string{}
	for len(b) > 0 && len(out) < 256 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		_, rest, ok := bytes.Cut(line, []byte(":"))
		names, path, ok2 := bytes.Cut(rest, []byte(":"))
		if !ok || !ok2 || !filepath.IsAbs(string(path)) {
			continue
		}
		for name := range strings.SplitSeq(string(names), ",") {
			out[name] = string(path)
		}
	}
	return out
}

// holds reports whether a cgroup is below the root of m.
func (m *cgroupMount) holds(path string) bool {
	rest, below := strings.CutPrefix(path, m.root)
	return m.root == "/" || (below && (rest == "" || rest[0] == '/'))
}

// locate returns the controller of a cgroup in a hierarchy, with directories below root.
func (m *cgroupMount) locate(root, path string) controller {
	if strings.HasPrefix(path, "/..") || strings.HasPrefix(m.root, "/..") { // outside the cgroup namespace
		return controller{}
	}
	rel := path
	if m.root != "/" {
		rel = "" // the mount shows the cgroup as its root
		if m.holds(path) {
			rel = strings.TrimPrefix(path, m.root)
		}
	}
	top := filepath.Join(root, m.at)
	return controller{dir: filepath.Join(top, filepath.Clean("/"+rel)), top: top, version: m.version}
}

// has reports whether m has a controller in the cgroup of k.
func (m *cgroupMount) has(name string, k controller) bool {
	if m.version == 1 {
		return slices.Contains(m.controllers, name) && exists(k.dir)
	}
	b, err := new(reader).read(filepath.Join(k.dir, "cgroup.controllers"))
	return k.dir != "" && err == nil && slices.Contains(strings.Fields(string(b)), name)
}

// findCgroups finds the cgroups of this process. root is "/" except in tests.
func findCgroups(root string) *cgroups {
	c := &cgroups{}
	own, _ := new(reader).read(filepath.Join(root, "/proc/self/cgroup"))
	info, _ := new(reader).read(filepath.Join(root, "/proc/self/mountinfo"))
	paths, mounts := parseCgroup(own), parseMounts(info)
	in := func(version int, hierarchy, name string) (controller, string) {
		path, is := paths[hierarchy]
		for _, below := range []bool{true, false} { // mounts that show the cgroup under its own path first
			for _, m := range mounts {
				if !is || m.version != version || m.holds(path) != below {
					continue
				}
				if k := m.locate(root, path); m.has(name, k) {
					return k, path
				}
			}
		}
		return controller{}, ""
	}
	find := func(v1, v2 string) (controller, string) {
		if k, path := in(1, v1, v1); k.dir != "" {
			return k, path
		}
		return in(2, "", v2)
	}
	var path string
	c.cpu, c.path = find("cpuacct", "cpu")
	c.quota, _ = find("cpu", "cpu")
	c.io, _ = find("blkio", "io")
	if c.memory, path = find("memory", "memory"); path != "" {
		c.path = path
	}
	c.quota.dir, c.processors = c.leastQuota()
	return c
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return file != "" && err == nil
}

// isRoot reports whether a cgroup is the root cgroup, whose counters are the machine's.
func (k controller) isRoot() bool {
	if k.version == 1 {
		return exists(filepath.Join(k.dir, "release_agent"))
	}
	return !exists(filepath.Join(k.dir, "cgroup.events"))
}

// up calls f for the directories of a cgroup and its ancestors.
func (k controller) up(f func(dir string)) {
	for dir := k.dir; k.dir != "" && strings.HasPrefix(dir, k.top); dir = filepath.Dir(dir) {
		f(dir)
		if dir == k.top {
			return
		}
	}
}

// value returns the number in a file that holds only one. ok is false if it is "max" or the
// file does not exist.
func (c *cgroups) value(dir, name string) (n int64, ok bool) {
	b, err := c.read.read(filepath.Join(dir, name))
	if err != nil || len(b) == 0 || b[0] < '0' || b[0] > '9' {
		return 0, false
	}
	return number(b), true
}

// limits sets the limits of the cgroups and the affinity on a machine.
func (c *cgroups) limits(m Machine) Limits {
	l := Limits{CPUs: float64(m.CPUs), CgroupPath: c.path}
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) == nil && set.Count() > 0 {
		l.CPUs = float64(set.Count())
	}
	switch max(c.memory.version, c.cpu.version) {
	case 1:
		l.Cgroup = "v1"
	case 2:
		l.Cgroup = "v2"
	}
	l.CPUs = min(l.CPUs, c.processors)
	if _, least := c.leastMemory(); least < m.Memory {
		l.Memory = least
	}
	return l
}

// leastMemory returns the cgroup with the smallest memory limit, and the limit in bytes, or
// 0 without a limit.
func (c *cgroups) leastMemory() (at string, least int64) {
	name := "memory.max"
	if c.memory.version == 1 {
		name = "memory.limit_in_bytes"
	}
	c.memory.up(func(dir string) {
		if n, ok := c.value(dir, name); ok && n > 0 && (least == 0 || n < least) {
			at, least = dir, n
		}
	})
	return at, least
}

// leastQuota returns the cgroup with the smallest processor quota, which is the one that
// throttles.
func (c *cgroups) leastQuota() (at string, least float64) {
	at, least = c.quota.dir, math.Inf(1)
	c.quota.up(func(dir string) {
		if q := c.quotaOf(dir); q > 0 && q < least {
			at, least = dir, q
		}
	})
	return at, least
}

// quotaOf returns the number of processors that a cgroup may use, or 0 without a limit.
func (c *cgroups) quotaOf(dir string) float64 {
	if c.quota.version == 2 {
		b, _ := c.read.read(filepath.Join(dir, "cpu.max"))
		return parseQuota(b)
	}
	quota, ok := c.value(dir, "cpu.cfs_quota_us") // -1: no limit
	period, ok2 := c.value(dir, "cpu.cfs_period_us")
	if !ok || !ok2 || period == 0 {
		return 0
	}
	return float64(quota) / float64(period)
}

// parseQuota parses "QUOTA PERIOD" or "max PERIOD".
func parseQuota(b []byte) float64 {
	quota, period, ok := bytes.Cut(b, []byte(" "))
	if !ok || number(period) == 0 {
		return 0
	}
	return float64(number(quota)) / float64(number(period))
}

// shared reports whether the cgroups hold processes other than this one, self, its
// ancestors, and ours. It also returns true if this process is not in them.
func (c *cgroups) shared(self int, ours func(pid int) bool) bool {
	for _, k := range []controller{c.memory, c.cpu} {
		if k.dir == "" {
			continue
		}
		if k.isRoot() {
			return true
		}
		b, err := c.read.read(filepath.Join(k.dir, "cgroup.procs"))
		if err != nil {
			return true
		}
		inside := false
		for w := range bytes.FieldsSeq(b) {
			pid := int(number(w)) // 0: in another pid namespace
			if !ours(pid) {
				return true
			}
			inside = inside || pid == self
		}
		if !inside {
			return true
		}
	}
	return c.memory.dir == "" && c.cpu.dir == ""
}
