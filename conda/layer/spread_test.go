package layer

import (
	"fmt"
	"slices"
	"testing"
)

// sized returns packages with archives of these sizes, in bytes.
func sized(sizes ...int64) (out []*Package) {
	for i, n := range sizes {
		out = append(out, &Package{Name: fmt.Sprintf("p%04d", i), Size: n})
	}
	return out
}

func spreadPackages(list []*Package) [][]*Package {
	return Spread(list, false, func(p *Package) Package { return *p })
}

func TestSpread(t *testing.T) {
	var sizes []int64
	for i := range 400 {
		sizes = append(sizes, []int64{1000, ownSize + int64(i), 2 << 20, 2<<20 - 1, 512<<10 - 1, 128 << 10, 128<<10 - 1, 0}[i%8])
	}
	list := sized(sizes...)
	groups := spreadPackages(list)
	if len(groups) != maxOwn+maxShared {
		t.Errorf("%d layers; want %d", len(groups), maxOwn+maxShared)
	}
	seen := map[string]bool{}
	for i, g := range groups {
		if i < maxOwn && len(g) != 1 {
			t.Errorf("layer %d has %d packages", i, len(g))
		}
		class, last := -1, ""
		for _, p := range g {
			if seen[p.Name] || p.Name < last {
				t.Errorf("layer %d: %s is a duplicate or out of order", i, p.Name)
			}
			own := slices.IndexFunc(sizeClasses[:], func(s struct {
				size   int64
				layers int
			}) bool {
				return p.Size >= s.size
			})
			if (class >= 0 && own != class) || (i < maxOwn && p.Size < ownSize+8*22) {
				t.Errorf("layer %d: %s of %d bytes belongs to another size class", i, p.Name, p.Size)
			}
			seen[p.Name], last, class = true, p.Name, own
		}
	}
	if len(seen) != len(list) {
		t.Errorf("%d of %d packages are in layers", len(seen), len(list))
	}
	if 2*(maxOwn+maxShared)+1 > 127-20 {
		t.Error("layers of conda's packages and of pip's leave no room for a base and a Dockerfile")
	}
}

// TestSmallChangeIsSmall checks that in an environment of 5 GB a new or changed small package
// resends at most 20 MB. The sizes follow Anaconda's channel "main" of September 2021.
func TestSmallChangeIsSmall(t *testing.T) {
	var sizes []int64
	var total int64
	for _, c := range []struct{ packages, size int64 }{{20, 250e6}, {9, 6e6}, {15, 3e6}, {20, 1.45e6}, {29, 765e3}, {41, 360e3}, {47, 193e3}, {217, 38e3}} {
		for range c.packages {
			sizes = append(sizes, c.size)
			total += c.size
		}
	}
	if total < 5e9 {
		t.Fatalf("the environment has %d bytes", total)
	}
	for _, g := range spreadPackages(sized(sizes...)) {
		var sum int64
		for _, r := range g {
			sum += r.Size
		}
		if len(g) > 1 && sum > 20e6 {
			t.Errorf("a change of %s (%d bytes) resends a layer of %d bytes with %d packages", g[0].Name, g[0].Size, sum, len(g))
		}
	}
}
