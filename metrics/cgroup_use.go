package metrics

import (
	"bytes"
	"os"
	"path/filepath"
)

// begin records the counters at the start of the run.
func (c *cgroups) begin() {
	if u := c.absolute(); u != nil {
		c.base = *u
	}
}

// use returns the counters since the start of the run, or nil if they cannot be read. It omits
// counters of the whole machine.
func (c *cgroups) use() *CgroupUse {
	u := c.absolute()
	if u == nil {
		return nil
	}
	b := &c.base
	u.CPU, u.Throttled = round(max(0, u.CPU-b.CPU)), round(max(0, u.Throttled-b.Throttled))
	u.Read, u.Written = max(0, u.Read-b.Read), max(0, u.Written-b.Written)
	u.Throttles, u.OOMKills = max(0, u.Throttles-b.Throttles), max(0, u.OOMKills-b.OOMKills)
	if u.Peak <= b.Peak { // reached before the run
		u.Peak = 0
	}
	return u
}

// oomKills returns a function that counts the kills for lack of memory since this call. It counts
// none if other programs share the cgroups.
func (c *cgroups) oomKills() func() int64 {
	if c.shared(os.Getpid(), startedUs) {
		return func() int64 { return 0 }
	}
	c.begin()
	return func() int64 {
		if u := c.use(); u != nil {
			return u.OOMKills
		}
		return 0
	}
}

// absolute returns the counters since the cgroups were created.
func (c *cgroups) absolute() *CgroupUse {
	u := &CgroupUse{}
	known := false
	for _, part := range []struct {
		controller
		take func(controller, *CgroupUse)
	}{{c.cpu, c.takeCPU}, {c.quota, c.takeThrottling}, {c.memory, c.takeMemory}, {c.io, c.takeIO}} {
		if part.dir != "" && !part.isRoot() {
			part.take(part.controller, u)
			known = true
		}
	}
	if !known {
		return nil
	}
	return u
}

func (c *cgroups) takeCPU(k controller, u *CgroupUse) {
	if k.version == 1 {
		n, _ := c.value(k.dir, "cpuacct.usage")
		u.CPU = float64(n) / 1e9
		return
	}
	b, _ := c.read.read(filepath.Join(k.dir, "cpu.stat"))
	u.CPU = float64(field(b, "usage_usec")) / 1e6
}

func (c *cgroups) takeThrottling(k controller, u *CgroupUse) {
	b, _ := c.read.read(filepath.Join(k.dir, "cpu.stat"))
	u.Throttles = field(b, "nr_throttled")
	u.Throttled = float64(field(b, "throttled_usec")) / 1e6
	if k.version == 1 {
		u.Throttled = float64(field(b, "throttled_time")) / 1e9
	}
}

func (c *cgroups) takeMemory(k controller, u *CgroupUse) {
	now, peak, events := "memory.current", "memory.peak", "memory.events" // peak since Linux 5.19
	file, shmem := "file", "shmem"
	if k.version == 1 {
		now, peak, events = "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control"
		file, shmem = "total_cache", "total_shmem"
	}
	u.Memory, _ = c.value(k.dir, now)
	u.Peak, _ = c.value(k.dir, peak)
	b, _ := c.read.read(filepath.Join(k.dir, events))
	u.OOMKills = field(b, "oom_kill")
	b, _ = c.read.read(filepath.Join(k.dir, "memory.stat"))
	u.Cache = max(0, field(b, file)-field(b, shmem))
}

func (c *cgroups) takeIO(k controller, u *CgroupUse) {
	if k.version == 2 {
		b, _ := c.read.read(filepath.Join(k.dir, "io.stat"))
		u.Read, u.Written = deviceSums(b, "rbytes=", "wbytes=")
		return
	}
	b, err := c.read.read(filepath.Join(k.dir, "blkio.throttle.io_service_bytes_recursive"))
	if err != nil {
		b, _ = c.read.read(filepath.Join(k.dir, "blkio.throttle.io_service_bytes"))
	}
	u.Read, u.Written = deviceSums(b, "Read", "Write")
}

// deviceSums sums the bytes of all devices: "8:0 rbytes=1 wbytes=2 …" in version 2, lines of
// "8:0 Read 1" in version 1.
func deviceSums(b []byte, read, write string) (in, out int64) {
	sums := [2]int64{}
	var to *int64
	for w := range bytes.FieldsSeq(b) {
		if to != nil { // the number after the key
			*to = sum(*to, number(w))
			to = nil
			continue
		}
		for i, key := range [2]string{read, write} {
			if rest, ok := bytes.CutPrefix(w, []byte(key)); ok {
				if sums[i] = sum(sums[i], number(rest)); len(rest) == 0 {
					to = &sums[i]
				}
			}
		}
	}
	return sums[0], sums[1]
}

// sum adds without overflow.
func sum(a, b int64) int64 {
	if a > 1<<62 || b > 1<<62 {
		return 1 << 62
	}
	return a + b
}
