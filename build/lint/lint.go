// Package lint checks a Dockerfile without building it. The checks are BuildKit's, with
// the names and messages of its rules (docs.docker.com/reference/build-checks).
//
//	Dockerfile ─► BuildKit's parser (some rules) ─► Check (the others) ─► warnings
//
// Check walks over the instructions like a build, without executing them. As in
// BuildKit, names and FROM are checked in the whole file, instructions only in the
// stages that are built; triggers of a base image do not belong to the file.
// BuildKit's InvalidBaseImagePlatform is missing: hpcc build reports such a base as an
// error. Which variables a base image sets is known only when the image is.
package lint

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/moby/buildkit/util/suggest"
	"github.com/moby/patternmatcher"

	"hpcc/build/expand"
)

// A Warning reports a line that breaks a rule.
type Warning struct {
	Line int    // of the Dockerfile; 0 if the rule names no line
	Rule string // the rule's name, as "# check=skip=" takes it
	URL  string // where the rule is explained
	Text string
}

// A Linter checks one Dockerfile. Its methods may be called at the same time.
type Linter struct {
	rules    *linter.Linter
	mu       sync.Mutex // of the fields below
	found    []Warning
	taken    map[Warning]bool
	scopes   map[int]*scope    // of stages at their end
	suspects map[int][]suspect // of stages on images that are still to be pulled
}

// A suspect is a variable that only a base image can define.
type suspect struct {
	name  string
	at    []parser.Range
	rules *linter.Linter
}

// A File is a parsed Dockerfile with the values that a build computes before it runs.
type File struct {
	Stages []instructions.Stage
	Needed map[int]bool // the stages whose instructions are checked
	Escape rune
	Args   map[string]string // build arguments
	Meta   []string          // names that ARG declares before the first FROM
	// Globals are the variables that FROM can use, Defaults those without build
	// arguments. Nil ones could not be computed; the build reports why.
	Globals, Defaults map[string]string
	Parent            func(stage int) (parent int, ok bool) // the stage that a stage begins with
	Base              func(stage int) Base                  // the image below a stage that has no parent
	Ignore            *patternmatcher.PatternMatcher        // of .dockerignore; nil ignores nothing
	IsRemote          func(source string) bool              // ADD fetches this source
}

// A Base is the image below a stage.
type Base struct {
	Image string // "" is scratch
	// Config returns the image's configuration, with the variables that its triggers
	// set, or nil if the image is not in the store. It is called at most once.
	Config func() *v1.Config
}

// New returns a linter. The options have the syntax of the directive "# check=".
func New(options string) (*Linter, error) {
	l := &Linter{taken: map[Warning]bool{}, scopes: map[int]*scope{}, suspects: map[int][]suspect{}}
	config, err := linter.ParseLintOptions(options)
	if err != nil {
		return nil, err
	}
	config.Warn = func(rule, _, url, text string, at []parser.Range) {
		line := 0
		if len(at) > 0 {
			line = at[0].Start.Line
		}
		l.found = append(l.found, Warning{line, rule, url, text})
	}
	l.rules = linter.New(config)
	return l, nil
}

// Rules returns the rules for BuildKit's parser of instructions, which checks some of them.
func (l *Linter) Rules() *linter.Linter { return l.rules }

// Fatal reports whether the options make warnings errors.
func (l *Linter) Fatal() bool { return l.rules.ReturnAsError }

// Take returns the warnings that were found since the last call, in the order of their
// lines. It returns equal warnings, such as two for one instruction, only once.
func (l *Linter) Take() []Warning {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := slices.DeleteFunc(l.found, func(w Warning) bool {
		again := l.taken[w]
		l.taken[w] = true
		return again
	})
	l.found = nil
	slices.SortStableFunc(found, func(x, y Warning) int { return x.Line - y.Line })
	return found
}

// Lines adds the warnings of the parser of lines.
func (l *Linter) Lines(warnings []parser.Warning) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range warnings {
		if w.URL == linter.RuleNoEmptyContinuation.URL && w.Location != nil {
			l.rules.Run(&linter.RuleNoEmptyContinuation, []parser.Range{*w.Location}, linter.RuleNoEmptyContinuation.Format())
		}
	}
}

// Check checks a parsed Dockerfile.
func (l *Linter) Check(f *File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &checking{l, f}
	c.checkNames()
	c.checkCasing()
	c.checkFroms()
	for i := range f.Stages {
		if f.Needed[i] {
			c.checkStage(i)
		}
	}
}

// CheckBase checks the variables of a stage that only its base can define: env is the
// stage's environment on that base, as NAME=VALUE.
func (l *Linter) CheckBase(stage int, env []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := shell.EnvsFromSlice(env)
	for _, s := range l.suspects[stage] {
		if _, ok := known.Get(s.name); !ok {
			undefined(s.rules, s.at, s.name, known.Keys())
		}
	}
}

// Suspicious reports whether CheckBase has anything to check for a stage.
func (l *Linter) Suspicious(stage int) bool { return len(l.suspects[stage]) > 0 }

// Unknown returns the base images that are not in the store, sorted: uses of variables
// that they may set were not checked.
func (l *Linter) Unknown() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var images []string
	for i := range l.suspects {
		images = append(images, l.scopes[i].image)
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// A checking is one call of Check.
type checking struct {
	*Linter
	file *File
}

// env returns variables for the lexer.
func env(vars map[string]string) shell.EnvGetter {
	list := make([]string, 0, len(vars))
	for k, v := range vars {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return shell.EnvsFromSlice(list)
}

// checkNames finds stages with equal names, and with names that are reserved.
func (c *checking) checkNames() {
	seen := map[string]bool{}
	for _, st := range c.file.Stages {
		if st.Name == "scratch" || st.Name == "context" {
			c.rules.Run(&linter.RuleReservedStageName, st.Location, linter.RuleReservedStageName.Format(st.Name))
		}
		if st.Name != "" && seen[st.Name] {
			c.rules.Run(&linter.RuleDuplicateStageName, st.Location, linter.RuleDuplicateStageName.Format(st.Name))
		}
		seen[st.Name] = true
	}
}

// checkCasing finds instructions whose case differs from that of the majority.
func (c *checking) checkCasing() {
	type keyword struct {
		text string
		at   []parser.Range
	}
	var keywords []keyword
	lower, upper := 0, 0
	add := func(text string, at []parser.Range) {
		keywords = append(keywords, keyword{text, at})
		switch text {
		case strings.ToLower(text):
			lower++
		case strings.ToUpper(text):
			upper++
		}
	}
	for _, st := range c.file.Stages {
		add(st.OrigCmd, st.Location)
		for _, cmd := range st.Commands {
			add(cmd.Name(), cmd.Location())
		}
	}
	want, fold := "uppercase", strings.ToUpper
	if lower > upper {
		want, fold = "lowercase", strings.ToLower
	}
	for _, k := range keywords {
		if fold(k.text) != k.text {
			c.rules.Run(&linter.RuleConsistentInstructionCasing, k.at, linter.RuleConsistentInstructionCasing.Format(k.text, want))
		}
	}
}

// checkFroms checks the variables and platforms of all FROM lines.
func (c *checking) checkFroms() {
	vars := c.file.Globals
	if vars == nil {
		return // the build reports why
	}
	declared := slices.Concat(slices.Collect(maps.Keys(vars)), c.file.Meta)
	slices.Sort(declared)
	lex := shell.NewLex(c.file.Escape)
	for _, st := range c.file.Stages {
		rules := c.rules.WithMergedConfigFromComments(st.Comments)
		undeclared := func(m shell.ProcessWordResult) {
			for _, v := range slices.Sorted(maps.Keys(m.Unmatched)) {
				if !slices.Contains(declared, v) {
					like, _ := suggest.Search(v, declared, true)
					rules.Run(&linter.RuleUndefinedArgInFrom, st.Location, linter.RuleUndefinedArgInFrom.Format(v, like))
				}
			}
		}
		base, _ := expand.Word(lex, st.BaseName, env(vars))
		undeclared(base)
		if c.file.Defaults != nil {
			c.checkDefault(st, lex, c.file.Defaults)
		}
		if st.Platform == "" {
			continue
		}
		p, _ := expand.Word(lex, st.Platform, env(vars))
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

// namesPlatform reports whether a stage's name contains the system or architecture of a platform.
func namesPlatform(stage, platform string) bool {
	parts := strings.Split(platform, "/")
	for _, part := range parts[:min(2, len(parts))] {
		if strings.Contains(stage, part) {
			return true
		}
	}
	return false
}

// checkDefault finds a base whose name is valid only with --build-arg. A base without
// variables does not depend on the defaults.
func (c *checking) checkDefault(st instructions.Stage, lex *shell.Lex, defaults map[string]string) {
	m, err := expand.Word(lex, st.BaseName, env(defaults))
	if err != nil || !strings.Contains(st.BaseName, "$") {
		return
	}
	if _, err := name.ParseReference(m.Result); err != nil || strings.HasSuffix(m.Result, ":") {
		c.rules.Run(&linter.RuleInvalidDefaultArgInFrom, st.Location, linter.RuleInvalidDefaultArgInFrom.Format(st.BaseName))
	}
}
