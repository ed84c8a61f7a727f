package metrics

import (
	"os"
	"path/filepath"
	"time"
)

// A brink detects that the cgroup with the smallest memory limit is nearly full. The kernel
// then kills its largest process, and any process that needs a page meanwhile is next. A
// look at that moment could kill this process, and the record would have no end.
type brink struct {
	used  *os.File // kept open, because opening needs memory
	limit int64    // bytes
	held  int      // number of consecutive looks that were postponed
}

const (
	// brinkWidth is the distance to the limit, in bytes, that counts as near. The kernel
	// hands out and counts memory in batches of 64 pages.
	brinkWidth = 1 << 20
	// Cgroups full of cached file contents stay near the limit for long without danger.
	maxHeld   = 20
	heldPause = 50 * time.Millisecond
)

// watch starts watching the cgroups of a run.
func (b *brink) watch(c *cgroups) {
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

// near reports whether to postpone a look.
func (b *brink) near() bool {
	var text [32]byte
	n, _ := b.used.ReadAt(text[:], 0)
	if n == 0 || number(text[:n]) < b.limit-brinkWidth || b.held == maxHeld {
		b.held = 0
		return false
	}
	b.held++
	return true
}

func (b *brink) end() { b.used.Close() }
