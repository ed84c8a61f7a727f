package layer

import (
	"cmp"
	"hash/fnv"
	"io"
	"slices"
	"strings"
)

// Packages are grouped into layers by archive size, because large packages change seldom and
// small ones often, and any change resends the entire layer. The largest packages, at most
// maxOwn, have a layer each. The others share the layers of their size class. A hash of the
// name selects the layer, so that adding or removing a package does not move others. An image
// with conda and pip packages stays below the 127 layers that Docker's overlay supports.
const (
	ownSize   = 8 << 20 // smallest archive, in bytes, of a package with its own layer
	maxOwn    = 28
	maxShared = 20
)

// sizeClasses lists the classes of packages that share layers. With 400 packages, each layer
// has 5 to 15 MB.
var sizeClasses = [...]struct {
	size   int64 // smallest archive, in bytes
	layers int   // number of shared layers
}{{2 << 20, 8}, {512 << 10, 6}, {128 << 10, 4}, {0, 2}}

// sharedLayer returns the index of a package's shared layer.
func sharedLayer(name string, size int64) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, name)
	first := 0
	for _, s := range sizeClasses {
		if size >= s.size {
			return first + int(h.Sum32()%uint32(s.layers))
		}
		first += s.layers
	}
	return 0 // unreachable: the last class starts at 0
}

// A Package holds the properties of a package that determine its layer and position.
type Package struct {
	Name  string
	Size  int64    // bytes of the archive
	Needs []string // names of its dependencies
}

// Spread distributes the packages of a list over layers; if separate, each package has its own
// layer. It keeps the order. describe need not set Needs.
func Spread[T comparable](list []T, separate bool, describe func(T) Package) [][]T {
	if separate {
		return slices.Collect(slices.Chunk(list, 1))
	}
	bySize := slices.Clone(list)
	slices.SortStableFunc(bySize, func(a, b T) int { return cmp.Compare(describe(b).Size, describe(a).Size) })
	own := map[T]bool{}
	for i, p := range bySize {
		own[p] = i < maxOwn && describe(p).Size >= ownSize
	}
	var out [][]T
	shared := make([][]T, maxShared)
	for _, p := range list {
		if own[p] {
			out = append(out, []T{p})
			continue
		}
		i := sharedLayer(describe(p).Name, describe(p).Size)
		shared[i] = append(shared[i], p)
	}
	for _, g := range shared {
		if len(g) > 0 {
			out = append(out, g)
		}
	}
	return out
}

// Order sorts a list so that each package follows its dependencies. Otherwise, and in cycles,
// the order is by name.
func Order[T any](list []T, describe func(T) Package) []T {
	pkgs := make([]Package, len(list))
	order := make([]int, len(list)) // indexes in the list, sorted by name
	for i, x := range list {
		pkgs[i], order[i] = describe(x), i
		slices.Sort(pkgs[i].Needs)
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(pkgs[i].Name, pkgs[j].Name) })
	byName := map[string]int{}
	for _, i := range order {
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
	for _, i := range order {
		visit(i)
	}
	return out
}
