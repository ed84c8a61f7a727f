package conda

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/fetch"
	"hpcc/conda/layer"
)

// A build with one package changed costs that package: layers are kept with what their
// packages were, and taken again where nothing of it changed.

// madeFormat is in the key of each: raise it when an installed package becomes
// another layer than before.
const madeFormat = 2

// learned is what the installation of a package brings to light besides its files.
type learned struct {
	Notes []string          `json:"notes,omitempty"`
	Links []string          `json:"links,omitempty"` // paths that are symbolic links
	Files map[string][]byte `json:"files,omitempty"` // those that say how the environment is activated
}

// tell notes something for people.
func (p *pkg) tell(format string, args ...any) {
	p.learned.Notes = append(p.learned.Notes, fmt.Sprintf(format, args...))
}

// key is all that a layer of packages depends on.
func (in *installer) key(members []*pkg) (string, error) {
	type part struct {
		Name, Version, Build, Channel, URL, File, MD5, SHA256 string
		Size                                                  int64
		Lost, LostPoints                                      []string
		Places                                                map[string]string
	}
	k := struct {
		Format                       int
		Subdir, Prefix, Python, Site string
		Sysroot                      bool
		Packages                     []part
	}{Format: madeFormat, Subdir: in.plan.Subdir, Sysroot: in.plan.sysroot != nil, Prefix: in.plan.Prefix, Python: in.plan.python, Site: in.plan.site}
	for _, p := range members {
		r := p.rec
		k.Packages = append(k.Packages, part{r.Name, r.Version, r.Build, r.Channel(), fetch.Public(r.URL), r.FileName, r.MD5, r.SHA256, r.Size,
			slices.Sorted(maps.Keys(p.lost)), slices.Sorted(maps.Keys(p.lostPoints)), p.places})
	}
	return layer.Key(k)
}

// install writes packages into a layer, or finds the one that was made of them before.
func (in *installer) install(ctx context.Context, members []*pkg, o Options) (v1.Layer, error) {
	key, err := in.key(members)
	if err != nil {
		return nil, err
	}
	if !o.NoCache {
		if l, ok := in.madeBefore(key, members); ok {
			return l, nil
		}
	}
	info, err := layer.Put(ctx, in.store, in.plan.Prefix, o.Tee, func(w *layer.Writer) error {
		for _, p := range members {
			if err := p.install(ctx, w); err != nil {
				return fmt.Errorf("installing %s: %w", p.rec.FileName, err)
			}
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

// madeBefore finds a layer in the store, whole, and what was learned with it.
func (in *installer) madeBefore(key string, members []*pkg) (v1.Layer, bool) {
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

// learn gathers what the packages' installation brought to light.
func (in *installer) learn() {
	in.files = map[string][]byte{}
	for _, p := range in.packages {
		in.env.Notes = append(in.env.Notes, p.learned.Notes...)
		for _, l := range p.learned.Links {
			in.kinds[l] = symbolicLink
		}
		maps.Copy(in.files, p.learned.Files)
	}
}
