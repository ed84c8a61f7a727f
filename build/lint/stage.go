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
	vars       map[string]string // ENV and ARG, expanded
	declared   map[string]bool   // names of ARG, with or without a value
	hasShell   bool              // a SHELL instruction was found
	hasWorkdir bool              // a WORKDIR instruction was found
	image      string            // the base image, or "" for scratch
	base       func() *v1.Config // configuration of image, or nil if it is not in the store
}

func (s *scope) clone() *scope {
	c := *s
	c.vars, c.declared = maps.Clone(s.vars), maps.Clone(s.declared)
	return &c
}

// Get returns the value of a variable (shell.EnvGetter). PATH is always set.
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

// Keys returns the names of the variables (shell.EnvGetter).
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
func (c *fileCheck) scopeOf(stage int) *scope {
	if parent, ok := c.file.Parent(stage); ok && c.scopes[parent] != nil {
		return c.scopes[parent].clone()
	}
	base := c.file.Base(stage)
	return &scope{vars: map[string]string{}, declared: map[string]bool{}, image: base.Image, base: sync.OnceValue(base.Config)}
}

// A stageCheck is a walk over the instructions of one stage.
type stageCheck struct {
	*scope
	*fileCheck
	index int
	rules *linter.Linter // rules for the current instruction
	lex   *shell.Lex
	last  map[string][]parser.Range // positions of the last CMD, ENTRYPOINT and HEALTHCHECK
}

// checkStage checks the instructions of stage i.
func (c *fileCheck) checkStage(i int) {
	w := &stageCheck{scope: c.scopeOf(i), fileCheck: c, index: i, lex: shell.NewLex(c.file.Escape), last: map[string][]parser.Range{}}
	for _, cmd := range c.file.Stages[i].Commands {
		w.rules = c.rules.WithMergedConfigFromComments(cmd.Comments())
		w.checkVariables(cmd)
		w.checkCommand(cmd)
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
		_ = e.Expand(func(word string) (string, error) { w.checkWord(w.lex, word, c); return word, nil })
	}
	if e, ok := c.(instructions.SupportsSingleWordExpansionRaw); ok {
		raw := shell.NewLex('\\')
		raw.SkipProcessQuotes = true
		_ = e.ExpandRaw(func(word string) (string, error) { w.checkWord(raw, word, c); return word, nil })
	}
}

// checkWord finds variables in a word that are neither set nor declared.
func (w *stageCheck) checkWord(lex *shell.Lex, word string, c instructions.Command) {
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

// undefined warns about variable v, which is not one of the known variables.
func undefined(rules *linter.Linter, at []parser.Range, v string, known []string) {
	similar, _ := suggest.Search(v, known, true)
	rules.Run(&linter.RuleUndefinedVar, at, linter.RuleUndefinedVar.Format(v, similar))
}

// expandWord expands the variables in a word. It returns an invalid word unchanged.
func (w *stageCheck) expandWord(word string) string {
	if out, err := expand.Word(w.lex, word, w.scope); err == nil {
		return out.Result
	}
	return word
}

// checkCommand checks one instruction, and records its effect on later ones.
func (w *stageCheck) checkCommand(c instructions.Command) {
	at := c.Location()
	switch c := c.(type) {
	case *instructions.ArgCommand:
		w.checkArg(c)
	case *instructions.EnvCommand:
		set := map[string]string{}
		for _, kv := range c.Env {
			key := w.expandWord(kv.Key)
			w.checkKeyValue(c, kv)
			w.checkSecret("ENV", key, at)
			set[key] = w.expandWord(kv.Value)
		}
		maps.Copy(w.vars, set)
	case *instructions.LabelCommand:
		for _, kv := range c.Labels {
			w.checkKeyValue(c, kv)
		}
	case *instructions.ShellCommand:
		w.hasShell = true
	case *instructions.CmdCommand:
		w.checkReplaced(c)
		w.checkShellForm(c, c.PrependShell)
	case *instructions.EntrypointCommand:
		w.checkReplaced(c)
		w.checkShellForm(c, c.PrependShell)
	case *instructions.HealthCheckCommand:
		w.checkReplaced(c)
	case *instructions.WorkdirCommand:
		if dir := w.expandWord(c.Path); !w.hasWorkdir && !path.IsAbs(dir) {
			w.rules.Run(&linter.RuleWorkdirRelativePath, at, linter.RuleWorkdirRelativePath.Format(dir))
		}
		w.hasWorkdir = true
	case *instructions.ExposeCommand:
		w.checkPorts(c)
	case *instructions.AddCommand:
		w.checkSources("Add", c.SourcePaths, at)
	case *instructions.CopyCommand:
		if c.From == "" {
			w.checkSources("Copy", c.SourcePaths, at)
		}
	}
}

// checkArg checks ARG, and sets the variables that it declares.
func (w *stageCheck) checkArg(c *instructions.ArgCommand) {
	for _, a := range c.Args {
		w.checkSecret("ARG", a.Key, c.Location())
		v, set := w.file.Args[a.Key]
		switch {
		case set:
		case a.Value != nil:
			w.checkWord(w.lex, *a.Value, c)
			v, set = w.expandWord(*a.Value), true
		default:
			v, set = w.file.Globals[a.Key]
		}
		if set {
			w.vars[a.Key] = v
		}
		w.declared[a.Key] = true
	}
}

// checkKeyValue warns about "NAME VALUE" in place of NAME=VALUE.
func (w *stageCheck) checkKeyValue(c instructions.Command, kv instructions.KeyValuePair) {
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

// checkSecret warns about a variable whose name looks like a secret.
func (w *stageCheck) checkSecret(instruction, key string, at []parser.Range) {
	hasSecretWord := false
	for _, word := range strings.Split(strings.ToLower(key), "_") {
		if slices.Contains(harmlessWords, word) {
			return
		}
		hasSecretWord = hasSecretWord || slices.Contains(secretWords, word)
	}
	if hasSecretWord {
		w.rules.Run(&linter.RuleSecretsUsedInArgOrEnv, at, linter.RuleSecretsUsedInArgOrEnv.Format(instruction, key))
	}
}

// checkReplaced warns about an earlier instruction of the same kind, which c replaces.
func (w *stageCheck) checkReplaced(c instructions.Command) {
	kind := strings.ToUpper(c.Name())
	if earlier := w.last[kind]; earlier != nil {
		w.rules.Run(&linter.RuleMultipleInstructionsDisallowed, earlier, linter.RuleMultipleInstructionsDisallowed.Format(c.Name()))
	}
	w.last[kind] = c.Location()
}

// checkShellForm recommends JSON arguments if the default shell runs c.
func (w *stageCheck) checkShellForm(c instructions.Command, usesShell bool) {
	if !usesShell || w.hasShell {
		return
	}
	if base := w.base(); base != nil && len(base.Shell) > 0 {
		return
	}
	w.rules.Run(&linter.RuleJSONArgsRecommended, c.Location(), linter.RuleJSONArgsRecommended.Format(c.Name()))
}

// checkPorts checks the ports of EXPOSE.
func (w *stageCheck) checkPorts(c *instructions.ExposeCommand) {
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

// checkSources finds sources that .dockerignore excludes. If .dockerignore has exceptions, it
// checks nothing, because files below an excluded directory may be exceptions.
func (w *stageCheck) checkSources(instruction string, sources []string, at []parser.Range) {
	ignore := w.file.Ignore
	if ignore == nil || ignore.Exclusions() {
		return
	}
	for _, word := range sources {
		src := path.Clean(w.expandWord(word))
		if w.file.IsRemote(src) || w.file.IsRemote(word) {
			continue
		}
		if src == "." || src == "/" {
			ignoresAll := false
			for _, p := range ignore.Patterns() {
				ignoresAll = ignoresAll || slices.Contains([]string{"*", "**", "**/*"}, p.String())
			}
			if !ignoresAll {
				continue
			}
		}
		if excluded, err := ignore.MatchesOrParentMatches(src); err == nil && excluded {
			w.rules.Run(&linter.RuleCopyIgnoredFile, at, linter.RuleCopyIgnoredFile.Format(instruction, src))
		}
	}
}
