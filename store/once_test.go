package store

import (
	"os"
	"sync"
	"testing"
)

// TestOnceEmpty checks that processes that create the same empty directory at the same time
// all get the same one: it must not be replaced after somebody has got it.
func TestOnceEmpty(t *testing.T) {
	s := open(t)
	for range 100 {
		dirs := make([]os.FileInfo, 8)
		var wg sync.WaitGroup
		for i := range dirs {
			wg.Go(func() {
				dir, err := s.Once(t.Context(), "cache/mount/x", func(string) error { return nil })
				if err == nil {
					dirs[i], err = os.Stat(dir)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, fi := range dirs {
			if !os.SameFile(fi, dirs[0]) {
				t.Fatal("Once returned a directory that was replaced later")
			}
		}
		if err := os.Remove(s.path("cache/mount/x")); err != nil {
			t.Fatal(err)
		}
	}
}
