package store

import (
	"os"
	"path/filepath"
	"regexp"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// A program runs in a tree without a word to the store: a thousand starts at
// once are to cost no write and no lock. That nobody takes the tree away is
// gc's business. On this node it asks the kernel which trees are mounted. Of
// other nodes it cannot know: there a tree is safe for the age that gc is given,
// which counts from the moment when its last name went (retire).

var treeName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/trees/([0-9a-f]{64})[ /]`) })

// mountedTrees are the hex digests of trees that programs of this node run in:
// those in the mount tables that the user may read, which are all of his own
// programs' (proc(5), "mountinfo").
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

// retire notes that a name no longer stands for d: from now on counts the age of
// the trees that it led to.
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
