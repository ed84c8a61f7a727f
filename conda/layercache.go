package conda

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/layer"
)

// Layers are cached by what they depend on, so that a build with one changed package
// installs only that package.

// layerFormat is part of every cache key. Raise it when the same package is installed as a
// different layer.
const layerFormat = 5

// learned is the result of installing a package, besides its files.
type learned struct {
	Notes []string          `json:"notes,omitempty"`
	Links []string          `json:"links,omitempty"` // paths of symbolic links
	Files map[string][]byte `json:"files,omitempty"` // contents of the activation files
}

// note adds a note for the user.
func (p *pkg) note(format string, args ...any) {
	p.learned.Notes = append(p.learned.Notes, fmt.Sprintf(format, args...))
}

// key returns the cache key of a layer: a digest of everything that the layer depends on.
func (in *installer) key(members []*pkg) (string, error) {
	type part struct {
		Package          description
		Lost, LostPoints []string
		Places           map[string]string
	}
	k := struct {
		Format                       int
		Subdir, Prefix, Python, Site string
		Sysroot                      bool
		Packages                     []part
	}{Format: layerFormat, Subdir: in.plan.Subdir, Sysroot: in.plan.sysroot != nil, Prefix: in.plan.Prefix,
		Python: in.plan.python, Site: in.plan.site}
	for _, p := range members {
		k.Packages = append(k.Packages, part{describe(p.rec), slices.Sorted(maps.Keys(p.lost)),
			slices.Sorted(maps.Keys(p.lostPoints)), p.dsts})
	}
	return layer.Key(k)
}

// install writes packages into a layer, or returns the cached layer of the same packages.
func (in *installer) install(ctx context.Context, members []*pkg, o Options) (v1.Layer, error) {
	key, err := in.key(members)
	if err != nil {
		return nil, err
	}
	if !o.NoCache {
		if l, ok := in.cachedLayer(key, members); ok {
			in.wrote(o, members...)
			return l, nil
		}
	}
	info, err := layer.Put(ctx, in.store, in.plan.Prefix, o.Tee, func(w *layer.Writer) error {
		for _, p := range members {
			if err := p.install(ctx, w); err != nil {
				return fmt.Errorf("installing %s: %w", p.rec.FileName, err)
			}
			in.wrote(o, p)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var all []learned
	for _, p := range members {
		all = append(all, p.learned)
	}
	return layer.Keep(in.store, key, info, all)
}

// cachedLayer returns a complete layer from the store, and what was learned with it.
func (in *installer) cachedLayer(key string, members []*pkg) (v1.Layer, bool) {
	l, raw, ok := layer.Find(in.store, key)
	var all []learned
	if !ok || json.Unmarshal(raw, &all) != nil || len(all) != len(members) {
		return nil, false
	}
	for i, p := range members {
		p.learned = all[i]
	}
	return l, true
}

// mergeInstalled merges the results of installing the packages.
func (in *installer) mergeInstalled() {
	in.files = map[string][]byte{}
	for _, p := range in.packages {
		in.env.Notes = append(in.env.Notes, p.learned.Notes...)
		for _, l := range p.learned.Links {
			in.kinds[l] = symbolicLink
		}
		maps.Copy(in.files, p.learned.Files)
	}
}
