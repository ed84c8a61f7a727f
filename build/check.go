package build

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"hpcc/build/expand"
	"hpcc/build/lint"
	"hpcc/build/source"
	"hpcc/store"
)

// checkArg is the build argument that overrides "# check=".
const checkArg = "BUILDKIT_DOCKERFILE_CHECK"

// Check checks a Dockerfile without building it and reports each warning to o.Progress. It
// checks all stages unless o names a target. unknown lists base images that are not in the
// store: uses of the variables that they set were not checked.
func Check(ctx context.Context, s *store.Store, o Options) (warnings int, unknown []string, err error) {
	b, err := begin(s, o)
	if err != nil {
		return 0, nil, err
	}
	if b.Context == "-" || isRemoteContext(b.Context) { // opening the context needs a directory for it
		defer b.closeWork()
		if err := b.openWork(); err != nil {
			return 0, nil, err
		}
	}
	progress := b.Progress
	b.Progress = func(e Event) {
		warnings++
		if progress != nil {
			progress(e)
		}
	}
	b.allStages = o.Target == ""
	if _, err = b.prepare(ctx); err == nil {
		err = b.validate()
	}
	if b.lint == nil { // nothing was read
		return 0, nil, public(err)
	}
	return warnings, b.lint.UnknownBases(), public(err)
}

// validate returns the first error that a build would find in the FROM lines and in the
// syntax of words, without reading base images.
func (b *builder) validate() error {
	for i, def := range b.stages {
		if !b.needs[i] {
			continue
		}
		if err := b.validateBase(i); err != nil {
			return b.at(def.Location, def.SourceCode, err)
		}
		for _, c := range def.Commands {
			e, ok := c.(instructions.SupportsSingleWordExpansion)
			if _, isArg := c.(*instructions.ArgCommand); isArg || !ok {
				continue
			}
			lex := shell.NewLex(b.escape)
			err := e.Expand(func(word string) (string, error) {
				_, err := expand.Word(lex, word, anyVariable{})
				return word, err
			})
			if err != nil {
				return b.at(c.Location(), written(c), err)
			}
		}
	}
	return nil
}

// anyVariable has a value for every variable, as the base image could.
type anyVariable struct{}

func (anyVariable) Get(string) (string, bool) { return "x", true }
func (anyVariable) Keys() []string            { return nil }

// validateBase checks the platform and the reference of a FROM.
func (b *builder) validateBase(i int) error {
	if _, err := b.platformOf(b.stages[i]); err != nil {
		return err
	}
	image, err := b.expandMeta(b.stages[i].BaseName)
	if err != nil {
		return err
	}
	if _, ok := b.parent(i); ok || b.isEmptyImage(image) {
		return nil
	}
	if _, given := b.named(image); given {
		return nil
	}
	if image == "" {
		return b.emptyBase(i)
	}
	_, err = store.Canonical(image)
	return err
}

// startLint creates the linter, with the options in the build argument or the directive.
func (b *builder) startLint() error {
	options, given := b.Args[checkArg]
	where := "--build-arg " + checkArg + "="
	if !given {
		where = "# check="
		options, _, _, _ = parser.ParseDirective("check", b.source)
	}
	var err error
	if b.lint, err = lint.New(options); err != nil {
		return fmt.Errorf("%s: reading %s%q: %w; write skip=RULE,…;error=true;experimental=RULE,…", b.file, where, options, err)
	}
	return nil
}

// reportWarnings reports the new warnings. It returns an error if the Dockerfile requests
// that for warnings.
func (b *builder) reportWarnings() error {
	found := b.lint.Take()
	var rules []string
	for _, w := range found {
		b.report(Event{Warning: fmt.Sprintf("%s:%d: %s: %s", b.file, w.Line, w.Rule, w.Text),
			Line: w.Line, Rule: w.Rule, URL: w.URL, Description: w.Description})
		rules = append(rules, w.Rule)
	}
	if len(found) == 0 || !b.lint.Fatal() {
		return nil
	}
	slices.Sort(rules)
	return b.lineError(parser.Range{Start: parser.Position{Line: found[0].Line}}, "",
		fmt.Errorf("%s: warnings are errors with check=error=true", strings.Join(slices.Compact(rules), ", ")))
}

// check checks the parsed Dockerfile.
func (b *builder) check() {
	f := &lint.File{Stages: b.stages, Needed: b.needs, Escape: b.escape, Args: b.Args, Parent: b.parent,
		Base: b.lintBase, Ignore: b.context.Ignore, IsRemote: source.IsRemote}
	f.Globals, _ = b.globals(b.Args)
	f.Defaults, _ = b.globals(nil)
	for _, c := range b.metaArgs {
		for _, a := range c.Args {
			f.Meta = append(f.Meta, a.Key)
		}
	}
	b.lint.Check(f)
}

// checkBase checks a stage after its base was resolved.
func (b *builder) checkBase(st *stage) error {
	if !b.lint.NeedsBaseCheck(st.index) {
		return nil
	}
	b.lint.CheckBase(st.index, st.vars())
	return b.reportWarnings()
}

// lintBase returns the known properties of the image below a stage.
func (b *builder) lintBase(stage int) lint.Base {
	image, _ := b.expandMeta(b.stages[stage].BaseName)
	if b.isEmptyImage(image) {
		return lint.Base{Config: func() *v1.Config { return &v1.Config{} }}
	}
	return lint.Base{Image: image, Config: func() *v1.Config { return b.knownConfig(stage, image) }}
}

// knownConfig returns the configuration of an image in the store, with the variables that
// its triggers set, or nil if the image is not in the store.
func (b *builder) knownConfig(i int, image string) *v1.Config {
	value, given := b.named(image)
	image = cmp.Or(strings.TrimPrefix(value, imageContext), image)
	p, err := b.platformOf(b.stages[i])
	if err != nil {
		return nil
	}
	var img v1.Image
	switch {
	case given && strings.HasPrefix(value, layoutContext):
		img, err = layoutImage(value, p)
	case given && !isImageContext(value): // a directory
		return &v1.Config{}
	default:
		img, err = b.stored(image, p)
	}
	if err != nil {
		return nil
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil
	}
	c := file.Config.DeepCopy()
	for _, t := range c.OnBuild {
		cmds, _ := parseTrigger(t)
		for _, cmd := range cmds {
			switch cmd := cmd.(type) {
			case *instructions.EnvCommand:
				for _, kv := range cmd.Env {
					c.Env = append(c.Env, kv.Key+"="+kv.Value)
				}
			case *instructions.ArgCommand:
				for _, a := range cmd.Args {
					c.Env = append(c.Env, a.Key+"="+a.ValueString())
				}
			}
		}
	}
	return c
}
