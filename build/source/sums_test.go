package source

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// sumOf returns the digest that a new build computes for a directory, and the number of files
// whose digests were in the store.
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

// TestSums checks that a build reads changed files again, even with the same size and
// modification time, and no other files.
func TestSums(t *testing.T) {
	s := newStore(t)
	dir := testenv.Files(t, "a", "one", "sub/b", "two", "sub/c", "three")
	settle := func() { time.Sleep(150 * time.Millisecond) }
	settle()
	first, known := sumOf(t, s, dir)
	if known != 0 {
		t.Errorf("a new store has digests of %d files; want none", known)
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
	// The digest of a file that was just written is not cached, because another write within
	// the resolution of ctime would not change ctime.
	if _, known := sumOf(t, s, dir); known != 2 {
		t.Errorf("%d files known; want 2, without the file that was just written", known)
	}
	settle()
	sumOf(t, s, dir)
	if again, known := sumOf(t, s, dir); again != changed || known != 3 {
		t.Errorf("digest %s, %d files known; want %s and 3", again, known, changed)
	}
	elsewhere := testenv.Files(t, "a", "eno", "sub/b", "two", "sub/c", "three")
	if d, _ := sumOf(t, s, elsewhere); d != changed {
		t.Error("the same files in another directory have another digest")
	}
}

// FuzzParseSums parses damaged records.
func FuzzParseSums(f *testing.F) {
	f.Add([]byte(sumsHead))
	f.Add(append([]byte(sumsHead), append([]byte{1, 'a'}, bytes.Repeat([]byte{7}, 64)...)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		for p := range parseSums(data) {
			if len(p) > len(data) {
				t.Fatalf("a record of %d bytes has a path of %d bytes", len(data), len(p))
			}
		}
	})
}
