package build

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"

	"hpcc/build/source"
	"hpcc/store"
)

// Prefixes of named contexts that are images.
const (
	imageContext  = "docker-image://"
	layoutContext = "oci-layout://"
)

// named returns the value of the context called name. As in BuildKit, case and the tag
// "latest" do not matter.
func (b *builder) named(name string) (value string, ok bool) {
	if value, ok = b.Contexts[name]; ok {
		return value, true
	}
	for k, v := range b.Contexts {
		if strings.EqualFold(strings.TrimSuffix(k, ":latest"), strings.TrimSuffix(name, ":latest")) {
			return v, true
		}
	}
	return "", false
}

// isImageContext reports whether the value of a named context is an image.
func isImageContext(value string) bool {
	return strings.HasPrefix(value, imageContext) || strings.HasPrefix(value, layoutContext)
}

// contextAt returns the named context ("": the main one), opened once.
func (b *builder) contextAt(ctx context.Context, name, value string) (*source.Dir, error) {
	b.openedMu.Lock()
	defer b.openedMu.Unlock()
	if c, ok := b.opened[name]; ok {
		return c, nil
	}
	dir, ignore := value, b.IgnoreFile
	if ignore == "" && b.path != "" {
		ignore = b.path + ".dockerignore"
	}
	if name != "" {
		ignore = ""
		var err error
		if dir, err = b.fetchNamed(ctx, value); err != nil {
			return nil, fmt.Errorf("context %q: %w", name, err)
		}
	}
	c, err := source.Open(dir, ignore, b.Hidden...)
	if err != nil {
		return nil, err
	}
	if name != "" {
		c.Of = "context " + strconv.Quote(name)
	}
	if !strings.HasPrefix(c.Dir, b.work+"/") {
		c.Remember(b.store, digestOf("context", c.Dir))
	}
	b.opened[name] = c
	return c, nil
}

// contextOf returns the context that --from names ("": the main one), or nil if the name is
// that of a stage or an image.
func (b *builder) contextOf(ctx context.Context, from string) (*source.Dir, error) {
	if from == "" {
		return b.context, nil
	}
	value, given := b.named(from)
	if !given || isImageContext(value) {
		return nil, nil
	}
	return b.contextAt(ctx, strings.ToLower(from), value)
}

// fromDirectory initializes a stage with the files of a named context, on an empty image.
func (b *builder) fromDirectory(ctx context.Context, st *stage, name string) error {
	c, err := b.contextOf(ctx, name)
	if err != nil {
		return err
	}
	st.startEmpty()
	job := &copyJob{dest: "/", isDir: true, buf: make([]byte, source.SmallFile)}
	if job.sources, err = c.Find([]string{"."}, nil, false); err != nil {
		return err
	}
	step, err := st.copyLocal("FROM "+name, "FROM", job)
	if err == nil {
		_, err = st.step(ctx, step)
	}
	return err
}

// startEmpty initializes the stage with an empty image. It has the platform of the build,
// whatever FROM says: an empty image is for every platform.
func (st *stage) startEmpty() {
	st.platform = st.b.Platform
	p := st.platform
	st.key = digestOf("scratch", p.String())
	cfg := &v1.ConfigFile{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, RootFS: v1.RootFS{Type: "layers"}}
	cfg.Config.WorkingDir = "/"
	st.start(empty.Image, cfg)
}

// isEmptyImage reports whether FROM names the empty image, directly or by a context.
func (b *builder) isEmptyImage(name string) bool {
	value, given := b.named(name)
	return (name == "scratch" && !given) || (given && value == imageContext+"scratch")
}

// layoutImage returns an image of an OCI layout: DIR[:TAG] or DIR@DIGEST.
func layoutImage(value string, p *v1.Platform) (v1.Image, error) {
	dir := strings.TrimPrefix(value, layoutContext)
	dir, tag, ok := strings.Cut(dir, "@")
	if !ok {
		dir, tag = store.SplitTag(dir)
	}
	return store.Layout(filepath.Clean(dir), tag, p)
}
