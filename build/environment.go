package build

import (
	"fmt"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda"
)

// environmentName is the name of the --conda environment for FROM and --from.
const environmentName = "conda"

// nameEnvironment makes the name refer to the environment, like an image given as a context.
func (b *builder) nameEnvironment() error {
	if b.Environment == nil {
		return nil
	}
	if _, twice := b.Contexts[environmentName]; twice {
		return fmt.Errorf("context name %q is reserved for the environment of --conda; use another name", environmentName)
	}
	d, err := b.Environment.Digest()
	if err != nil {
		return err
	}
	b.Contexts = maps.Clone(b.Contexts)
	if b.Contexts == nil {
		b.Contexts = map[string]string{}
	}
	b.environment = environmentName + "@" + d.String()
	b.Contexts[environmentName] = imageContext + b.environment
	return nil
}

// takesEnvironment returns an error if the Dockerfile does not use the environment.
func (b *builder) takesEnvironment() error {
	if b.Environment == nil {
		return nil
	}
	for i, st := range b.stages {
		if !b.needs[i] {
			continue
		}
		if base, err := b.expandMeta(st.BaseName); err == nil && base == environmentName {
			return nil
		}
		for _, c := range st.Commands {
			if slices.Contains(fromsOf(c), environmentName) {
				return nil
			}
		}
	}
	return fmt.Errorf("the Dockerfile does not use the environment; begin a stage with FROM %s, or write COPY --from=%s %s %s", environmentName, environmentName, conda.DefaultPrefix, conda.DefaultPrefix)
}

// stored returns an image of the store, or the environment.
func (b *builder) stored(name string, p *v1.Platform) (v1.Image, error) {
	if b.Environment == nil || name != b.environment {
		return b.store.Get(name, p)
	}
	if p != nil && p.Architecture != b.Platform.Architecture {
		return nil, fmt.Errorf("the environment is for %s, not for %s", b.Platform, p)
	}
	return b.Environment, nil
}
