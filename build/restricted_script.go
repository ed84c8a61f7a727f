package build

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

// onlyRoot are commands of entry scripts that fail for everybody but root, by kind.
var onlyRoot = map[string]string{
	"su": "become", "sudo": "become", "gosu": "become", "su-exec": "become", "runuser": "become", "setpriv": "become", "doas": "become", "chroot": "become",
	"apt": "install", "apt-get": "install", "yum": "install", "dnf": "install", "microdnf": "install", "apk": "install", "zypper": "install",
	"chown": "own", "useradd": "account", "usermod": "account", "userdel": "account", "groupadd": "account", "groupmod": "account", "adduser": "account", "addgroup": "account",
	"chpasswd": "account", "passwd": "account",
	"mount": "system", "umount": "system", "sysctl": "system", "setcap": "system", "ldconfig": "system", "service": "system", "systemctl": "system", "hostname": "system", "update-ca-certificates": "system",
}

const rootReason = "only root may do that"

// asksWho are conditions of those who have thought of users that are not root.
var asksWho = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\bid -[a-z]*u|\$\{?E?UID\b|whoami|-w |\$\{?USER\b`) })

// wantsUID is a comparison of the uid with a number that is not root's.
var wantsUID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?:id -u|UID)[^\n&|;]*(?:=|-eq|-ne)\s*["']?([1-9][0-9]*)`)
})

// A scriptExaminer looks one script over.
type scriptExaminer struct {
	*examiner
	name   string // in messages
	file   string // whose lines a cure changes; "" is none
	text   string
	strict bool      // set -e: what fails ends it
	aware  [][2]uint // parts that ask who they are first
	mild   [][2]uint // parts whose failure is taken care of
}

// script judges what a shell is given. A text that is no script of a shell says nothing.
func (x *examiner) script(name, file, text string, strict bool) {
	if len(text) >= maxScript {
		return
	}
	tree, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), name)
	if err != nil {
		return
	}
	s := &scriptExaminer{examiner: x, name: name, file: file, text: text, strict: strict}
	syntax.Walk(tree, s.survey)
	syntax.Walk(tree, s.look)
}

// survey finds which parts of a script are careful.
func (s *scriptExaminer) survey(n syntax.Node) bool {
	switch n := n.(type) {
	case *syntax.IfClause:
		for _, c := range n.Cond {
			s.mild = append(s.mild, span(c))
			s.conditional(n, c)
		}
	case *syntax.WhileClause:
		for _, c := range n.Cond {
			s.mild = append(s.mild, span(c))
		}
	case *syntax.BinaryCmd:
		if n.Op == syntax.OrStmt {
			s.mild = append(s.mild, span(n.X))
		}
		if n.Op == syntax.AndStmt || n.Op == syntax.OrStmt {
			s.conditional(n, n.X)
		}
	case *syntax.CaseClause:
		s.conditional(n, n.Word)
	case *syntax.CallExpr:
		words := literals(n)
		if len(words) > 1 && words[0] == "set" && ((strings.HasPrefix(words[1], "-") && strings.Contains(words[1], "e")) || slices.Contains(words, "errexit")) {
			s.strict = true
		}
	}
	return true
}

// conditional notes a part that a condition decides about, where that asks who runs it.
func (s *scriptExaminer) conditional(whole, condition syntax.Node) {
	cond := s.source(condition)
	if !asksWho().MatchString(cond) {
		return
	}
	s.aware = append(s.aware, span(whole))
	if m := wantsUID().FindStringSubmatch(cond); m != nil && m[1] != strconv.Itoa(s.uid) && strings.Contains(s.source(whole), "exit") {
		s.report("error", "uid", whole, fmt.Sprintf("it wants to be user %s and ends where it is not", m[1]), s.lines(whole, ":"))
	}
}

func span(n syntax.Node) [2]uint { return [2]uint{n.Pos().Offset(), n.End().Offset()} }

// source is the text of a part.
func (s *scriptExaminer) source(n syntax.Node) string {
	p := span(n)
	return s.text[min(p[0], uint(len(s.text))):min(p[1], uint(len(s.text)))]
}

// within says whether a part lies in one of several.
func within(n syntax.Node, parts [][2]uint) bool {
	p := span(n)
	return slices.ContainsFunc(parts, func(q [2]uint) bool { return q[0] <= p[0] && p[1] <= q[1] })
}

// literals are the words of a command that need no expansion; "" stands for the others.
func literals(c *syntax.CallExpr) []string {
	var out []string
	for _, w := range c.Args {
		out = append(out, plainWord(w))
	}
	return out
}

// plainWord is a word without expansions, "" where it has some.
func plainWord(w *syntax.Word) string {
	var b strings.Builder
	for _, p := range w.Parts {
		switch p := p.(type) {
		case *syntax.Lit:
			b.WriteString(strings.ReplaceAll(p.Value, `\`, ""))
		case *syntax.SglQuoted:
			b.WriteString(p.Value)
		case *syntax.DblQuoted:
			for _, q := range p.Parts {
				l, ok := q.(*syntax.Lit)
				if !ok {
					return ""
				}
				b.WriteString(l.Value)
			}
		default:
			return ""
		}
	}
	return b.String()
}

// look judges one part of a script.
func (s *scriptExaminer) look(n syntax.Node) bool {
	st, ok := n.(*syntax.Stmt)
	if !ok {
		return true
	}
	for _, r := range st.Redirs {
		if r.Op == syntax.RdrOut || r.Op == syntax.AppOut || r.Op == syntax.RdrAll || r.Op == syntax.AppAll || r.Op == syntax.RdrClob {
			s.written(st, plainWord(r.Word))
		}
	}
	if c, ok := st.Cmd.(*syntax.CallExpr); ok && len(c.Args) > 0 {
		s.command(st, c)
	}
	return true
}

// command judges a simple command.
func (s *scriptExaminer) command(st *syntax.Stmt, c *syntax.CallExpr) {
	words := literals(c)
	became, at := false, 0
	for at < len(words) && slices.Contains([]string{"exec", "command", "env", "nohup", "time", "builtin"}, words[at]) {
		became = became || words[at] == "exec"
		at++
	}
	if at == len(words) {
		return
	}
	name := path.Base(words[at])
	kind := onlyRoot[name]
	if first := s.source(c.Args[at]); strings.Contains(first, "$@") || ((became || kind == "become") && strings.Contains(s.source(c), "$@")) {
		s.passesOn = true
	}
	if words[at] == "" {
		return
	}
	s.called = append(s.called, name)
	if kind != "" {
		s.rootCommand(st, c, kind, name, words[at:])
		return
	}
	for _, p := range writes(name, words[at+1:]) {
		s.written(st, p)
	}
	if _, known := wrappers[name]; became && !known && !within(c, s.aware) {
		passes := s.passesOn
		s.program(words[at])
		s.passesOn = passes
	}
}

// rootCommand judges a command that is root's.
func (s *scriptExaminer) rootCommand(st *syntax.Stmt, c *syntax.CallExpr, kind, name string, words []string) {
	if within(c, s.aware) || strings.Contains(s.source(c), "id -u") {
		return
	}
	level := "warning"
	if !within(c, s.mild) && (s.strict || kind == "become" || kind == "install") {
		level = "error"
	}
	reason := name + ": " + rootReason
	var cure []string
	switch kind {
	case "become":
		reason = name + " becomes another user, which only root may; the pod's user is the one to run as"
		if isPlain(st, c) {
			cure = s.lines(st, strings.TrimSpace(s.without(c, name)))
		}
	case "install":
		reason = name + " installs at every start, which only root may; do it in the Dockerfile"
		cure = append([]string{"RUN " + strings.Join(strings.Fields(s.source(c)), " ")}, s.lines(st, ":")...)
	case "own":
		for _, w := range words[1:] {
			if path.IsAbs(w) && !isSystem(path.Clean(w)) {
				cure = append(cure, s.share(path.Clean(w))...)
			}
		}
		cure = append(cure, s.lines(st, ":")...)
	default:
		cure = s.lines(st, ":")
	}
	s.report(level, "script", st, reason, cure)
}

// isPlain says whether a statement is its command's words and nothing else.
func isPlain(st *syntax.Stmt, c *syntax.CallExpr) bool {
	return !st.Background && !st.Coprocess && !st.Negated && len(st.Redirs) == 0 && len(c.Assigns) == 0
}

// without is the command that a program like gosu or sudo would have run as another user.
func (s *scriptExaminer) without(c *syntax.CallExpr, name string) string {
	var words []string
	at := 0
	for ; path.Base(plainWord(c.Args[at])) != name; at++ { // exec
		words = append(words, s.source(c.Args[at]))
	}
	rest := c.Args[at+1:]
	switch name {
	case "su": // su [-] [USER] [-c TEXT]
		i := slices.IndexFunc(rest, func(w *syntax.Word) bool { return plainWord(w) == "-c" })
		if i < 0 || i+1 == len(rest) {
			return ":"
		}
		return strings.Join(append(words, "sh -c", s.source(rest[i+1])), " ")
	case "gosu", "su-exec", "chroot": // USER COMMAND
		rest = rest[min(1, len(rest)):]
	default:
		for len(rest) > 0 && strings.HasPrefix(plainWord(rest[0]), "-") {
			option := plainWord(rest[0])
			rest = rest[1:]
			if (option == "-u" || option == "-g") && len(rest) > 0 {
				rest = rest[1:]
			}
		}
	}
	if len(rest) == 0 {
		return ":"
	}
	for _, w := range rest {
		words = append(words, s.source(w))
	}
	return strings.Join(words, " ")
}

// writes are the paths that a command writes to, as far as it says them.
func writes(name string, words []string) []string {
	var paths []string
	inPlace := false
	for _, w := range words {
		if strings.HasPrefix(w, "-") {
			inPlace = inPlace || strings.HasPrefix(w, "-i") || w == "--in-place"
		} else {
			paths = append(paths, w)
		}
	}
	switch name {
	case "mkdir", "touch", "tee", "rm", "rmdir":
		return paths
	case "sed":
		if inPlace && len(paths) > 0 {
			return paths[1:]
		}
	case "cp", "mv", "ln", "install":
		if len(paths) > 1 {
			return paths[len(paths)-1:]
		}
	}
	return nil
}

// written judges a path that a script writes to.
func (s *scriptExaminer) written(n syntax.Node, p string) {
	if p == "" || strings.ContainsAny(p, "*?[") || strings.HasPrefix(p, "/dev/") || strings.HasPrefix(p, "/proc/") || within(n, s.aware) {
		return
	}
	p = s.inWorkdir(p)
	real, f, shut, err := s.reach(p)
	dir := path.Dir(p)
	switch {
	case shut == "" && err == nil && f.Kind == fs.ModeDir:
		dir = real
		if s.may(f, mayWrite|mayExecute) {
			return
		}
	case shut == "" && err == nil:
		if s.may(f, mayWrite) {
			return
		}
	case s.writable(dir):
		return
	}
	level := "warning"
	if s.strict && !within(n, s.mild) {
		level = "error"
	}
	cure := s.share(dir)
	if isSystem(dir) {
		cure = []string{fmt.Sprintf("RUN touch %[1]s && chgrp 0 %[1]s && chmod g=u %[1]s", shellWord(p))}
	}
	s.report(level, "script", n, fmt.Sprintf("it writes to %s, which the pod's user may not", p), cure)
}

// report notes a finding about a part of the script.
func (s *scriptExaminer) report(level, rule string, n syntax.Node, reason string, cure []string) {
	subject := s.name
	if s.file != "" {
		subject = fmt.Sprintf("%s:%d", s.name, n.Pos().Line())
	}
	s.add(Finding{Level: level, Rule: rule, Subject: subject, Reason: reason, Cure: cure})
}

// lines are those of a Dockerfile that put text in the place of a part of the script. Nothing is
// said of a text that is on the command line, or of a part that shares its lines with others.
func (s *scriptExaminer) lines(n syntax.Node, text string) []string {
	if s.file == "" || strings.ContainsAny(text, "\n|&\\'") {
		return nil
	}
	first, last := n.Pos().Line(), n.End().Line()
	all := strings.Split(s.text, "\n")
	if int(last) > len(all) || strings.TrimSpace(strings.Join(all[first-1:last], "\n")) != strings.TrimSpace(s.source(n)) {
		return nil
	}
	edit := fmt.Sprintf("%ds|.*|%s|", first, text)
	if last > first {
		edit += fmt.Sprintf(";%d,%ds|.*|:|", first+1, last)
	}
	return []string{fmt.Sprintf("RUN sed -i '%s' %s", edit, shellWord(s.file))}
}
