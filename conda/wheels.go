package conda

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/exports"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
)

// pipTarget returns the target of wheels, as known before the packages are downloaded.
func (p *Plan) pipTarget() (*pip.Target, error) {
	t := &pip.Target{Subdir: p.Subdir, Prefix: p.Prefix, SitePackages: p.site}
	for _, r := range p.pkgs {
		if err := setPython(t, r); err != nil {
			return nil, err
		}
		if pip.IsVersion(r.Version) && slices.ContainsFunc(r.Depends, func(d string) bool { return solve.Dependency(d) == "python" }) {
			t.Provided = append(t.Provided, pip.Provided{Name: pip.NormalName(r.Name), Version: r.Version, Package: r.Name})
		}
	}
	if t.Python == "" {
		return nil, errNoPython
	}
	return t, nil
}

var errNoPython = errors.New("pip packages need a python in the environment; add python to the list of conda packages")

// setPipTarget completes the target from the conda environment being installed: its python,
// distributions and paths.
func setPipTarget(t *pip.Target, in *installer) error {
	t.Subdir, t.Prefix, t.SitePackages = in.plan.Subdir, in.plan.Prefix, in.plan.site
	t.Paths = map[string]pip.Owner{}
	for _, p := range in.packages {
		if err := setPython(t, p.rec); err != nil {
			return err
		}
		for src, e := range p.meta.paths {
			dst := p.target(src)
			if p.lost[dst] {
				continue
			}
			t.Paths[dst] = pip.Owner{Package: p.rec.Name, Dir: e.Type == "directory"}
			if name, version, ok := pip.InstalledDist(dst, in.plan.site); ok {
				t.Provided = append(t.Provided, pip.Provided{Name: name, Version: version, Package: p.rec.Name})
			}
		}
		for _, c := range p.points {
			if dst := "bin/" + c.name; !p.lostPoints[dst] {
				t.Paths[dst] = pip.Owner{Package: p.rec.Name}
			}
		}
	}
	slices.SortFunc(t.Provided, func(a, b pip.Provided) int { return strings.Compare(a.Name+" "+a.Package, b.Name+" "+b.Package) })
	if t.Python == "" {
		return errNoPython
	}
	return nil
}

// setPython sets the target's python if the package is python.
func setPython(t *pip.Target, r *solve.Record) error {
	if r.Name != "python" {
		return nil
	}
	if strings.Contains(r.Build, "pypy") {
		return errors.New("pip packages are installed for CPython; the environment's python is PyPy")
	}
	t.Python, t.FreeThreaded = r.Version, strings.Contains(r.Build, "_cp3") && strings.HasSuffix(r.Build, "t")
	return nil
}

// chooseWheels resolves the pip packages of the export; nil if there are none.
func (in *installer) chooseWheels(ctx context.Context, o Options) (*pip.Plan, error) {
	e := in.plan.export
	if len(e.Pip) == 0 {
		return nil, nil
	}
	t := pip.Target{}
	if err := setPipTarget(&t, in); err != nil {
		return nil, &exports.LineError{File: e.File, Line: e.Pip[0].Line, Err: err}
	}
	if err := linkPip(&t, o); err != nil {
		return nil, err
	}
	po := pipOptions(e, o)
	if po.Build != nil {
		po.Build.Home = in.plan.Prefix
		po.Build.Below = func() ([]v1.Layer, []string, string, error) {
			below, err := in.ground()
			return below, in.env.Env, in.env.Path, err
		}
	}
	return pip.Resolve(ctx, in.store, e.Pip, t, po)
}

// pipOptions returns the options of the file, with the user's in front.
func pipOptions(e *exports.Export, o Options) pip.Options {
	dir := cmp.Or(e.Dir, filepath.Dir(e.File))
	po := pip.Options{File: e.File, Dir: dir, Indexes: o.Indexes.Before(e.PipIndexes, dir), Constraints: e.Constraints,
		Closed: !e.PipOpen, NoBuild: o.NoStep, Progress: o.Progress, PackageLayers: o.PackageLayers, NoCache: o.NoCache, Tee: o.Tee}
	if o.Step != nil {
		po.Build = &pip.Workshop{Step: o.Step}
	}
	return po
}

// linkPip sets the C library that wheels may link with: musl if python's own modules use
// it.
func linkPip(t *pip.Target, o Options) error {
	var l Libc
	if o.Libc != nil {
		var err error
		if l, err = o.Libc(); err != nil {
			return fmt.Errorf("finding the image's C library: %w", err)
		}
	}
	for p := range t.Paths {
		if strings.HasPrefix(p, "lib/python"+pip.Minor(t.Python)+"/lib-dynload/") && strings.HasSuffix(p, "-linux-musl.so") {
			t.Musl = cmp.Or(l.Musl, defaultMusl)
			return nil
		}
	}
	t.Glibc = cmp.Or(os.Getenv("CONDA_OVERRIDE_GLIBC"), l.Glibc, defaultGlibc)
	for _, r := range o.Virtual {
		if r.Name == "__glibc" && r.Version != "" {
			t.Glibc = r.Version
		}
	}
	return nil
}
