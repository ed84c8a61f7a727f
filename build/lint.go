package build

import (
	"context"
	"fmt"
	"maps"
	"path"
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
		base, _ := lex.ProcessWordWithMatches(st.BaseName, shell.EnvsFromSlice(pairs(vars)))
		undeclared(base)
		if defaults != nil {
			b.checkDefault(st, lex, defaults)
		}
		if st.Platform == "" {
			continue
		}
		p, _ := lex.ProcessWordWithMatches(st.Platform, shell.EnvsFromSlice(pairs(vars)))
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
	m, err := lex.ProcessWordWithMatches(st.BaseName, shell.EnvsFromSlice(pairs(defaults)))
	if err != nil || !strings.Contains(st.BaseName, "$") {
		return
	}
	if _, err := name.ParseReference(m.Result); err != nil || strings.HasSuffix(m.Result, ":") {
		b.lint.rules.Run(&linter.RuleInvalidDefaultArgInFrom, st.Location, linter.RuleInvalidDefaultArgInFrom.Format(st.BaseName))
	}
}

// A scope is what the instructions of a stage can see of those before them.
type scope struct {
	vars     map[string]string // ENV and ARG, filled in
	declared map[string]bool   // ARG, also without a value
	shell    bool              // SHELL was given
	workdir  bool              // WORKDIR was given
	image    string            // the image below, "" for scratch
	base     func() *v1.Config // its configuration; nil when it is not in the store
}

func (s *scope) clone() *scope {
	c := *s
	c.vars, c.declared = maps.Clone(s.vars), maps.Clone(s.declared)
	return &c
}

// Get looks a variable up (shell.EnvGetter). PATH is always there.
func (s *scope) Get(key string) (string, bool) {
	if v, ok := s.vars[key]; ok {
		return v, true
	}
	if key == "PATH" {
		return "/usr/bin", true
	}
	if base := s.base(); base != nil {
		for _, kv := range base.Env {
			if v, ok := strings.CutPrefix(kv, key+"="); ok {
				return v, true
			}
		}
	}
	return "", false
}

// Keys lists the variables (shell.EnvGetter).
func (s *scope) Keys() []string {
	keys := append(slices.Collect(maps.Keys(s.vars)), "PATH")
	if base := s.base(); base != nil {
		for _, kv := range base.Env {
			k, _, _ := strings.Cut(kv, "=")
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// scopeOf is the scope at the beginning of stage i.
func (b *builder) scopeOf(i int) *scope {
	if j, ok := b.parent(i); ok && b.lint.scopes[j] != nil {
		return b.lint.scopes[j].clone()
	}
	base, _ := b.expandMeta(b.stages[i].BaseName)
	_, given := b.Contexts[base]
	s := &scope{vars: map[string]string{}, declared: map[string]bool{}, base: func() *v1.Config { return &v1.Config{} }}
	if base != "scratch" || given {
		s.image = base
		s.base = sync.OnceValue(func() *v1.Config { return b.knownConfig(i, base) })
	}
	return s
}

// knownConfig is the configuration of an image in the store, with the variables
// that its triggers set; nil when it is not there.
func (b *builder) knownConfig(i int, image string) *v1.Config {
	if c, ok := b.Contexts[image]; ok {
		image = strings.TrimPrefix(c, imageContext)
	}
	p, err := b.platformOf(b.stages[i])
	if err != nil {
		return nil
	}
	img, err := b.store.Get(image, p)
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

// A stageCheck is a walk over the instructions of one stage.
type stageCheck struct {
	*scope
	b     *builder
	index int
	rules *linter.Linter // for the instruction under way
	lex   *shell.Lex
	once  map[string][]parser.Range // where CMD and the like stood last
}

// checkStage walks over a stage.
func (b *builder) checkStage(i int) {
	w := &stageCheck{scope: b.scopeOf(i), b: b, index: i, lex: shell.NewLex(b.escape), once: map[string][]parser.Range{}}
	for _, c := range b.stages[i].Commands {
		w.rules = b.lint.rules.WithMergedConfigFromComments(c.Comments())
		w.words(c)
		w.command(c)
	}
	b.lint.scopes[i] = w.scope
}

// words checks the variables in all words of an instruction that are filled in,
// and leaves them as they are.
func (w *stageCheck) words(c instructions.Command) {
	if _, isArg := c.(*instructions.ArgCommand); isArg {
		return // its default may not count
	}
	if e, ok := c.(instructions.SupportsSingleWordExpansion); ok {
		_ = e.Expand(func(word string) (string, error) { w.variables(w.lex, word, c); return word, nil })
	}
	if e, ok := c.(instructions.SupportsSingleWordExpansionRaw); ok {
		raw := shell.NewLex('\\')
		raw.SkipProcessQuotes = true
		_ = e.ExpandRaw(func(word string) (string, error) { w.variables(raw, word, c); return word, nil })
	}
}

// variables finds variables that are not set and not declared.
func (w *stageCheck) variables(lex *shell.Lex, word string, c instructions.Command) {
	if !strings.Contains(word, "$") {
		return
	}
	_, unset, _ := lex.ProcessWord(word, w.scope)
	for _, v := range slices.Sorted(maps.Keys(unset)) {
		switch {
		case w.declared[v] || strings.HasPrefix(v, "BUILDKIT_SBOM_SCAN_"):
		case w.base() == nil:
			w.b.lint.suspects[w.index] = append(w.b.lint.suspects[w.index], suspect{v, c.Location(), w.rules})
		default:
			undefined(w.rules, c.Location(), v, w.Keys())
		}
	}
}

func undefined(rules *linter.Linter, at []parser.Range, v string, known []string) {
	like, _ := suggest.Search(v, known, true)
	rules.Run(&linter.RuleUndefinedVar, at, linter.RuleUndefinedVar.Format(v, like))
}

// fill fills the variables of a word in; a word that cannot be stays.
func (w *stageCheck) fill(word string) string {
	if out, _, err := w.lex.ProcessWord(word, w.scope); err == nil {
		return out
	}
	return word
}

// command checks one instruction and notes what it changes for those after it.
func (w *stageCheck) command(c instructions.Command) {
	at := c.Location()
	switch c := c.(type) {
	case *instructions.ArgCommand:
		w.arg(c)
	case *instructions.EnvCommand:
		set := map[string]string{}
		for _, kv := range c.Env {
			key := w.fill(kv.Key)
			w.legacy(c, kv)
			w.secret("ENV", key, at)
			set[key] = w.fill(kv.Value)
		}
		maps.Copy(w.vars, set)
	case *instructions.LabelCommand:
		for _, kv := range c.Labels {
			w.legacy(c, kv)
		}
	case *instructions.ShellCommand:
		w.shell = true
	case *instructions.CmdCommand:
		w.usedOnce(c)
		w.jsonArgs(c, c.PrependShell)
	case *instructions.EntrypointCommand:
		w.usedOnce(c)
		w.jsonArgs(c, c.PrependShell)
	case *instructions.HealthCheckCommand:
		w.usedOnce(c)
	case *instructions.WorkdirCommand:
		if dir := w.fill(c.Path); !w.workdir && !path.IsAbs(dir) {
			w.rules.Run(&linter.RuleWorkdirRelativePath, at, linter.RuleWorkdirRelativePath.Format(dir))
		}
		w.workdir = true
	case *instructions.ExposeCommand:
		w.expose(c)
	case *instructions.AddCommand:
		w.ignored("Add", c.SourcePaths, at)
	case *instructions.CopyCommand:
		if c.From == "" {
			w.ignored("Copy", c.SourcePaths, at)
		}
	}
}

func (w *stageCheck) arg(c *instructions.ArgCommand) {
	for _, a := range c.Args {
		w.secret("ARG", a.Key, c.Location())
		v, set := w.b.Args[a.Key]
		switch {
		case set:
		case a.Value != nil:
			w.variables(w.lex, *a.Value, c)
			v, set = w.fill(*a.Value), true
		default:
			if globals, err := w.b.globals(w.b.Args); err == nil {
				v, set = globals[a.Key]
			}
		}
		if set {
			w.vars[a.Key] = v
		}
		w.declared[a.Key] = true
	}
}

func (w *stageCheck) legacy(c instructions.Command, kv instructions.KeyValuePair) {
	if kv.NoDelim {
		w.rules.Run(&linter.RuleLegacyKeyValueFormat, c.Location(), linter.RuleLegacyKeyValueFormat.Format(c.Name()))
	}
}

// Words of a variable's name that make it look like a secret, and those that
// make it harmless.
var (
	secretWords   = []string{"apikey", "auth", "credential", "credentials", "key", "password", "pword", "passwd", "secret", "token"}
	harmlessWords = []string{"public", "file", "version"}
)

func (w *stageCheck) secret(instruction, key string, at []parser.Range) {
	secret := false
	for _, word := range strings.Split(strings.ToLower(key), "_") {
		if slices.Contains(harmlessWords, word) {
			return
		}
		secret = secret || slices.Contains(secretWords, word)
	}
	if secret {
		w.rules.Run(&linter.RuleSecretsUsedInArgOrEnv, at, linter.RuleSecretsUsedInArgOrEnv.Format(instruction, key))
	}
}

// usedOnce tells of the instruction before c that counts no more.
func (w *stageCheck) usedOnce(c instructions.Command) {
	kind := strings.ToUpper(c.Name())
	if before := w.once[kind]; before != nil {
		w.rules.Run(&linter.RuleMultipleInstructionsDisallowed, before, linter.RuleMultipleInstructionsDisallowed.Format(c.Name()))
	}
	w.once[kind] = c.Location()
}

func (w *stageCheck) jsonArgs(c instructions.Command, byShell bool) {
	if !byShell || w.shell {
		return
	}
	if base := w.base(); base != nil && len(base.Shell) > 0 {
		return
	}
	w.rules.Run(&linter.RuleJSONArgsRecommended, c.Location(), linter.RuleJSONArgsRecommended.Format(c.Name()))
}

func (w *stageCheck) expose(c *instructions.ExposeCommand) {
	for _, word := range c.Ports {
		ports, err := w.lex.ProcessWords(word, w.scope)
		if err != nil {
			return
		}
		for _, p := range ports {
			port, proto, _ := strings.Cut(p[strings.LastIndexByte(p, ':')+1:], "/")
			if proto != strings.ToLower(proto) {
				w.rules.Run(&linter.RuleExposeProtoCasing, c.Location(), linter.RuleExposeProtoCasing.Format(p))
			}
			if host, _, _ := strings.Cut(p, "/"); host != port {
				w.rules.Run(&linter.RuleExposeInvalidFormat, c.Location(), linter.RuleExposeInvalidFormat.Format(p))
			}
		}
	}
}

// ignored finds sources that .dockerignore leaves out. With exceptions in it
// nothing can be said: some file below may be one.
func (w *stageCheck) ignored(instruction string, sources []string, at []parser.Range) {
	ignore := w.b.context.ignore
	if ignore == nil || ignore.Exclusions() {
		return
	}
	for _, word := range sources {
		src := path.Clean(w.fill(word))
		if isRemote(src) || isRemote(word) {
			continue
		}
		if src == "." || src == "/" {
			all := false
			for _, p := range ignore.Patterns() {
				all = all || slices.Contains([]string{"*", "**", "**/*"}, p.String())
			}
			if !all {
				continue
			}
		}
		if gone, err := ignore.MatchesOrParentMatches(src); err == nil && gone {
			w.rules.Run(&linter.RuleCopyIgnoredFile, at, linter.RuleCopyIgnoredFile.Format(instruction, src))
		}
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
