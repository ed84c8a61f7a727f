package pip

import (
	"archive/tar"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/fetch"
	"hpcc/conda/input"
	"hpcc/conda/layer"
	"hpcc/conda/program"
	"hpcc/store/disk"
)

// A wheel is built as pip would build it (PEP 517), and without pip: in the image
// with the environment's own python, in a virtual environment that has what the
// sources ask for and nothing else. All that is handed in lies below buildRoot, in layers
// that are not part of the image; what comes out is one wheel, which is then checked and
// installed like any other.
const (
	buildRoot = "/.hpcc-build"
	buildEnv  = buildRoot + "/env"
)

//go:embed build.py
var buildProgram []byte

// A Workshop is where sources become wheels.
type Workshop struct {
	Step  program.StepFunc                                                 // nil: nothing is built, only planned
	Below func() (layers []v1.Layer, env []string, path string, err error) // the environment as far as it is made, its variables, and what comes before PATH
	Home  string                                                           // where that stands
}

// A builder builds wheels from sources, each once.
type builder struct {
	*Workshop
	fetch   *fetcher
	index   *indexSet
	target  Target
	options Options
	built   map[string]*builtWheel // by address
}

// A builtWheel is what came of sources.
type builtWheel struct {
	file string // in the cache
	name *wheelName
	meta *distMeta
	with []Wheel // what it was built with
}

// metadata is what sources need and are: as they say, if that is to be relied on, else as
// the wheel says that is built of them.
func (b *builder) metadata(ctx context.Context, p *pick) (*distMeta, error) {
	s, err := b.open(ctx, p)
	if err != nil {
		return nil, err
	}
	switch {
	case s.static():
		return s.meta, nil
	case b.Step != nil:
		w, err := b.build(ctx, p)
		if err != nil {
			return nil, err
		}
		return w.meta, nil
	case s.meta != nil:
		return s.meta, nil
	}
	return &distMeta{name: p.name, version: p.version}, nil
}

// open fetches the archive of sources and reads it.
func (b *builder) open(ctx context.Context, p *pick) (*sources, error) {
	file, _, err := b.fetch.archive(ctx, p, func(int64) {})
	if err != nil {
		return nil, err
	}
	s, err := readSources(file, sourceKind(p.file.name), p.file.subdir)
	if err != nil {
		return nil, fmt.Errorf("reading the sources %s: %w", p.file.name, err)
	}
	return s, nil
}

// build makes the wheel.
func (b *builder) build(ctx context.Context, p *pick) (*builtWheel, error) {
	if w := b.built[p.address()]; w != nil {
		return w, nil
	}
	s, err := b.open(ctx, p)
	if err != nil {
		return nil, err
	}
	if slices.Contains(b.options.under, p.name) {
		return nil, fmt.Errorf("building %s needs itself, by way of %s; a wheel of one of them ends the circle", p.name, strings.Join(b.options.under, ", "))
	}
	w, err := b.make(ctx, p, s)
	if err != nil {
		return nil, fmt.Errorf("building %s from its sources %s: %w", p.name, p.file.name, err)
	}
	if !w.meta.of(p) {
		return nil, fmt.Errorf("building %s from its sources %s: they make %s %s", p.name, p.file.name, w.meta.name, w.meta.version)
	}
	b.built[p.address()] = w
	return w, nil
}

// make builds with what the sources ask for; where the backend then asks for more,
// once more with that too.
func (b *builder) make(ctx context.Context, p *pick, s *sources) (*builtWheel, error) {
	asked := len(p.with) > 0 // by who wrote the lock file
	var more []string
	for {
		env, err := b.environment(ctx, p, slices.Concat(s.build.Requires, more))
		if err != nil {
			return nil, err
		}
		layer, err := b.run(ctx, p, s, env, asked, more)
		if err != nil {
			return nil, explained(err)
		}
		var w *builtWheel
		w, more, err = b.take(ctx, layer)
		if err == nil && w == nil && (asked || len(more) == 0) {
			err = errors.New("its build backend made no wheel")
		}
		if err != nil {
			return nil, err
		}
		if w != nil {
			w.with = env.wheels
			return w, nil
		}
		asked = true
	}
}

// A buildEnvironment is what a wheel is built with.
type buildEnvironment struct {
	layers []v1.Layer
	wheels []Wheel
}

// environment makes the virtual environment that the sources ask for, or the one that
// a lock file says they were built in.
func (b *builder) environment(ctx context.Context, p *pick, requires []string) (*buildEnvironment, error) {
	t := b.target
	t.Prefix, t.SitePackages, t.Provided, t.Paths = buildEnv, "", nil, nil
	o := Options{File: "the requirements to build " + p.name, Dir: b.options.Dir, Indexes: b.options.Indexes, Build: b.Workshop, under: append(slices.Clone(b.options.under), p.name), index: b.index}
	locked := len(p.with) > 0
	if locked {
		requires, o.Closed = p.with, true
	}
	var rows []Requirement
	for _, text := range requires {
		r, err := ParseRequirement(text)
		if err != nil {
			return nil, fmt.Errorf("its build requirement %q: %w", input.Text(text), err)
		}
		if r.URL != "" && !locked {
			return nil, fmt.Errorf("its build requirement %s is no version of an index", r)
		}
		r.Locked = true
		rows = append(rows, r)
	}
	plan, err := Resolve(ctx, b.fetch.store, rows, t, o)
	if err != nil {
		return nil, err
	}
	layers, _, err := plan.Layers(ctx, b.fetch.store, o)
	return &buildEnvironment{layers, plan.Wheels}, err
}

// A buildOrder is what buildProgram is told.
type buildOrder struct {
	Backend string   `json:"backend"`
	Path    []string `json:"path"`
	Subdir  string   `json:"subdir"`
	Known   []string `json:"known"` // requirements that are there
	Asked   bool     `json:"asked"` // the backend for all others
}

// run builds in a step; the layer is what that leaves behind. more is what the
// backend asked for before.
func (b *builder) run(ctx context.Context, p *pick, s *sources, env *buildEnvironment, asked bool, more []string) (v1.Layer, error) {
	below, env0, search, err := b.Below()
	if err != nil {
		return nil, err
	}
	text := "build a wheel of " + p.file.name
	if len(more) > 0 {
		text += " with " + input.List(more)
	}
	order, err := json.Marshal(buildOrder{s.build.Backend, s.build.Path, p.file.subdir, s.build.Requires, asked})
	if err != nil {
		return nil, err
	}
	python := "python" + Minor(b.target.Python)
	tools, err := layer.New(ctx, b.fetch.store, buildRoot, nil, func(w *layer.Writer) error {
		if err := w.File("hpcc_build.py", 0o644, buildProgram, 0); err != nil {
			return err
		}
		if err := w.File("order.json", 0o644, order, 0); err != nil {
			return err
		}
		if err := w.File("env/pyvenv.cfg", 0o644, []byte("home = "+b.Home+"/bin\ninclude-system-site-packages = false\nversion = "+b.target.Python+"\n"), 0); err != nil {
			return err
		}
		for _, name := range []string{python, "python", "python3"} {
			if err := w.Header(&tar.Header{Typeflag: tar.TypeSymlink, Name: "env/bin/" + name, Linkname: b.Home + "/bin/" + python, Mode: 0o777, ModTime: layer.Epoch}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	tree, err := layer.New(ctx, b.fetch.store, buildRoot, nil, func(w *layer.Writer) error { return s.put(w, "source") })
	if err != nil {
		return nil, fmt.Errorf("reading the sources %s: %w", p.file.name, err)
	}
	return b.Step(ctx, program.Step{
		Text: text, Below: below, With: slices.Concat(env.layers, []v1.Layer{tools, tree}),
		Args: program.Activated(buildEnv+"/bin/"+python, buildRoot+"/hpcc_build.py"),
		Env:  slices.Concat(env0, program.Env, []string{"HOME=/.hpcc/home", "TMPDIR=/.hpcc/tmp"}),
		Path: buildEnv + "/bin:" + search, Dir: "/",
	})
}

// take finds the wheel in what a step left behind and keeps it in the cache; without
// one, the requirements that the backend asks for besides.
func (b *builder) take(ctx context.Context, layer v1.Layer) (*builtWheel, []string, error) {
	if layer == nil {
		return nil, nil, nil
	}
	r, err := layer.Uncompressed()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	var w *builtWheel
	var more []string
	err = input.WalkTar(r, maxSources, func(h *tar.Header, r io.Reader) error {
		name, below := strings.CutPrefix(h.Name, strings.TrimPrefix(buildRoot, "/")+"/out/")
		switch {
		case !below || h.Typeflag != tar.TypeReg:
			return nil
		case name == "requires.json":
			data, err := input.ReadAll(r, maxPyproject)
			if err == nil {
				err = json.Unmarshal(data, &more)
			}
			return err
		case w != nil:
			return errors.New("the build made a second file")
		}
		w, err = b.keep(ctx, path.Base(name), r)
		return err
	})
	return w, more, err
}

// keep puts a wheel into the cache and reads its metadata.
func (b *builder) keep(ctx context.Context, name string, r io.Reader) (*builtWheel, error) {
	w := &builtWheel{}
	var err error
	if w.name, err = parseWheelName(name); err != nil {
		return nil, err
	}
	if (&resolver{ranks: b.ranks()}).rank(w.name) == 0 {
		return nil, fmt.Errorf("the wheel is for %s, the environment is %s", input.List(w.name.tags), b.target.describe())
	}
	tmp, err := b.fetch.store.TempDir()
	if err != nil {
		return nil, err
	}
	defer disk.RemoveAll(tmp)
	if w.file, err = (&fetch.File{FileName: name, URL: name}).Keep(ctx, r, b.fetch.dir, tmp, func(int64) {}); err != nil {
		return nil, err
	}
	a, files, err := openArchive(w.file, w.name)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	text, err := a.small(files, "METADATA", maxMetadata)
	if err == nil {
		w.meta, err = parseDistMeta(text)
	}
	return w, err
}

// ranks are those of the environment's tags.
func (b *builder) ranks() map[string]int {
	ranks, err := b.target.ranks()
	if err != nil {
		return nil // the resolver refused it before
	}
	return ranks
}

// A lack is what a build complains about, and the cure.
type lack struct {
	pattern *regexp.Regexp // its first group is named in the cure
	cure    string
}

// The cures of builds that lack a program.
const (
	addCompiler = "it needs the compiler %s; add gcc, gxx or gfortran to the environment, or put it on an image that has a compiler with --from"
	addProgram  = "it needs %s; add it to the environment, or put it on an image that has it with --from"
)

// lacks are what builds mostly lack, in the words of setuptools, meson, CMake,
// autoconf, the compilers and the shells.
var lacks = sync.OnceValue(func() (out []lack) {
	const compiler, tool = `([\w./-]*(?:gcc|g\+\+|clang|clang\+\+|gfortran|c\+\+|\bcc|c99))`, `(cargo|rustc|cmake|ninja|make|swig|pkg-config|nvcc|git|autoreconf)`
	for _, x := range [][2]string{
		{`command '` + compiler + `' failed: No such file`, addCompiler},
		{`unable to execute '` + compiler + `': No such file`, addCompiler},
		{`No such file or directory: '` + compiler + `'`, addCompiler},
		{compiler + `: (?:command )?not found`, addCompiler},
		{`Unknown compiler\(s\): \[\[?'` + compiler, addCompiler},
		{`No (CMAKE_\w+_COMPILER) could be found`, addCompiler},
		{`no acceptable (C compiler) found`, addCompiler},
		{`(?i)can't find (rust) compiler`, addProgram},
		{`No such file or directory: '` + tool + `'`, addProgram},
		{`\b` + tool + `: (?:command )?not found`, addProgram},
		{`fatal error: (Python\.h): No such file`, "it needs %s, the headers of python, which this python comes without"},
		{`fatal error: ([\w./+-]{1,80}): No such file`, "it needs the header %s; add the package that has it to the environment"},
		{`ModuleNotFoundError: No module named '([\w.]{1,80})'`, "it imports %s, which its build requirements do not list"},
		{program.Offline().String(), "it wants to download something (%s); a build has no network"},
	} {
		out = append(out, lack{regexp.MustCompile(x[0]), x[1]})
	}
	return out
})

// explained adds the cure to a build that failed.
func explained(err error) error {
	var failed *program.Error
	if !errors.As(err, &failed) {
		return err
	}
	cure := "what it printed says why"
	for _, m := range lacks() {
		if f := m.pattern.FindSubmatch(failed.Log); f != nil {
			cure = fmt.Sprintf(m.cure, f[1])
			break
		}
	}
	return fmt.Errorf("%w: %s; a version that has a wheel needs no build", err, cure)
}
