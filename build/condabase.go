package build

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"

	"hpcc/build/source"
	"hpcc/conda"
	"hpcc/conda/exports"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/unpack"
)

// fromChannel reports whether --from selects a base image that is built from conda packages,
// and its version of glibc: "conda" selects the newest version ("") and "conda:2.28" selects
// 2.28. The image conda of Docker Hub is still available as docker.io/library/conda.
func fromChannel(from string) (version string, ok bool) {
	name, version, _ := strings.Cut(from, ":")
	return version, name == "conda"
}

// A channelBase is a base image that is built from conda packages.
type channelBase struct {
	options    CondaOptions
	conda      conda.Options
	plan       func() (*conda.Plan, error) // computed once
	imageNotes []string                    // set by image
}

// newChannelBase returns the base image for an export, with a version of glibc; "" is the
// newest.
func newChannelBase(ctx context.Context, e *exports.Export, version string, o CondaOptions, co conda.Options) *channelBase {
	co.Channels = o.baseChannels
	return &channelBase{options: o, conda: co, plan: sync.OnceValues(func() (*conda.Plan, error) {
		return conda.ResolveBase(ctx, e, version, co)
	})}
}

// libc returns the C library, which is known after planning.
func (b *channelBase) libc() (conda.Libc, error) {
	plan, err := b.plan()
	if err != nil {
		return conda.Libc{}, err
	}
	return conda.Libc{Glibc: plan.Glibc()}, nil
}

// image builds the base image. Its layers depend only on the packages, so all environments
// with this base share them.
func (b *channelBase) image(ctx context.Context, s *store.Store) (v1.Image, error) {
	when, _, err := source.Date(os.Getenv(epochArg))
	if err != nil {
		return nil, err
	}
	plan, err := b.plan()
	if err != nil {
		return nil, err
	}
	layers, env, err := plan.Layers(ctx, s, b.conda)
	if err != nil {
		return nil, err
	}
	b.imageNotes = env.Notes
	p := b.options.Platform
	img, err := mutate.ConfigFile(emptyImage(), &v1.ConfigFile{
		OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, Created: v1.Time{Time: when}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Env: append([]string{"PATH=" + runtime.StandardPath}, env.Env...), Cmd: []string{"bash"}},
	})
	if err == nil {
		img, err = withLayers(img, layers, when, fmt.Sprintf("hpcc build --from conda (glibc %s for %s)", plan.Glibc(), plan.Subdir))
	}
	if err != nil {
		return nil, fmt.Errorf("assembling the base image: %w", err)
	}
	return img, nil
}

// downloads returns the archives that image would download. A nil base has none.
func (b *channelBase) downloads(ctx context.Context, s *store.Store) ([]conda.Download, error) {
	if b == nil {
		return nil, nil
	}
	plan, err := b.plan()
	if err != nil {
		return nil, err
	}
	list, _, err := plan.Downloads(ctx, s, b.conda)
	return list, err
}

// planned returns the plan; nil without a base, or if it cannot be planned.
func (b *channelBase) planned() *conda.Plan {
	if b == nil {
		return nil
	}
	plan, err := b.plan()
	if err != nil {
		return nil
	}
	return plan
}

// notes returns the notes about the base: those of its plan, and of its image if it was built.
func (b *channelBase) notes() []string {
	if plan := b.planned(); plan != nil {
		return slices.Concat(plan.Notes, b.imageNotes)
	}
	return nil
}

// maxLibc limits the bytes that are read of a C library. C libraries are below 4 MB.
const maxLibc = 16 << 20

// libcBanner matches the version text in every GNU C library (csu/version.c).
var libcBanner = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`GNU C Library \([^)]*\) [a-z]+ release version ([0-9]+\.[0-9]+)`)
})

// muslVersion matches the version that musl's loader prints when run directly; it is a
// string of its own (ldso/dynlink.c).
var muslVersion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\x00(1\.[0-9]{1,2})\.[0-9]{1,2}[^\x00]{0,40}\x00`) })

// baseLibc returns the version of an image's C library.
func baseLibc(ctx context.Context, s *store.Store, img v1.Image) (conda.Libc, error) {
	ls, err := img.Layers()
	if err != nil || len(ls) == 0 {
		return conda.Libc{}, err
	}
	dir, _, err := unpack.Tree(ctx, s, img, unpack.Options{})
	if err != nil {
		return conda.Libc{}, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return conda.Libc{}, err
	}
	defer root.Close()
	return treeLibc(root), nil
}

// treeLibc searches the usual paths of C libraries. No link leads out of root.
func treeLibc(root *os.Root) conda.Libc {
	return conda.Libc{
		Glibc: findText(root, libcBanner(), "lib/*/libc.so.6", "usr/lib/*/libc.so.6", "lib64/libc.so.6",
			"usr/lib64/libc.so.6", "lib/libc.so.6", "usr/lib/libc.so.6"),
		Musl: findText(root, muslVersion(), "lib/ld-musl-*.so.1", "usr/lib/ld-musl-*.so.1"),
	}
}

// findText returns the first group of a pattern's match in the first file that has one.
func findText(root *os.Root, text *regexp.Regexp, files ...string) string {
	for _, pattern := range files {
		found, _ := fs.Glob(root.FS(), pattern)
		for _, p := range found {
			f, err := root.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0) // a FIFO would block
			if err != nil {
				continue
			}
			b, _ := io.ReadAll(io.LimitReader(f, maxLibc))
			f.Close()
			if m := text.FindSubmatch(b); m != nil {
				return string(m[1])
			}
		}
	}
	return ""
}
