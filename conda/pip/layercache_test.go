package pip

import (
	"os"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// TestLayerCache reuses layers of wheels whose inputs did not change. The layers equal those
// of a new store.
func TestLayerCache(t *testing.T) {
	other := condatest.Wheel{Name: "other", Version: "1", Files: []condatest.WheelFile{{Name: "other.py", Text: "x = 1\n"}, {Name: "demo/__init__.py", Text: "other's\n"}}}
	dir := condatest.WheelDir(t, condatest.DemoWheel, other)
	written := func(s *store.Store, rows string, target Target, change func(o *Options)) (digests string, written int) {
		t.Helper()
		log := &condatest.TeeLog{Tars: map[v1.Hash]string{}}
		o := fromDir(dir)
		o.PackageLayers, o.Tee = true, log.Tee
		if change != nil {
			change(&o)
		}
		plan, err := Resolve(t.Context(), s, readRows(t, rows), target, o)
		testenv.Check(t, err)
		layers, _, err := plan.Layers(t.Context(), s, o)
		testenv.Check(t, err)
		return condatest.LayerDigests(t, layers), log.Begun
	}
	s, both := condatest.NewStore(t), "demo-pkg\nother\n"
	first, n := written(s, both, pyTarget(nil), nil)
	if n != 2 {
		t.Fatalf("%d layers were written; want 2", n)
	}
	for _, c := range []struct {
		name    string
		rows    string
		target  Target
		change  func(o *Options)
		written int
		same    bool // equal to the first one
	}{
		{"again", both, pyTarget(nil), nil, 0, true},
		{"another order", "other\ndemo-pkg\n", pyTarget(nil), nil, 0, true},
		{"anew", both, pyTarget(nil), func(o *Options) { o.NoCache = true }, 2, true},
		{"without the one that took a path", "demo-pkg\n", pyTarget(nil), nil, 1, false},
		{"another prefix", both, pyTarget(func(t *Target) { t.Prefix = "/srv/env" }), nil, 2, false},
		{"another python", both, pyTarget(func(t *Target) { t.Python = "3.12.1" }), nil, 2, false},
		{"another directory", both, pyTarget(func(t *Target) { t.SitePackages = "lib/site" }), nil, 2, false},
		{"by its address", "demo-pkg @ file://" + dir + "/" + condatest.DemoWheel.File() + "\nother\n", pyTarget(nil), nil, 0, true},
	} {
		got, n := written(s, c.rows, c.target, c.change)
		if n != c.written || (got == first) != c.same {
			t.Errorf("%s: %d layers were written, equal to the first: %v; want %d, %v", c.name, n, got == first, c.written, c.same)
		}
		if want, _ := written(condatest.NewStore(t), c.rows, c.target, c.change); got != want {
			t.Errorf("%s: the layers are\n%s; in a new store\n%s", c.name, got, want)
		}
	}
	// Another wheel of the same name and version.
	changed := condatest.DemoWheel
	changed.Files = slices.Clone(condatest.DemoWheel.Files)
	changed.Files[0].Text = "changed\n"
	testenv.Check(t, os.WriteFile(dir+"/"+changed.File(), changed.Bytes(t), 0o644))
	if got, n := written(s, both, pyTarget(nil), nil); n != 1 || got == first {
		t.Errorf("after a wheel changed: %d layers were written, equal to the first: %v", n, got == first)
	}
}
