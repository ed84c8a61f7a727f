package build

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/moby/buildkit/util/suggest"

	"hpcc/store"
)

// The checks are those of BuildKit, with its rules' own names and words
// (docs.docker.com/reference/build-checks). Some of them the parser finds
// itself. The others are found here, before anything is built, by walking over
// the instructions as a build would, without carrying them out.
//
// As there, names and FROM are checked in the whole file, instructions only in
// the stages that are built; triggers of a base image are not the file's. Of
// BuildKit's rules InvalidBaseImagePlatform alone is not here: a base for
// another platform is an error, no warning.

// checkArg is the build argument that takes the place of "# check=".
const checkArg = "BUILDKIT_DOCKERFILE_CHECK"

// A lint is the checking of one Dockerfile.
type lint struct {
	rules    *linter.Linter
	found    []Event
	told     map[string]bool
	scopes   map[int]*scope    // of stages at their end
	suspects map[int][]suspect // of stages on images that are still to be pulled
}

// A suspect is a variable that only a base image can define.
type suspect struct {
	name  string
	at    []parser.Range
	rules *linter.Linter
}

// Check looks a Dockerfile over without building it, all stages unless o names
// one, and tells each warning to o.Progress. It returns how many there were.
// Unknown are the base images that are not in the store: which variables they
// set is not known, and uses of such variables were not judged.
func Check(ctx context.Context, s *store.Store, o Options) (warnings int, unknown []string, err error) {
	b, err := begin(s, o)
	if err != nil {
		return 0, nil, err
	}
	if b.Context == "-" || isGit(b.Context) { // a context is to be put somewhere
		if b.work, err = s.TempDir(); err != nil {
			return 0, nil, err
		}
		defer store.RemoveAll(b.work)
	}
	told := b.Progress
	b.Progress = func(e Event) {
		warnings++
		if told != nil {
			told(e)
		}
	}
	b.allStages = o.Target == ""
	_, err = b.prepare(ctx)
	if b.lint == nil { // there is nothing to look at
		return 0, nil, err
	}
	for i := range b.lint.suspects {
		unknown = append(unknown, b.lint.scopes[i].image)
	}
	slices.Sort(unknown)
	return warnings, slices.Compact(unknown), err
}

// startLint makes the linter, as the build argument or the file's directive
// has it.
func (b *builder) startLint() error {
	b.lint = &lint{told: map[string]bool{}, scopes: map[int]*scope{}, suspects: map[int][]suspect{}}
	options, given := b.Args[checkArg]
	where := "--build-arg " + checkArg + "="
	if !given {
		where = "# check="
		options, _, _, _ = parser.ParseDirective("check", b.source)
	}
	config, err := linter.ParseLintOptions(options)
	if err != nil {
		return fmt.Errorf("%s: reading %s%q: %w; write skip=RULE,…;error=true;experimental=RULE,…", b.file, where, options, err)
	}
	config.Warn = func(rule, _, url, text string, at []parser.Range) {
		line := 0
		if len(at) > 0 {
			line = at[0].Start.Line
		}
		b.lint.found = append(b.lint.found, Event{Warning: fmt.Sprintf("%s:%d: %s: %s", b.file, line, rule, text), Line: line, Rule: rule, URL: url})
	}
	b.lint.rules = linter.New(config)
	return nil
}

// tellFound reports what was found, in the order of lines. It is an error
// where the Dockerfile asks for that.
func (b *builder) tellFound() error {
	b.mu.Lock()
	found := slices.DeleteFunc(b.lint.found, func(e Event) bool {
		again := b.lint.told[e.Warning] // two words of an instruction, for one
		b.lint.told[e.Warning] = true
		return again
	})
	b.lint.found = nil
	b.mu.Unlock()
	slices.SortStableFunc(found, func(x, y Event) int { return x.Line - y.Line })
	var rules []string
	for _, e := range found {
		b.report(e)
		rules = append(rules, e.Rule)
	}
	if len(found) == 0 || !b.lint.rules.ReturnAsError {
		return nil
	}
	slices.Sort(rules)
	return b.lineError(parser.Range{Start: parser.Position{Line: found[0].Line}}, "", fmt.Errorf("the checks find %s, and check=error=true makes warnings errors", strings.Join(slices.Compact(rules), ", ")))
}

// checkLines takes over what the parser of lines found.
func (b *builder) checkLines(warnings []parser.Warning) {
	for _, w := range warnings {
		if w.URL == linter.RuleNoEmptyContinuation.URL && w.Location != nil {
			b.lint.rules.Run(&linter.RuleNoEmptyContinuation, []parser.Range{*w.Location}, linter.RuleNoEmptyContinuation.Format())
		}
	}
}

// check looks over the parsed Dockerfile.
func (b *builder) check() {
	b.checkNames()
	b.checkCasing()
	b.checkFroms()
	for i := range b.stages {
		if b.needs[i] {
			b.checkStage(i)
		}
	}
}

// checkNames finds stages of one name and of names that mean something else.
func (b *builder) checkNames() {
	seen := map[string]bool{}
	for _, st := range b.stages {
		if st.Name == "scratch" || st.Name == "context" {
			b.lint.rules.Run(&linter.RuleReservedStageName, st.Location, linter.RuleReservedStageName.Format(st.Name))
		}
		if st.Name != "" && seen[st.Name] {
			b.lint.rules.Run(&linter.RuleDuplicateStageName, st.Location, linter.RuleDuplicateStageName.Format(st.Name))
		}
		seen[st.Name] = true
	}
}

// checkCasing finds instructions that are not written as most of them are.
func (b *builder) checkCasing() {
	type word struct {
		text string
		at   []parser.Range
	}
	var words []word
	lower, upper := 0, 0
	add := func(text string, at []parser.Range) {
		words = append(words, word{text, at})
		switch text {
		case strings.ToLower(text):
			lower++
		case strings.ToUpper(text):
			upper++
		}
	}
	for _, st := range b.stages {
		add(st.OrigCmd, st.Location)
		for _, c := range st.Commands {
			add(c.Name(), c.Location())
		}
	}
	want, fold := "uppercase", strings.ToUpper
	if lower > upper {
		want, fold = "lowercase", strings.ToLower
	}
	for _, w := range words {
		if fold(w.text) != w.text {
			b.lint.rules.Run(&linter.RuleConsistentInstructionCasing, w.at, linter.RuleConsistentInstructionCasing.Format(w.text, want))
		}
	}
}

// checkFroms checks the variables and platforms of all FROM lines.
func (b *builder) checkFroms() {
	vars, err := b.globals(b.Args)
	if err != nil {
		return // the build will say it
	}
	defaults, err := b.globals(nil)
	if err != nil {
		defaults = nil
	}
	declared := slices.Collect(maps.Keys(vars))
	for _, c := range b.metaArgs {
		for _, a := range c.Args {
			declared = append(declared, a.Key)
		}
	}
	slices.Sort(declared)
	lex := shell.NewLex(b.escape)
	for _, st := range b.stages {
		rules := b.lint.rules.WithMergedConfigFromComments(st.Comments)
		undeclared := func(m shell.ProcessWordResult) {
			for _, v := range slices.Sorted(maps.Keys(m.Unmatched)) {
				if !slices.Contains(declared, v) {
					like, _ := suggest.Search(v, declared, true)
					rules.Run(&linter.RuleUndefinedArgInFrom, st.Location, linter.RuleUndefinedArgInFrom.Format(v, like))
				}
			}
		}
		base, _ := expandWord(lex, st.BaseName, shell.EnvsFromSlice(pairs(vars)))
		undeclared(base)
		if defaults != nil {
			b.checkDefault(st, lex, defaults)
		}
		if st.Platform == "" {
			continue
		}
		p, _ := expandWord(lex, st.Platform, shell.EnvsFromSlice(pairs(vars)))
		undeclared(p)
		_, target := p.Matched["TARGETPLATFORM"]
		switch {
		case target && len(p.Matched) == 1 && len(p.Unmatched) == 0 && p.Result == vars["TARGETPLATFORM"]:
			rules.Run(&linter.RuleRedundantTargetPlatform, st.Location, linter.RuleRedundantTargetPlatform.Format(st.Platform))
		case len(p.Matched) == 0 && len(p.Unmatched) == 0 && !namesPlatform(st.Name, p.Result):
			rules.Run(&linter.RuleFromPlatformFlagConstDisallowed, st.Location, linter.RuleFromPlatformFlagConstDisallowed.Format(p.Result))
		}
	}
}

// namesPlatform says whether a stage's name shows that it is of one platform.
func namesPlatform(stage, platform string) bool {
	parts := strings.Split(platform, "/")
	for _, part := range parts[:min(2, len(parts))] {
		if strings.Contains(stage, part) {
			return true
		}
	}
	return false
}

// checkDefault finds a base that is none without --build-arg. One without
// variables is not the defaults' fault.
func (b *builder) checkDefault(st instructions.Stage, lex *shell.Lex, defaults map[string]string) {
	m, err := expandWord(lex, st.BaseName, shell.EnvsFromSlice(pairs(defaults)))
	if err != nil || !strings.Contains(st.BaseName, "$") {
		return
	}
	if _, err := name.ParseReference(m.Result); err != nil || strings.HasSuffix(m.Result, ":") {
		b.lint.rules.Run(&linter.RuleInvalidDefaultArgInFrom, st.Location, linter.RuleInvalidDefaultArgInFrom.Format(st.BaseName))
	}
}

// judge looks at the suspects of a stage when its base is there: those that the
// base does not define either are told.
func (b *builder) judge(st *stage) error {
	suspects := b.lint.suspects[st.index]
	if len(suspects) == 0 {
		return nil
	}
	known := shell.EnvsFromSlice(st.vars())
	b.mu.Lock()
	for _, s := range suspects {
		if _, ok := known.Get(s.name); !ok {
			undefined(s.rules, s.at, s.name, known.Keys())
		}
	}
	b.mu.Unlock()
	return b.tellFound()
}
