package build

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/conda"
	"hpcc/conda/exports"
	"hpcc/runtime"
	"hpcc/store"
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
	when, err := sourceDate(os.Getenv(epochArg))
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
	var add []mutate.Addendum
	for _, l := range layers {
		add = append(add, mutate.Addendum{Layer: l, History: v1.History{Created: v1.Time{Time: when},
			CreatedBy: fmt.Sprintf("hpcc build --from conda (glibc %s for %s)", plan.Glibc(), plan.Subdir), Comment: "hpcc"}})
	}
	p := b.options.Platform
	img, err := mutate.ConfigFile(emptyImage(), &v1.ConfigFile{
		OS: p.OS, Architecture: p.Architecture, Variant: p.Variant, Created: v1.Time{Time: when}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Env: append([]string{"PATH=" + runtime.StandardPath}, env.Env...), Cmd: []string{"bash"}},
	})
	if err == nil {
		img, err = mutate.Append(img, add...)
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

// lock adds the packages of the base to the content of a lock file.
func (b *channelBase) lock(l exports.Locked) exports.Locked {
	if b != nil {
		if plan, err := b.plan(); err == nil {
			plan.LockBase(&l)
		}
	}
	return l
}

// packages returns the planned packages, or nil if the base is nil or cannot be planned.
func (b *channelBase) packages() []conda.Package {
	if b == nil {
		return nil
	}
	plan, err := b.plan()
	if err != nil {
		return nil
	}
	return plan.Packages()
}

// notes returns the notes about the base: those of its plan, and of its image if it was built.
func (b *channelBase) notes() []string {
	if b == nil {
		return nil
	}
	plan, err := b.plan()
	if err != nil {
		return nil
	}
	return slices.Concat(plan.Notes, b.imageNotes)
}
