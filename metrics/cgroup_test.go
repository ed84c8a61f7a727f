package metrics

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// hosts are real configurations: Slurm with version 2, version 1 with separate controllers, a
// container that sees its version 2 cgroup as the root, and a container on a host with both
// versions, which sees the host's paths.
var hosts = map[string]map[string]string{
	"v2": {
		"proc/self/cgroup":    "0::/system.slice/slurmstepd.scope/job_7/step_0/task_0\n",
		"proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max":                       "1073741824\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpu.max":                          "150000 100000\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpu.stat":                         "usage_usec 5\nnr_periods 9\nnr_throttled 4\nthrottled_usec 2500000\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cgroup.events":                    "populated 1\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/memory.max":                "max\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/memory.max":         "max\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/cpu.max":            "max 100000\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/cgroup.events":      "populated 1\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/cgroup.controllers": "cpu io memory pids\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/cgroup.procs":       "1\n2\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/cpu.stat":           "usage_usec 2000000\nuser_usec 1\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/memory.current":     "4096\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/memory.peak":        "8192\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/memory.events":      "low 0\noom 2\noom_kill 1\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/memory.stat":        "anon 5\nfile 1000\nfile_mapped 3\nshmem 400\n",
		"sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/task_0/io.stat":            "8:0 rbytes=100 wbytes=50 rios=1 wios=1 dbytes=0 dios=0\n259:0 rbytes=11 wbytes=7\n",
	},
	"v1": {
		"proc/self/cgroup": "5:blkio:/\n4:memory:/job/7\n3:cpu,cpuacct:/job/7\n1:name=systemd:/x\n",
		"proc/self/mountinfo": "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"33 30 0:29 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n",
		"sys/fs/cgroup/memory/job/memory.limit_in_bytes":          "1073741824\n",
		"sys/fs/cgroup/memory/job/7/memory.limit_in_bytes":        "9223372036854771712\n",
		"sys/fs/cgroup/memory/job/7/memory.usage_in_bytes":        "4096\n",
		"sys/fs/cgroup/memory/job/7/memory.max_usage_in_bytes":    "8192\n",
		"sys/fs/cgroup/memory/job/7/memory.oom_control":           "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"sys/fs/cgroup/memory/job/7/memory.stat":                  "cache 1\ntotal_cache 1000\ntotal_shmem 400\n",
		"sys/fs/cgroup/memory/job/7/cgroup.procs":                 "1\n",
		"sys/fs/cgroup/cpu,cpuacct/job/7/cgroup.procs":            "1\n",
		"sys/fs/cgroup/cpu,cpuacct/job/7/cpuacct.usage":           "2000000000\n",
		"sys/fs/cgroup/cpu,cpuacct/job/7/cpu.cfs_quota_us":        "150000\n",
		"sys/fs/cgroup/cpu,cpuacct/job/7/cpu.cfs_period_us":       "100000\n",
		"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us":          "-1\n",
		"sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us":         "100000\n",
		"sys/fs/cgroup/cpu,cpuacct/job/7/cpu.stat":                "nr_periods 9\nnr_throttled 4\nthrottled_time 2500000000\n",
		"sys/fs/cgroup/blkio/release_agent":                       "\n",
		"sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes":     "8:0 Read 77\n8:0 Write 77\nTotal 154\n",
		"sys/fs/cgroup/blkio/job/blkio.throttle.io_service_bytes": "",
	},
	"container": {
		"proc/self/cgroup":                 "0::/\n",
		"proc/self/mountinfo":              "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
		"sys/fs/cgroup/cgroup.controllers": "cpu io memory\n", "sys/fs/cgroup/cgroup.events": "populated 1\n", "sys/fs/cgroup/cgroup.procs": "1\n0\n",
		"sys/fs/cgroup/memory.max": "1073741824\n", "sys/fs/cgroup/cpu.max": "150000 100000\n",
		"sys/fs/cgroup/cpu.stat":       "usage_usec 2000000\nnr_throttled 4\nthrottled_usec 2500000\n",
		"sys/fs/cgroup/memory.current": "4096\n", "sys/fs/cgroup/memory.peak": "8192\n", "sys/fs/cgroup/memory.events": "oom_kill 1\n", "sys/fs/cgroup/memory.stat": "file 1000\nshmem 400\n",
		"sys/fs/cgroup/io.stat": "8:0 rbytes=111 wbytes=57\n",
	},
	"container v1": {
		"proc/self/cgroup":                           "4:memory:/kubepods/pod1/c\n3:cpu,cpuacct:/kubepods/pod1/c\n0::/\n",
		"proc/self/mountinfo":                        "31 30 0:27 /kubepods/pod1/c /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n32 30 0:28 /kubepods/pod1/c /sys/fs/cgroup/a\\040b ro - cgroup cgroup rw,cpuacct,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "4096\n", "sys/fs/cgroup/memory/memory.max_usage_in_bytes": "8192\n",
		"sys/fs/cgroup/memory/memory.oom_control": "oom_kill 1\n", "sys/fs/cgroup/memory/memory.stat": "total_cache 1000\ntotal_shmem 400\n", "sys/fs/cgroup/memory/cgroup.procs": "1\n",
		"sys/fs/cgroup/a b/cpuacct.usage": "2000000000\n", "sys/fs/cgroup/a b/cpu.cfs_quota_us": "150000\n", "sys/fs/cgroup/a b/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/a b/cgroup.procs": "1\n",
		"sys/fs/cgroup/a b/cpu.stat":               "nr_throttled 4\nthrottled_time 2500000000\n",
		"sys/fs/cgroup/unified/cgroup.controllers": "",
	},
}

func TestCgroups(t *testing.T) {
	for name, files := range hosts {
		c := findCgroups(testenv.Tree(t, files))
		use := c.absolute() // before the limits, as a recorder does
		if use == nil {
			t.Errorf("%s: no counters: %+v", name, c)
			continue
		}
		l := c.limits(Machine{CPUs: 64, Memory: 1 << 40})
		version := "v2"
		if strings.Contains(name, "v1") {
			version = "v1"
		}
		if l.CPUs > 1.5 || l.Memory != 1<<30 || l.Cgroup != version || l.CgroupPath == "" {
			t.Errorf("%s: limits %+v; want at most 1.5 processors, 1 GiB, %s", name, l, version)
		}
		want := CgroupUse{CPU: 2, Memory: 4096, Cache: 600, Peak: 8192, Throttled: 2.5, Throttles: 4, OOMKills: 1}
		if version == "v2" {
			want.Read, want.Written = 111, 57
		}
		if *use != want {
			t.Errorf("%s: %+v; want %+v", name, *use, want)
		}
		c.begin()
		if again := c.use(); *again != (CgroupUse{Memory: 4096, Cache: 600}) {
			t.Errorf("%s: %+v right after begin; want only the current memory", name, *again)
		}
		mine := func(pid int) bool { return pid == 1 || pid == 2 }
		if got := c.shared(1, mine); got != (name == "container") { // it also has a process of another PID namespace
			t.Errorf("%s: shared = %v; want %v", name, got, !got)
		}
		if !c.shared(1, func(pid int) bool { return pid == 9 }) {
			t.Errorf("%s: not shared, although it contains processes outside the run", name)
		}
		if !c.shared(2, func(int) bool { return true }) && name != "v2" {
			t.Errorf("%s: not shared, although this process is not in it", name)
		}
	}
}

// TestNoCgroups checks that a host without cgroups, or with unexpected files, has no counters and
// no limits.
func TestNoCgroups(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"none": {},
		"root of v2": {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
			"sys/fs/cgroup/cgroup.controllers": "cpu memory io\n", "sys/fs/cgroup/cpu.stat": "usage_usec 7\n"},
		"outside of the namespace": {"proc/self/cgroup": "0::/../../etc\n", "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"},
		"a namespace whose hierarchy is the host's": {"proc/self/cgroup": "4:memory:/\n0::/\n", "proc/self/mountinfo": "30 23 0:26 /../.. /sys/fs/cgroup ro - cgroup2 cgroup rw\n31 30 0:27 /.. /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
			"sys/fs/cgroup/cgroup.controllers": "cpu memory io\n", "sys/fs/cgroup/cgroup.events": "populated 1\n", "sys/fs/cgroup/cpu.stat": "usage_usec 7\n", "sys/fs/cgroup/cgroup.procs": "1\n",
			"sys/fs/cgroup/memory.max": "5\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "5\n"},
		"noise": {"proc/self/cgroup": "::::\n\n0\nx:y\n4:memory:relative\n", "proc/self/mountinfo": "- - -\n30 23 - cgroup2\n\x00\n"},
	} {
		c := findCgroups(testenv.Tree(t, files))
		if u := c.absolute(); u != nil {
			t.Errorf("%s: %+v", name, *u)
		}
		if l := c.limits(Machine{CPUs: 64, Memory: 1 << 40}); l.Memory != 0 || l.CPUs < 1 || !c.shared(1, func(int) bool { return true }) {
			t.Errorf("%s: %+v", name, l)
		}
	}
}

// TestParseMounts checks a mount without a source, and a file that was cut off.
func TestParseMounts(t *testing.T) {
	got := parseMounts([]byte("30 23 0:26 / /a\\040b rw shared:4 - cgroup2  rw\n31 30 0:27 /k /m rw - cgroup  rw,memory\n32 30 0:28 / /c rw - cgr"))
	want := []cgroupMount{{root: "/", at: "/a b", version: 2}, {root: "/k", at: "/m", version: 1, controllers: []string{"rw", "memory"}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("parseMounts = %+v; want %+v", got, want)
	}
}

func FuzzCgroups(f *testing.F) {
	for _, h := range hosts {
		f.Add(h["proc/self/cgroup"], h["proc/self/mountinfo"], "8:0 Read 1\nusage_usec 5\nmax 100000\n")
	}
	f.Fuzz(func(t *testing.T, own, info, text string) {
		const root = "/nonexistent"
		for _, m := range parseMounts([]byte(info)) {
			for _, path := range parseCgroup([]byte(own)) {
				k := m.locate(root, path)
				if k.dir != "" && k.dir != root && !strings.HasPrefix(k.dir, root+"/") {
					t.Errorf("%q at %q: %q is not below %q", path, m.at, k.dir, root)
				}
				k.up(func(dir string) {
					if !strings.HasPrefix(dir, k.top) {
						t.Errorf("%q: %q is above %q", path, dir, k.top)
					}
				})
			}
		}
		if q := parseQuota([]byte(text)); q < 0 || math.IsNaN(q) || math.IsInf(q, 0) {
			t.Errorf("parseQuota(%q) = %g; want a finite number of at least 0", text, q)
		}
	})
}

func TestLocate(t *testing.T) {
	for _, c := range []struct{ root, path, want string }{
		{"/", "/job/7", "/r/cg/job/7"}, {"/", "/", "/r/cg"},
		{"/pod/c", "/pod/c", "/r/cg"}, {"/pod/c", "/pod/c/d", "/r/cg/d"},
		{"/pod/c", "/pod/cd", "/r/cg"}, {"/pod/c", "/elsewhere", "/r/cg"}, // visible as the root, regardless of its path
		{"/", "/../x", ""}, {"/", "/a/../../x", "/r/cg/x"}, {"/..", "/", ""}, {"/../..", "/job", ""},
	} {
		m := cgroupMount{root: c.root, at: "/cg", version: 2}
		if got := m.locate("/r", c.path); got.dir != c.want {
			t.Errorf("%q of a hierarchy mounted from %q is at %q; want %q", c.path, c.root, got.dir, c.want)
		}
	}
}

// TestCgroupMounts checks that, of several mounts of a hierarchy in any order, the one that
// contains the process's cgroup is used.
func TestCgroupMounts(t *testing.T) {
	mounts := []string{"31 30 0:27 /pod/other /other ro - cgroup cgroup rw,memory\n", "32 30 0:27 /pod /pods ro - cgroup cgroup rw,memory\n"}
	for _, info := range []string{mounts[0] + mounts[1], mounts[1] + mounts[0]} {
		c := findCgroups(testenv.Tree(t, map[string]string{"proc/self/cgroup": "4:memory:/pod/c\n", "proc/self/mountinfo": info,
			"other/memory.usage_in_bytes": "1\n", "pods/c/memory.usage_in_bytes": "2\n"}))
		if u := c.absolute(); u == nil || u.Memory != 2 {
			t.Errorf("%q: %+v", info, u)
		}
	}
}

// TestThrottledBefore checks that throttling of a parent cgroup before the run is not counted.
// The calls have the order of a recorder's.
func TestThrottledBefore(t *testing.T) {
	c := findCgroups(testenv.Tree(t, hosts["v2"]))
	c.begin()
	c.limits(Machine{CPUs: 64, Memory: 1 << 40})
	if u := c.use(); u.Throttled != 0 || u.Throttles != 0 {
		t.Errorf("%+v right after begin; want no throttling", u)
	}
}
