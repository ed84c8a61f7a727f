package build

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	goruntime "runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/build/attest"
	"hpcc/build/binder"
	"hpcc/build/definition"
	"hpcc/conda"
	"hpcc/conda/exports"
	"hpcc/store"
	"hpcc/text"
	"hpcc/unpack"
)

// A Request says which image to build, for which platforms, and what to do with it. Four kinds of files
// describe an image: a Dockerfile, exports of an environment, both, a repository for Binder, or a
// definition file of Apptainer.
type Request struct {
	Options                       // of the Dockerfile, and of everything else that is built; Platform and Entry are set from below
	Conda      *CondaOptions      // the environment; nil: none
	Repository *binder.Repository // it describes the environment and the rest; nil: none
	Definition *definition.Recipe // it replaces the Dockerfile; nil: none
	OnlyConda  bool               // the image is the environment, without a Dockerfile
	Platforms  []*v1.Platform     // of the images; one nil: the local platform
	Entries    [][]byte           // Options.Entry for each of Platforms; nil: none
	Tags       []string           // names of the image in the store
	Annotated  map[string]string  // annotations of the manifest
	Provenance *ProvenanceOptions // nil: none
	Outputs    []Output           // where to write the image besides the store
	Lock       string             // file for the lock of the environment; "": none
	IIDFile    string             // file for the digest; "": none
	Metadata   string             // file for digests and names, as JSON; "": none
	CacheRef   string             // reference in a registry to which CacheTo is pushed

	// Say receives messages about archives of images, and about trees: files that they lack, or that were damaged.
	Say func(line string)
	// Deliver is called when the image is in the store and the files are written, except for the lock.
	Deliver func(ctx context.Context, digest v1.Hash) error
}

// A work is the state of one attempt to do what a request says.
type work struct {
	*Request
	store      *store.Store
	images     []v1.Image // one per platform
	inputs     []*Inputs  // of images
	locks      []exports.Locked
	statements []attest.Statement // about images; empty without provenance
	parts      *unpack.Parts      // unpacked layers
	moves      []conda.Move       // differences of the environments from the export
}

// Run builds the image for each platform, stores it and writes the results. If packages of an environment
// are worse than the export says, it returns the error of [CondaOptions.Degraded] after that.
func (r *Request) Run(ctx context.Context, s *store.Store) error {
	return r.healed(func() error {
		w := &work{Request: r, store: s, parts: unpack.NewParts(s)}
		defer w.parts.Close()
		cache := r.CacheTo
		if cache != nil {
			cache = &Cache{Min: cache.Min} // every attempt begins with an empty cache
		}
		for i := range r.Platforms {
			o := r.options(i)
			o.CacheTo, o.Inputs = cache, &Inputs{}
			img, lock, err := w.platform(ctx, o)
			if err != nil {
				return err
			}
			w.images, w.inputs, w.locks = append(w.images, img), append(w.inputs, o.Inputs), append(w.locks, lock)
		}
		err := w.keep(ctx)
		if err == nil && r.Lock != "" {
			err = w.writeLock()
		}
		if err == nil && cache != nil {
			err = cache.Push(ctx, s, r.CacheRef, store.Remote{PlainHTTP: r.PlainHTTP})
		}
		if err == nil {
			err = r.Conda.Degraded("the image is built, but differs", w.moves)
		}
		return err
	})
}

// maxHealed limits how often one build is repeated because of damaged layers.
const maxHealed = 20

// healed calls attempt, and again if a layer was damaged: the store has moved the layer away, so that the next attempt
// repeats the step that made it.
func (r *Request) healed(attempt func() error) error {
	if r.Stdin == nil || r.Context == "-" {
		return attempt()
	}
	var read bytes.Buffer // a Dockerfile, for the next attempt
	r.Stdin = io.TeeReader(r.Stdin, &read)
	err := attempt()
	var damaged *store.DamagedError
	for n := 0; n < maxHealed && errors.As(err, &damaged) && damaged.Moved != ""; n++ {
		r.Say(fmt.Sprintf("warning: %v", err))
		r.Say("repeating the step that made the layer")
		r.Stdin = bytes.NewReader(read.Bytes())
		err = attempt()
	}
	return err
}

// Plan calls show with the downloads of the environment for each platform, and builds nothing. It
// returns the error of [CondaOptions.Degraded].
func (r *Request) Plan(ctx context.Context, s *store.Store, show func(platform string, list []conda.Download) error) error {
	return r.healed(func() error {
		var moves []conda.Move
		for i := range r.Platforms {
			o := r.options(i)
			env, err := planConda(ctx, s, r.condaOptions(o))
			if err != nil {
				return err
			}
			report(o, env)
			moves = append(moves, env.Moves...)
			if err := show(r.platformName(i), env.Downloads); err != nil {
				return err
			}
		}
		return r.Conda.Degraded("the image would differ", moves)
	})
}

// Check checks the Dockerfile for each platform; see the function [Check].
func (r *Request) Check(ctx context.Context, s *store.Store) (warnings int, unknown []string, err error) {
	for i := range r.Platforms {
		n, bases, err := Check(ctx, s, r.options(i))
		if err != nil {
			return 0, nil, err
		}
		warnings, unknown = max(warnings, n), append(unknown, bases...)
	}
	slices.Sort(unknown)
	return warnings, slices.Compact(unknown), nil
}

// platformName returns the name of a platform of several, and otherwise "".
func (r *Request) platformName(i int) string {
	if len(r.Platforms) < 2 {
		return ""
	}
	return r.Platforms[i].String()
}

// options returns the options of the build for one platform. Its events name it.
func (r *Request) options(i int) Options {
	o, name := r.Options, r.platformName(i)
	o.Platform = r.Platforms[i]
	if r.Entries != nil {
		o.Entry = r.Entries[i]
	}
	o.Progress = func(e Event) {
		e.Platform = name
		r.event(e)
	}
	return o
}

// condaOptions returns the options of the environment for the platform of o.
func (r *Request) condaOptions(o Options) CondaOptions {
	co := *r.Conda
	co.Platform, co.Host = o.Platform, o.Host
	return co
}

// platform builds the image for one platform. It also returns the lock of an environment.
func (w *work) platform(ctx context.Context, o Options) (img v1.Image, lock exports.Locked, err error) {
	if w.Conda != nil {
		if img, lock, err = w.environment(ctx, o); err != nil || w.OnlyConda {
			return img, lock, err
		}
		o.Environment = img
	}
	switch {
	case w.Conda != nil && w.Repository != nil:
		img, err = w.generated(ctx, w.Repository.Recipe(), o)
	case w.Definition != nil:
		img, err = w.fromDefinition(ctx, o)
	default:
		img, err = Dockerfile(ctx, w.store, o)
	}
	return img, lock, err
}

// environment builds the image of an environment, and also returns the lock.
func (w *work) environment(ctx context.Context, o Options) (v1.Image, exports.Locked, error) {
	co := w.condaOptions(o)
	// The unpacked layers are useful only for the tree of this machine's platform.
	if len(w.Platforms) == 1 || o.Platform.Architecture == goruntime.GOARCH {
		co.Parts = w.parts
	}
	if w.OnlyConda {
		co.Entry = o.Entry
	}
	var err error
	if co.Base, err = w.system(ctx, o); err != nil {
		return nil, exports.Locked{}, err
	}
	env, err := Conda(ctx, w.store, co)
	if err != nil {
		return nil, exports.Locked{}, err
	}
	report(o, env)
	if w.Repository != nil && !hasJupyter(env.Lock) {
		o.Progress(Event{Note: "hpcc does not add Jupyter, as repo2docker would; name jupyterlab in environment.yml or requirements.txt to use it"})
	}
	w.moves = append(w.moves, env.Moves...)
	return env.Image, env.Lock, nil
}

// report reports how the packages of an export were installed.
func report(o Options, env *Environment) {
	for _, n := range env.Notes {
		o.Progress(Event{Note: n})
	}
	if slices.ContainsFunc(env.Moves, func(m conda.Move) bool { return !m.Fate.IsExact() }) {
		o.Progress(Event{Moves: env.Moves})
	}
}

// keep stores the image, or the index of the images of several platforms, under its names. It unpacks
// the image, writes the outputs and delivers the image.
func (w *work) keep(ctx context.Context) error {
	for i := range w.images {
		if len(w.Annotated) > 0 {
			w.images[i] = mutate.Annotations(w.images[i], w.Annotated).(v1.Image)
		}
	}
	digest, err := w.put(ctx)
	if err != nil {
		return err
	}
	for _, tag := range w.Tags[1:] {
		if err := w.store.Tag(w.Tags[0], tag); err != nil {
			return err
		}
	}
	native := w.images[0]
	for _, img := range w.images {
		if cfg, err := img.ConfigFile(); err == nil && cfg.Architecture == goruntime.GOARCH {
			native = img
		}
	}
	unpacked := func(done, total int64) { w.event(Event{Unpacking: true, Unpacked: done, Size: total}) }
	unpacked(0, 0)
	_, left, err := unpack.Tree(ctx, w.store, native, unpack.Options{Progress: unpacked, Parts: w.parts})
	w.event(Event{Unpacking: true, Done: true})
	if err != nil {
		return err
	}
	for _, n := range left.Notes() {
		w.Say(n)
	}
	for _, o := range w.Outputs {
		if err := o.write(ctx, w, native); err != nil {
			return err
		}
	}
	if err := w.writeDigests(native, digest); err != nil || w.Deliver == nil {
		return err
	}
	return w.Deliver(ctx, digest)
}

// event reports something about the image.
func (r *Request) event(e Event) {
	if r.Progress != nil {
		r.Progress(e)
	}
}

// put stores a single image without an index, because every tool can read that. Several platforms
// or provenance need an index.
func (w *work) put(ctx context.Context) (v1.Hash, error) {
	if len(w.images) == 1 && w.Provenance == nil {
		return w.store.Put(ctx, w.Tags[0], w.images[0])
	}
	if w.Provenance != nil {
		for _, in := range w.inputs {
			w.statements = append(w.statements, in.Provenance(*w.Provenance))
		}
	}
	idx, err := attest.Index(w.images, w.statements)
	if err != nil {
		return v1.Hash{}, err
	}
	return w.store.PutIndex(ctx, w.Tags[0], idx)
}

// writeDigests writes the files for the digest and the metadata.
func (w *work) writeDigests(img v1.Image, digest v1.Hash) error {
	if w.IIDFile != "" {
		if err := os.WriteFile(w.IIDFile, []byte(digest.String()), 0o644); err != nil {
			return fmt.Errorf("writing the image's digest: %w", err)
		}
	}
	if w.Metadata == "" {
		return nil
	}
	config, err := img.ConfigName()
	if err != nil {
		return err
	}
	// The keys are those of docker build.
	data, err := json.MarshalIndent(map[string]string{"containerimage.digest": digest.String(),
		"containerimage.config.digest": config.String(), "image.name": strings.Join(w.Tags, ",")}, "", "  ")
	if err == nil {
		err = os.WriteFile(w.Metadata, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("writing the metadata: %w", err)
	}
	return nil
}

// writeLock writes the lock file of an environment for all platforms.
func (w *work) writeLock() error {
	var hidden []string
	for _, l := range w.locks {
		hidden = append(hidden, l.Hidden...)
	}
	err := store.NewFile(w.Lock, func(f *os.File) error { return exports.WriteLock(f, w.Conda.Sources(), w.locks) })
	if err != nil {
		return fmt.Errorf("writing %q: %w", w.Lock, err)
	}
	slices.Sort(hidden)
	if hidden = slices.Compact(hidden); len(hidden) > 0 {
		w.event(Event{Note: fmt.Sprintf("%s: the addresses of %s had credentials, which are left out: add variables such as $TOKEN: %s",
			w.Lock, text.Count(len(hidden), "package", "packages"), strings.Join(hidden, " "))})
	}
	return nil
}

// StatusDegraded is the exit status if packages of an environment are worse than those of its export.
const StatusDegraded = 3

// Degraded returns an error that lists the packages of an image that are worse than the exported ones;
// nil if there are none, if Relax accepts them, or without an environment. image begins its text.
func (o *CondaOptions) Degraded(image string, list []conda.Move) error {
	if o == nil || o.Relax {
		return nil
	}
	var names []string
	for _, m := range list {
		name := fmt.Sprintf("%s=%s (%s)", m.Name, m.From, cmp.Or(m.To, string(m.Fate)))
		if m.Degraded && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	const most = 10 // the table of packages has all
	if n := len(names) - most; n > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", n))
	}
	if len(names) == 0 {
		return nil
	}
	err := &text.Error{Err: fmt.Errorf("%s from the export: %s", image, strings.Join(names, ", ")), Status: StatusDegraded}
	return err.Hint("accept the differences with --relax, or change the export or its channels")
}
