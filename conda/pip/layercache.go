package pip

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/layer"
	"hpcc/store"
)

// layerFormat is part of the cache key of each layer of wheels. Increment it with every change
// of the code that installs the same wheel as a different layer.
const layerFormat = 3

// key returns the cache key of a layer: a digest of everything that the layer depends on.
func (p *Plan) key(members []*installation) (string, error) {
	type part struct {
		File             string // name in the cache, which begins with the digest
		Built, Requested bool
		Origin           string
		Lost             []string
	}
	k := struct {
		Format                    int
		Prefix, Site, Interpreter string
		Wheels                    []part
	}{Format: layerFormat, Prefix: p.target.Prefix, Site: p.target.site(), Interpreter: p.target.interpreter()}
	for _, x := range members {
		k.Wheels = append(k.Wheels, part{filepath.Base(x.file), x.built, x.pick.requested,
			string(x.origin()), slices.Sorted(maps.Keys(x.lost))})
	}
	return layer.Key(k)
}

// install writes wheels into a layer, or returns the cached layer of the same wheels.
func (p *Plan) install(ctx context.Context, s *store.Store, members []*installation, o Options) (v1.Layer, error) {
	key, err := p.key(members)
	if err != nil {
		return nil, err
	}
	if !o.NoCache {
		if l, _, ok := layer.Find(s, key); ok {
			return l, nil
		}
	}
	info, err := layer.Put(ctx, s, p.target.Prefix, o.Tee, func(w *layer.Writer) error {
		for _, x := range members {
			if err := x.install(ctx, w, &p.target); err != nil {
				return fmt.Errorf("installing %s: %w", x.name.file, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return layer.Keep(s, key, info, nil)
}
