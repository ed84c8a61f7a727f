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
	"hpcc/files"
	"hpcc/text"
)

// A wheel is built in the image as pip would build it (PEP 517), but without pip: with
// the environment's own python, in a virtual environment that holds only the build
// requirements. The inputs lie below buildRoot, in layers that are not part of the
// final image. The result is one wheel, checked and installed like any other.
const (
	buildRoot = "/.hpcc-build"
	buildEnv  = buildRoot + "/env"
)

//go:embed build.py
var buildProgram []byte

// A Workshop runs the steps that build wheels from sources.
type Workshop struct {
	Step program.StepFunc // runs one step; nil: wheels are planned but not built
	// Below returns the environment built so far, its variables, and the directories to prepend to PATH.
	Below func() (layers []v1.Layer, env []string, path string, err error)
	Home  string // the environment's prefix
}

// A builder builds wheels from sources, each once.
type builder struct {
	*Workshop
	fetch   *fetcher
	index   *indexSet
	target  Target
	options Options
	built   map[string]*builtWheel // by the address of the sources
}

// A builtWheel is a wheel built from sources.
type builtWheel struct {
	file string // the wheel, in the cache
	name *wheelName
	meta *distMeta
	with []Wheel // the wheels of its build environment
}

// metadata returns the metadata of sources: their own if PEP 643 makes them reliable,
// else those of the wheel built from them.
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

// open fetches a source archive and reads its metadata.
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

// build builds the wheel of p, or returns the one built before.
func (b *builder) build(ctx context.Context, p *pick) (*builtWheel, error) {
	if w := b.built[p.address()]; w != nil {
		return w, nil
	}
	s, err := b.open(ctx, p)
	if err != nil {
		return nil, err
	}
	if slices.Contains(b.options.building, p.name) {
		return nil, fmt.Errorf("building %s: circular build requirements through %s; provide a wheel for one of them",
			p.name, strings.Join(b.options.building, ", "))
	}
	w, err := b.make(ctx, p, s)
	if err != nil {
		return nil, fmt.Errorf("building %s from its sources %s: %w", p.name, p.file.name, err)
	}
	if !w.meta.of(p) {
		return nil, fmt.Errorf("building %s from its sources %s: the wheel contains %s %s", p.name,
			p.file.name, w.meta.name, w.meta.version)
	}
	b.built[p.address()] = w
	return w, nil
}

// make builds the wheel with the build requirements of the sources. If the backend
// reports further requirements, make builds once more with those.
func (b *builder) make(ctx context.Context, p *pick, s *sources) (*builtWheel, error) {
	asked := len(p.with) > 0 // the lock file lists all build requirements
	var more []string
	for {
		env, err := b.environment(ctx, p, slices.Concat(s.build.Requires, more))
		if err != nil {
			return nil, err
		}
		layer, err := b.run(ctx, p, s, env, asked, more)
		if err != nil {
			return nil, withRemedy(err)
		}
		var w *builtWheel
		w, more, err = b.findWheel(ctx, layer)
		if err == nil && w == nil && (asked || len(more) == 0) {
			err = errors.New("the build backend produced no wheel")
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

// A buildEnvironment is the virtual environment in which a wheel is built.
type buildEnvironment struct {
	layers []v1.Layer
	wheels []Wheel
}

// environment creates the virtual environment for the build requirements, or the one
// that the lock file records.
func (b *builder) environment(ctx context.Context, p *pick, requires []string) (*buildEnvironment, error) {
	t := b.target
	t.Prefix, t.SitePackages, t.Provided, t.Paths = buildEnv, "", nil, nil
	o := Options{File: "the requirements to build " + p.name, Dir: b.options.Dir, Indexes: b.options.Indexes,
		Build: b.Workshop, building: append(slices.Clone(b.options.building), p.name), index: b.index}
	locked := len(p.with) > 0
	if locked {
		requires, o.Closed = p.with, true
	}
	var rows []Requirement
	for _, row := range requires {
		r, err := ParseRequirement(row)
		if err != nil {
			return nil, fmt.Errorf("build requirement %q: %w", text.Short(row), err)
		}
		if r.URL != "" && !locked {
			return nil, fmt.Errorf("build requirement %s: not a version from an index", r)
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

// A buildOrder is the input of buildProgram.
type buildOrder struct {
	Backend string   `json:"backend"`
	Path    []string `json:"path"`
	Subdir  string   `json:"subdir"`
	Known   []string `json:"known"` // requirements that are installed
	Asked   bool     `json:"asked"` // whether the backend was asked for further requirements
}

// run builds in one step and returns the layer of the files that the step wrote. more
// lists the requirements that the backend reported in the previous step.
func (b *builder) run(ctx context.Context, p *pick, s *sources, env *buildEnvironment, asked bool, more []string) (v1.Layer, error) {
	below, baseEnv, search, err := b.Below()
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
		if err := w.File("env/pyvenv.cfg", 0o644,
			[]byte("home = "+b.Home+"/bin\ninclude-system-site-packages = false\nversion = "+b.target.Python+"\n"), 0); err != nil {
			return err
		}
		for _, name := range []string{python, "python", "python3"} {
			if err := w.Header(&tar.Header{Typeflag: tar.TypeSymlink, Name: "env/bin/" + name,
				Linkname: b.Home + "/bin/" + python, Mode: 0o777, ModTime: layer.Epoch}); err != nil {
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
		Env:  slices.Concat(baseEnv, program.Env, []string{"HOME=/.hpcc/home", "TMPDIR=/.hpcc/tmp"}),
		Path: buildEnv + "/bin:" + search, Dir: "/",
	})
}

// findWheel finds the wheel in the layer of a build step and keeps it in the cache. If the layer
// has no wheel, findWheel returns the further requirements that the backend reported.
func (b *builder) findWheel(ctx context.Context, layer v1.Layer) (*builtWheel, []string, error) {
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
			return errors.New("the build backend wrote more than one file")
		}
		w, err = b.keep(ctx, path.Base(name), r)
		return err
	})
	return w, more, err
}

// keep adds a wheel to the cache and reads its metadata.
func (b *builder) keep(ctx context.Context, name string, r io.Reader) (*builtWheel, error) {
	w := &builtWheel{}
	var err error
	if w.name, err = parseWheelName(name); err != nil {
		return nil, err
	}
	if (&resolver{ranks: b.ranks()}).rank(w.name) == 0 {
		return nil, fmt.Errorf("the wheel is for %s, but the environment is %s", input.List(w.name.tags), b.target.describe())
	}
	tmp, err := b.fetch.store.TempDir()
	if err != nil {
		return nil, err
	}
	defer files.RemoveAll(tmp)
	if w.file, err = (&fetch.File{FileName: name, URL: name}).Keep(ctx, r, b.fetch.dir, tmp, func(int64) {}); err != nil {
		return nil, err
	}
	a, files, err := openArchive(w.file, w.name)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	text, err := a.readInfoFile(files, "METADATA", maxMetadata)
	if err == nil {
		w.meta, err = parseDistMeta(text)
	}
	return w, err
}

// ranks returns the ranks of the environment's tags.
func (b *builder) ranks() map[string]int {
	ranks, err := b.target.ranks()
	if err != nil {
		return nil // the resolver has refused this target already
	}
	return ranks
}

// A missingTool matches build logs that report a missing tool, and holds the remedy.
type missingTool struct {
	pattern *regexp.Regexp // its first group fills the %s of the remedy
	remedy  string
}

// Remedies for missing programs.
const (
	addCompiler = "it needs the compiler %s; add gcc, gxx or gfortran to the environment, or use --from with an image that has a compiler"
	addProgram  = "it needs %s; add it to the environment, or use --from with an image that has it"
)

// missingTools lists the tools that builds miss most often, in the messages of setuptools,
// meson, CMake, autoconf, compilers and shells.
var missingTools = sync.OnceValue(func() (out []missingTool) {
	const compiler, tool = `([\w./-]*(?:gcc|g\+\+|clang|clang\+\+|gfortran|c\+\+|\bcc|c99))`,
		`(cargo|rustc|cmake|ninja|make|swig|pkg-config|nvcc|git|autoreconf)`
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
		{`fatal error: (Python\.h): No such file`, "it needs %s, a header that this python does not include"},
		{`fatal error: ([\w./+-]{1,80}): No such file`, "it needs the header %s; add the package that provides it to the environment"},
		{`ModuleNotFoundError: No module named '([\w.]{1,80})'`, "it imports %s, which its build requirements do not list"},
		{program.Offline().String(), "it tried to download something (%s), but builds have no network"},
	} {
		out = append(out, missingTool{regexp.MustCompile(x[0]), x[1]})
	}
	return out
})

// withRemedy adds the remedy to the error of a failed build.
func withRemedy(err error) error {
	var failed *program.Error
	if !errors.As(err, &failed) {
		return err
	}
	remedy := "see its output"
	for _, m := range missingTools() {
		if f := m.pattern.FindSubmatch(failed.Log); f != nil {
			remedy = fmt.Sprintf(m.remedy, f[1])
			break
		}
	}
	return fmt.Errorf("%w: %s; a version that has a wheel needs no build", err, remedy)
}
