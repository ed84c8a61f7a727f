package conda

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"strings"

	shell "mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/pattern"
	"mvdan.cc/sh/v3/syntax"

	"hpcc/conda/exports"
	"hpcc/text"
)

// An activation evaluates the shell scripts of etc/conda/activate.d, which "conda
// activate" sources. It interprets a small language: variables, conditions on them and on
// files of the environment, and loops over lists. It executes no program and opens no
// file. A script that does more has no effect and is reported.
type activation struct {
	prefix   string
	is       func(path string) fileKind // type of the file at a path relative to the prefix
	vars     map[string]string
	exported map[string]bool
	steps    int // steps of all scripts so far
}

type fileKind int

const (
	noFile fileKind = iota
	regularFile
	directory
	symbolicLink
)

// Limits of scripts, ten times what real ones need.
const (
	maxActivation = 64 << 10
	maxValue      = 32 << 10
	maxSteps      = 10_000
	maxParts      = 64 // variables in one word
)

// restOfPath represents the PATH of the image below in a variable's value.
const restOfPath = "\x01"

// atRun are variables whose values are only known at run time.
var atRun = map[string]bool{"HOME": true, "USER": true, "LOGNAME": true, "PWD": true, "OLDPWD": true,
	"HOSTNAME": true, "SHELL": true, "TERM": true,
	"UID": true, "EUID": true, "RANDOM": true, "SECONDS": true, "LINENO": true, "PPID": true,
	"BASH_SOURCE": true, "TMPDIR": true, "DISPLAY": true}

// source interprets one script. If it returns an error, for an unsupported construct, no
// variable was changed.
func (a *activation) source(text string) error {
	if len(text) > maxActivation {
		return fmt.Errorf("script too large: %d bytes", len(text))
	}
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return err
	}
	vars, exported := maps.Clone(a.vars), maps.Clone(a.exported)
	err = a.stmts(file.Stmts)
	if errors.Is(err, errReturn) {
		err = nil
	}
	for name, v := range a.vars {
		if name != "PATH" && strings.Contains(v, restOfPath) {
			err = errors.Join(err, fmt.Errorf("it saves PATH in %s", name))
		}
	}
	if p := a.vars["PATH"]; !strings.HasSuffix(p, ":"+restOfPath) || strings.Count(p, restOfPath) != 1 {
		err = errors.Join(err, errors.New("it appends to the image's PATH"))
	}
	if err != nil {
		a.vars, a.exported = vars, exported
	}
	return err
}

// errReturn ends a script.
var errReturn = errors.New("return")

// beyond returns the error for a construct that is not supported.
func beyond(n syntax.Node, format string, args ...any) error {
	return fmt.Errorf("line %d %s", n.Pos().Line(), fmt.Sprintf(format, args...))
}

func (a *activation) stmts(list []*syntax.Stmt) error {
	for _, s := range list {
		if _, err := a.stmt(s); err != nil {
			return err
		}
	}
	return nil
}

// stmt executes a statement and reports whether it succeeded.
func (a *activation) stmt(s *syntax.Stmt) (bool, error) {
	if a.steps++; a.steps > maxSteps {
		return false, beyond(s, "exceeds the limit: step %d", a.steps)
	}
	if s.Background || s.Coprocess || s.Disown {
		return false, beyond(s, "starts a process")
	}
	for _, r := range s.Redirs {
		if w := r.Word.Lit(); s.Cmd == nil || r.Hdoc != nil || (w != "/dev/null" && w != "1" && w != "2") {
			return false, beyond(s, "opens a file")
		}
	}
	ok, err := a.command(s.Cmd)
	return ok != s.Negated, err
}

func (a *activation) command(c syntax.Command) (bool, error) {
	switch c := c.(type) {
	case *syntax.CallExpr:
		return a.call(c)
	case *syntax.DeclClause:
		return true, a.declare(c)
	case *syntax.Block:
		return true, a.stmts(c.Stmts)
	case *syntax.TestClause:
		return a.test(c.X)
	case *syntax.BinaryCmd:
		if c.Op != syntax.AndStmt && c.Op != syntax.OrStmt {
			return false, beyond(c, "has a pipe")
		}
		ok, err := a.stmt(c.X)
		if err != nil || ok == (c.Op == syntax.OrStmt) {
			return ok, err
		}
		return a.stmt(c.Y)
	case *syntax.IfClause:
		return true, a.branch(c)
	case *syntax.ForClause:
		return true, a.loop(c)
	case *syntax.CaseClause:
		return true, a.choose(c)
	}
	return false, beyond(c, "has an unsupported statement")
}

// call executes a simple command.
func (a *activation) call(c *syntax.CallExpr) (bool, error) {
	if len(c.Args) == 0 {
		for _, x := range c.Assigns {
			if err := a.assign(x); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	args, err := a.fields(c.Args)
	if err != nil || len(args) == 0 {
		return err == nil, err
	}
	switch name := args[0]; name {
	case ":", "true":
		return true, nil
	case "false":
		return false, nil
	case "return":
		return true, errReturn
	case "set": // options of the shell
		for _, w := range args[1:] {
			if (!strings.HasPrefix(w, "-") && !strings.HasPrefix(w, "+")) || w == "--" {
				return false, beyond(c, "sets the arguments")
			}
		}
		return true, nil
	case "unset":
		for _, w := range args[1:] {
			if strings.HasPrefix(w, "-") && w != "-v" {
				return false, beyond(c, "unsets with %s", w)
			}
			delete(a.vars, w)
			delete(a.exported, w)
		}
		return true, nil
	case "test", "[":
		return a.testWords(c, args)
	default:
		return false, beyond(c, "runs %q", text.Short(name))
	}
}

// declare executes export NAME[=VALUE]...
func (a *activation) declare(c *syntax.DeclClause) error {
	if c.Variant.Value != "export" {
		return beyond(c, "is %q", c.Variant.Value)
	}
	for _, x := range c.Args {
		if x.Name == nil {
			return beyond(c, "has flags of export")
		}
		if !x.Naked {
			if err := a.assign(x); err != nil {
				return err
			}
		}
		a.exported[x.Name.Value] = true
	}
	return nil
}

func (a *activation) assign(x *syntax.Assign) error {
	if x.Array != nil || x.Index != nil {
		return beyond(x, "has an array")
	}
	v, err := a.literal(x.Value)
	if err != nil {
		return err
	}
	if x.Append {
		v = a.vars[x.Name.Value] + v
	}
	return a.set(x, x.Name.Value, v)
}

func (a *activation) set(at syntax.Node, name, v string) error {
	if len(v) > maxValue || strings.ContainsRune(v, 0) {
		return beyond(at, "gives %s %d bytes", name, len(v))
	}
	a.vars[name] = v
	return nil
}

func (a *activation) branch(c *syntax.IfClause) error {
	for ; c != nil; c = c.Else {
		ok := true
		for _, s := range c.Cond { // none: else
			var err error
			if ok, err = a.stmt(s); err != nil {
				return err
			}
		}
		if ok {
			return a.stmts(c.Then)
		}
	}
	return nil
}

func (a *activation) loop(c *syntax.ForClause) error {
	iter, ok := c.Loop.(*syntax.WordIter)
	if !ok || c.Select || !iter.InPos.IsValid() {
		return beyond(c, "loops over numbers or arguments")
	}
	list, err := a.fields(iter.Items)
	if err != nil {
		return err
	}
	for _, w := range list {
		if err := a.set(c, iter.Name.Value, w); err != nil {
			return err
		}
		if err := a.stmts(c.Do); err != nil {
			return err
		}
	}
	return nil
}

func (a *activation) choose(c *syntax.CaseClause) error {
	word, err := a.literal(c.Word)
	if err != nil {
		return err
	}
	for _, it := range c.Items {
		if it.Op != syntax.Break {
			return beyond(c, "falls through")
		}
		for _, p := range it.Patterns {
			ok, err := a.matches(word, p)
			if err != nil {
				return err
			}
			if ok {
				return a.stmts(it.Stmts)
			}
		}
	}
	return nil
}

// test evaluates the condition of [[ ]].
func (a *activation) test(x syntax.TestExpr) (bool, error) {
	switch x := x.(type) {
	case *syntax.ParenTest:
		return a.test(x.X)
	case *syntax.Word:
		s, err := a.literal(x)
		return s != "", err
	case *syntax.UnaryTest:
		if x.Op == syntax.TsNot {
			ok, err := a.test(x.X)
			return !ok, err
		}
		s, err := a.literal(x.X.(*syntax.Word))
		if err != nil {
			return false, err
		}
		return a.unary(x, x.Op.String(), s)
	case *syntax.BinaryTest:
		switch x.Op {
		case syntax.AndTest, syntax.OrTest:
			ok, err := a.test(x.X)
			if err != nil || ok == (x.Op == syntax.OrTest) {
				return ok, err
			}
			return a.test(x.Y)
		case syntax.TsMatch, syntax.TsMatchShort, syntax.TsNoMatch:
			s, err := a.literal(x.X.(*syntax.Word))
			if err != nil {
				return false, err
			}
			ok, err := a.matches(s, x.Y.(*syntax.Word))
			return ok != (x.Op == syntax.TsNoMatch), err
		}
		return false, beyond(x, "uses the unsupported test %q", x.Op)
	}
	return false, beyond(x, "has an unsupported test")
}

// testWords evaluates test and [ ], with up to three arguments.
func (a *activation) testWords(at syntax.Node, w []string) (ok bool, err error) {
	if w[0] == "[" {
		if w[len(w)-1] != "]" {
			return false, beyond(at, "has no ]")
		}
		w = w[:len(w)-1]
	}
	w = w[1:]
	not := false
	for len(w) > 1 && w[0] == "!" {
		w, not = w[1:], !not
	}
	switch {
	case len(w) == 0:
	case len(w) == 1:
		ok = w[0] != ""
	case len(w) == 2:
		ok, err = a.unary(at, w[0], w[1])
	case len(w) == 3 && (w[1] == "=" || w[1] == "=="):
		ok = w[0] == w[2]
	case len(w) == 3 && w[1] == "!=":
		ok = w[0] != w[2]
	default:
		return false, beyond(at, "has a test with %d arguments", len(w))
	}
	return ok != not, err
}

// unary evaluates a test with one operand.
func (a *activation) unary(at syntax.Node, op, s string) (bool, error) {
	switch op {
	case "-n":
		return s != "", nil
	case "-z":
		return s == "", nil
	case "-v":
		_, ok := a.vars[s]
		return ok, nil
	case "-e", "-f", "-d", "-r", "-s":
		if s == "" {
			return false, nil
		}
		rel, below := strings.CutPrefix(path.Clean(s)+"/", a.prefix+"/")
		if !path.IsAbs(s) || !below {
			return false, beyond(at, "tests %q, which is outside of the environment", text.Short(s))
		}
		rel = strings.TrimSuffix(rel, "/")
		for d := rel; d != "" && d != "."; d = path.Dir(d) {
			if a.is(d) == symbolicLink {
				return false, beyond(at, "follows the link %q", text.Short(d))
			}
		}
		kind := a.is(rel)
		if rel == "" {
			kind = directory
		}
		switch op {
		case "-f":
			return kind == regularFile, nil
		case "-d":
			return kind == directory, nil
		}
		return kind != noFile, nil
	}
	return false, beyond(at, "uses the unsupported test %q", text.Short(op))
}

// matches reports whether s matches a word. Unquoted parts of the word are patterns.
func (a *activation) matches(s string, w *syntax.Word) (bool, error) {
	if err := a.simple(w); err != nil {
		return false, err
	}
	p, err := shell.Pattern(a.config(), w)
	if err != nil {
		return false, beyond(w, "cannot be expanded: %v", err)
	}
	expression, err := pattern.Regexp(p, pattern.EntireString)
	if err != nil {
		return false, beyond(w, "has the pattern %q: %v", text.Short(p), err)
	}
	re, err := regexp.Compile(expression)
	if err != nil {
		return false, beyond(w, "has the pattern %q: %v", text.Short(p), err)
	}
	return re.MatchString(s), nil
}

// literal expands a word without splitting it; nil expands to "".
func (a *activation) literal(w *syntax.Word) (string, error) {
	if w == nil {
		return "", nil
	}
	if err := a.simple(w); err != nil {
		return "", err
	}
	s, err := shell.Literal(a.config(), w)
	if err != nil {
		return "", beyond(w, "cannot be expanded: %v", err)
	}
	return s, nil
}

// fields expands and splits words like the arguments of a command.
func (a *activation) fields(words []*syntax.Word) (out []string, err error) {
	for _, w := range words {
		if err := a.simple(w); err != nil {
			return nil, err
		}
		for _, p := range w.Parts {
			if l, ok := p.(*syntax.Lit); ok && strings.ContainsAny(l.Value, "*?") {
				return nil, beyond(w, "expands a file name pattern")
			}
		}
		f, err := shell.Fields(a.config(), w)
		if err != nil {
			return nil, beyond(w, "cannot be expanded: %v", err)
		}
		out = append(out, f...)
	}
	return out, nil
}

// simple refuses words that run a program or could expand to something very large.
func (a *activation) simple(w *syntax.Word) (err error) {
	parts := 0
	if l, ok := w.Parts[0].(*syntax.Lit); ok && strings.HasPrefix(l.Value, "~") {
		return beyond(w, "reads $HOME, which is only known at run time")
	}
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.CmdSubst, *syntax.ProcSubst:
			err = beyond(w, "has a command substitution")
		case *syntax.ArithmExp:
			err = beyond(w, "computes")
		case *syntax.ExtGlob, *syntax.BraceExp:
			err = beyond(w, "has extended patterns")
		case *syntax.ParamExp:
			parts++
			if _, set := a.vars[n.Param.Value]; !set && (atRun[n.Param.Value] || !exports.IsVariable(n.Param.Value, "")) {
				err = beyond(w, "reads $%s, which is only known at run time", n.Param.Value)
			}
			if n.Repl != nil || n.Excl || n.Names != 0 || n.Index != nil || n.Slice != nil ||
				(n.Exp != nil && n.Exp.Op == syntax.OtherParamOps) {
				err = beyond(w, "has an unsupported expansion")
			}
		case *syntax.Lit:
			if strings.Contains(n.Value, "{") {
				err = beyond(w, "has a brace expansion")
			}
		}
		return err == nil
	})
	if err == nil && parts > maxParts {
		err = beyond(w, "has %d variables", parts)
	}
	return err
}

func (a *activation) config() *shell.Config { return &shell.Config{Env: (*shellVars)(a)} }

// shellVars provides the variables of an activation to expansions.
type shellVars activation

func (v *shellVars) Get(name string) shell.Variable {
	if s, ok := v.vars[name]; ok {
		return shell.Variable{Set: true, Kind: shell.String, Str: s, Exported: v.exported[name]}
	}
	return shell.Variable{}
}

func (v *shellVars) Each(f func(string, shell.Variable) bool) {
	for name := range v.vars {
		if !f(name, v.Get(name)) {
			return
		}
	}
}
