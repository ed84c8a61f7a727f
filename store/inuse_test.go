package store

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
)

// The age of a tree counts from the moment when its last name went, whether the
// name was removed or was given to another image: elsewhere programs may run in it.
func TestTreesAgeFromTheirLastName(t *testing.T) {
	for _, how := range []string{"removed", "moved"} {
		s, err := Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		ctx := context.Background()
		img, err := random.Image(100, 1)
		if err != nil {
			t.Fatal(err)
		}
		d, err := s.Put(ctx, "img", img)
		if err != nil {
			t.Fatal(err)
		}
		mark := s.path("trees", d.Hex, ".hpcc")
		if err := os.MkdirAll(mark, 0o755); err != nil {
			t.Fatal(err)
		}
		long := time.Now().Add(-100 * 24 * time.Hour)
		if err := os.Chtimes(mark, long, long); err != nil {
			t.Fatal(err)
		}
		if how == "removed" {
			err = s.Remove("img")
		} else if img, err = random.Image(100, 1); err == nil {
			_, err = s.Put(ctx, "img", img)
		}
		if err != nil {
			t.Fatal(err)
		}
		if rep, err := s.GC(ctx, GCOptions{}); err != nil || rep.Trees != 0 {
			t.Errorf("%s: gc removes %d trees, %v; want none for a week", how, rep.Trees, err)
		}
		if rep, err := s.GC(ctx, GCOptions{Age: -1}); err != nil || rep.Trees != 1 {
			t.Errorf("%s: gc of what has no name removes %d trees, %v; want 1", how, rep.Trees, err)
		}
	}
}
