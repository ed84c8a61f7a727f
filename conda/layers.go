package conda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	goruntime "runtime"
	"slices"
	"sort"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"hpcc/conda/exports"
	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
	"hpcc/files"
	"hpcc/store"
	"hpcc/text"
)

// An Environment describes an installed plan to the image, besides its layers.
type Environment struct {
	Path   string      // prepended to the image's PATH
	Env    []string    // NAME=VALUE
	Wheels []pip.Wheel // packages of pip, by name
	Notes  []string    // what was left out, for people
}

// Layers downloads and verifies the packages, and writes layers with their files below the
// prefix. The same plan gives the same layers.
func (p *Plan) Layers(ctx context.Context, s *store.Store, o Options) ([]v1.Layer, *Environment, error) {
	in := &installer{plan: p, store: s, env: &Environment{}}
	if err := in.fetch(ctx, o); err != nil {
		return nil, nil, err
	}
	if err := in.read(ctx); err != nil {
		return nil, nil, err
	}
	if err := in.settle(); err != nil {
		return nil, nil, err
	}
	in.ground = sync.OnceValues(func() ([]v1.Layer, error) { return in.condaLayers(ctx, o) })
	wheels, err := in.chooseWheels(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	layers, err := in.ground()
	if err != nil {
		return nil, nil, err
	}
	if wheels != nil {
		above, notes, err := wheels.Layers(ctx, in.store, pipOptions(in.plan.export, o))
		if err != nil {
			return nil, nil, err
		}
		layers, in.env.Wheels, in.env.Notes = slices.Concat(layers, above), wheels.Wheels, slices.Concat(in.env.Notes, wheels.Notes, notes)
	}
	sort.Strings(in.env.Notes)
	return layers, in.env, nil
}

// condaLayers writes the layers of conda packages and of the changes by their scripts.
func (in *installer) condaLayers(ctx context.Context, o Options) ([]v1.Layer, error) {
	groups := layer.Spread(in.packages, o.PackageLayers, func(p *pkg) layer.Package { return inLayers(p.rec) })
	layers := make([]v1.Layer, len(groups)+1)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(files.MaxParallel(goruntime.GOMAXPROCS(0), 8))
	for i, members := range groups {
		g.Go(func() error {
			var err error
			layers[i], err = in.install(gctx, members, o)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	in.mergeInstalled()
	var err error
	layers[len(groups)], err = layer.New(ctx, in.store, in.plan.Prefix, o.Tee, func(w *layer.Writer) error {
		return w.File("conda-meta/history", 0o644, in.history(), 0)
	})
	if err != nil {
		return nil, err
	}
	if in.plan.sysroot != nil {
		in.finishBase()
		around, err := layer.New(ctx, in.store, "/", o.Tee, in.root)
		if err != nil {
			return nil, err
		}
		layers = append(layers, around)
	} else {
		in.finishEnv()
	}
	changed, err := in.postLink(ctx, o, layers)
	if changed != nil {
		layers = append(layers, changed)
	}
	return layers, err
}

// An installer holds the state of one installation.
type installer struct {
	plan     *Plan
	store    *store.Store
	packages []*pkg
	env      *Environment
	ground   func() ([]v1.Layer, error) // the layers below those of pip packages; computed once
	kinds    map[string]fileKind        // file type by path below the prefix
	files    map[string][]byte          // contents of the files for which wanted is true, by path

	mu      sync.Mutex // guards written and calls of Options.Installed
	written int64      // size of the packages that were written to layers, in bytes
}

// wrote reports that packages were written to a layer.
func (in *installer) wrote(o Options, list ...*pkg) {
	if o.Installed == nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, p := range list {
		in.written += p.rec.Size
	}
	total := int64(0)
	for _, p := range in.packages {
		total += p.rec.Size
	}
	o.Installed(in.written, total)
}

// A pkg is a package being installed.
type pkg struct {
	in   *installer
	rec  *solve.Record
	file string
	meta *meta
	// Files and entry points that a package installed later owns.
	lost, lostPoints map[string]bool
	points           []command
	dsts             map[string]string // destinations of the files of a sysroot; nil for other packages
	learned          learned
	// During installation:
	stale   map[string]bool       // compiled files that are left out
	outward []string              // links out of the prefix, with their targets
	done    map[string]*installed // by path in the package
	spares  map[string]*spareFile
	spared  int64 // bytes
}

// fetch downloads all packages, a few in parallel.
func (in *installer) fetch(ctx context.Context, o Options) error {
	dir := layer.Archives(in.store)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tmp, err := in.store.TempDir()
	if err != nil {
		return err
	}
	defer files.RemoveAll(tmp)
	var total, done int64
	for _, r := range in.plan.pkgs {
		total += r.Size
	}
	var mu sync.Mutex
	add := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		if done += n; o.Progress != nil {
			o.Progress(done, total)
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(files.MaxParallel(6, 4))
	for _, r := range in.plan.pkgs {
		p := &pkg{in: in, rec: r, lost: map[string]bool{}, lostPoints: map[string]bool{}}
		in.packages = append(in.packages, p)
		g.Go(func() (err error) {
			p.file, err = r.Download(gctx, dir, tmp, add)
			return err
		})
	}
	return g.Wait()
}

// read reads the metadata of all packages.
func (in *installer) read(ctx context.Context) error {
	g, _ := errgroup.WithContext(ctx)
	g.SetLimit(files.MaxParallel(goruntime.GOMAXPROCS(0), 8))
	for _, p := range in.packages {
		g.Go(func() error {
			f := infoFiles{}
			err := walk(p.file, mostUnpacked(p.rec.Size), f.take, nil)
			if err != nil {
				return fmt.Errorf("reading %s: %w", p.rec.FileName, err)
			}
			if p.meta, err = f.parse(); err != nil {
				return fmt.Errorf("reading %s: %w", p.rec.FileName, err)
			}
			if p.meta.index.Name != p.rec.Name || p.meta.index.Version != p.rec.Version || p.meta.index.Build != p.rec.Build {
				return fmt.Errorf("reading %s: it contains %s-%s-%s", p.rec.FileName, p.meta.index.Name,
					p.meta.index.Version, p.meta.index.Build)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	byRec := map[*solve.Record]*pkg{}
	for _, p := range in.packages {
		complete(p.rec, &p.meta.index)
		byRec[p.rec] = p
	}
	in.plan.finish()
	in.packages = in.packages[:0]
	for _, r := range in.plan.pkgs {
		in.packages = append(in.packages, byRec[r])
		if r == in.plan.sysroot {
			if err := byRec[r].layOut(in.plan.Subdir); err != nil {
				return fmt.Errorf("reading %s: %w", r.FileName, err)
			}
		}
		m := byRec[r].meta.index.Subdir
		if r.Subdir != "noarch" && m != "" && m != "noarch" && m != in.plan.Subdir {
			return fmt.Errorf("%s is for %s, but the image is for %s", r.FileName, m, in.plan.Subdir)
		}
	}
	return nil
}

// settle decides which package owns each path, before anything is written. As in conda,
// the last of several packages wins and the others leave the path out. A path that would
// be written through another package's file or link is refused.
func (in *installer) settle() error {
	owner := map[string]*pkg{}
	solid := map[string]bool{} // not a directory
	clashes := map[[2]string][]string{}
	claim := func(p *pkg, dst string, dir bool) {
		if before := owner[dst]; before != nil && before != p && (solid[dst] || !dir) {
			before.lost[dst], before.lostPoints[dst] = true, true
			k := [2]string{before.rec.Name, p.rec.Name}
			clashes[k] = append(clashes[k], dst)
		}
		owner[dst], solid[dst] = p, !dir
	}
	for _, p := range in.packages {
		if err := p.aim(claim); err != nil {
			return fmt.Errorf("installing %s: %w", p.rec.FileName, err)
		}
	}
	in.kinds = map[string]fileKind{}
	for _, dst := range slices.Sorted(maps.Keys(owner)) {
		in.kinds[dst] = directory
		if solid[dst] {
			in.kinds[dst] = regularFile
		}
		for d := path.Dir(dst); d != "."; d = path.Dir(d) {
			if solid[d] {
				return fmt.Errorf("installing %s: path %q lies below %q, which is not a directory in %s",
					owner[dst].rec.FileName, text.Short(dst), text.Short(d), owner[d].rec.FileName)
			}
			in.kinds[d] = directory
		}
	}
	for k, list := range clashes {
		in.note("%s in both %s and %s; the latter's are used: %s", text.Count(len(list), "path is", "paths are"),
			k[0], k[1], input.List(list))
	}
	return nil
}

// aim claims the package's paths.
func (p *pkg) aim(claim func(p *pkg, dst string, dir bool)) (err error) {
	if p.meta.index.NoarchKind() == "python" && p.in.plan.python == "" {
		return errors.New("it needs python, which the export does not list")
	}
	if p.points, err = p.commands(); err != nil {
		return err
	}
	mine := map[string]string{}
	for _, src := range p.meta.order {
		dst := p.target(src)
		if dst == "" {
			continue
		}
		if dst == "conda-meta" || strings.HasPrefix(dst, "conda-meta/") {
			return fmt.Errorf("path %q would overwrite the environment's conda-meta", text.Short(dst))
		}
		if other, twice := mine[dst]; twice {
			return fmt.Errorf("paths %q and %q have the same destination %q", text.Short(other), text.Short(src), text.Short(dst))
		}
		mine[dst] = src
		claim(p, dst, p.meta.paths[src].Type == "directory")
	}
	for _, c := range p.points {
		dst := "bin/" + c.name
		if _, own := mine[dst]; own {
			p.lost[dst] = true // old packages contain the script and declare the entry point
		}
		claim(p, dst, false)
	}
	return nil
}

// note adds a note for the user.
func (in *installer) note(format string, args ...any) {
	in.env.Notes = append(in.env.Notes, fmt.Sprintf(format, args...))
}

// history returns conda-meta/history, which marks a directory as a conda environment. Its
// date is constant.
func (in *installer) history() []byte {
	var b strings.Builder
	b.WriteString("==> 1980-01-01 00:00:00 <==\n# cmd: hpcc build --conda\n")
	for _, p := range in.packages {
		fmt.Fprintf(&b, "+%s/%s::%s-%s-%s\n", p.rec.Channel(), p.rec.Subdir, p.rec.Name, p.rec.Version, p.rec.Build)
	}
	return []byte(b.String())
}

// below lists the activation files in a directory, by extension.
func (in *installer) below(dir, ext string) (names []string) {
	for _, n := range slices.Sorted(maps.Keys(in.files)) {
		if strings.HasPrefix(n, dir) && strings.HasSuffix(n, ext) {
			names = append(names, n)
		}
	}
	return names
}

// finishEnv sets the image's variables to those that "conda activate" sets.
func (in *installer) finishEnv() {
	prefix := in.plan.Prefix
	a := &activation{prefix: prefix, is: func(p string) fileKind { return in.kinds[p] },
		exported: map[string]bool{}, vars: map[string]string{
			"PATH": prefix + "/bin:" + restOfPath, "CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": prefix, "CONDA_SHLVL": "1",
		}}
	for _, n := range in.below(varsDir, ".json") { // the last file that sets a variable wins
		var m map[string]string
		if err := json.Unmarshal(in.files[n], &m); err != nil {
			in.note("%s: not an object of strings: left out", n)
			continue
		}
		for k, v := range m {
			if !exports.IsVariable(k, v) {
				in.note("%s: %q is not a variable name: left out", n, text.Short(k))
				continue
			}
			if k == "PATH" {
				in.note("%s: PATH would replace the image's: left out", n)
				continue
			}
			a.vars[k] = v
		}
	}
	for k := range a.vars {
		a.exported[k] = true
	}
	for _, n := range in.below(scriptsDir, ".sh") {
		if err := a.source(string(in.files[n])); err != nil {
			in.note("%s is not run when the image is: %v; a program that needs it begins with \". %s/%s\"", n, err, prefix, n)
		}
	}
	in.env.Path = strings.TrimSuffix(a.vars["PATH"], ":"+restOfPath)
	for _, k := range slices.Sorted(maps.Keys(a.exported)) {
		if v, ok := a.vars[k]; ok && k != "PATH" {
			in.env.Env = append(in.env.Env, k+"="+v)
		}
	}
}
