package lint

import (
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/moby/buildkit/util/suggest"

	"hpcc/build/expand"
)

// This file checks the instructions: it walks over each stage with the variables that a
// build would have at each instruction.

// A scope holds the settings that the instructions of a stage inherit from earlier ones.
type scope struct {
	vars     map[string]string // ENV and ARG, expanded
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

// Get looks up a variable (shell.EnvGetter). PATH is always set.
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

// scopeOf returns the scope at the beginning of a stage.
func (c *checking) scopeOf(stage int) *scope {
	if parent, ok := c.file.Parent(stage); ok && c.scopes[parent] != nil {
		return c.scopes[parent].clone()
	}
	base := c.file.Base(stage)
	return &scope{vars: map[string]string{}, declared: map[string]bool{}, image: base.Image, base: sync.OnceValue(base.Config)}
}

// A stageCheck is a walk over the instructions of one stage.
type stageCheck struct {
	*scope
	*checking
	index int
	rules *linter.Linter // for the instruction under way
	lex   *shell.Lex
	once  map[string][]parser.Range // the last CMD, ENTRYPOINT and HEALTHCHECK
}

// checkStage walks over a stage.
func (c *checking) checkStage(i int) {
	w := &stageCheck{scope: c.scopeOf(i), checking: c, index: i, lex: shell.NewLex(c.file.Escape), once: map[string][]parser.Range{}}
	for _, cmd := range c.file.Stages[i].Commands {
		w.rules = c.rules.WithMergedConfigFromComments(cmd.Comments())
		w.checkVariables(cmd)
		w.command(cmd)
	}
	c.scopes[i] = w.scope
}

// checkVariables checks the variables in all words of an instruction that a build expands. It
// leaves the words unchanged.
func (w *stageCheck) checkVariables(c instructions.Command) {
	if _, isArg := c.(*instructions.ArgCommand); isArg {
		return // a build argument may replace its default
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
	found, _ := expand.Word(lex, word, w.scope)
	for _, v := range slices.Sorted(maps.Keys(found.Unmatched)) {
		switch {
		case w.declared[v] || strings.HasPrefix(v, "BUILDKIT_SBOM_SCAN_"):
		case w.base() == nil:
			w.suspects[w.index] = append(w.suspects[w.index], suspect{v, c.Location(), w.rules})
		default:
			undefined(w.rules, c.Location(), v, w.Keys())
		}
	}
}

func undefined(rules *linter.Linter, at []parser.Range, v string, known []string) {
	like, _ := suggest.Search(v, known, true)
	rules.Run(&linter.RuleUndefinedVar, at, linter.RuleUndefinedVar.Format(v, like))
}

// fill expands the variables in a word. It returns a word with a mistake unchanged.
func (w *stageCheck) fill(word string) string {
	if out, err := expand.Word(w.lex, word, w.scope); err == nil {
		return out.Result
	}
	return word
}

// command checks one instruction and records its effect on later ones.
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
		v, set := w.file.Args[a.Key]
		switch {
		case set:
		case a.Value != nil:
			w.variables(w.lex, *a.Value, c)
			v, set = w.fill(*a.Value), true
		default:
			v, set = w.file.Globals[a.Key]
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

// A variable whose name contains one of secretWords looks like a secret, unless it also
// contains one of harmlessWords.
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

// usedOnce warns about an earlier instruction that c replaces.
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
		ports, err := expand.Words(w.lex, word, w.scope)
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

// ignored finds sources that .dockerignore excludes. It skips a .dockerignore with
// exceptions, because a file below an excluded directory may be one.
func (w *stageCheck) ignored(instruction string, sources []string, at []parser.Range) {
	ignore := w.file.Ignore
	if ignore == nil || ignore.Exclusions() {
		return
	}
	for _, word := range sources {
		src := path.Clean(w.fill(word))
		if w.file.IsRemote(src) || w.file.IsRemote(word) {
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
