package build

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/program"
	"hpcc/envfile"
	"hpcc/runtime"
	"hpcc/store"
)

// A condaRunner runs the steps of an environment like RUN --network=none: in a private view
// of the image built so far, cached by all inputs.
type condaRunner struct {
	*builder
	*reporter
	base   func() (v1.Image, error)
	ground *stage // start of the last step, which often is the same for the next
}

// runner returns the function that runs steps, or the reason why steps cannot run.
func (w *condaWork) runner(s *store.Store) (program.StepFunc, string, error) {
	switch err := runtime.CanRun(w.Platform.Architecture); {
	case w.NoRun:
		return nil, "--no-run was given", nil
	case w.From == "scratch":
		return nil, "without a base image there is no C library or shell", nil
	case err != nil:
		return nil, err.Error(), nil
	}
	b, err := begin(s, Options{Platform: w.Platform, Reproducible: true, Host: Host{NoCache: w.NoCache, Progress: w.progress}})
	if err == nil {
		err = b.useDate(b.Args[epochArg])
	}
	if err != nil {
		return nil, "", err
	}
	w.close = b.closeWork
	return (&condaRunner{builder: b, reporter: &w.reporter, base: w.base}).step, "", nil
}

// step runs one step.
func (r *condaRunner) step(ctx context.Context, x program.Step) (v1.Layer, error) {
	st, err := r.stage(x)
	if err != nil {
		return nil, err
	}
	r.reporter.total++
	defer r.begin()()
	st.number, r.builder.total = r.reporter.step, r.reporter.total
	err = st.reported(ctx, x.Text, func() (bool, error) {
		if err := r.prepare(ctx, st, x); err != nil {
			return false, err
		}
		return st.step(ctx, &change{text: x.Text, key: st.key, make: st.capture(func(ctx context.Context, dir string) error {
			return r.execute(ctx, st, dir, x)
		})})
	})
	if err != nil {
		return nil, err
	}
	return st.added[len(st.added)-1].Layer, nil
}

// execute runs the program of a step in the view dir.
func (r *condaRunner) execute(ctx context.Context, st *stage, dir string, x program.Step) error {
	shell, err := securejoin.SecureJoin(dir, x.Args[0])
	if err == nil {
		_, err = os.Stat(shell)
	}
	if err != nil {
		return program.ErrCannotRun
	}
	st.tree.changedBy = userOf(dir, "")
	env := slices.Clone(st.config.Config.Env)
	env = envfile.Set(env, "PATH", x.Path+":"+cmp.Or(envfile.Lookup(env, "PATH"), runtime.StandardPath))
	for _, kv := range x.Env {
		k, v, _ := strings.Cut(kv, "=")
		env = envfile.Set(env, k, v)
	}
	return st.execute(ctx, dir, &command{args: x.Args, cwd: x.Dir, env: env, isolated: true, mounts: &mountSet{}})
}

// stage returns the start of a step. Its key is the key of the step.
func (r *condaRunner) stage(x program.Step) (*stage, error) {
	base, err := r.base()
	if err != nil {
		return nil, err
	}
	below, err := groundKey(base, x.Below)
	if err != nil {
		return nil, err
	}
	if r.work == "" {
		if err := r.openWork(); err != nil {
			return nil, err
		}
	}
	if r.ground == nil || r.ground.key != below {
		cfg, err := base.ConfigFile()
		if err != nil {
			return nil, fmt.Errorf("reading the configuration of the image below: %w", err)
		}
		cfg = cfg.DeepCopy()
		cfg.Config.User = "" // environments are root's
		r.ground = &stage{b: r.builder, platform: r.Platform, state: state{base: emptyImage(), config: cfg, key: below},
			tree: &tree{b: r.builder, image: base, pending: slices.Clone(x.Below)}}
	}
	parts := []string{below, "step", x.Path, x.Dir, r.dateKey(), strings.Join(x.Args, "\x00"), strings.Join(x.Env, "\x00")}
	with, err := diffIDs(x.With)
	if err != nil {
		return nil, err
	}
	st := &stage{b: r.builder, platform: r.Platform, state: r.ground.state, tree: &tree{b: r.builder}}
	st.key = digestOf(append(parts, with...)...)
	return st, nil
}

// prepare assembles the tree of a step, unless its result is cached. Layers that several
// steps share are unpacked once.
func (r *condaRunner) prepare(ctx context.Context, st *stage, x program.Step) error {
	if _, ok := st.cached(st.key); ok {
		return nil
	}
	_, done, err := r.ground.tree.readOnlyView(ctx)
	done()
	st.tree = r.ground.tree.fork()
	st.tree.pending = append(st.tree.pending, x.With...)
	return err
}

// groundKey returns the key of an image with further layers.
func groundKey(base v1.Image, layers []v1.Layer) (string, error) {
	d, err := base.Digest()
	if err != nil {
		return "", err
	}
	ids, err := diffIDs(layers)
	return digestOf(append([]string{"environment", d.String()}, ids...)...), err
}

func diffIDs(layers []v1.Layer) ([]string, error) {
	var out []string
	for _, l := range layers {
		id, err := l.DiffID()
		if err != nil {
			return nil, err
		}
		out = append(out, id.String())
	}
	return out, nil
}
