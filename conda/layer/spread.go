package layer

import (
	"cmp"
	"hash/fnv"
	"io"
	"slices"
	"strings"
)

// Packages are grouped into layers by archive size: large ones change seldom and small ones
// often, and a change resends the whole layer. The largest, up to maxOwn, have layers of
// their own. Others share the layers of their size class, chosen by a hash of the name, so
// that adding or removing a package does not move others. An image with conda and pip
// packages stays below the 127 layers that Docker's overlay supports.
const (
	ownSize   = 8 << 20
	maxOwn    = 28
	maxShared = 20
)

// shares are the size classes: minimum size, and number of layers. With 400 packages, each
// layer has 5 to 15 MB.
var shares = [...]struct {
	size   int64
	layers int
}{{2 << 20, 8}, {512 << 10, 6}, {128 << 10, 4}, {0, 2}}

// share returns the shared layer of a package.
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
	return 0 // unreachable: the last class starts at 0
}

// A Package holds what the grouping of a package depends on.
type Package struct {
	Name  string
	Size  int64    // bytes of the archive
	Needs []string // names of its dependencies
}

// Spread distributes a list over layers, or gives each package its own layer. It keeps the
// order. of need not set Needs.
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

// Order sorts a list so that dependencies come first; otherwise, and in cycles, by name.
func Order[T any](list []T, of func(T) Package) []T {
	pkgs := make([]Package, len(list))
	place := make([]int, len(list)) // position in the list, by name
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
