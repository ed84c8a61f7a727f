package layer

import (
	"cmp"
	"hash/fnv"
	"io"
	"slices"
	"strings"
)

// Packages are spread over layers by their size as it is fetched: large ones change
// seldom and small ones often, and a change sends what shares its layer. The largest,
// up to maxOwn, have layers of their own. Others share one of the layers of their
// class, which one goes by name, so that none moves when another comes or goes.
// An image of conda's and pip's packages keeps within the 127 layers that
// Docker's overlay takes.
const (
	ownSize   = 8 << 20
	maxOwn    = 28
	maxShared = 20
)

// shares are the classes: a size from which on, and in how many layers. A class of
// an environment of 400 packages has 5 to 15 MB in each.
var shares = [...]struct {
	size   int64
	layers int
}{{2 << 20, 8}, {512 << 10, 6}, {128 << 10, 4}, {0, 2}}

// share is the layer of those that are shared that a package goes to.
func share(name string, size int64) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, name)
	first := 0
	for _, s := range shares {
		if size >= s.size {
			return first + int(h.Sum32()%uint32(s.layers))
		}
		first += s.layers
	}
	return 0 // no size is below 0
}

// A Package is what the layers of an environment depend on.
type Package struct {
	Name  string
	Size  int64    // bytes of the archive
	Needs []string // names of packages that come before it
}

// Spread distributes a list over layers, or gives each package a layer of its own. The
// order is kept. of needs no Needs.
func Spread[T comparable](list []T, each bool, of func(T) Package) [][]T {
	if each {
		return slices.Collect(slices.Chunk(list, 1))
	}
	bySize := slices.Clone(list)
	slices.SortStableFunc(bySize, func(a, b T) int { return cmp.Compare(of(b).Size, of(a).Size) })
	own := map[T]bool{}
	for i, p := range bySize {
		own[p] = i < maxOwn && of(p).Size >= ownSize
	}
	var out [][]T
	shared := make([][]T, maxShared)
	for _, p := range list {
		if own[p] {
			out = append(out, []T{p})
			continue
		}
		i := share(of(p).Name, of(p).Size)
		shared[i] = append(shared[i], p)
	}
	for _, g := range shared {
		if len(g) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// Order sorts a list so that each package comes after those it needs; where that
// decides nothing, and in cycles, by name.
func Order[T any](list []T, of func(T) Package) []T {
	pkgs := make([]Package, len(list))
	place := make([]int, len(list)) // in the list, by name
	for i, x := range list {
		pkgs[i], place[i] = of(x), i
		slices.Sort(pkgs[i].Needs)
	}
	slices.SortFunc(place, func(i, j int) int { return strings.Compare(pkgs[i].Name, pkgs[j].Name) })
	byName := map[string]int{}
	for _, i := range place {
		byName[pkgs[i].Name] = i
	}
	var out []T
	seen := make([]bool, len(list))
	var visit func(i int)
	visit = func(i int) {
		if seen[i] {
			return
		}
		seen[i] = true
		for _, n := range pkgs[i].Needs {
			if j, ok := byName[n]; ok {
				visit(j)
			}
		}
		out = append(out, list[i])
	}
	for _, i := range place {
		visit(i)
	}
	return out
}
