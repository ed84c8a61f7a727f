package store

import (
	"os"
	"path/filepath"
	"regexp"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A program starts in a tree without notifying the store, so that a thousand concurrent
// starts need no write and no lock. GC must not remove a tree in use. On this node it asks
// the kernel which trees are mounted. For other nodes it relies on the age, which counts
// from the removal of the tree's last name (retire).

var treeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/trees/([0-9a-f]{64})[ /]`) })

// mountedTrees returns the hex digests of trees in which programs of this node run,
// according to the mount tables that the user can read: those of all the user's programs
// (proc(5), "mountinfo").
func mountedTrees() map[string]bool {
	used, seen := map[string]bool{}, map[string]bool{}
	tables, _ := filepath.Glob("/proc/[0-9]*/ns/mnt")
	for _, t := range tables {
		ns, err := os.Readlink(t)
		if err != nil || seen[ns] { // most processes share one table
			continue
		}
		b, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(t)), "mountinfo"))
		if err != nil {
			continue
		}
		seen[ns] = true
		for _, m := range treeName().FindAllSubmatch(b, -1) {
			used[string(m[1])] = true
		}
	}
	return used
}

// retire records that a name no longer refers to d: the age of its trees counts from now.
func (s *Store) retire(d v1.Descriptor) {
	all, err := s.closure(d)
	if err != nil {
		all = []v1.Descriptor{d}
	}
	for _, x := range all {
		if x.MediaType.IsImage() {
			touch(s.path("trees", x.Digest.Hex, ".hpcc"))
		}
	}
}
