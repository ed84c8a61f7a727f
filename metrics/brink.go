package metrics

import (
	"os"
	"path/filepath"
	"time"
)

// A brink tells when the cgroup whose limit of memory is the least has none left. The kernel then ends its
// largest process, and while that goes away whatever asks for a page is the next: a look would be this
// process's last, and the record would have no end.
type brink struct {
	used  *os.File // open, as opening needs memory
	limit int64    // bytes
	held  int      // looks that were put off, in a row
}

const (
	// brinkWidth is how near to the limit, in bytes, that is. The kernel hands memory out in batches of 64
	// pages, and counts them when it does.
	brinkWidth = 1 << 20
	// Cgroups full of the contents of files stand there for long, and are in no danger.
	maxHeld   = 20
	heldPause = 50 * time.Millisecond
)

// watch begins to watch the cgroups of a run.
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

// near says whether to look later.
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
