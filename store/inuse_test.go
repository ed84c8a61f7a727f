package store

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"

	"hpcc/testdata/testenv"
)

// The age of a tree counts from the removal or reassignment of its last name, because
// programs may run in it on other nodes.
func TestTreesAgeFromTheirLastName(t *testing.T) {
	for _, how := range []string{"removed", "moved"} {
		s, err := Open(t.TempDir())
		testenv.Check(t, err)
		ctx := context.Background()
		img, err := random.Image(100, 1)
		testenv.Check(t, err)
		d, err := s.Put(ctx, "img", img)
		testenv.Check(t, err)
		mark := s.path("trees", d.Hex, ".hpcc")
		testenv.Check(t, os.MkdirAll(mark, 0o755))
		long := time.Now().Add(-100 * 24 * time.Hour)
		testenv.Check(t, os.Chtimes(mark, long, long))
		if how == "removed" {
			err = s.Remove("img")
		} else if img, err = random.Image(100, 1); err == nil {
			_, err = s.Put(ctx, "img", img)
		}
		testenv.Check(t, err)
		if rep, err := s.GC(ctx, GCOptions{}); err != nil || rep.Trees != 0 {
			t.Errorf("%s: gc removes %d trees, %v; want none for a week", how, rep.Trees, err)
		}
		if rep, err := s.GC(ctx, GCOptions{Age: -1}); err != nil || rep.Trees != 1 {
			t.Errorf("%s: gc of what has no name removes %d trees, %v; want 1", how, rep.Trees, err)
		}
	}
}
