package build

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"hpcc/build/attest"
	"hpcc/store"
)

// hostPlatform returns the local platform.
func hostPlatform() *v1.Platform {
	return &v1.Platform{OS: "linux", Architecture: goruntime.GOARCH}
}

// target returns the index of the stage that becomes the image.
func (b *builder) target() (int, error) {
	for _, word := range b.NoCacheFilter {
		if _, ok := b.stageNamed(word, len(b.stages)); !ok {
			return 0, b.noStage(word)
		}
	}
	if b.Target == "" {
		return len(b.stages) - 1, nil
	}
	if i, ok := b.stageNamed(b.Target, len(b.stages)); ok {
		return i, nil
	}
	return 0, b.noStage(b.Target)
}

// noStage returns the error about a stage that does not exist.
func (b *builder) noStage(word string) error {
	var names []string
	for i, s := range b.stages {
		if s.Name != "" {
			names = append(names, s.Name)
		} else {
			names = append(names, strconv.Itoa(i))
		}
	}
	return fmt.Errorf("%s: no stage %q; the stages are %s", b.file, word, strings.Join(names, ", "))
}

// stageNamed finds a stage before index end, by name or number.
func (b *builder) stageNamed(name string, end int) (int, bool) {
	for i := end - 1; i >= 0; i-- {
		if b.stages[i].Name != "" && strings.EqualFold(b.stages[i].Name, name) {
			return i, true
		}
	}
	n, err := strconv.Atoi(name)
	return n, err == nil && n >= 0 && n < end
}

// needed returns the stages that the targets depend on.
func (b *builder) needed(targets ...int) (map[int]bool, error) {
	need := map[int]bool{}
	var visit func(i int) error
	visit = func(i int) error {
		if need[i] {
			return nil
		}
		need[i] = true
		st := b.stages[i]
		base, err := b.expandMeta(st.BaseName)
		if err != nil {
			return b.at(st.Location, st.SourceCode, err)
		}
		_, given := b.named(base)
		if j, ok := b.stageNamed(base, i); ok && !isNumber(base) && !given {
			if err := visit(j); err != nil {
				return err
			}
		}
		for _, c := range st.Commands {
			for _, from := range fromsOf(c) {
				if err := b.neededFrom(from, i, c, visit); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for _, t := range targets {
		if err := visit(t); err != nil {
			return nil, err
		}
	}
	return need, nil
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// neededFrom visits the stage that an instruction of stage i copies files from.
func (b *builder) neededFrom(from string, i int, c instructions.Command, visit func(int) error) error {
	if _, ok := b.named(from); ok {
		return nil
	}
	if strings.Contains(from, "$") {
		return b.at(c.Location(), written(c), fmt.Errorf("--from=%s: variables are not expanded here; add a stage: FROM %s AS NAME", from, from))
	}
	if j, ok := b.stageNamed(from, i); ok {
		return visit(j)
	}
	k, ok := b.stageNamed(from, len(b.stages))
	switch {
	case ok && k == i:
		return b.at(c.Location(), written(c), fmt.Errorf("--from=%s is the stage itself", from))
	case ok || isNumber(from):
		return b.at(c.Location(), written(c), fmt.Errorf("--from=%s: no earlier stage with that name or number", from))
	}
	return nil // an image
}

// fromsOf returns the stages and images that an instruction copies files from.
func fromsOf(c instructions.Command) []string {
	var out []string
	switch c := c.(type) {
	case *instructions.CopyCommand:
		out = append(out, c.From)
	case *instructions.RunCommand:
		for _, m := range instructions.GetMounts(c) {
			out = append(out, m.From)
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// written returns the source text of an instruction, without the credentials of URLs.
func written(c instructions.Command) string {
	if s, ok := c.(fmt.Stringer); ok {
		return attest.PublicText(s.String())
	}
	return c.Name()
}

// A stageBuild is a stage that is built once, by the first user.
type stageBuild struct {
	once  sync.Once
	stage *stage
	err   error
}

// finished returns stage i, and builds it if necessary: only a trigger of a base image may
// need it.
func (b *builder) finished(ctx context.Context, i int) (*stage, error) {
	b.mu.Lock()
	m := b.builds[i]
	if m == nil {
		m = &stageBuild{}
		b.builds[i] = m
	}
	b.mu.Unlock()
	m.once.Do(func() { m.stage, m.err = b.buildStage(ctx, i) })
	return m.stage, m.err
}

// buildStage builds one stage: its base, then each instruction.
func (b *builder) buildStage(ctx context.Context, i int) (*stage, error) {
	def := b.stages[i]
	if j, ok := b.parent(i); ok {
		if _, err := b.finished(ctx, j); err != nil {
			return nil, err
		}
	}
	st := &stage{b: b, index: i, number: b.first(i), state: state{buildArgs: map[string]string{}}}
	if err := st.reported(ctx, def.SourceCode, func() (bool, error) {
		b.Inputs.did(i, def.SourceCode, def.Location, nil)
		err := b.from(ctx, st)
		return !st.fetched.Load(), err
	}); err != nil {
		return nil, b.at(def.Location, def.SourceCode, err)
	}
	triggers := st.config.Config.OnBuild
	st.config.Config.OnBuild = nil
	for _, t := range triggers {
		cmds, err := parseTrigger(t)
		if err != nil {
			return nil, b.at(def.Location, "ONBUILD "+t, err)
		}
		for _, c := range cmds {
			b.more()
			if err := st.do(ctx, c, def.Location); err != nil {
				st.tree.close()
				return nil, err
			}
		}
	}
	if err := b.checkBase(st); err != nil {
		st.tree.close()
		return nil, err
	}
	for _, c := range def.Commands {
		if err := st.do(ctx, c, c.Location()); err != nil {
			st.tree.close()
			return nil, err
		}
	}
	return st, nil
}

// first returns the number of a stage's first step. Steps are numbered in the order of the
// file.
func (b *builder) first(i int) int {
	n := 1
	for j := range i {
		if b.needs[j] {
			n += 1 + len(b.stages[j].Commands)
		}
	}
	return n
}

// more counts a step from a base image's trigger.
func (b *builder) more() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total++
}

// report sends an event to Progress.
func (b *builder) report(e Event) {
	e.Text, e.Warning = attest.PublicText(e.Text), attest.PublicText(e.Warning)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Progress != nil {
		b.Progress(e)
	}
}

// parent returns the stage that stage i continues.
func (b *builder) parent(i int) (int, bool) {
	name, err := b.expandMeta(b.stages[i].BaseName)
	if _, given := b.named(name); err != nil || given || isNumber(name) {
		return 0, false
	}
	return b.stageNamed(name, i)
}

// from initializes a stage from another stage, scratch, or an image.
func (b *builder) from(ctx context.Context, st *stage) error {
	i := st.index
	def := b.stages[i]
	name, err := b.expandMeta(def.BaseName)
	if err != nil {
		return err
	}
	if name == "" {
		return b.emptyBase(i)
	}
	p, err := b.platformOf(def)
	if err != nil {
		return err
	}
	st.platform = p
	if j, ok := b.parent(i); ok {
		parent, err := b.finished(ctx, j)
		if err != nil {
			return err
		}
		st.state, st.tree = parent.next(), parent.tree.fork()
		return nil
	}
	if b.isEmptyImage(name) {
		st.startEmpty()
		return nil
	}
	if value, given := b.named(name); given && !isImageContext(value) {
		return b.fromDirectory(ctx, st, name)
	}
	img, err := b.baseImage(ctx, name, p, st.fetching())
	if err != nil {
		return err
	}
	d, err := img.Digest()
	if err != nil {
		return err
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		return fmt.Errorf("reading the configuration of %s: %w", name, err)
	}
	if st.interval, err = startInterval(img); err != nil {
		return fmt.Errorf("reading the configuration of %s: %w", name, err)
	}
	st.key = digestOf("image", d.String())
	st.start(img, cfg.DeepCopy())
	return nil
}

// emptyBase returns the error about a FROM whose image is empty after expansion.
func (b *builder) emptyBase(i int) error {
	return fmt.Errorf("the base %q is empty after expansion; set --build-arg or a default", b.stages[i].BaseName)
}

// platformOf returns the platform of a stage.
func (b *builder) platformOf(def instructions.Stage) (*v1.Platform, error) {
	if def.Platform == "" {
		return b.Platform, nil
	}
	word, err := b.expandMeta(def.Platform)
	if err != nil {
		return nil, err
	}
	if word == "" {
		return nil, fmt.Errorf("--platform=%s is empty after expansion", def.Platform)
	}
	p, err := v1.ParsePlatform(word)
	if err == nil && (p.OS == "" || p.Architecture == "") {
		err = errors.New("not OS/ARCH")
	}
	if err != nil {
		return nil, fmt.Errorf("--platform=%s: %w", word, err)
	}
	return normalized(p), nil
}

// normalized returns a platform with the usual variant: arm means arm/v7, and arm64/v8 arm64.
func normalized(given *v1.Platform) *v1.Platform {
	p := given.DeepCopy()
	switch {
	case p.Architecture == "arm" && p.Variant == "":
		p.Variant = "v7"
	case p.Architecture == "arm64" && p.Variant == "v8":
		p.Variant = ""
	}
	return p
}

// baseImage returns an image of the store or of its registry. A context of that name
// overrides it. fetched receives the downloaded bytes.
func (b *builder) baseImage(ctx context.Context, name string, p *v1.Platform, fetched func(done, total int64)) (v1.Image, error) {
	if value, ok := b.named(name); ok {
		if strings.HasPrefix(value, layoutContext) {
			img, err := layoutImage(value, p)
			if err == nil {
				b.Inputs.image(name, p, img)
			}
			return img, err
		}
		if name, ok = strings.CutPrefix(value, imageContext); !ok {
			return nil, fmt.Errorf("context %q is a directory, not an image", value)
		}
	}
	var img v1.Image
	var err error = &store.NotFoundError{Name: name}
	if !b.Pull {
		img, err = b.stored(name, p)
	}
	if err == nil {
		_, err = img.Layers()
	}
	if err == nil {
		b.Inputs.image(name, p, img)
		return img, nil
	}
	var damaged *store.DamagedError
	if errors.As(err, &damaged) {
		if img, err = b.pullAgain(ctx, name, p, fetched, err); err == nil {
			b.Inputs.image(name, p, img)
		}
		return img, err
	}
	var missing *store.NotFoundError
	if !errors.As(err, &missing) {
		return nil, err
	}
	img, err = b.store.Pull(ctx, name, store.Remote{Platform: p, PlainHTTP: b.PlainHTTP, Progress: fetched})
	if err != nil && b.Pull {
		return nil, fmt.Errorf("base image %q cannot be pulled: %w", name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("base image %q is not in the store and cannot be pulled: %w", name, err)
	}
	b.Inputs.image(name, p, img)
	return img, nil
}

// pullAgain replaces a damaged image from the registry that it came from.
func (b *builder) pullAgain(ctx context.Context, name string, p *v1.Platform, fetched func(done, total int64),
	damage error) (v1.Image, error) {
	ref, o, ok := b.store.PulledFrom(name)
	if !ok {
		return nil, fmt.Errorf("base image %q: %w", name, damage)
	}
	b.report(Event{Warning: fmt.Sprintf("base image %q: %v; pulling it again", name, damage)})
	o.Platform, o.Progress = p, fetched
	img, err := b.store.Pull(ctx, ref, o)
	if err != nil {
		return nil, fmt.Errorf("base image %q: %w (pulling it again failed: %w)", name, damage, err)
	}
	return img, nil
}
