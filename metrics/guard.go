package metrics

import (
	"os"
	"path/filepath"
	"time"
)

// A memoryGuard detects that the cgroup with the smallest memory limit is nearly full. The
// kernel then kills its largest process, and any process that needs a page meanwhile is next.
// A sample at that moment could kill this process, and the record would have no end.
type memoryGuard struct {
	used      *os.File // kept open, because opening needs memory
	limit     int64    // bytes
	postponed int      // number of consecutive samples that were postponed
}

const (
	// guardWidth is the distance to the limit, in bytes, that counts as near. The kernel
	// hands out and counts memory in batches of 64 pages.
	guardWidth = 1 << 20
	// Cgroups full of cached file contents stay near the limit for long without danger.
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

// near reports whether to postpone a sample.
func (b *memoryGuard) near() bool {
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
