package conda

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
)

// A build with one package changed costs that package: layers are kept with what their
// packages were, and taken again where nothing of it changed.

// madeFormat is in the key of each: raise it when an installed package becomes
// another layer than before.
const madeFormat = 2

// A madeLayer is what the installation of some packages gave.
type madeLayer struct {
	Layer   store.LayerInfo `json:"layer"`
	Learned []learned       `json:"learned,omitempty"` // of conda's packages in order
}

// findMade finds what was made under a key, and the layer, which is whole.
func findMade(s *store.Store, key string) (made madeLayer, l v1.Layer, ok bool) {
	b, err := s.Cached("installed", key)
	if err != nil || json.Unmarshal(b, &made) != nil || !s.HasLayer(made.Layer) {
		return made, nil, false
	}
	l, err = s.Layer(made.Layer)
	return made, l, err == nil
}

// keepMade notes what was made under a key.
func keepMade(s *store.Store, key string, made madeLayer) error {
	b, err := json.Marshal(made)
	if err == nil {
		err = s.Cache("installed", key, b)
	}
	if err != nil {
		return fmt.Errorf("keeping what was installed: %w", err)
	}
	return nil
}

// keyOf is a digest of all that a layer depends on.
func keyOf(all any) (string, error) {
	b, err := json.Marshal(all)
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}

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
		k.Packages = append(k.Packages, part{r.Name, r.Version, r.Build, r.channel(), public(r.url), r.fn, r.MD5, r.SHA256, r.Size,
			slices.Sorted(maps.Keys(p.lost)), slices.Sorted(maps.Keys(p.lostPoints)), p.places})
	}
	return keyOf(k)
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
	info, err := putLayer(ctx, in.store, in.plan.Prefix, o.Tee, func(w *layerWriter) error {
		for _, p := range members {
			if err := p.install(ctx, w); err != nil {
				return fmt.Errorf("installing %s: %w", p.rec.fn, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	made := madeLayer{Layer: info}
	for _, p := range members {
		made.Learned = append(made.Learned, p.learned)
	}
	if err := keepMade(in.store, key, made); err != nil {
		return nil, err
	}
	return in.store.Layer(info)
}

// madeBefore finds a layer in the store, whole, and what was learned with it.
func (in *installer) madeBefore(key string, members []*pkg) (v1.Layer, bool) {
	made, l, ok := findMade(in.store, key)
	if !ok || len(made.Learned) != len(members) {
		return nil, false
	}
	for i, p := range members {
		p.learned = made.Learned[i]
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
