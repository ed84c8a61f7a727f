package source

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hpcc/store"
	"hpcc/testdata/testenv"
)

// sumOf returns the digest of a directory's files as a new build finds it, and
// how many of them the store knew.
func sumOf(t *testing.T, s *store.Store, dir string) (digest string, known int) {
	t.Helper()
	c, err := Open(dir, "")
	testenv.Check(t, err)
	c.Remember(s, "key")
	set, err := c.Walk(".", nil)
	testenv.Check(t, err)
	for _, it := range set.Items {
		if r, ok := c.sums.lookup(it.Path); ok && r.stat == it.stat {
			known++
		}
	}
	digest, err = set.Digest()
	testenv.Check(t, err)
	testenv.Check(t, c.sums.save())
	return digest, known
}

// Files are read again when they were changed, and only then: also when size
// and modification time are what they were.
func TestSums(t *testing.T) {
	s := newStore(t)
	dir := testenv.Files(t, "a", "one", "sub/b", "two", "sub/c", "three")
	settle := func() { time.Sleep(150 * time.Millisecond) }
	settle()
	first, known := sumOf(t, s, dir)
	if known != 0 {
		t.Errorf("a new store knows %d files", known)
	}
	if again, known := sumOf(t, s, dir); again != first || known != 3 {
		t.Errorf("digest %s, %d files known; want %s and 3", again, known, first)
	}
	p := filepath.Join(dir, "a")
	fi, err := os.Stat(p)
	testenv.Check(t, err)
	testenv.Check(t, os.WriteFile(p, []byte("eno"), 0o644))
	testenv.Check(t, os.Chtimes(p, fi.ModTime(), fi.ModTime()))
	changed, known := sumOf(t, s, dir)
	if changed == first || known != 2 {
		t.Errorf("after a change: same digest %v, %d files known; want another one and 2", changed == first, known)
	}
	// Read right after it was written: another write might leave no trace.
	if _, known := sumOf(t, s, dir); known != 2 {
		t.Errorf("a file of this very moment is remembered: %d known", known)
	}
	settle()
	sumOf(t, s, dir)
	if again, known := sumOf(t, s, dir); again != changed || known != 3 {
		t.Errorf("digest %s, %d files known; want %s and 3", again, known, changed)
	}
	elsewhere := testenv.Files(t, "a", "eno", "sub/b", "two", "sub/c", "three")
	if d, _ := sumOf(t, s, elsewhere); d != changed {
		t.Error("the same files elsewhere have another digest")
	}
}

// A damaged record is as none.
func FuzzParseSums(f *testing.F) {
	f.Add([]byte(sumsHead))
	f.Add(append([]byte(sumsHead), append([]byte{1, 'a'}, bytes.Repeat([]byte{7}, 64)...)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		for p := range parseSums(data) {
			if len(p) > len(data) {
				t.Fatalf("path of %d bytes", len(p))
			}
		}
	})
}
