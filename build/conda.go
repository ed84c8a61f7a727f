package build

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/build/source"
	"hpcc/conda"
	"hpcc/conda/artifact"
	"hpcc/conda/exports"
	"hpcc/conda/layer"
	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

// CondaOptions describe the image of an environment. Only Files or Live is required.
type CondaOptions struct {
	// Request has the channels by name. If Files is one directory, its Packages are the environment.
	conda.Request
	Files       []string     // exports that together describe the environment; usually one
	Live        string       // an installed environment on disk, instead of Files
	Environment string       // environment in Files, if it has several; "": "default"
	Priority    string       // "strict" or "flexible" order of the channels; "": as Files say, or strict
	Virtual     []string     // virtual packages of the target machines, as for conda.Options.SetVirtual
	From        string       // base image; "": DefaultBase, "scratch": none, "conda" or "conda:2.N": built from the channels' packages
	Platform    *v1.Platform // nil: the local platform
	Entry       []byte       // as in Options
	NoRun       bool         // run no programs: skip scripts of packages, refuse sources
	Host

	// Base, unless nil, is the base image. From is then only its name in messages.
	Base v1.Image
	// DefaultChannels are used if neither Files nor conda's configuration names a channel.
	DefaultChannels []string

	defaultBase  bool     // the user did not set From
	baseChannels []string // Channels, even if the export needs none
	mirrors      [][]string
}

// Sources returns the names of the exports, without their directories.
func (o CondaOptions) Sources() []string {
	if o.Live != "" {
		return []string{filepath.Base(o.Live)}
	}
	var names []string
	for _, f := range o.Files {
		names = append(names, filepath.Base(f))
	}
	return names
}

// DefaultBase is the default image below an environment: it has a C library and a shell.
const DefaultBase = "debian:12-slim"

// An Environment is the image of a conda export.
type Environment struct {
	Image     v1.Image         // nil if only planned
	Lock      exports.Locked   // exact content of the image
	Downloads []conda.Download // if only planned: the archives to download
	Moves     []conda.Move     // packages that could not be used as exported
	Notes     []string         // other differences from the export
}

// Conda builds the image of a conda export: a base image, the environment's layers, and its
// variables.
func Conda(ctx context.Context, s *store.Store, o CondaOptions) (*Environment, error) {
	ctx = o.context(ctx)
	w, err := newCondaWork(ctx, s, o, 3)
	if err != nil {
		return nil, err
	}
	defer w.close()
	var base v1.Image
	if err := w.do(ctx, "FROM "+w.From, func() error {
		base, err = w.base()
		return err
	}); err != nil {
		return nil, err
	}
	plan, err := w.plan()
	if err != nil {
		return nil, err
	}
	var layers []v1.Layer
	var env *conda.Environment
	if err := w.do(ctx, fmt.Sprintf("install %s at %s",
		text.Count(len(plan.Names())+len(w.export.Pip), "package", "packages"), plan.Prefix), func() error {
		layers, env, err = plan.Layers(ctx, s, w.options)
		return err
	}); err != nil {
		return nil, err
	}
	if len(o.Entry) > 0 { // below the environment, so that its layers need not be searched
		if base, err = withEntry(ctx, s, base, Options{Entry: o.Entry, Platform: o.Platform,
			Reproducible: true, Host: Host{NoCache: o.NoCache}}); err != nil {
			return nil, err
		}
	}
	lock, packages := plan.Lock(env.Wheels), plan.Packages()
	if below := w.below.planned(); below != nil {
		below.LockBase(&lock)
		packages = append(below.Packages(), packages...)
	}
	o.Inputs.environment(w.CondaOptions, packages, env.Wheels)
	img, err := withEnvironment(base, plan, layers, env, w.export.Variables)
	if err != nil {
		return nil, err
	}
	return &Environment{Image: img, Lock: lock, Moves: plan.Moves,
		Notes: slices.Concat(w.export.Notes, w.below.notes(), plan.Notes, env.Notes)}, nil
}

// planConda returns what Conda would install and download. It reads the base image only if
// its C library matters.
func planConda(ctx context.Context, s *store.Store, o CondaOptions) (*Environment, error) {
	ctx = o.context(ctx)
	w, err := newCondaWork(ctx, s, o, 1)
	if err != nil {
		return nil, err
	}
	defer w.close()
	plan, err := w.plan()
	if err != nil {
		return nil, err
	}
	list, notes, err := plan.Downloads(ctx, s, w.options)
	if err != nil {
		return nil, err
	}
	below, err := w.below.downloads(ctx, s)
	if err != nil {
		return nil, err
	}
	return &Environment{Downloads: slices.Concat(below, list), Moves: plan.Moves,
		Notes: slices.Concat(w.export.Notes, w.below.notes(), plan.Notes, notes)}, nil
}

// context returns the context in which channels are read.
func (o CondaOptions) context(ctx context.Context) context.Context {
	if o.PlainHTTP {
		return artifact.WithPlainHTTP(ctx)
	}
	return ctx
}

// A condaWork is the state of a build of an export.
type condaWork struct {
	CondaOptions
	reporter
	ctx     context.Context
	export  *exports.Export
	options conda.Options
	base    func() (v1.Image, error)
	below   *channelBase // base built from packages, if there is one
	close   func()       // releases the resources of steps
}

// refusePolicies returns an error if the user or the machine has a policy that requires signatures of
// packages, which earlier versions of hpcc verified.
func refusePolicies() error {
	files := []string{"/etc/hpcc/trust.yaml"}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "hpcc", "trust.yaml"))
	}
	only := os.Getenv("HPCC_TRUST")
	if only != "" {
		files = []string{only}
	}
	for _, file := range files {
		if _, err := os.Lstat(file); err == nil || only != "" {
			return fmt.Errorf("policy %s: hpcc does not verify signatures of packages; verify them with cosign or conda-sigstore, and remove the policy", file)
		}
	}
	return nil
}

func newCondaWork(ctx context.Context, s *store.Store, o CondaOptions, parts int) (*condaWork, error) {
	if o.From == "" {
		o.From, o.defaultBase = DefaultBase, true
	}
	if o.Platform == nil {
		o.Platform = hostPlatform()
	}
	subdir, err := exports.Subdir(*o.Platform)
	if err != nil {
		return nil, err
	}
	w := &condaWork{reporter: reporter{total: parts, progress: o.Progress}, ctx: ctx, close: func() {}}
	progress := seldom(func(done, total int64) { w.report(Event{Fetched: done, Size: total}) })
	w.base = sync.OnceValues(func() (v1.Image, error) { return condaBase(ctx, s, o, progress) })
	libc := func() (conda.Libc, error) {
		img, err := w.base()
		if err != nil {
			return conda.Libc{}, err
		}
		return baseLibc(ctx, s, img)
	}
	version, fromPackages := fromChannel(o.From)
	if fromPackages { // the base depends on the export, which is not read yet
		libc = func() (conda.Libc, error) { return conda.Libc{Glibc: version}, nil }
	}
	if err := refusePolicies(); err != nil {
		return nil, err
	}
	w.options = conda.Options{Request: o.Request, Subdir: subdir, Libc: libc, Host: conda.Host{
		Cache: filepath.Join(s.Dir(), "cache", "conda"), NoCache: o.NoCache, Progress: progress,
		Tee: tee(o.Parts), Installed: seldom(func(done, total int64) { w.report(Event{Installed: done, Size: total}) }),
	}}
	w.options.Indexes.PlainHTTP = o.PlainHTTP
	if err = w.options.SetVirtual(o.Virtual); err != nil {
		return nil, err
	}
	ro := exports.ReadOptions{Subdir: subdir, Environment: o.Environment, Channels: o.Channels, Virtual: w.options.VirtualPackages}
	if w.export, err = readExport(&o, ro); err != nil {
		return nil, err
	}
	w.CondaOptions = o
	w.options.Channels, w.options.Mirrors = o.Channels, o.mirrors
	w.options.Flexible = o.Priority == "flexible" || (o.Priority == "" && w.export.Flexible)
	if fromPackages {
		w.below = newChannelBase(ctx, w.export, version, w.CondaOptions, w.options)
		w.base = sync.OnceValues(func() (v1.Image, error) { return w.below.image(ctx, s) })
		w.options.Libc = w.below.libc
	} else if len(w.export.Base) > 0 {
		w.export.Notes = append(w.export.Notes, w.export.File+": its base image of conda packages is not used; add --from conda to use it")
	}
	w.options.Step, w.options.NoStep, err = w.runner(s)
	return w, err
}

// tee unpacks the layers of an environment while they are written.
func tee(p *unpack.Parts) layer.Tee {
	if p == nil {
		return nil
	}
	return func(ctx context.Context) (io.Writer, func(v1.Hash)) {
		part := p.Begin(ctx)
		return part, part.End
	}
}

// plan resolves the packages.
func (w *condaWork) plan() (plan *conda.Plan, err error) {
	named := len(w.export.Pip) + max(len(w.export.Entries), len(w.export.Specs))
	err = w.do(w.ctx, fmt.Sprintf("find %s of %s for %s", text.Count(named, "package", "packages"),
		strings.Join(w.Sources(), " "), w.options.Subdir), func() error {
		plan, err = conda.Resolve(w.ctx, w.export, w.options)
		return err
	})
	return plan, err
}

// readExport reads the file or the environment, and sets the channels.
func readExport(o *CondaOptions, ro exports.ReadOptions) (*exports.Export, error) {
	var e *exports.Export
	var err error
	if o.Live != "" {
		e, err = exports.ReadPrefix(o.Live, ro)
	} else if isDir(o.Files) && len(o.Packages) > 0 {
		e = &exports.Export{File: o.Files[0]}
		for _, p := range o.Packages {
			e.Specs = append(e.Specs, exports.Spec{Text: p})
		}
	} else {
		e, err = exports.ReadFiles(o.Files, ro)
	}
	if err != nil {
		return nil, err
	}
	rc, err := conda.ReadCondarc(os.Getenv)
	if err != nil {
		return nil, err
	}
	if len(o.Channels) == 0 && !e.Explicit {
		if o.Channels = exportChannels(e, rc); len(o.Channels) == 0 && len(o.DefaultChannels) > 0 {
			o.Channels = o.DefaultChannels
			e.Notes = append(e.Notes, fmt.Sprintf("%s names no channel: using %s (choose others with --channel)",
				e.File, strings.Join(o.Channels, " ")))
		}
	}
	known := rc.Locate(o.Channels)
	if where := conda.Hidden(known); !slices.Equal(known, o.Channels) {
		e.Notes = append(e.Notes, fmt.Sprintf("channels %s are %s, as conda's configuration has them",
			strings.Join(o.Channels, " "), strings.Join(where, " ")))
	}
	o.Channels, o.baseChannels, o.mirrors = known, known, rc.Mirrors()
	if len(known) == 0 {
		o.baseChannels = rc.Locate(exportChannels(e, rc))
	}
	return e, nil
}

// isDir reports whether files is one directory.
func isDir(files []string) bool {
	if len(files) != 1 {
		return false
	}
	fi, err := os.Stat(files[0])
	return err == nil && fi.IsDir()
}

// exportChannels returns the channels of the export, or else of conda's configuration. It
// removes "defaults" unless the configuration defines it, because its terms of service need
// consent. It notes that, except if "defaults" is the only channel, which Resolve refuses.
func exportChannels(e *exports.Export, rc *conda.Condarc) (channels []string) {
	from, names := e.File, e.Channels
	if len(names) == 0 {
		from, names = "conda's configuration", rc.Channels
	}
	left := false
	for _, c := range names {
		switch {
		case c == "nodefaults":
		case c == "defaults" && !rc.Knows(c):
			left = true
		default:
			channels = append(channels, c)
		}
	}
	if left && len(channels) == 0 {
		return []string{"defaults"}
	}
	if left {
		e.Notes = append(e.Notes, from+": channel defaults is skipped: its terms of service need your consent; add it with --channel URL")
	}
	return channels
}

// A reporter reports the progress of a build without a Dockerfile.
type reporter struct {
	step, last, total int // step is the current one; others may start and end within it
	progress          func(Event)
}

// begin starts the next step; done ends it.
func (t *reporter) begin() (done func()) {
	before := t.step
	t.last++
	t.step = t.last
	return func() { t.step = before }
}

// report reports an event of the current step.
func (t *reporter) report(e Event) {
	if t.progress != nil {
		e.Step, e.Total = t.step, t.total
		t.progress(e)
	}
}

// do runs the work of the next step.
func (t *reporter) do(ctx context.Context, text string, work func() error) error {
	defer t.begin()()
	return reported(ctx, text, t.report, func() (bool, time.Duration, error) { return false, 0, work() })
}

// condaBase returns the base image.
func condaBase(ctx context.Context, s *store.Store, o CondaOptions, fetched func(done, total int64)) (v1.Image, error) {
	if o.Base != nil {
		return o.Base, nil
	}
	if o.From == "scratch" {
		return mutate.ConfigFile(emptyImage(),
			&v1.ConfigFile{OS: o.Platform.OS, Architecture: o.Platform.Architecture, RootFS: v1.RootFS{Type: "layers"}})
	}
	b := &builder{Options: Options{Host: Host{PlainHTTP: o.PlainHTTP, Inputs: o.Inputs}}, store: s}
	img, err := b.baseImage(ctx, o.From, o.Platform, fetched)
	var pe *store.PlatformError
	if errors.As(err, &pe) {
		return nil, fmt.Errorf("%w; name one with --from", err)
	}
	if err != nil && o.defaultBase {
		return nil, fmt.Errorf("%w; --from names another image to put the environment on", err)
	}
	return img, err
}

// withLayers adds layers to an image, each with a command in the history.
func withLayers(base v1.Image, layers []v1.Layer, when time.Time, command string) (v1.Image, error) {
	var add []mutate.Addendum
	for _, l := range layers {
		add = append(add, mutate.Addendum{Layer: l, History: v1.History{Created: v1.Time{Time: when}, CreatedBy: command, Comment: "hpcc"}})
	}
	return mutate.Append(base, add...)
}

// withEnvironment adds the environment's layers and variables to the base.
func withEnvironment(base v1.Image, plan *conda.Plan, layers []v1.Layer, env *conda.Environment,
	variables map[string]string) (v1.Image, error) {
	when, _, err := source.Date(os.Getenv(epochArg))
	if err != nil {
		return nil, err
	}
	img, err := withLayers(base, layers, when, fmt.Sprintf("hpcc build --conda (%d packages for %s at %s)",
		len(plan.Names()), plan.Subdir, plan.Prefix))
	if err != nil {
		return nil, fmt.Errorf("assembling the image: %w", err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("assembling the image: %w", err)
	}
	cfg = cfg.DeepCopy()
	cfg.Config.Env = envfile.Set(cfg.Config.Env, "PATH", env.Path+":"+cmp.Or(envfile.Lookup(cfg.Config.Env, "PATH"), runtime.StandardPath))
	for _, kv := range env.Env {
		k, v, _ := strings.Cut(kv, "=")
		cfg.Config.Env = envfile.Set(cfg.Config.Env, k, v)
	}
	for _, k := range slices.Sorted(maps.Keys(variables)) {
		cfg.Config.Env = envfile.Set(cfg.Config.Env, k, variables[k])
	}
	cfg.Created = v1.Time{Time: when}
	if img, err = mutate.ConfigFile(img, cfg); err != nil {
		return nil, fmt.Errorf("assembling the image: %w", err)
	}
	return img, nil
}
