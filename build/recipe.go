package build

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/build/binder"
	"hpcc/conda/exports"
	"hpcc/text"
	"hpcc/unpack"
)

// Images of repositories for Binder and of definition files come from Dockerfiles that hpcc generates.
// Their errors name the user's file and line.

// binderBase is repo2docker's base image.
const binderBase = "buildpack-deps:24.04"

// UseRepository sets the options of the build, and of its environment, from the files of a repository.
func (r *Request) UseRepository(b *binder.Repository) error {
	dir, err := filepath.Abs(b.Dir) // no name of a directory is then a URL
	if err != nil {
		return fmt.Errorf("finding the repository: %w", err)
	}
	r.Repository, r.Context, r.IgnoreFile = b, dir, b.IgnoreFile
	if b.Dockerfile == "" {
		r.Conda.Files, r.Conda.Packages, r.Conda.DefaultChannels = []string{b.Export}, b.Packages, []string{"conda-forge"}
		r.Conda.Python = "" // it is in Packages
		return nil
	}
	r.Dockerfile = b.Dockerfile
	for name, value := range map[string]string{"NB_USER": "jovyan", "NB_UID": "1000"} { // as repo2docker sets them
		if _, ok := r.Args[name]; !ok {
			r.Args[name] = value
		}
	}
	return nil
}

// system builds the image below the environment of a repository, or returns nil if the
// environment is directly on the base image.
func (w *work) system(ctx context.Context, o Options) (v1.Image, error) {
	if w.Repository == nil {
		return nil, nil
	}
	recipe := w.Repository.System(cmp.Or(w.Conda.From, DefaultBase))
	if recipe == nil {
		return nil, nil
	}
	o.Entry, o.Labels, o.Target = nil, nil, ""
	return w.generated(ctx, recipe, o)
}

// generated builds the image of the Dockerfile of a repository.
func (w *work) generated(ctx context.Context, r *binder.Recipe, o Options) (v1.Image, error) {
	o.Dockerfile, o.Stdin = "-", bytes.NewReader(r.Text)
	img, err := Dockerfile(ctx, w.store, o)
	var le *LineError
	if !errors.As(err, &le) {
		return img, err
	}
	at := r.Origin(le.Line)
	le.File, le.Line, le.End, le.Source = cmp.Or(at.File, w.Repository.Dir), at.Line, at.End, at.Source
	name := filepath.Base(at.File)
	switch {
	case at.File == "":
		return nil, err
	case at.Line > 0:
		base := cmp.Or(w.Conda.From, DefaultBase)
		return nil, text.Hint(err, "name packages of %s in %s, or use repo2docker's base image: --from %s", base, name, binderBase)
	}
	return nil, text.Hint(err, "correct %s; add packages of missing programs to environment.yml or apt.txt, or use repo2docker's base image: --from %s", name, binderBase)
}

// hasJupyter reports whether an environment has a server of Jupyter, which repo2docker adds to all.
func hasJupyter(lock exports.Locked) bool {
	return slices.ContainsFunc(lock.Packages, func(p exports.LockedPackage) bool {
		return slices.Contains([]string{"notebook", "jupyterlab", "jupyter_server", "jupyter-server"}, p.Name)
	})
}

// fromDefinition builds the image of a definition file.
func (w *work) fromDefinition(ctx context.Context, o Options) (v1.Image, error) {
	d := w.Definition
	contexts := map[string]string{}
	maps.Copy(contexts, o.Contexts)
	maps.Copy(contexts, d.Contexts)
	for name, file := range d.Archives {
		loaded, err := unpack.Loader{Say: w.Say}.Load(ctx, w.store, file, fmt.Sprintf("hpcc-base-%d/%s", os.Getpid(), name))
		if err != nil {
			return nil, fmt.Errorf("%s: loading %s: %w", d.File, file, err)
		}
		for _, n := range loaded {
			defer func() { _ = w.store.Remove(n) }() // the layers are those of the new image
		}
		contexts[name] = imageContext + loaded[0]
	}
	o.Dockerfile, o.Stdin, o.Context, o.Contexts = "-", bytes.NewReader(d.Text), "", contexts
	img, err := Dockerfile(ctx, w.store, o)
	var le *LineError
	if errors.As(err, &le) {
		first, last := d.Origin(le.Line)
		le.File, le.Line, le.End, le.Source = d.File, first, last, d.Source
	}
	if err != nil || len(d.Prefix) == 0 {
		return img, err
	}
	return withPrefix(img, d.Prefix)
}

// withPrefix puts arguments in front of an image's entry point.
func withPrefix(img v1.Image, prefix []string) (v1.Image, error) {
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	c := cfg.Config
	c.Entrypoint = slices.Concat(prefix, c.Entrypoint)
	return editConfig(img, raw, func(fields map[string]json.RawMessage) (err error) {
		fields["config"], err = json.Marshal(c)
		return err
	})
}
