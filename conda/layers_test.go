package conda

import (
	"context"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/input"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// many returns packages with files, links, placeholders, clobbered paths and entry points,
// enough to fill all shared layers.
func many() []*testPkg {
	out := []*testPkg{python("3.11.4")}
	for i := range 30 {
		p := &testPkg{name: fmt.Sprintf("pkg%d", i), files: []testFile{{path: "share/all", text: fmt.Sprint(i)}, {path: fmt.Sprintf("share/d%d/f", i), text: holder + "/x", prefix: holder}, {path: fmt.Sprintf("lib/l%d", i), link: "x"}}}
		if i%3 == 0 {
			p.noarch, p.subdir, p.entryPoints = "python", "noarch", []string{fmt.Sprintf("cmd%d = m%d:f", i, i)}
			p.files = append(p.files, testFile{path: fmt.Sprintf("site-packages/m%d.py", i), text: strings.Repeat("x = 1\n", i)})
		}
		if i > 0 {
			p.depends = []string{fmt.Sprintf("pkg%d >=0", i/2)}
		}
		out = append(out, p)
	}
	return out
}

func TestDeterminism(t *testing.T) {
	defer goruntime.GOMAXPROCS(goruntime.GOMAXPROCS(0))
	pkgs := many()
	first, second := newChannel(t, pkgs...), filepath.Join(t.TempDir(), "elsewhere")
	channelAt(t, second, pkgs...)
	explicit := "@EXPLICIT\n"
	for _, p := range slices.Backward(pkgs) {
		explicit += "CHANNEL/" + p.subdir + "/" + p.dist() + ".conda\n"
	}
	reversed := slices.Clone(pkgs)
	slices.Reverse(reversed)
	for _, in := range [][]string{{export(pkgs...), export(reversed...)}, {explicit, explicit}} {
		var want, wantNotes string
		for n, dir := range []string{first, second, first, second} {
			goruntime.GOMAXPROCS([]int{1, 4}[n/2])
			s := condatest.NewStore(t)
			for range 2 { // without and with the cache
				r, err := install(t, s, in[n%2], Options{Request: Request{Channels: []string{dir}}})
				testenv.Check(t, err)
				digests, notes := condatest.LayerDigests(t, r.layers), strings.Join(r.env.Notes, "\n")
				if want == "" {
					want, wantNotes = digests, notes
				}
				if digests != want || notes != wantNotes {
					t.Fatalf("run %d: layers %q, notes %q; want %q, %q", n, digests, notes, want, wantNotes)
				}
			}
		}
	}
}

// newLayers returns the number of layers in after that before lacks.
func newLayers(t testing.TB, before, after []v1.Layer) (n int) {
	t.Helper()
	old := condatest.LayerDigests(t, before)
	for d := range strings.Lines(condatest.LayerDigests(t, after)) {
		if !strings.Contains(old, d) {
			n++
		}
	}
	return n
}

// TestLayersStay checks that an additional small package changes only its shared layer and
// the history.
func TestLayersStay(t *testing.T) {
	pkgs := many()
	extra := &testPkg{name: "extra", files: []testFile{{path: "share/extra", text: "e"}}}
	dir := newChannel(t, append(slices.Clone(pkgs), extra)...)
	before, err := install(t, condatest.NewStore(t), export(pkgs...), Options{Request: Request{Channels: []string{dir}}})
	testenv.Check(t, err)
	after, err := install(t, condatest.NewStore(t), export(append(pkgs, extra)...), Options{Request: Request{Channels: []string{dir}}})
	testenv.Check(t, err)
	if n := newLayers(t, before.layers, after.layers); len(before.layers) != 3 || n != 2 {
		t.Errorf("%d of %d layers changed; want 2 of 3", n, len(before.layers))
	}
}

// TestPackageLayers checks that with PackageLayers a package is the same layer in all
// environments.
func TestPackageLayers(t *testing.T) {
	pkgs := many()[1:]
	for _, p := range pkgs {
		p.files = slices.DeleteFunc(p.files, func(f testFile) bool { return f.path == "share/all" }) // no clobbered path
		p.depends = nil
	}
	py := python("3.11.4")
	dir := newChannel(t, append(slices.Clone(pkgs), py)...)
	o := Options{Request: Request{Channels: []string{dir}, PackageLayers: true}}
	all, err := install(t, condatest.NewStore(t), export(append(slices.Clone(pkgs), py)...), o)
	testenv.Check(t, err)
	if len(all.layers) != len(pkgs)+2 {
		t.Errorf("%d layers for %d packages; want one for each, and the history", len(all.layers), len(pkgs)+1)
	}
	for _, some := range [][]*testPkg{{pkgs[0], py}, {py, pkgs[7], pkgs[3], pkgs[12]}} {
		r, err := install(t, condatest.NewStore(t), export(some...), o)
		testenv.Check(t, err)
		if n := newLayers(t, all.layers, r.layers); len(r.layers) != len(some)+1 || n != 1 {
			t.Errorf("%d of %d layers differ; want only the history", n, len(r.layers))
		}
	}
}

func TestExplicit(t *testing.T) {
	lib := &testPkg{name: "lib", files: []testFile{{path: "share/x", text: "lib's"}}}
	app := &testPkg{name: "app", depends: []string{"lib"}, files: []testFile{{path: "share/x", text: "app's"}}}
	pure := &testPkg{name: "pure", noarch: "generic", subdir: "noarch", files: []testFile{{path: "share/pure", text: "p"}}}
	dir := newChannel(t, lib, app, pure)
	web := condatest.Serve(t, dir, nil)
	digest := func(p *testPkg) string { return "#sha256:" + condatest.SHA256(p.bytes(t)) }
	flat := t.TempDir()
	for _, p := range []*testPkg{lib, app, pure} {
		testenv.Write(t, filepath.Join(flat, "my pkgs", p.dist()+".conda"), p.bytes(t))
	}
	t.Chdir(flat)
	t.Setenv("HOME", flat)
	t.Setenv("PKGS", filepath.Join(flat, "my pkgs"))
	for _, c := range []struct{ name, in, channel string }{
		{"file URLs", "CHANNEL/linux-64/app-1.0-0.conda" + digest(app) + "\nCHANNEL/linux-64/lib-1.0-0.conda" + digest(lib) + "\nCHANNEL/noarch/pure-1.0-0.conda" + digest(pure), "file://" + dir},
		{"http", "CHANNEL/linux-64/app-1.0-0.conda" + digest(app) + "\nCHANNEL/linux-64/lib-1.0-0.conda\nCHANNEL/noarch/pure-1.0-0.conda", web.URL},
		{"paths", "CHANNEL/linux-64/app-1.0-0.conda\nCHANNEL/linux-64/lib-1.0-0.conda\nCHANNEL/noarch/pure-1.0-0.conda", dir},
		{"relative, in a directory of no platform", "my pkgs/app-1.0-0.conda" + digest(app) + "\n./my pkgs/lib-1.0-0.conda\nmy pkgs/pure-1.0-0.conda", ""},
		{"home and variable", "~/my pkgs/app-1.0-0.conda\n$PKGS/lib-1.0-0.conda\n${PKGS}/pure-1.0-0.conda", ""},
		{"quoted URL", "CHANNEL/app-1.0-0.conda\nCHANNEL/lib-1.0-0.conda\nCHANNEL/pure-1.0-0.conda", "file://" + strings.ReplaceAll(flat, " ", "%20") + "/my%20pkgs"},
	} {
		r, err := install(t, condatest.NewStore(t), "@EXPLICIT\n"+c.in, Options{Request: Request{Channels: []string{c.channel}}})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		// The order follows from the packages' dependencies.
		if got := strings.Join(r.plan.Names(), " "); got != "lib-1.0-0 app-1.0-0 pure-1.0-0" {
			t.Errorf("%s: Names = %q", c.name, got)
		}
		if got := r.files["opt/conda/share/x"].Data; got != "app's" {
			t.Errorf("%s: share/x = %q", c.name, got)
		}
		if h := r.files["opt/conda/conda-meta/history"].Data; record1(t, r, "pure-1.0-0").Subdir != "noarch" || !strings.Contains(h, "/noarch::pure-1.0-0\n") {
			t.Errorf("%s: pure is not recorded as noarch: %s", c.name, h)
		}
		note := ""
		if n := 3 - strings.Count(c.in, "#"); n > 0 {
			note = "env.txt: " + input.Share(n, 3, "is", "are") + " not verified ("
		}
		if notes := r.notes(); (note == "" && strings.Contains(notes, "digest")) || !strings.Contains(notes, note) {
			t.Errorf("%s: Notes = %q; want %q", c.name, notes, note)
		}
	}
	for _, c := range []struct{ name, in, want string }{
		{"sha256", "CHANNEL/linux-64/app-1.0-0.conda#" + shaA, "sha256 mismatch: "},
		{"md5", "CHANNEL/linux-64/app-1.0-0.conda#" + md5A, "md5 mismatch: "},
		{"missing", "CHANNEL/linux-64/app-2.0-0.conda", "app-2.0-0.conda"},
		{"host", "file://elsewhere/linux-64/app-2.0-0.conda", "not of the form file:///directory"},
	} {
		for _, channel := range []string{"file://" + dir, web.URL} {
			s := condatest.NewStore(t)
			_, err := install(t, s, "@EXPLICIT\n"+c.in, Options{Request: Request{Channels: []string{channel}}})
			refused(t, s, c.name, err, c.want)
			if left := cache(t, s); len(left) > 0 {
				t.Errorf("%s: the cache has %q", c.name, left)
			}
		}
	}
}

// TestExplicitPlatform refuses a package for another platform, regardless of its directory.
func TestExplicitPlatform(t *testing.T) {
	p := &testPkg{name: "p", subdir: "linux-ppc64le"}
	b := p.bytes(t)
	for _, c := range []struct{ dir, want string }{{"linux-64", "is for linux-ppc64le, but the image is for linux-64"}, {"pkgs", "is for linux-ppc64le, but the image is for linux-64"}, {"linux-ppc64le", "is for linux-ppc64le"}} {
		file := filepath.Join(t.TempDir(), c.dir, "p-1.0-0.conda")
		testenv.Write(t, file, b)
		s := condatest.NewStore(t)
		_, err := install(t, s, "@EXPLICIT\n"+file, Options{})
		refused(t, s, c.dir, err, c.want)
	}
}

func TestProgress(t *testing.T) {
	pkgs := many()
	var last, total int64
	o := Options{Request: Request{Channels: []string{newChannel(t, pkgs...)}}, Host: Host{Progress: func(done, all int64) {
		if done < last {
			t.Errorf("progress goes back from %d to %d", last, done)
		}
		last, total = done, all
	}}}
	s := condatest.NewStore(t)
	for range 2 {
		last = 0
		_, err := install(t, s, export(pkgs...), o)
		testenv.Check(t, err)
		if last != total || total == 0 {
			t.Errorf("progress ended at %d of %d", last, total)
		}
	}
}

func TestCancel(t *testing.T) {
	pkgs := many()
	dir := newChannel(t, pkgs...)
	plan, err := Resolve(t.Context(), read(t, export(pkgs...)), Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"})
	testenv.Check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	s := condatest.NewStore(t)
	_, _, err = plan.Layers(ctx, s, Options{Host: Host{Progress: func(done, total int64) { cancel() }}})
	refused(t, s, "cancelled", err, "context canceled")
}
