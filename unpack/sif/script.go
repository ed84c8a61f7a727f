package sif

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	shell "mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// Limits of scripts that set variables.
const (
	maxScript    = 64 << 10 // bytes
	maxValue     = 32 << 10 // bytes of a variable
	maxVariables = 1000
	maxParts     = 64 // variables in one word
	maxNotes     = 5  // notes about one script
)

// standardPath is the PATH of images that set none, as in Apptainer.
const standardPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// variables are the variables of the image while its scripts are interpreted. Apptainer also
// starts the scripts without the variables of the caller.
type variables struct {
	values   map[string]string
	exported map[string]bool
}

// atRun are variables whose values are only known at run time.
var atRun = []string{"HOME", "USER", "LOGNAME", "PWD", "OLDPWD", "HOSTNAME", "SHELL", "UID", "EUID",
	"RANDOM", "SECONDS", "PPID", "BASH_SOURCE", "TMPDIR"}

// defaults are the supported operators of expansions. Patterns take time that grows with the
// square of a value's length.
var defaults = []syntax.ParExpOperator{syntax.DefaultUnset, syntax.DefaultUnsetOrNull, syntax.AlternateUnset, syntax.AlternateUnsetOrNull}

// newVariables returns the variables of an OCI configuration.
func newVariables(env []string) *variables {
	v := &variables{map[string]string{}, map[string]bool{}}
	for _, kv := range env {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			v.values[name], v.exported[name] = value, true
		}
	}
	if v.values["PATH"] == "" {
		v.values["PATH"], v.exported["PATH"] = standardPath, true
	}
	return v
}

// environment returns the exported variables, those of env first and in its order.
func (v *variables) environment(env []string) (out []string) {
	written := map[string]bool{}
	add := func(name string) {
		if value, ok := v.values[name]; ok && v.exported[name] && !written[name] {
			written[name] = true
			out = append(out, name+"="+value)
		}
	}
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		add(name)
	}
	for _, name := range slices.Sorted(maps.Keys(v.values)) {
		add(name)
	}
	return out
}

// source interprets the assignments of a script, "export NAME=VALUE" and similar lines. It
// runs nothing. It returns a note for each other statement.
func (v *variables) source(file, text string) (notes []string) {
	if len(text) > maxScript {
		return []string{fmt.Sprintf("%s has no effect: it has more than %d bytes", file, maxScript)}
	}
	f, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return []string{fmt.Sprintf("%s has no effect: %.200v", file, err)}
	}
	skipped := 0
	for _, s := range f.Stmts {
		err := v.stmt(s)
		if err == nil {
			continue
		}
		if skipped++; skipped <= maxNotes {
			notes = append(notes, fmt.Sprintf("%s: line %d has no effect: %.200v; set its variables with --set-env",
				file, s.Pos().Line(), err))
		}
	}
	if skipped > maxNotes {
		notes = append(notes, fmt.Sprintf("%s: %d more statements have no effect", file, skipped-maxNotes))
	}
	return notes
}

func (v *variables) stmt(s *syntax.Stmt) error {
	if s.Background || s.Coprocess || s.Disown || s.Negated || len(s.Redirs) > 0 {
		return errStatement
	}
	switch c := s.Cmd.(type) {
	case *syntax.DeclClause:
		if c.Variant.Value != "export" {
			return errStatement
		}
		return v.assign(c.Args, true)
	case *syntax.CallExpr:
		if len(c.Args) == 0 {
			return v.assign(c.Assigns, false)
		}
		switch name := c.Args[0].Lit(); name {
		case ":", "true":
			return nil
		case "unset":
			for _, w := range c.Args[1:] {
				delete(v.values, w.Lit())
				delete(v.exported, w.Lit())
			}
			return nil
		default:
			return fmt.Errorf("it runs %q", name)
		}
	}
	return errStatement
}

var errStatement = errors.New("it is not an assignment")

func (v *variables) assign(list []*syntax.Assign, export bool) error {
	for _, x := range list {
		if x.Name == nil || x.Array != nil || x.Index != nil {
			return errStatement
		}
		name := x.Name.Value
		if !x.Naked {
			value, err := v.expand(x.Value)
			if err != nil {
				return err
			}
			if x.Append {
				value = v.values[name] + value
			}
			if len(value) > maxValue || strings.ContainsRune(value, 0) || len(v.values) >= maxVariables {
				return fmt.Errorf("variable %.100s has %d bytes", name, len(value))
			}
			v.values[name] = value
		}
		if export {
			v.exported[name] = true
		}
	}
	return nil
}

// expand expands the word of a value; nil is "".
func (v *variables) expand(w *syntax.Word) (string, error) {
	if w == nil {
		return "", nil
	}
	if err := v.check(w); err != nil {
		return "", err
	}
	plain := *w // shell.Literal keeps backslashes outside of quotes
	plain.Parts = slices.Clone(w.Parts)
	for i, p := range w.Parts {
		if l, ok := p.(*syntax.Lit); ok && strings.Contains(l.Value, "\\") {
			plain.Parts[i] = &syntax.SglQuoted{Value: unescape(l.Value)}
		}
	}
	return shell.Literal(&shell.Config{Env: (*shellVariables)(v)}, &plain)
}

// unescape removes the backslashes of escaped characters.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// check refuses words that run a program, depend on the run, or could become very large.
func (v *variables) check(w *syntax.Word) (err error) {
	if l, ok := w.Parts[0].(*syntax.Lit); ok && strings.HasPrefix(l.Value, "~") {
		return errors.New("the value of $HOME is known only at run time")
	}
	parts := 0
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst, *syntax.ProcSubst:
			err = errors.New("it has a command substitution")
		case *syntax.ArithmExp, *syntax.ExtGlob, *syntax.BraceExp:
			err = errors.New("it has an unsupported expansion")
		case *syntax.ParamExp:
			parts++
			if _, set := v.values[n.Param.Value]; !set && slices.Contains(atRun, n.Param.Value) {
				err = fmt.Errorf("the value of $%s is known only at run time", n.Param.Value)
			}
			if n.Repl != nil || n.Excl || n.Names != 0 || n.Index != nil || n.Slice != nil ||
				n.Length || n.Width || (n.Exp != nil && !slices.Contains(defaults, n.Exp.Op)) {
				err = errors.New("it has an unsupported expansion")
			}
			if n.Exp != nil && n.Exp.Word != nil {
				for _, p := range n.Exp.Word.Parts {
					if l, ok := p.(*syntax.Lit); ok && strings.Contains(l.Value, "\\") {
						err = errors.New("it has a backslash in an expansion")
					}
				}
			}
		}
		return err == nil
	})
	if err == nil && parts > maxParts {
		err = fmt.Errorf("it has %d variables", parts)
	}
	return err
}

// shellVariables provides variables to expansions.
type shellVariables variables

func (v *shellVariables) Get(name string) shell.Variable {
	if s, ok := v.values[name]; ok {
		return shell.Variable{Set: true, Kind: shell.String, Str: s}
	}
	return shell.Variable{}
}

func (v *shellVariables) Each(f func(string, shell.Variable) bool) {
	for name := range v.values {
		if !f(name, v.Get(name)) {
			return
		}
	}
}
