package build

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/store"
	"hpcc/text"
)

// A cache in a registry is an ordinary image, so that every registry accepts it. Its layers
// are those of the steps, in any order. A label of its configuration maps steps to layers.

// cacheLabel is the label with a JSON object of step keys and results.
const cacheLabel = "hpcc.build.cache"

// A keyedResult is the result of a step and its key.
type keyedResult struct {
	key string
	result
}

// A Cache collects the steps of builds, to push them to a registry. Builds must use it one
// after another.
type Cache struct {
	Min   bool // only the steps of the final image, without those of other stages
	steps map[string]result
}

// export adds the steps of this build to the requested cache.
func (b *builder) export(target int) {
	c := b.CacheTo
	if c == nil {
		return
	}
	if c.steps == nil {
		c.steps = map[string]result{}
	}
	for i, m := range b.builds {
		if m.stage == nil || (i != target && c.Min) {
			continue
		}
		for _, s := range m.stage.steps {
			c.steps[s.key] = s.result
		}
	}
}

// Push replaces the cache in a registry.
func (c *Cache) Push(ctx context.Context, s *store.Store, ref string, o store.Remote) error {
	img, err := c.image(s)
	if err == nil {
		err = s.Send(ctx, img, ref, o)
	}
	if err != nil {
		return fmt.Errorf("exporting the build cache: %w", err)
	}
	return nil
}

// image returns the image that contains the cache. The same steps give the same digest.
func (c *Cache) image(s *store.Store) (v1.Image, error) {
	found := map[v1.Hash]store.LayerInfo{}
	for _, r := range c.steps {
		if r.Layer != nil {
			found[r.Layer.Digest] = *r.Layer
		}
	}
	infos := make([]store.LayerInfo, 0, len(found))
	for _, l := range found {
		infos = append(infos, l)
	}
	slices.SortFunc(infos, func(a, b store.LayerInfo) int { return strings.Compare(a.Digest.Hex, b.Digest.Hex) })
	var adds []mutate.Addendum
	for _, l := range infos {
		layer, err := s.Layer(l)
		if err != nil {
			return nil, err
		}
		adds = append(adds, mutate.Addendum{Layer: layer})
	}
	img, err := mutate.Append(emptyImage(), adds...)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(c.steps)
	if err != nil {
		return nil, err
	}
	return mutate.Config(img, v1.Config{Labels: map[string]string{cacheLabel: string(text)}})
}

// imports are the caches in registries. They are read only if a step is missing in the
// store: a fully cached build needs no network.
type imports struct {
	once  sync.Once
	steps map[string]importedStep
}

type importedStep struct {
	result
	ref string
}

// imported looks up a step in the caches of registries and stores its layer.
func (st *stage) imported(ctx context.Context, key string) (result, bool) {
	b := st.b
	if st.ignoresCache() || len(b.CacheFrom) == 0 {
		return result{}, false
	}
	b.imports.once.Do(func() { b.importAll(ctx) })
	step, ok := b.imports.steps[key]
	if !ok || step.Layer == nil {
		return step.result, ok
	}
	if err := b.store.FetchLayer(ctx, step.ref, *step.Layer, store.Remote{PlainHTTP: b.PlainHTTP}); err != nil {
		b.report(Event{Warning: err.Error() + "; running the step instead"})
		return result{}, false
	}
	return step.result, true
}

// importAll reads the lists of all caches. A cache that cannot be read is reported and
// skipped.
func (b *builder) importAll(ctx context.Context) {
	b.imports.steps = map[string]importedStep{}
	for _, ref := range b.CacheFrom {
		steps, err := b.importFrom(ctx, ref)
		if err != nil {
			b.report(Event{Warning: fmt.Sprintf("importing the build cache %s: %v", ref, err)})
		}
		for key, r := range steps {
			if _, ok := b.imports.steps[key]; !ok {
				b.imports.steps[key] = importedStep{r, ref}
			}
		}
	}
}

var stepKey = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

func (b *builder) importFrom(ctx context.Context, ref string) (map[string]result, error) {
	img, err := b.store.Peek(ctx, ref, store.Remote{PlainHTTP: b.PlainHTTP})
	if err != nil {
		return nil, err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	text, ok := cfg.Config.Labels[cacheLabel]
	if !ok {
		return nil, fmt.Errorf("an image without a build cache; create one with --cache-to %s", ref)
	}
	var steps map[string]result
	if err := json.Unmarshal([]byte(text), &steps); err != nil {
		return nil, fmt.Errorf("damaged list of steps: %w", err)
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	return steps, checkImport(steps, m)
}

// checkImport compares a list of steps with the manifest of the cache.
func checkImport(steps map[string]result, m *v1.Manifest) error {
	sizes := map[v1.Hash]int64{}
	for _, l := range m.Layers {
		sizes[l.Digest] = l.Size
	}
	for key, r := range steps {
		if !stepKey().MatchString(key) {
			return fmt.Errorf("damaged list of steps: key %.80q", key)
		}
		if r.Same != "" && !stepKey().MatchString(r.Same) {
			return fmt.Errorf("damaged list of steps: step %.12s stands for %.80q", key, r.Same)
		}
		if l := r.Layer; l != nil {
			if size, ok := sizes[l.Digest]; !ok || size != l.Size || !l.MediaType.IsLayer() {
				return fmt.Errorf("damaged list of steps: layer %s of step %.12s is not in the manifest", l.Digest, key)
			}
		}
	}
	return nil
}

// emptyImage returns an image without layers, with the media types of OCI.
func emptyImage() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// ParseCacheFrom reads the values of --cache-from: REF, or type=registry,ref=REF as in docker build.
func ParseCacheFrom(list []string) ([]string, error) {
	var out []string
	for _, arg := range list {
		ref, options := splitCache(arg)
		if err := checkCache("--cache-from", arg, ref); err != nil {
			return nil, err
		}
		for k, v := range options {
			return nil, text.Usagef("--cache-from %q: unknown option %s=%s", arg, k, v).Hint("write --cache-from REF")
		}
		out = append(out, ref)
	}
	return out, nil
}

// checkCache returns an error if ref is not a valid reference.
func checkCache(flag, arg, ref string) error {
	if _, err := store.Canonical(ref); err != nil {
		return text.Usagef("%s %q: %w", flag, arg, err).Hint("write %s registry.example.org/me/app:cache", flag)
	}
	return nil
}

// ParseCacheTo reads the value of --cache-to: REF[,mode=min].
func ParseCacheTo(arg string) (ref string, c *Cache, err error) {
	ref, options := splitCache(arg)
	for k, v := range options {
		if k != "mode" || (v != "min" && v != "max") {
			return "", nil, text.Usagef("--cache-to %q: unknown option %s=%s", arg, k, v).Hint("write --cache-to REF or REF,mode=min")
		}
	}
	if err := checkCache("--cache-to", arg, ref); err != nil {
		return "", nil, err
	}
	return ref, &Cache{Min: options["mode"] == "min"}, nil
}

// splitCache splits REF,KEY=VALUE,… or type=registry,ref=REF,… into a reference and options.
func splitCache(arg string) (ref string, options map[string]string) {
	options = map[string]string{}
	for _, item := range strings.Split(arg, ",") {
		k, v, ok := strings.Cut(item, "=")
		switch {
		case !ok || k == "ref":
			ref = item[strings.Index(item, "=")+1:]
		case k == "type" && v == "registry":
		default:
			options[k] = v
		}
	}
	return ref, options
}
