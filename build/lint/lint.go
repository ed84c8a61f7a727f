// Package lint checks a Dockerfile without building it. The checks are BuildKit's, with
// the names and messages of its rules (docs.docker.com/reference/build-checks).
//
//	Dockerfile ─► BuildKit's parser (some rules) ─► Check (the others) ─► warnings
//
// Check walks over the instructions like a build, without executing them. As in
// BuildKit, it checks stage names and FROM in the entire file, but instructions only in
// the stages that are built. It does not check the ONBUILD triggers of base images.
// BuildKit's rule InvalidBaseImagePlatform is missing, because hpcc build reports such a
// base as an error. The variables of a base image are known only after it is pulled;
// CheckBase checks their uses then.
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
	Line int    // line of the Dockerfile, or 0 if the rule reports no line
	Rule string // name of the rule, as in "# check=skip=RULE"
	URL  string // documentation of the rule
	Text string
	// Description is what the rule is about, the same for all its warnings.
	Description string
}

// A Linter checks one Dockerfile. Its methods are safe for concurrent use.
type Linter struct {
	rules    *linter.Linter
	mu       sync.Mutex        // guards the fields below
	found    []Warning         // new warnings
	taken    map[Warning]bool  // warnings that Take has returned
	scopes   map[int]*scope    // scopes at the end of each stage
	suspects map[int][]suspect // by stage, if its base image is not in the store
}

// A suspect is a use of a variable that only the base image can define.
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
	// Globals are the variables that FROM can use. Defaults are their values without
	// build arguments. Either is nil if it could not be computed; the build reports why.
	Globals, Defaults map[string]string
	Parent            func(stage int) (parent int, ok bool) // the earlier stage that a stage is based on
	Base              func(stage int) Base                  // the base image of a stage without a parent
	Ignore            *patternmatcher.PatternMatcher        // of .dockerignore; nil ignores nothing
	IsRemote          func(source string) bool              // reports whether ADD downloads this source
}

// A Base is the base image of a stage.
type Base struct {
	Image string // "" for scratch
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
	config.Warn = func(rule, description, url, text string, at []parser.Range) {
		line := 0
		if len(at) > 0 {
			line = at[0].Start.Line
		}
		l.found = append(l.found, Warning{line, rule, url, text, description})
	}
	l.rules = linter.New(config)
	return l, nil
}

// Rules returns the rules for BuildKit's instruction parser, which checks some of them.
func (l *Linter) Rules() *linter.Linter { return l.rules }

// Fatal reports whether the options turn warnings into errors.
func (l *Linter) Fatal() bool { return l.rules.ReturnAsError }

// Take returns the warnings found since the last call, sorted by line. It returns equal
// warnings, such as two for one instruction, only once.
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

// AddParserWarnings adds the warnings of BuildKit's line parser.
func (l *Linter) AddParserWarnings(warnings []parser.Warning) {
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
	c := &fileCheck{l, f}
	c.checkNames()
	c.checkCasing()
	c.checkFroms()
	for i := range f.Stages {
		if f.Needed[i] {
			c.checkStage(i)
		}
	}
}

// CheckBase checks the variables of a stage that only its base image can define. env is the
// environment of the stage, including that of the base image, as NAME=VALUE.
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

// NeedsBaseCheck reports whether CheckBase has variables to check in a stage.
func (l *Linter) NeedsBaseCheck(stage int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.suspects[stage]) > 0
}

// UnknownBases returns the base images that are not in the store, sorted. Check has not
// checked the uses of variables that these images may set.
func (l *Linter) UnknownBases() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var images []string
	for i := range l.suspects {
		images = append(images, l.scopes[i].image)
	}
	slices.Sort(images)
	return slices.Compact(images)
}

// A fileCheck holds the state of one call of Check.
type fileCheck struct {
	*Linter
	file *File
}

// env returns variables in the form that the lexer needs.
func env(vars map[string]string) shell.EnvGetter {
	list := make([]string, 0, len(vars))
	for k, v := range vars {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return shell.EnvsFromSlice(list)
}

// checkNames finds duplicate and reserved stage names.
func (c *fileCheck) checkNames() {
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

// checkCasing finds instructions that are not in upper or lower case like the majority.
func (c *fileCheck) checkCasing() {
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
func (c *fileCheck) checkFroms() {
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
					similar, _ := suggest.Search(v, declared, true)
					rules.Run(&linter.RuleUndefinedArgInFrom, st.Location, linter.RuleUndefinedArgInFrom.Format(v, similar))
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

// namesPlatform reports whether a stage name contains the OS or architecture of a platform.
func namesPlatform(stage, platform string) bool {
	parts := strings.Split(platform, "/")
	for _, part := range parts[:min(2, len(parts))] {
		if strings.Contains(stage, part) {
			return true
		}
	}
	return false
}

// checkDefault finds a base name that is valid only with --build-arg. A name without
// variables does not depend on build arguments.
func (c *fileCheck) checkDefault(st instructions.Stage, lex *shell.Lex, defaults map[string]string) {
	m, err := expand.Word(lex, st.BaseName, env(defaults))
	if err != nil || !strings.Contains(st.BaseName, "$") {
		return
	}
	if _, err := name.ParseReference(m.Result); err != nil || strings.HasSuffix(m.Result, ":") {
		c.rules.Run(&linter.RuleInvalidDefaultArgInFrom, st.Location, linter.RuleInvalidDefaultArgInFrom.Format(st.BaseName))
	}
}
