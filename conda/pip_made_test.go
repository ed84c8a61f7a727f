package conda

import (
	"os"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
)

// Layers of wheels are taken again where nothing of what they depend on changed, and are
// what a new store would give.
func TestPipMadeBefore(t *testing.T) {
	other := testWheel{name: "other", version: "1", files: []wheelFile{{name: "other.py", text: "x = 1\n"}, {name: "demo/__init__.py", text: "other's\n"}}}
	dir := wheelDir(t, demoWheel, other)
	made := func(s *store.Store, rows string, target pipTarget, change func(o *pipOptions)) (digests string, made int) {
		t.Helper()
		log := &teeLog{tars: map[v1.Hash]string{}}
		o := fromDir(dir)
		o.PackageLayers, o.Tee = true, log.tee
		if change != nil {
			change(&o)
		}
		plan, err := resolvePip(t.Context(), s, pipRows(t, rows), target, o)
		if err != nil {
			t.Fatal(err)
		}
		layers, _, err := plan.layers(t.Context(), s, o)
		if err != nil {
			t.Fatal(err)
		}
		return layerDigests(t, layers), log.begun
	}
	s, both := newStore(t), "demo-pkg\nother\n"
	first, n := made(s, both, pyTarget(nil), nil)
	if n != 2 {
		t.Fatalf("%d layers were made; want 2", n)
	}
	for _, c := range []struct {
		name   string
		rows   string
		target pipTarget
		change func(o *pipOptions)
		made   int
		same   bool // as the first
	}{
		{"again", both, pyTarget(nil), nil, 0, true},
		{"another order", "other\ndemo-pkg\n", pyTarget(nil), nil, 0, true},
		{"anew", both, pyTarget(nil), func(o *pipOptions) { o.NoCache = true }, 2, true},
		{"without the one that took a path", "demo-pkg\n", pyTarget(nil), nil, 1, false},
		{"another prefix", both, pyTarget(func(t *pipTarget) { t.Prefix = "/srv/env" }), nil, 2, false},
		{"another python", both, pyTarget(func(t *pipTarget) { t.Python = "3.12.1" }), nil, 2, false},
		{"another place", both, pyTarget(func(t *pipTarget) { t.SitePackages = "lib/site" }), nil, 2, false},
		{"by its address", "demo-pkg @ file://" + dir + "/" + demoWheel.file() + "\nother\n", pyTarget(nil), nil, 0, true},
	} {
		got, n := made(s, c.rows, c.target, c.change)
		if n != c.made || (got == first) != c.same {
			t.Errorf("%s: %d layers were made, the same as at first: %v; want %d, %v", c.name, n, got == first, c.made, c.same)
		}
		if want, _ := made(newStore(t), c.rows, c.target, c.change); got != want {
			t.Errorf("%s: the layers are\n%s; in a new store\n%s", c.name, got, want)
		}
	}
	// Another wheel of the same name and version.
	changed := demoWheel
	changed.files = slices.Clone(demoWheel.files)
	changed.files[0].text = "changed\n"
	if err := os.WriteFile(dir+"/"+changed.file(), changed.bytes(t), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, n := made(s, both, pyTarget(nil), nil); n != 1 || got == first {
		t.Errorf("of a wheel that was changed %d layers were made, the same as at first: %v", n, got == first)
	}
}
