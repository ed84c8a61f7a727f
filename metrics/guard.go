package metrics

import (
	"os"
	"path/filepath"
	"time"
)

// A memoryGuard detects that the cgroup with the smallest memory limit is nearly full. When it
// is full, the kernel kills its largest process, and then others that allocate a page meanwhile.
// Taking a sample at that moment could end this process, and the record would have no footer.
type memoryGuard struct {
	used      *os.File // kept open, because opening needs memory
	limit     int64    // bytes
	postponed int      // number of consecutive samples that were postponed
}

const (
	// guardWidth is the distance to the limit, in bytes, below which the cgroup counts as
	// nearly full. The kernel charges memory to cgroups in batches of 64 pages.
	guardWidth = 1 << 20
	// A cgroup full of cached file contents may stay near its limit for long without danger,
	// so the number of consecutive postponed samples is bounded.
	maxPostponed  = 20
	postponePause = 50 * time.Millisecond
)

// watch starts watching the cgroups of a run.
func (b *memoryGuard) watch(c *cgroups) {
	dir, limit := c.leastMemory()
	if limit == 0 {
		return
	}
	name := "memory.current"
	if c.memory.version == 1 {
		name = "memory.usage_in_bytes"
	}
	b.used, _ = os.Open(filepath.Join(dir, name))
	b.limit = limit
}

// shouldPostpone reports whether to postpone a sample. It returns true at most maxPostponed
// times in a row.
func (b *memoryGuard) shouldPostpone() bool {
	var text [32]byte
	n, _ := b.used.ReadAt(text[:], 0)
	if n == 0 || number(text[:n]) < b.limit-guardWidth || b.postponed == maxPostponed {
		b.postponed = 0
		return false
	}
	b.postponed++
	return true
}

func (b *memoryGuard) end() { b.used.Close() }
