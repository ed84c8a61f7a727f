package conda

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hpcc/store"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// cachedKeys returns the paths of the cached layers' records in a store.
func cachedKeys(t testing.TB, s *store.Store) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(s.Dir(), "cache/installed/*"))
	testenv.Check(t, err)
	return list
}

// TestLayerCache checks that a change of one package rewrites only the layers that it affects,
// and that the image equals one built in a new store.
func TestLayerCache(t *testing.T) {
	pkgs := many()
	newer := &testPkg{name: pkgs[5].name, version: "2.0", files: []testFile{{path: "share/newer", text: "n"}}}
	changed := slices.Clone(pkgs)
	changed[5] = newer
	o := Options{Request: Request{Channels: []string{newChannel(t, append(slices.Clone(pkgs), newer)...)}, PackageLayers: true}}
	must := func(s *store.Store, o Options, pkgs ...*testPkg) *result {
		t.Helper()
		r, err := install(t, s, export(pkgs...), o)
		testenv.Check(t, err)
		return r
	}
	s := condatest.NewStore(t)
	first := must(s, o, pkgs...)
	if n := len(cachedKeys(t, s)); n != len(pkgs) {
		t.Fatalf("%d layers are cached; want %d", n, len(pkgs))
	}
	second, fresh := must(s, o, changed...), must(condatest.NewStore(t), o, changed...)
	if a, b := condatest.LayerDigests(t, second.layers), condatest.LayerDigests(t, fresh.layers); a != b || second.notes() != fresh.notes() {
		t.Errorf("layers with the cache:\n%s\nlayers in a new store:\n%s\nnotes: %q and %q", a, b, second.notes(), fresh.notes())
	}
	// The layers of pkg5 and of the package that now provides share/all may change.
	if n := len(cachedKeys(t, s)) - len(pkgs); n < 1 || n > 2 {
		t.Errorf("%d layers were written; want one or two", n)
	}
	// A damaged layer and an unreadable record are replaced.
	for _, spoil := range []string{filepath.Join(s.Dir(), "blobs/sha256", strings.Fields(condatest.LayerDigests(t, first.layers))[3]), cachedKeys(t, s)[0]} {
		testenv.Check(t, os.WriteFile(spoil, []byte("{"), 0o644))
		if again := must(s, o, pkgs...); condatest.LayerDigests(t, again.layers) != condatest.LayerDigests(t, first.layers) || !reflect.DeepEqual(again.files, first.files) {
			t.Errorf("after damage to %s the layers differ", spoil)
		}
	}
	// Swapped records give wrong layers, which shows that the cache is used, except with NoCache.
	var swap [2]string
	for i, k := range cachedKeys(t, s)[:2] {
		b, err := os.ReadFile(k)
		testenv.Check(t, err)
		swap[i] = string(b)
	}
	for i, k := range cachedKeys(t, s)[:2] {
		testenv.Check(t, os.WriteFile(k, []byte(swap[1-i]), 0o644))
	}
	again, anew := must(s, o, pkgs...), must(s, Options{Request: Request{Channels: o.Channels, PackageLayers: true}, Host: Host{NoCache: true}}, pkgs...)
	if condatest.LayerDigests(t, again.layers) == condatest.LayerDigests(t, first.layers) {
		t.Error("cached layers were written again")
	}
	if condatest.LayerDigests(t, anew.layers) != condatest.LayerDigests(t, first.layers) {
		t.Error("a cached layer was used despite NoCache")
	}
}

// TestLayerCacheNotes checks that an installation from the cache has the same notes, variables
// and links.
func TestLayerCacheNotes(t *testing.T) {
	p := &testPkg{name: "s", files: []testFile{
		{path: "bin/.s-post-link.sh", text: "x"}, {path: "bin/su", text: "x", mode: 0o4755}, {path: "etc/conda/env_vars.d/s.json", text: `{"A": "1", "ROOT": "` + holder + `"}`, prefix: holder},
		{path: "etc/conda/activate.d/s.sh", text: "export B=$A\n"}, {path: "lib64", link: "lib"}, {path: "etc/conda/activate.d/t.sh", text: "[ -d $CONDA_PREFIX/lib64 ] || export X=2"},
	}}
	s, o := condatest.NewStore(t), Options{Request: Request{Channels: []string{newChannel(t, p)}}}
	var first *result
	for range 2 {
		r, err := install(t, s, export(p), o)
		testenv.Check(t, err)
		if first == nil {
			first = r
		}
		if !reflect.DeepEqual(r.env, first.env) || len(r.env.Notes) != 3 || !slices.Contains(r.env.Env, "B=1") || !slices.Contains(r.env.Env, "ROOT=/opt/conda") {
			t.Errorf("Environment = %+v; want %+v", r.env, first.env)
		}
	}
}
